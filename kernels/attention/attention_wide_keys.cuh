// Keys of attention_wide.cuh: packed rows to bf16 in shared memory.
#pragma once

#include "kernels/attention/attention_wide_layout.cuh"

namespace lockstep::kernels {

// The warpgroup that unpacks. A warp has every fourth slot of a block, two at a time, and its next packed rows are on their way to its own part of shared memory.
class WideKeys : WideLayout {
 public:
  __device__ WideKeys(const AttentionArgs& args, std::byte* memory)
      : a(args), warp(threadIdx.x % kGroup / 32), lane(threadIdx.x & 31), keys(memory + kKeys), packed(memory + kPacked + warp * kRing * kMaxRowBytes) {}

  __device__ void Run() {
    int n = 0;  // of the block in all the rows'
#pragma unroll 1
    for (int item = blockIdx.x; item < WideItem::Count(a); item += gridDim.x) {
      const KeyList list(a, WideItem(a, item).row);
      const std::byte* address = Address(list, 0);
#pragma unroll 1
      for (int pair = 0; pair < kAhead; ++pair) Fetch(list, 0, address, pair);
#pragma unroll 1
      for (int b = 0; b < list.blocks; ++b, ++n) {
        const std::byte* next = Address(list, b + 1);
        if (n >= 2) WaitAt(kKeysFree + n % 2, 3 * kGroup);
        WithReader(list.IsWindow(b) ? a.window_format : a.compressed_format, [&](const auto& reader) { Unpack(reader, list, b, address, next, keys + n % 2 * kMatrix); });
        ShowToTensorCores();
        ArriveAt(kKeysFull + n % 2, 2 * kGroup);
        address = next;
      }
      WaitForCopies<0>();
      __syncwarp();
    }
    for (int left = min(n, 2); left > 0; --left) WaitAt(kKeysFree + (n - left) % 2, 3 * kGroup);
  }

 private:
  static constexpr int kPairs = kSlots / kWarps / 2, kRingPairs = kRing / 2, kAhead = kRingPairs - 1;

  // Slot of the first or second row of a pair.
  __device__ int Slot(int pair, int second) const { return kWarps * (2 * pair + second) + warp; }

  // Lane 2 pair + second: where that slot's packed row is, null if it is empty.
  __device__ const std::byte* Address(const KeyList& list, int b) const {
    const int slot = kWarps * lane + warp;
    return lane < 2 * kPairs && b < list.blocks && list.Filled(b).Has(slot) ? list.Address(b, slot) : nullptr;
  }

  template <int kUnit>
  __device__ void FetchRow(const std::byte* from, std::byte* to, int bytes) const {
    constexpr int kRound = 32 * kUnit;
#pragma unroll
    for (int first = 0; first < kMaxRowBytes; first += kRound) {
      if (const int i = first + kUnit * lane; i < bytes) CopyAsync<kUnit>(to + i, from + i);
    }
  }
  // One group of copies a pair, whether its slots are filled or not.
  __device__ void Fetch(const KeyList& list, int b, const std::byte* addresses, int pair) const {
    const int bytes = list.IsWindow(b) ? static_cast<int>(list.row.window.row_bytes) : list.row.compressed.row_bytes;
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const auto* from = reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(addresses), 2 * pair + second));
      if (!from) continue;
      const auto bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from)) | static_cast<unsigned>(bytes);
      std::byte* to = Packed(pair, second);
      if (bits % 16 == 0) FetchRow<16>(from, to, bytes);
      else if (bits % 8 == 0) FetchRow<8>(from, to, bytes);
      else FetchRow<4>(from, to, bytes);
    }
    CommitCopies();
  }
  __device__ std::byte* Packed(int pair, int second) const { return packed + (2 * (pair % kRingPairs) + second) * kMaxRowBytes; }

  // The warp's slots of block b; empty ones become +0.
  template <class Reader>
  __device__ void Unpack(const Reader& reader, const KeyList& list, int b, const std::byte* address, const std::byte* next, std::byte* to) const {
    const FilledSlots filled = list.Filled(b);
#pragma unroll 1
    for (int pair = 0; pair < kPairs; ++pair) {
      const bool of_next = pair + kAhead >= kPairs;
      Fetch(list, b + of_next, of_next ? next : address, (pair + kAhead) % kPairs);
      WaitForCopies<kAhead>();
      __syncwarp();
      UnpackPair(reader, filled, pair, to + pair * 2 * kWarps * 128);
      __syncwarp();  // all have read the packed rows: their places are free
    }
  }

  // What depends on the slot or the channels comes behind what all do alike: side by side, the four loads and their arithmetic wait for each other little.
  template <class Reader>
  __device__ void UnpackPair(const Reader& reader, FilledSlots filled, int pair, std::byte* to) const {
    uint4 values[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i / 2][i % 2] = reader.Inside(Packed(pair, i / 2), Channel(i % 2));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!reader.HasTail(Channel(half))) continue;
#pragma unroll
      for (int second = 0; second < 2; ++second) values[second][half] = reader.Tail(Packed(pair, second), Channel(half));
    }
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const bool has = filled.Has(Slot(pair, second));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint4*>(to + Place(Slot(0, second), Channel(half))) = has ? values[second][half] : make_uint4(0u, 0u, 0u, 0u);
      }
    }
  }
  __device__ int Channel(int half) const { return 8 * (lane + 32 * half); }

  const AttentionArgs& a;
  const int warp, lane;
  std::byte *const keys, *const packed;
};

}  // namespace lockstep::kernels
