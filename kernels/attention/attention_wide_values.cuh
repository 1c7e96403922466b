// Weighted values of attention_wide.cuh and the heads that they become. Contract: docs/numerics.md section 6, Attention.
#pragma once

#include "kernels/attention/attention_wide_layout.cuh"

namespace lockstep::kernels {

// Quotients by one divisor, correctly rounded: what the compiler makes of a division where nothing is near the ends of fp32, its reciprocal made once.
class Quotients {
 public:
  __device__ explicit Quotients(float by) : divisor_(by) {
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse_) : "f"(by));
    inverse_ = contract::Fma(inverse_, contract::Fma(-by, inverse_, 1.0f), inverse_);
  }
  __device__ bool ServesOne(float x) const { return (__float_as_uint(x) & 0x7fffffffu) - 0x20000000u < 0x40000000u; }  // 2^-63 .. 2^65
  __device__ bool Serves() const { return ServesOne(divisor_); }
  __device__ float Of(float x) const {
    const float q = contract::Mul(x, inverse_);
    return contract::Fma(inverse_, contract::Fma(-divisor_, q, x), q);
  }
  __device__ float OfAny(float x) const { return contract::Div(x, divisor_); }

 private:
  float divisor_, inverse_;
};

// Two warpgroups of values. out[h][4 j + i]: head 16 warp + g + 8 (i / 2), channel 256 half + 128 h + 8 j + 2 q + i % 2.
class WideValues : WideLayout {
 public:
  __device__ WideValues(const AttentionArgs& args, int channel_half, std::byte* shared) : a(args), first_channel(256 * channel_half), memory(shared) {}

  __device__ void Run() {
    int n = 0;
#pragma unroll 1
    for (int item = blockIdx.x; item < WideItem::Count(a); item += gridDim.x) {
      const WideItem heads(a, item);
      const std::int64_t position = a.row_T[heads.row].position;
      const int blocks = KeyList(a, heads.row).blocks;
      float out[2][64] = {};
#pragma unroll 1
      for (int b = 0; b < blocks; ++b, ++n) {
        WaitAt(kWeightsFull, 3 * kGroup);
        Add(n % 2, out);
        ArriveAt(kWeightsFree, 3 * kGroup);
        ArriveAt(kKeysFree + n % 2, 3 * kGroup);
      }
      WaitAt(kWeightsFull, 3 * kGroup);
      const float divisor[2] = {Factor(0), Factor(1)};
      ArriveAt(kWeightsFree, 3 * kGroup);
      Store(heads, position, divisor, out);
    }
  }

 private:
  __device__ static int Q() { return threadIdx.x & 3; }
  __device__ static int Head(int half) { return threadIdx.x % kGroup / 32 * 16 + (threadIdx.x & 31) / 4 + 8 * half; }
  __device__ float Factor(int half) const { return reinterpret_cast<const float*>(memory + kFactors)[Head(half)]; }

  __device__ void Add(int buffer, float (&out)[2][64]) const {
    const float factor[2] = {Factor(0), Factor(1)};
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i / 64][i % 64] = contract::Mul(out[i / 64][i % 64], factor[i % 4 / 2]);
    const std::uint64_t weight = MadeHere(SwizzledDescriptor(memory + kWeights)), value = MadeHere(AcrossDescriptor<kTile>(memory + kKeys + buffer * kMatrix + first_channel / 64 * kTile));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kSlots; k += 16) {
#pragma unroll
      for (int h = 0; h < 2; ++h) WgmmaBF16<128, true>(out[h], weight + k * 2 / 16, value + (2 * h * kTile + k * 128) / 16, true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    ReadFromHere(out[0]);
    ReadFromHere(out[1]);
  }

  // Of two words, the lane of a pair that lies first keeps the first and gets the other's first.
  __device__ static void SwapWithin(std::uint32_t& first, std::uint32_t& second, int apart) {
    const bool high = Q() & apart;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, high ? first : second, apart);
    first = high ? other : first;
    second = high ? second : other;
  }
  // Word i of lane q of a quad becomes what word q of lane i was.
  __device__ static void TurnQuad(uint4& word) {
    SwapWithin(word.x, word.y, 1), SwapWithin(word.z, word.w, 1);
    SwapWithin(word.x, word.z, 2), SwapWithin(word.y, word.w, 2);
  }

  // Four pairs of a head, four registers apart.
  __device__ static uint4 RoundRun(const Quotients& quotients, const float* x) {
    bool usual = quotients.Serves();
#pragma unroll
    for (int i = 0; i < 8; ++i) usual = usual && quotients.ServesOne(x[i / 2 * 4 + i % 2]);
    const auto round = [x](const auto& divide) {
      return make_uint4(PackBF16(divide(x[0]), divide(x[1])), PackBF16(divide(x[4]), divide(x[5])), PackBF16(divide(x[8]), divide(x[9])), PackBF16(divide(x[12]), divide(x[13])));
    };
    if (usual) return round([&](float value) { return quotients.Of(value); });
    return round([&](float value) { return quotients.OfAny(value); });
  }

  __device__ void Store(const WideItem& heads, std::int64_t position, const float (&divisor)[2], const float (&out)[2][64]) const {
    const Quotients quotients[2] = {Quotients(divisor[0]), Quotients(divisor[1])};
    std::uint16_t* to = a.out_THD + (std::int64_t{heads.row} * a.heads + heads.head_begin) * kDim + first_channel;
#pragma unroll
    for (int run = 0; run < 8; ++run) {  // of 32 channels
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 words = RoundRun(quotients[half], out[run / 4] + 16 * (run % 4) + 2 * half);
        if (first_channel + 32 * (run + 1) > kDim - a.rope_dim) {
          const auto turn = [&](std::uint32_t& word, int i) { word = TurnBack(a, position, first_channel + 32 * run + 8 * i + 2 * Q(), word); };
          turn(words.x, 0), turn(words.y, 1), turn(words.z, 2), turn(words.w, 3);
        }
        TurnQuad(words);
        if (Head(half) < heads.heads) *reinterpret_cast<uint4*>(to + Head(half) * kDim + 32 * run + 8 * Q()) = words;
      }
    }
  }

  const AttentionArgs& a;
  const int first_channel;
  std::byte* const memory;
};

}  // namespace lockstep::kernels
