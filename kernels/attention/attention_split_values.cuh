// The second of the two kernels of attention_split.cuh: the chain of blocks.
#pragma once

#include "kernels/attention/attention_split.cuh"
#include "kernels/device/warpgroups.cuh"

namespace lockstep::kernels {

// Block: 32 channels (x), 8 heads (y), row (z). Chunks of blocks of 64 slots: warp b makes the weights of block b of a chunk, four threads a head, while two
// warps of 16 channels, the rows of their MMA, multiply the chunk before.
struct AttentionValues {
  static constexpr int kHeads = AttentionSplit::kValueHeads, kBlocks = AttentionSplit::kBlocks, kWeightThreads = 32 * kBlocks, kWeightBarrier = 1, kMultiplyBarrier = 2;
  struct Chunk {
    std::uint16_t value[AttentionSplit::kChunk * AttentionSplit::kChannels];  // as Key has them
    std::uint16_t weight[kHeads * AttentionSplit::kWeightStride];
    float max[kBlocks][kHeads], rescale[kBlocks][kHeads], sum[kBlocks][kHeads];
  };
  struct Shared {
    float max[kHeads], sink[kHeads];
    float2 angle[AttentionSplit::kChannels / 2];  // of channels that turn
    Chunk chunk[2];                               // one where a list has no more
  };
  using Share = SlotShare<4>;

  const AttentionArgs& a;
  const AttentionSplit& split;
  Shared& s;
  const std::int64_t t;
  const int channel0, head0, warp, lane;
  KeyList list;
  Share share{};               // warps that make weights: scores of the next chunk
  float max = NoScore();       // theirs: of the head, before the next chunk
  float out[4] = {};           // warps that multiply: channels g and g + 8 of heads 2q and 2q + 1
  float denominator[2] = {};   // of these heads

  __device__ AttentionValues(const AttentionArgs& args, const AttentionSplit& s_args, Shared& shared)
      : a(args), split(s_args), s(shared), t(blockIdx.z), channel0(static_cast<int>(blockIdx.x) * AttentionSplit::kChannels),
        head0(static_cast<int>(blockIdx.y) * kHeads), warp(threadIdx.x / 32), lane(threadIdx.x & 31), list(args, t, /*selects=*/false) {}

  __device__ void Run() {
    Prepare();
    const bool weighs = warp < kBlocks;
    int last = 0;
#pragma unroll 1
    for (int i = split.rehearse ? kWeighsNothing : 0; i <= last; ++i) {
      if (i == 0) last = Begin(weighs);
      const bool fetching = i >= 0 && i < last, weighing = fetching || i == kWeighsNothing;
      if (!weighs) {
        if (fetching) FetchValues(i);
        if (weighing) PassABarrierToo();
        if (i == kMultipliesNothing || i > 0) Multiply(i - 1);
        if (i == kMultipliesNothing || i == last) Store(i > 0);
      } else if (weighing) {
        Weigh(i < 0 ? -1 : i);
        if (i >= 0) LoadScores(i + 1);
      }
      WaitForCopies<0>();
      __syncthreads();
    }
  }

 private:
  static constexpr int kWeighsNothing = -2, kMultipliesNothing = -1;  // turns before the first, a barrier apart like all of them

  __device__ Chunk& Of(int chunk) const { return s.chunk[chunk > 0 ? chunk & 1 : 0]; }

  // By the warps that multiply, where the others meet to weigh: racecheck compares how many barriers threads have passed.
  __device__ static void PassABarrierToo() {
    SyncSome<kMultiplyBarrier, AttentionSplit::kValueThreads - kWeightThreads>();
  }

  // What does not depend on other kernels.
  __device__ void Prepare() {
    const int pair = static_cast<int>(threadIdx.x) - 32;
    if (threadIdx.x < kHeads) s.sink[threadIdx.x] = head0 + threadIdx.x < a.heads ? a.sink_H[head0 + threadIdx.x] : 0.0f;
    if (pair >= 0 && pair < AttentionSplit::kChannels / 2) {
      const int channel = channel0 + 2 * pair, turning = Turning(a, channel);
      if (turning >= 0 && channel < a.head_dim) s.angle[pair] = AngleOf(a, list.row.position, turning);
    }
  }

  // Forgets the first run; the list's chunks.
  __device__ int Begin(bool weighs) {
    WaitForKernelsBefore();
    if (weighs) LoadScores(0);
    max = NoScore();
#pragma unroll
    for (float& x : out) x = 0.0f;
    denominator[0] = denominator[1] = 0.0f;
    if (list.selected) list.Select(a, t);
    return (list.blocks + kBlocks - 1) / kBlocks;
  }

  // This warp's of a chunk.
  __device__ void LoadScores(int chunk) {
    const int block = chunk * kBlocks + warp;
    if (block * kAttentionSlots < split.slots) share.Load(split.Score(a, t, min(head0 + (lane & (kHeads - 1)), a.heads - 1)) + block * kAttentionSlots);
  }

