// Attention of many rows on sm_90a, 512 channels: scores and weighted values by wgmma, whose operands all lie in shared memory, swizzled. One warpgroup
// scores a block of 64 slots and keeps the softmax in registers; then four weigh 128 channels each. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include <new>

#include "kernels/attention/attention_list.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/linear/wgmma_sm90.cuh"

namespace lockstep::kernels {

// c = A B (+ c), m64nNk16 with bf16 operands in shared memory: N = 64 with B's rows along k (scores), N = 128 with k across B's rows (values). The bits are
// those of mma.sync m16n8k16 (profile sm90).
template <int kN>
__device__ inline void WgmmaBF16(float (&c)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate);

template <>
__device__ inline void WgmmaBF16<64>(float (&c)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

template <>
__device__ inline void WgmmaBF16<128>(float (&c)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 1;\n}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// Of tiles [k][64] that lie kTileBytes apart, n along their rows, permuted like SwizzledDescriptor's; `tile` is a multiple of 1024 bytes.
template <int kTileBytes>
__device__ inline std::uint64_t AcrossDescriptor(const void* tile) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  constexpr std::uint64_t kRows8 = 1024 / 16, kNextTile = kTileBytes / 16, kSwizzle128 = 1;
  return ((address & 0x3ffffu) >> 4) | (kNextTile << 16) | (kRows8 << 32) | (kSwizzle128 << 62);
}

struct AttentionWgmma {
  static constexpr int kThreads = 512, kWarps = kThreads / 32, kHeads = 64, kSlots = kAttentionSlots, kDim = 512;
  static constexpr int kTile = 64 * 128, kTiles = kDim / 64;  // bytes of [64 rows][64 channels]
  static constexpr int kQueries = 0, kKeys = kTiles * kTile, kWeights = 2 * kTiles * kTile, kRescale = kWeights + kTile, kAddress = kRescale + kHeads * 4;
  static constexpr int kList = kAddress + 2 * kSlots * 8, kRaw = kList + (static_cast<int>(sizeof(KeyList)) + 15) / 16 * 16;

  static int SharedBytes(int raw_stride) { return kRaw + kSlots * raw_stride + 1024; }  // 1024: where it begins is made a multiple

  // Where 16 bytes of a row's channels d .. d+7 lie in [row][512].
  __device__ static int Place(int row, int d) { return d / 64 * kTile + row * 128 + ((d / 8 % 8) ^ (row % 8)) * 16; }

  const AttentionArgs& a;
  std::byte* const memory;
  const int raw_stride, head_begin, heads;
  const float scale;
  float max[2] = {NoScore(), NoScore()}, denominator[2] = {};  // warpgroup 0: of heads 16 warp + g and + 8
  float out[64] = {};  // heads as above of its warpgroup's warp x channels 128 * warpgroup + 8 j + 2 q + i % 2, in [4 j + i]

  __device__ AttentionWgmma(const AttentionArgs& args, int raw_row, float score_scale, std::byte* shared)
      : a(args), memory(shared), raw_stride(raw_row), head_begin(blockIdx.x % ((args.heads + kHeads - 1) / kHeads) * kHeads), heads(min(kHeads, args.heads - head_begin)),
        scale(score_scale) {
    if (threadIdx.x == 0) new (memory + kList) KeyList(args, Row());
    __syncthreads();
  }

  // Registers are for `out`: what can be found again is.
  __device__ std::int64_t Row() const { return blockIdx.x / ((a.heads + kHeads - 1) / kHeads); }
  __device__ const KeyList& List() const { return *reinterpret_cast<const KeyList*>(memory + kList); }
  __device__ std::byte* Queries() const { return memory + kQueries; }
  __device__ std::byte* Keys() const { return memory + kKeys; }
  __device__ std::byte* Weights() const { return memory + kWeights; }
  __device__ std::byte* Packed(int slot) const { return memory + kRaw + slot * raw_stride; }
  __device__ float& ScaleOf(int head) const { return reinterpret_cast<float*>(memory + kRescale)[head]; }
  __device__ const std::byte*& Address(int b, int slot) const { return reinterpret_cast<const std::byte**>(memory + kAddress)[b % 2 * kSlots + slot]; }
  __device__ static int Warp() { return threadIdx.x / 32; }
  __device__ static int G() { return threadIdx.x % 32 / 4; }
  __device__ static int Q() { return threadIdx.x % 4; }

