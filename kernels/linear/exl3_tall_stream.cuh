// What a block of a tall EXL3 tile reads, on its way to shared memory: units of codes with their scales, and the weights of eight strips for each
// 128-block. One warpgroup copies; the others wait at barriers for what they need next and say what they are done with.
#pragma once

#include "kernels/device/mbarrier_sm90.cuh"
#include "kernels/device/warpgroups.cuh"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/exl3_tall_tile.cuh"

namespace lockstep::kernels {

// Where a block's inputs lie in memory.
template <int kB2, class Tile>
struct TallInputs {
  using Memory = TallMemory<kB2, Tile>;

  const std::byte *codes, *strips;
  const float* scales;
  std::int64_t slots, half_bytes, strip_bytes;  // half_bytes: of all codes of 64 inputs
  int blocks;

  __device__ TallInputs(const Exl3Call& call, const Exl3Job& job, std::int64_t slot, std::int64_t column)
      : codes(call.codes + slot * 256),
        strips(reinterpret_cast<const std::byte*>(job.tiles) + column * call.in * kB2 / 16),
        scales(call.scales + slot),
        slots(call.tiles.large_slots()),
        half_bytes(slots * 256),
        strip_bytes(std::int64_t{call.in} * kB2),
        blocks(call.in / 128) {}

  // Half a unit's codes.
  __device__ const std::byte* CodesOf(int block, int group, int half) const { return codes + (2 * block + half) * half_bytes + group * (Tile::kN * 128); }
  __device__ const float* ScalesOf(int block, int group) const { return scales + block * slots + group * Tile::kGroupRows; }
  // The 16 bytes `piece` of the weights of a 128-block, which are strip after strip.
  __device__ const std::byte* WeightsOf(int block, int piece) const {
    constexpr int kStripPieces = 8 * kB2;
    return strips + piece / kStripPieces * strip_bytes + (block * kStripPieces + piece % kStripPieces) * 16;
  }
};

__device__ inline void SyncMultiplyWarps() { SyncSome<1, kMultiplyThreads>(); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A place in a ring of kCount, and the parity of the phase of its barrier.
template <int kCount>
struct RingPlace {
  int at = 0;
  std::uint32_t parity = 0;

  __device__ void Next() {
    if (++at == kCount) at = 0, parity ^= 1u;
  }
};

template <int kB2, class Tile>
class TallStream {
 public:
  using Inputs = TallInputs<kB2, Tile>;
  using Memory = TallMemory<kB2, Tile>;

  // All threads; a block barrier must follow. `memory`: Memory::kBytes on a multiple of 1024.
  __device__ explicit TallStream(std::byte* memory) : memory_(memory), barriers_(SharedAddress(memory + Memory::kBarriersAt)) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < Memory::kUnits; ++i) InitBarrier(UnitThere(i), 1), InitBarrier(UnitFree(i), kMultiplyThreads);
    for (int i = 0; i < Memory::kWeightStages; ++i) InitBarrier(WeightsThere(i), 1), InitBarrier(WeightsFree(i), kMultiplyThreads);
    ShowBarriers();
  }

  // The copying warpgroup: everything, in the order of its use. One warp brings units, another one weights.
  __device__ void Copy(const Inputs& inputs) {
    const int thread = static_cast<int>(threadIdx.x) - kMultiplyThreads;
    if (thread == 0) CopyUnits(inputs);
    else if (thread >= 32 && thread < 32 + kStrips) CopyWeights(inputs, thread - 32);
  }

  // The others: the next unit's codes, when they are there; its scales; the same for weights.
  __device__ const std::byte* NextUnit(const Inputs&, int, int) {
    WaitForPhase(UnitThere(unit_.at), unit_.parity);
    const std::byte* codes = memory_ + unit_.at * Memory::kCodes;
    unit_.Next();
    return codes;
  }
  __device__ const float* scales() const { return reinterpret_cast<const float*>(memory_ + Memory::kScalesAt + used_ * Memory::kScales); }
  __device__ const std::byte* NextWeights(const Inputs&, int) {
    WaitForPhase(WeightsThere(weights_.at), weights_.parity);
    return memory_ + Memory::kWeightsAt + weights_.at * Memory::kWeights;
  }
  __device__ const std::byte* weights() const { return memory_ + Memory::kWeightsAt; }  // where some lie
  // The oldest unit, and the present weights, are not needed any more by this thread. One thread a warp could say so, behind __syncwarp, which racecheck does
  // not follow.
  __device__ void FreeUnit() {
    Arrive(UnitFree(used_));
    used_ = used_ + 1 == Memory::kUnits ? 0 : used_ + 1;
  }
  __device__ void FreeWeights() {
    Arrive(WeightsFree(weights_.at));
    weights_.Next();
  }

 private:
  static constexpr int kStrips = 8, kHalf = static_cast<int>(Memory::kCodes) / 2;
  static constexpr unsigned kStripLanes = (1u << kStrips) - 1u;

