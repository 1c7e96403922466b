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

// How the eight states of a lane come out of 64 bits: from 32-bit windows, each one shift. A state at bit 0, 8 or 16 of a window is one more
// instruction, elsewhere it is two; `mask`: the last of them is a mask.
struct StatePlan {
  int windows = 1, base[8] = {}, window_of[8] = {};
  bool mask[8] = {};
  int masks = 0, shifts = 0;  // instructions: masks, and all others
};

template <int kB2>
__host__ __device__ constexpr int EndOffset(int j) {
  return 4 * kB2 - ((j >> 1) * kB2 + ((j & 1) ? kB2 : kB2 / 2));
}

template <int kB2>
__host__ __device__ constexpr StatePlan PlanStates() {
  StatePlan plan;
  const auto quick = [](int bit) { return bit == 0 || bit == 8 || bit == 16; };
  const auto bit_of = [&plan](int j) { return EndOffset<kB2>(j) - plan.base[plan.window_of[j]]; };
  for (int best = 1; best > 0;) {  // another window as long as it reaches a state that none does, or two cheaply
    int best_base = 0;
    best = 0;
    for (int candidate = 0; candidate < 8; ++candidate) {
      int gain = -1;
      for (int j = 0; j < 8; ++j) {
        const int bit = EndOffset<kB2>(j) - EndOffset<kB2>(candidate);
        if (bit < 0 || bit > 16) continue;
        gain += bit_of(j) > 16 ? 16 : quick(bit) && !quick(bit_of(j)) ? 1 : 0;
      }
      if (gain > best) best = gain, best_base = EndOffset<kB2>(candidate);
    }
    if (best == 0) break;
    plan.base[plan.windows] = best_base;
    for (int j = 0; j < 8; ++j) {
      const int bit = EndOffset<kB2>(j) - best_base;
      if (bit >= 0 && bit <= 16 && (bit_of(j) > 16 || (quick(bit) && !quick(bit_of(j))))) plan.window_of[j] = plan.windows;
    }
    ++plan.windows;
  }
  plan.shifts = plan.windows;
  for (int j = 0; j < 8; ++j) {
    plan.mask[j] = bit_of(j) != 8 && bit_of(j) != 16;
    plan.masks += plan.mask[j];
    plan.shifts += bit_of(j) != 0;
  }
  return plan;
}

// bits & 0xffff as a dot product of 16-bit halves and bytes.
__device__ inline std::uint32_t LowHalfByDot(std::uint32_t bits) { return __dp2a_lo(bits, 1u, 0u); }

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

  // Shifts and masks share one pipe of a multiprocessor, half as wide as its issue; multiplications have another, so some masks are made dot products.
  // `kOther`: instructions of the first pipe less those of the second that the caller adds for each eight weights; none: masks are masks.
  template <int kOther = -64>
  __device__ void States(const std::uint32_t* tile, std::uint32_t (&state)[8]) const {
    if constexpr (kParts == 3) LongStates<kOther>(tile, state);
    else ShortStates<kOther>(tile, state);
  }

 private:
  static constexpr int kSpan = 4 * kB2 - kB2 / 2 + 16;  // bits of all eight windows
  static constexpr int kMaxShift = 32 - std::gcd(4 * kB2, 32);
  static constexpr int kParts = kSpan + kMaxShift > 64 ? 3 : 2;

  // How many of `masks` are made dot products, so that both pipes get as much.
  static __host__ __device__ constexpr int Dots(int shifts, int masks, int other) {
    const int balance = (shifts + masks + other) / 2;
    return balance < 0 ? 0 : balance < masks ? balance : masks;
  }

  template <int kOther>
  __device__ void ShortStates(const std::uint32_t* tile, std::uint32_t (&state)[8]) const {
    constexpr StatePlan kPlan = PlanStates<kB2>();
    constexpr int kDots = Dots(kPlan.shifts, kPlan.masks, kOther);
    const std::uint64_t bits = tile[index_[0]] | static_cast<std::uint64_t>(tile[index_[1]]) << 32;
    std::uint32_t window[8];
#pragma unroll
    for (int w = 0; w < kPlan.windows; ++w) window[w] = static_cast<std::uint32_t>(bits >> (shift_ + kPlan.base[w]));
    int dots = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int bit = EndOffset<kB2>(j) - kPlan.base[kPlan.window_of[j]];
      const std::uint32_t from = window[kPlan.window_of[j]];
      if (!kPlan.mask[j]) state[j] = bit == 16 ? from >> 16 : __byte_perm(from, 0u, 0x4421);
      else state[j] = dots < kDots ? LowHalfByDot(from >> bit) : from >> bit & 0xffffu;
      dots += kPlan.mask[j];
    }
  }

  // One funnel shift a word brings the run's end to bit 0; then every state lies at a constant offset.
  template <int kOther>
  __device__ void LongStates(const std::uint32_t* tile, std::uint32_t (&state)[8]) const {
    constexpr int kWindows = (kSpan + 31) / 32, kDots = Dots(kWindows + 7, 8, kOther);
    std::uint32_t w[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) w[i] = tile[index_[i]];
    const std::uint32_t window[3] = {__funnelshift_r(w[0], w[1], shift_), __funnelshift_r(w[1], w[2], shift_), w[2] >> shift_};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      constexpr int kLast = 2;
      const int offset = EndOffset<kB2>(j), word = offset / 32, bit = offset % 32;
      const std::uint32_t bits = bit <= 16 ? window[word] >> bit : __funnelshift_r(window[word], window[word < kLast ? word + 1 : kLast], bit);
      state[j] = j < kDots ? LowHalfByDot(bits) : bits & 0xffffu;
    }
  }

  int index_[kParts], shift_;
};

// mul1's product of a state: the weight's b is the sum of its four bytes.
__device__ inline std::uint32_t Mul1Product(std::uint32_t state) { return state * 0x83DCD12Du; }

// A constant that the compiler does not know, so that it stays in a register.
static __constant__ std::uint32_t halves_mask = 0x8fff8fffu;

// (x & 0x8fff8fff) ^ 0x3b603b60 as one instruction, which takes one constant only: the compiler alone makes two.
__device__ inline std::uint32_t MaskFlip(std::uint32_t x) {
  std::uint32_t result;
  constexpr int kAndXor = (0xf0 & 0xcc) ^ 0xaa;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(x), "r"(halves_mask), "r"(0x3b603b60u), "n"(kAndXor));
  return result;
}

// RunReader::States' kOther for a form whose weights are multiplied as they come: instructions on eight states.
template <WeightForm kForm>
inline constexpr int kPipesOf = kForm == WeightForm::kMul1Integer ? -8 : kForm == WeightForm::kMul1Half ? 8 : 4;

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
