// Trellis tiles on the device: the eight states that a lane owns, and weights from states. Layout: kernels/linear/linear_layout.h.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <numeric>

#include "kernels/linear/linear_layout.h"

namespace lockstep::kernels {

// What a product multiplies: mul1's integer b - 510 (family I), or the format's fp16 weight (family H).
enum class WeightForm { kMul1Integer, kMul1Half, kMcg, k3inst };

__host__ __device__ constexpr Codebook CodebookOf(WeightForm form) {
  return form == WeightForm::kMcg ? Codebook::kMcg : form == WeightForm::k3inst ? Codebook::k3inst : Codebook::kMul1;
}

// Reads the 16-bit states of positions 8t .. 8t+7 of a tile, t = lane, kB2 = twice the bits a weight. Position 8t+j is, with g = t/4 and
// q = t%4, input 2q + {0, 1, 8, 9}[j%4] of output g + 8*(j/4): the order of an m16n8k16 fragment of a 16-column strip.
// The run's bits end at 4*kB2*(t+1) of a ring of 128*kB2; state j ends EndOffset(j) bits before.
template <int kB2>
class RunReader {
 public:
  static constexpr int kWords = 4 * kB2;  // of a tile

  __device__ RunReader() {
    const int end = 4 * kB2 * ((threadIdx.x & 31) + 1), last = (end - 1) >> 5;
    shift_ = 32 * (last + 1) - end;
#pragma unroll
    for (int i = 0; i < kParts; ++i) index_[i] = last < i ? last - i + kWords : last - i;
  }

  // One funnel shift brings the run's end to bit 0; then every state lies at a constant offset.
  __device__ void States(const std::uint32_t* tile, std::uint32_t (&state)[8]) const {
    std::uint32_t w[kParts], window[3];
#pragma unroll
    for (int i = 0; i < kParts; ++i) w[i] = tile[index_[i]];
    window[0] = __funnelshift_r(w[0], w[1], shift_);
    window[1] = kThree ? __funnelshift_r(w[1], w[kParts - 1], shift_) : w[1] >> shift_;
    window[2] = kThree ? w[kParts - 1] >> shift_ : 0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      constexpr int kLast = 2;
      const int offset = EndOffset(j), word = offset / 32, bit = offset % 32;
      const std::uint32_t bits = bit <= 16 ? window[word] >> bit : __funnelshift_r(window[word], window[word < kLast ? word + 1 : kLast], bit);
      state[j] = bits & 0xffffu;
    }
  }

 private:
  static constexpr int kSpan = 4 * kB2 - kB2 / 2 + 16;  // bits of all eight windows
  static constexpr int kMaxShift = 32 - std::gcd(4 * kB2, 32);
  static constexpr bool kThree = kSpan + kMaxShift > 64;
  static constexpr int kParts = kThree ? 3 : 2;

  static __host__ __device__ constexpr int EndOffset(int j) { return 4 * kB2 - ((j >> 1) * kB2 + ((j & 1) ? kB2 : kB2 / 2)); }

  int index_[kParts], shift_;
};

// mul1's product of a state: the weight's b is the sum of its four bytes.
__device__ inline std::uint32_t Mul1Product(std::uint32_t state) { return state * 0x83DCD12Du; }

// (x & 0x8fff8fff) ^ 0x3b603b60 as one instruction: the compiler alone makes two.
__device__ inline std::uint32_t MaskFlip(std::uint32_t x) {
  std::uint32_t result;
  constexpr int kAndXor = (0xf0 & 0xcc) ^ 0xaa;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(x), "r"(0x8fff8fffu), "r"(0x3b603b60u), "n"(kAndXor));
  return result;
}

// Two weights as fp16 bits.
template <WeightForm kForm>
__device__ inline std::uint32_t DecodePair(std::uint32_t s0, std::uint32_t s1) {
  if constexpr (kForm == WeightForm::kMul1Integer) {
    // 0x6400 + b is 1024 + b in fp16.
    const std::uint32_t b0 = __dp4a(Mul1Product(s0), 0x01010101u, 0x6400u), b1 = __dp4a(Mul1Product(s1), 0x01010101u, 0x6400u);
    const std::uint32_t biased = __byte_perm(b0, b1, 0x5410);
    const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1534.0f));
    return *reinterpret_cast<const std::uint32_t*>(&value);
  } else if constexpr (kForm == WeightForm::kMul1Half) {
    const auto weight = [](std::uint32_t s) {
      const int b = static_cast<int>(__dp4a(Mul1Product(s), 0x01010101u, 0u));
      return static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(static_cast<float>(1774 * b - 905216) * 0x1p-18f)));
    };
    return weight(s0) | (weight(s1) << 16);
  } else {
    const auto halves = [](std::uint32_t s) { return MaskFlip(kForm == WeightForm::kMcg ? s * 0xCBAC1FEDu : s * 89226354u + 64248484u); };
    const std::uint32_t y0 = halves(s0), y1 = halves(s1);
    const std::uint32_t low = __byte_perm(y0, y1, 0x5410), high = __byte_perm(y0, y1, 0x7632);
    const __half2 sum = __hadd2(*reinterpret_cast<const __half2*>(&low), *reinterpret_cast<const __half2*>(&high));
    return *reinterpret_cast<const std::uint32_t*>(&sum);
  }
}

}  // namespace lockstep::kernels