  __device__ std::uint32_t UnitThere(int i) const { return barriers_ + 8 * i; }
  __device__ std::uint32_t UnitFree(int i) const { return barriers_ + 8 * (Memory::kUnits + i); }
  __device__ std::uint32_t WeightsThere(int i) const { return barriers_ + 8 * (2 * Memory::kUnits + i); }
  __device__ std::uint32_t WeightsFree(int i) const { return barriers_ + 8 * (2 * Memory::kUnits + Memory::kWeightStages + i); }

  __device__ void CopyUnits(const Inputs& inputs) {
    const std::byte* codes = inputs.codes;
    const float* scales = inputs.scales;
    for (int block = 0; block < inputs.blocks; ++block) {
#pragma unroll
      for (int group = 0; group < Tile::kGroups; ++group) {
        WaitForPhase(UnitFree(unit_.at), unit_.parity ^ 1u);  // passes the first time round
        const std::uint32_t barrier = UnitThere(unit_.at);
        ArriveExpecting(barrier, static_cast<int>(Memory::kCodes + Memory::kScales));
        const std::uint32_t to = SharedAddress(memory_) + unit_.at * Memory::kCodes;
        CopyBulk(to, codes + group * kHalf, kHalf, barrier);
        CopyBulk(to + kHalf, codes + inputs.half_bytes + group * kHalf, kHalf, barrier);
        CopyBulk(SharedAddress(memory_) + Memory::kScalesAt + unit_.at * Memory::kScales, scales + group * Tile::kGroupRows, Memory::kScales, barrier);
        unit_.Next();
      }
      codes += 2 * inputs.half_bytes;
      scales += inputs.slots;
    }
  }
  // A lane a strip.
  __device__ void CopyWeights(const Inputs& inputs, int lane) {
    constexpr int kStripBytes = static_cast<int>(Memory::kWeights) / kStrips;
    const std::byte* strip = inputs.strips + lane * inputs.strip_bytes;
    for (int block = 0; block < inputs.blocks; ++block) {
      WaitForPhase(WeightsFree(weights_.at), weights_.parity ^ 1u);
      const std::uint32_t barrier = WeightsThere(weights_.at);
      if (lane == 0) ArriveExpecting(barrier, static_cast<int>(Memory::kWeights));
      __syncwarp(kStripLanes);
      CopyBulk(SharedAddress(memory_) + Memory::kWeightsAt + weights_.at * Memory::kWeights + lane * kStripBytes, strip, kStripBytes, barrier);
      weights_.Next();
      strip += kStripBytes;
    }
  }

  std::byte* memory_;
  std::uint32_t barriers_;
  RingPlace<Memory::kUnits> unit_;
  RingPlace<Memory::kWeightStages> weights_;
  int used_ = 0;
};

#else

// The same without copies that run beside the computation: right, not fast.
template <int kB2, class Tile>
class TallStream {
 public:
  using Inputs = TallInputs<kB2, Tile>;
  using Memory = TallMemory<kB2, Tile>;

  __device__ explicit TallStream(std::byte* memory) : memory_(memory) {}

  __device__ void Copy(const Inputs&) {}
  __device__ const std::byte* NextUnit(const Inputs& inputs, int block, int group) {
    next_ ^= 1;  // the unit before may have scales that are not read yet
    std::byte* codes = memory_ + next_ * Memory::kCodes;
    SyncMultiplyWarps();
    const auto copy = [](std::byte* to, const void* from, std::size_t bytes) {
      for (std::size_t at = threadIdx.x * 16; at < bytes; at += kMultiplyThreads * 16) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(static_cast<const std::byte*>(from) + at);
      }
    };
    for (int half = 0; half < 2; ++half) copy(codes + half * (Memory::kCodes / 2), inputs.CodesOf(block, group, half), Memory::kCodes / 2);
    copy(memory_ + Memory::kScalesAt + next_ * Memory::kScales, inputs.ScalesOf(block, group), Memory::kScales);
    SyncMultiplyWarps();
    return codes;
  }
  __device__ const float* scales() const { return reinterpret_cast<const float*>(memory_ + Memory::kScalesAt + used_ * Memory::kScales); }
  __device__ const std::byte* NextWeights(const Inputs& inputs, int block) {
    std::byte* to = memory_ + Memory::kWeightsAt;
    SyncMultiplyWarps();
    for (int piece = static_cast<int>(threadIdx.x); piece < 64 * kB2; piece += kMultiplyThreads) {
      *reinterpret_cast<uint4*>(to + piece * 16) = *reinterpret_cast<const uint4*>(inputs.WeightsOf(block, piece));
    }
    SyncMultiplyWarps();
    return to;
  }
  __device__ const std::byte* weights() const { return memory_ + Memory::kWeightsAt; }
  __device__ void FreeUnit() { used_ ^= 1; }
  __device__ void FreeWeights() {}

 private:
  std::byte* memory_;
  int next_ = 1, used_ = 0;
};

#endif

}  // namespace lockstep::kernels