  // A chunk's on their way, by the warps that multiply.
  __device__ void FetchValues(int chunk) const {
    constexpr int kBlock = kAttentionSlots * AttentionSplit::kChannels, kStep = 8 * (AttentionSplit::kValueThreads - kWeightThreads);
    const int offset = 8 * (static_cast<int>(threadIdx.x) - kWeightThreads), blocks = min(kBlocks, list.blocks - chunk * kBlocks);
    const std::uint16_t* from = split.Key(t, chunk * AttentionSplit::kChunk, channel0) + offset;
    std::uint16_t* to = Of(chunk).value + offset;
#pragma unroll 1
    for (int b = 0; b < blocks; ++b, from += kBlock, to += kBlock) {
#pragma unroll
      for (int i = 0; i < kBlock; i += kStep) CopyAsync<16>(to + i, from + i);
    }
    CommitCopies();
  }

  // Weights of a chunk, from scores.
  __device__ void Weigh(int chunk) {
    Chunk& c = Of(chunk);
    const int first = chunk * kBlocks, blocks = min(kBlocks, list.blocks - first), head = lane & (kHeads - 1);
    const bool mine = warp < blocks, leader = Share::Part() == 0;
    share.Mask(mine ? list.Filled(first + warp) : FilledSlots{0, 0});
    const float own = share.Max();
    if (leader) c.max[warp][head] = own;
    SyncSome<kWeightBarrier, kWeightThreads>();
    float before = max;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      max = fmaxf(max, c.max[b][head]);
      if (b < warp) before = max;
    }
    if (!mine) return;
    const float top = fmaxf(before, own);
    share.Weigh(top);
    share.StoreBF16(c.weight + head * AttentionSplit::kWeightStride + warp * kAttentionSlots);
    const float sum = share.Fold();
    if (leader) c.sum[warp][head] = sum, c.rescale[warp][head] = kernels::Rescale(before, top), s.max[head] = max;
  }

  // A chunk's weights times its values, 32 slots at a time; the next ones' operands come from shared memory meanwhile.
  struct Operands {
    FragmentA value[2];
    std::uint32_t weight[4];
  };
  __device__ void Multiply(int chunk) {
    const Chunk& c = Of(chunk);
    const int blocks = chunk < 0 ? 2 : min(kBlocks, list.blocks - chunk * kBlocks), piece = 2 * (warp - kBlocks) + (lane >> 3 & 1);
    std::uint32_t value_at = SharedAddress(c.value + AttentionSplit::Place((lane & 7) + (lane >> 4) * 8, piece));
    std::uint32_t weight_at = SharedAddress(c.weight + (lane & 7) * AttentionSplit::kWeightStride + (lane >> 3) * 8);
    Operands next;
    const auto load = [&] {
      constexpr int kStep = 16 * AttentionSplit::kChannels * 2;
      LoadMatricesAt(next.weight, weight_at);
      LoadMatricesTransposedAt(next.value[0].a, value_at);
      LoadMatricesTransposedAt(next.value[1].a, value_at + kStep);
      weight_at += 64, value_at += 2 * kStep;
    };
    load();
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
      Rescale(c, b);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Operands now = next;
        if (half == 0 || b + 1 < blocks) load();
#pragma unroll
        for (int k = 0; k < 2; ++k) MmaBF16(out, now.value[k], now.weight[2 * k], now.weight[2 * k + 1]);
      }
    }
  }
  __device__ void Rescale(const Chunk& c, int block) {
    const float2 rescale = *reinterpret_cast<const float2*>(&c.rescale[block][2 * (lane & 3)]), sum = *reinterpret_cast<const float2*>(&c.sum[block][2 * (lane & 3)]);
    denominator[0] = contract::Fma(denominator[0], rescale.x, sum.x);
    denominator[1] = contract::Fma(denominator[1], rescale.y, sum.y);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = contract::Mul(out[i], i % 2 == 0 ? rescale.x : rescale.y);
  }

  // Lanes of neighbouring channels give one another a head, so that each has both channels of one.
  __device__ void Store(bool real) {
    const int g = lane / 4, odd = g & 1, head = 2 * (lane & 3);
    float divisor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) divisor[i] = contract::Add(denominator[i], contract::Exp(contract::Sub(s.sink[head + i], s.max[head + i])));
    std::uint16_t* to = a.out_THD + (t * a.heads + head0 + head + odd) * a.head_dim;
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const std::uint32_t own = PackBF16(contract::Div(out[2 * low], divisor[0]), contract::Div(out[2 * low + 1], divisor[1]));
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, own, 4);
      std::uint32_t pair = __byte_perm(own, other, odd ? 0x3276 : 0x5410);
      const int channel = channel0 + 16 * (warp - kBlocks) + 8 * low + (g & ~1);
      if (!real || head0 + head + odd >= a.heads || channel >= a.head_dim) continue;
      if (Turning(a, channel) >= 0) pair = TurnBack(pair, s.angle[(channel - channel0) / 2]);
      if (a.head_dim % 2 == 0) {
        *reinterpret_cast<std::uint32_t*>(to + channel) = pair;
      } else {
        to[channel] = static_cast<std::uint16_t>(pair);
        if (channel + 1 < a.head_dim) to[channel + 1] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }
};

__global__ void __launch_bounds__(AttentionSplit::kValueThreads, 2) AttentionValueKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionSplit split) {
  StartNextKernel();
  extern __shared__ __align__(16) std::byte memory[];
  AttentionValues(a, split, *reinterpret_cast<AttentionValues::Shared*>(memory)).Run();
}

}  // namespace lockstep::kernels