  __device__ void Run() {
    LoadQueries();
    SetAddresses(0, NextAddress(0));
    SetAddresses(1, NextAddress(1));
    __syncthreads();
    Fetch(0);
#pragma unroll 1
    for (int b = 0; b < List().blocks; ++b) {
      const FilledSlots filled = List().Filled(b);
      WaitForCopies<0>();
      __syncthreads();  // the packed rows are there, and nobody reads the keys of the block before
      Unpack(b, filled);
      ShowToTensorCores();
      __syncthreads();
      Fetch(b + 1);
      const std::byte* next = NextAddress(b + 2);
      if (Warp() < 4) Weigh(filled);
      ShowToTensorCores();
      SetAddresses(b + 2, next);
      __syncthreads();
      AddValues();
    }
    Store();
  }

 private:
  __device__ static void ShowToTensorCores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  __device__ void LoadQueries() {
    const std::uint16_t* first = a.q_THD + (Row() * a.heads + head_begin) * kDim;
#pragma unroll 2
    for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kThreads) {
      const int h = i / (kDim / 8), d = i % (kDim / 8) * 8;
      *reinterpret_cast<uint4*>(Queries() + Place(h, d)) = h < heads ? *reinterpret_cast<const uint4*>(first + h * kDim + d) : make_uint4(0u, 0u, 0u, 0u);
    }
  }

  // This thread's slot of block b, for the first 64 threads of the last warpgroup.
  __device__ int OwnSlot() const { return static_cast<int>(threadIdx.x) - (kThreads - kSlots); }
  __device__ const std::byte* NextAddress(int b) const {
    const int slot = OwnSlot();
    return b < List().blocks && slot >= 0 && List().Filled(b).Has(slot) ? List().Address(b, slot) : nullptr;
  }
  __device__ void SetAddresses(int b, const std::byte* row) {
    if (OwnSlot() >= 0) Address(b, OwnSlot()) = row;
  }

