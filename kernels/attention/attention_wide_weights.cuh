// Scores and softmax of attention_wide.cuh. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention_wide_layout.cuh"

namespace lockstep::kernels {

// The warpgroup of scores. A thread has heads 16 warp + g and + 8; s[4 j + i]: head i / 2 of these, slot 8 j + 2 q + i % 2.
class WideWeights : WideLayout {
 public:
  __device__ WideWeights(const AttentionArgs& args, float score_scale, std::byte* shared) : a(args), scale(score_scale), memory(shared) {}

  __device__ void Run() {
    int n = 0;
    bool first = true;  // of all weights and divisors
    LoadQueries(static_cast<int>(blockIdx.x));
#pragma unroll 1
    for (int item = blockIdx.x; item < WideItem::Count(a); item += gridDim.x) {
      const WideItem heads(a, item);
      const KeyList list(a, heads.row);
      float max[2] = {NoScore(), NoScore()}, denominator[2] = {};
      WaitForCopies<0>();
      ShowToTensorCores();
      WaitAt(kScoresOnly, kGroup);
#pragma unroll 1
      for (int b = 0; b < list.blocks; ++b, ++n) {
        float s[32];
        WaitAt(kKeysFull + n % 2, 2 * kGroup);
        Multiply(n % 2, s);
        if (b + 1 == list.blocks) {
          WaitAt(kScoresOnly, kGroup);  // nobody reads the queries now
          LoadQueries(item + static_cast<int>(gridDim.x));
        }
        float factor[2];
        const FilledSlots filled = list.Filled(b);
#pragma unroll
        for (int half = 0; half < 2; ++half) factor[half] = Weigh(half, filled, s, max[half], denominator[half]);
        if (!first) WaitAt(kWeightsFree, 3 * kGroup);
        first = false;
        StoreWeights(s);
        SendFactors(factor);
      }
      float divisor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = Head(half);
        const float sink = head < heads.heads ? a.sink_H[heads.head_begin + head] : 0.0f;
        divisor[half] = contract::Add(denominator[half], contract::Exp(contract::Sub(sink, max[half])));
      }
      WaitAt(kWeightsFree, 3 * kGroup);
      SendFactors(divisor);
    }
    if (!first) WaitAt(kWeightsFree, 3 * kGroup);
  }

 private:
  __device__ static int Q() { return threadIdx.x & 3; }
  __device__ static int Head(int half) { return threadIdx.x % kGroup / 32 * 16 + (threadIdx.x & 31) / 4 + 8 * half; }

  __device__ void LoadQueries(int item) const {
    if (item >= WideItem::Count(a)) return;
    const WideItem heads(a, item);
    const std::uint16_t* first = a.q_THD + (std::int64_t{heads.row} * a.heads + heads.head_begin) * kDim;
#pragma unroll 4
    for (int i = threadIdx.x % kGroup; i < kHeads * kDim / 8; i += kGroup) {
      const int h = i / (kDim / 8), d = i % (kDim / 8) * 8;
      std::byte* to = memory + kQueries + Place(h, d);
      if (h < heads.heads) CopyAsync<16>(to, first + h * kDim + d);
      else *reinterpret_cast<uint4*>(to) = make_uint4(0u, 0u, 0u, 0u);
    }
    CommitCopies();
  }

  __device__ void Multiply(int buffer, float (&s)[32]) const {
    const std::uint64_t query = MadeHere(SwizzledDescriptor(memory + kQueries)), key = MadeHere(SwizzledDescriptor(memory + kKeys + buffer * kMatrix));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kDim; k += 16) WgmmaBF16<64, false>(s, query + (k / 64 * kTile + k % 64 * 2) / 16, key + (k / 64 * kTile + k % 64 * 2) / 16, k > 0);
    WgmmaCommit();
    WgmmaWait<0>();
    ReadFromHere(s);
  }

  // One head's scores to weights; returns what the block does to the sums before it.
  __device__ float Weigh(int half, FilledSlots filled, float (&s)[32], float& max, float& denominator) const {
    using contract::Add;
    const auto at = [half](int i) { return 4 * (i / 2) + 2 * half + i % 2; };  // of slot 8 (i / 2) + 2 q + i % 2
    float top = max;
#pragma unroll
    for (int i = 0; i < 16; ++i) s[at(i)] = contract::Mul(s[at(i)], scale);
    if (filled.begin > 0 || filled.end < kSlots) {
#pragma unroll
      for (int i = 0; i < 16; ++i) s[at(i)] = filled.Has(8 * (i / 2) + 2 * Q() + i % 2) ? s[at(i)] : NoScore();
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) top = fmaxf(top, s[at(i)]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float factor = Rescale(max, top);
    max = top;
#pragma unroll
    for (int i = 0; i < 16; ++i) s[at(i)] = contract::ExpBelowZero(contract::Sub(s[at(i)], top));
    float sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // fold: slots 32, 16 and 8 apart are the thread's
      const auto x = [&](int j) { return s[at(2 * j + i)]; };
      sum[i] = Add(Add(Add(x(0), x(4)), Add(x(2), x(6))), Add(Add(x(1), x(5)), Add(x(3), x(7))));
      sum[i] = Add(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 2));
      sum[i] = Add(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 1));
    }
    denominator = contract::Fma(denominator, factor, Add(sum[0], sum[1]));
    return factor;
  }

  __device__ void StoreWeights(const float (&s)[32]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) *reinterpret_cast<std::uint32_t*>(memory + kWeights + Place(Head(half), 8 * j) + 4 * Q()) = PackBF16(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]);
    }
  }

  // What the values' warpgroups multiply or, behind a row's last block, divide by; weights before it are theirs as well.
  __device__ void SendFactors(const float (&factor)[2]) const {
    auto* factors = reinterpret_cast<float*>(memory + kFactors);
    if (Q() == 0) factors[Head(0)] = factor[0], factors[Head(1)] = factor[1];
    ShowToTensorCores();
    ArriveAt(kWeightsFull, 3 * kGroup);
  }

  const AttentionArgs& a;
  const float scale;
  std::byte* const memory;
};

}  // namespace lockstep::kernels