  // Eight threads a row.
  template <int kUnit>
  __device__ static void FetchRow(const std::byte* from, std::byte* to, int row_bytes) {
    constexpr int kThreadsPerRow = kThreads / kSlots;
#pragma unroll 4
    for (int i = kUnit * (threadIdx.x % kThreadsPerRow); i < row_bytes; i += kUnit * kThreadsPerRow) CopyAsync<kUnit>(to + i, from + i);
  }
  __device__ void Fetch(int b) {
    if (b >= List().blocks) return;
    const int bytes = List().IsWindow(b) ? static_cast<int>(List().row.window.row_bytes) : List().row.compressed.row_bytes, slot = threadIdx.x / (kThreads / kSlots);
    const std::byte* from = Address(b, slot);
    if (from) {
      const auto bits = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from)) | static_cast<unsigned>(bytes);
      std::byte* to = Packed(slot);
      if (bits % 16 == 0) FetchRow<16>(from, to, bytes);
      else if (bits % 8 == 0) FetchRow<8>(from, to, bytes);
      else FetchRow<4>(from, to, bytes);
    }
    CommitCopies();
  }

  // Packed rows to keys; empty slots become +0.
  __device__ void Unpack(int b, FilledSlots filled) {
    WithReader(List().IsWindow(b) ? a.window_format : a.compressed_format, [&](const auto& reader) {
#pragma unroll 1
      for (int slot = Warp(); slot < kSlots; slot += kWarps) {
        const bool has = filled.Has(slot);
#pragma unroll
        for (int d = 8 * (static_cast<int>(threadIdx.x) & 31); d < kDim; d += 256) *reinterpret_cast<uint4*>(Keys() + Place(slot, d)) = has ? reader(Packed(slot), d) : make_uint4(0u, 0u, 0u, 0u);
      }
    });
  }

  // Warpgroup 0: scores of all heads, softmax, and the weights for all. s[4 j + i]: heads as of `max` (i / 2), slot 8 j + 2 q + i % 2.
  __device__ void Weigh(FilledSlots filled) {
    float s[32];
    const std::uint64_t query = Descriptor(SwizzledDescriptor(Queries())), key = Descriptor(SwizzledDescriptor(Keys()));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kDim; k += 16) WgmmaBF16<64>(s, query + (k / 64 * kTile + k % 64 * 2) / 16, key + (k / 64 * kTile + k % 64 * 2) / 16, k > 0);
    WgmmaCommit();
    WgmmaWait<0>();
    ReadFromHere(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) WeighHead(half, filled, s);
  }

  __device__ void WeighHead(int half, FilledSlots filled, float (&s)[32]) {
    using contract::Add;
    const auto at = [half](int i) { return 4 * (i / 2) + 2 * half + i % 2; };  // of slot 8 (i / 2) + 2 q + i % 2
    float top = max[half];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      s[at(i)] = filled.Has(8 * (i / 2) + 2 * Q() + i % 2) ? contract::Mul(s[at(i)], scale) : NoScore();
      top = fmaxf(top, s[at(i)]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const int row = 16 * Warp() + G() + 8 * half;
    const float factor = Rescale(max[half], top);
    max[half] = top;
#pragma unroll
    for (int i = 0; i < 16; ++i) s[at(i)] = contract::Exp(contract::Sub(s[at(i)], top));
#pragma unroll
    for (int j = 0; j < 8; ++j) *reinterpret_cast<std::uint32_t*>(Weights() + Place(row, 8 * j) + 4 * Q()) = PackBF16(s[at(2 * j)], s[at(2 * j + 1)]);
    float sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // fold: slots 32, 16 and 8 apart are the thread's
      const auto x = [&](int j) { return s[at(2 * j + i)]; };
      sum[i] = Add(Add(Add(x(0), x(4)), Add(x(2), x(6))), Add(Add(x(1), x(5)), Add(x(3), x(7))));
      sum[i] = Add(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 2));
      sum[i] = Add(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 1));
    }
    denominator[half] = contract::Fma(denominator[half], factor, Add(sum[0], sum[1]));
    if (Q() == 0) ScaleOf(row) = factor;
  }

  // Made anew for each block: kept, the descriptors of all steps would take the registers of `out`.
  __device__ static std::uint64_t Descriptor(std::uint64_t first) {
    asm volatile("" : "+l"(first));
    return first;
  }

  // Every warpgroup its 128 channels.
  __device__ void AddValues() {
    const int row = 16 * (Warp() % 4) + G();
    const float factor0 = ScaleOf(row), factor8 = ScaleOf(row + 8);
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] = contract::Mul(out[i], i % 4 < 2 ? factor0 : factor8);
    const std::uint64_t weight = Descriptor(SwizzledDescriptor(Weights())), value = Descriptor(AcrossDescriptor<kTile>(Keys() + Warp() / 4 * 2 * kTile));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kSlots; k += 16) WgmmaBF16<128>(out, weight + k * 2 / 16, value + k * 128 / 16, true);
    WgmmaCommit();
    WgmmaWait<0>();
    ReadFromHere(out);
  }

  __device__ void Store() {
    __syncthreads();
    if (Warp() < 4 && Q() == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * Warp() + G() + 8 * half;
        const float sink = head < heads ? a.sink_H[head_begin + head] : 0.0f;
        ScaleOf(head) = contract::Add(denominator[half], contract::Exp(contract::Sub(sink, max[half])));
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i) {  // through shared memory, so that rows are written whole
      const int j = i / 2, half = i % 2, row = 16 * (Warp() % 4) + G() + 8 * half, channel = Warp() / 4 * 128 + 8 * j + 2 * Q();
      const float divisor = ScaleOf(row);
      const std::uint32_t pair = PackBF16(contract::Div(out[4 * j + 2 * half], divisor), contract::Div(out[4 * j + 2 * half + 1], divisor));
      *reinterpret_cast<std::uint32_t*>(Queries() + Place(row, channel - 2 * Q()) + 4 * Q()) = TurnBack(a, List().row.position, channel, pair);
    }
    __syncthreads();
    std::uint16_t* to = a.out_THD + (Row() * a.heads + head_begin) * kDim;
#pragma unroll 2
    for (int i = threadIdx.x; i < heads * kDim / 8; i += kThreads) {
      const int h = i / (kDim / 8), d = i % (kDim / 8) * 8;
      *reinterpret_cast<uint4*>(to + h * kDim + d) = *reinterpret_cast<const uint4*>(Queries() + Place(h, d));
    }
  }
};

}  // namespace lockstep::kernels
