// EXL3 linears on the device: the input transform, and the product kernel with the trellis decoded straight into MMA fragments and the output
// transform as its epilogue. Contract: docs/numerics.md section 4. Layouts: kernels/linear/linear_layout.h.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/mma_sm80.cuh"

namespace lockstep::kernels {

// One matrix of a grouped product.
struct Exl3Job {
  const std::uint32_t* tiles;
  const float* input_scale;
  const float* output_scale;
  const float* bias;  // null: none
};

struct Exl3Call {
  const Exl3Job* jobs;
  const RowTile* tiles;
  std::int64_t in = 0, out = 0;        // padded
  std::int64_t in_features = 0, out_features = 0;
  int act_limit = 0;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_index = nullptr;
  std::uint16_t* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
  std::int32_t* overflow = nullptr;
  // Transformed input: fp16 [total_rows][in] (int16 codes: high parts, then low parts), per 128-block scales and code sums.
  __half* codes = nullptr;
  __half* low_codes = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;
};

inline constexpr int kExl3Threads = 256;     // 4 segments x 2 halves of the 128 columns
inline constexpr int kExl3BlockColumns = 128;

// Runs the product for a codebook and rate. Defined in exl3_mul1.cu and exl3_half.cu.
void LaunchMul1Product(const Exl3Call& call, int bits_x2, std::int64_t tiles, cudaStream_t stream);
void LaunchHalfProduct(const Exl3Call& call, Codebook codebook, int bits_x2, std::int64_t tiles, cudaStream_t stream);

#if defined(__CUDACC__)

// 128 values over a warp, element 4*lane + r in x[r]: butterfly with strides 1, 2, ..., 64, then times 1/sqrt(128).
__device__ inline void ButterflyWarp(float (&x)[4]) {
  const auto swap = [&](int i, int j) {
    const float a = x[i], b = x[j];
    x[i] = contract::Add(a, b);
    x[j] = contract::Sub(a, b);
  };
  swap(0, 1), swap(2, 3);
  swap(0, 2), swap(1, 3);
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float other = __shfl_xor_sync(0xffffffffu, x[r], mask);
      x[r] = (lane & mask) ? contract::Sub(other, x[r]) : contract::Add(x[r], other);
    }
  }
  constexpr float kScale = static_cast<float>(1.0 / 11.313708498984761);
#pragma unroll
  for (int r = 0; r < 4; ++r) x[r] = contract::Mul(x[r], kScale);
}

// --- trellis ---------------------------------------------------------------------------------------------------------

enum class WeightForm { kMul1Integer, kMul1Half, kMcg, k3inst };

// The 16-bit states of positions 8t .. 8t+7 of a tile, t = lane: a run's bits end at 4*B2*(t+1); state j ends EndOffset(j) bits before.
template <int kB2>
struct Run {
  static constexpr int kWords = 4 * kB2;
  static constexpr int kSpan = 4 * kB2 - kB2 / 2 + 16;  // bits of all eight windows

  static __host__ __device__ constexpr int EndOffset(int j) {
    return 4 * kB2 - ((j >> 1) * kB2 + ((j & 1) ? kB2 : kB2 / 2));
  }
};

template <int kB2>
__device__ inline void LoadStates(const std::uint32_t* tile, std::uint32_t (&state)[8]) {
  const int lane = threadIdx.x & 31;
  const int end = 4 * kB2 * (lane + 1), last = (end - 1) >> 5, shift = 32 * (last + 1) - end;
  constexpr int kWords = Run<kB2>::kWords;
  const auto word = [&](int i) { return __ldg(tile + (i < 0 ? i + kWords : i)); };
  const std::uint32_t w0 = word(last), w1 = word(last - 1);
  const std::uint64_t low = (static_cast<std::uint64_t>(w1) << 32) | w0;
  // Shifts stay below 32 + kSpan; past 64 bits a third word is needed.
  if constexpr (Run<kB2>::kSpan + 24 <= 64) {
#pragma unroll
    for (int j = 0; j < 8; ++j) state[j] = static_cast<std::uint32_t>(low >> (shift + Run<kB2>::EndOffset(j))) & 0xffffu;
  } else {
    const std::uint64_t high = (static_cast<std::uint64_t>(word(last - 2)) << 32) | w1;  // 32 bits further
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int s = shift + Run<kB2>::EndOffset(j);
      state[j] = static_cast<std::uint32_t>(s < 32 ? low >> s : high >> (s - 32)) & 0xffffu;
    }
  }
}

// Two weights as fp16 bits: mul1 integer form b - 510, or the format's fp16.
template <WeightForm kForm>
__device__ inline std::uint32_t DecodePair(std::uint32_t s0, std::uint32_t s1) {
  if constexpr (kForm == WeightForm::kMul1Integer || kForm == WeightForm::kMul1Half) {
    const std::uint32_t b0 = __dp4a(s0 * 0x83DCD12Du, 0x01010101u, 0u), b1 = __dp4a(s1 * 0x83DCD12Du, 0x01010101u, 0u);
    if constexpr (kForm == WeightForm::kMul1Integer) {
      const std::uint32_t biased = 0x64006400u + b0 + (b1 << 16);  // fp16 1024 + b
      const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1534.0f));
      return *reinterpret_cast<const std::uint32_t*>(&value);
    } else {
      const auto weight = [](std::uint32_t b) {
        return static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(static_cast<float>(1774 * static_cast<int>(b) - 905216) * 0x1p-18f)));
      };
      return weight(b0) | (weight(b1) << 16);
    }
  } else {
    const auto product = [](std::uint32_t s) { return kForm == WeightForm::kMcg ? s * 0xCBAC1FEDu : s * 89226354u + 64248484u; };
    const std::uint32_t y0 = (product(s0) & 0x8fff8fffu) ^ 0x3b603b60u, y1 = (product(s1) & 0x8fff8fffu) ^ 0x3b603b60u;
    const std::uint32_t low = __byte_perm(y0, y1, 0x5410), high = __byte_perm(y0, y1, 0x7632);
    const __half2 sum = __hadd2(*reinterpret_cast<const __half2*>(&low), *reinterpret_cast<const __half2*>(&high));
    return *reinterpret_cast<const std::uint32_t*>(&sum);
  }
}

// --- product ---------------------------------------------------------------------------------------------------------

// Accumulators of a warp: 16 rows x 64 columns as eight n8 tiles.
struct Accumulators {
  float c[8][4];
  __device__ void Clear() {
#pragma unroll
    for (int n = 0; n < 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
  }
};

// One k16 step of a warp: four n16 tiles of its columns.
template <int kB2, WeightForm kForm, bool kTwoTerms>
__device__ inline void Step(const std::uint32_t* strip0, std::int64_t strip_words, const FragmentA& a, const FragmentA& a_low, Accumulators& high,
                            Accumulators& low) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    std::uint32_t state[8], b[4];
    LoadStates<kB2>(strip0 + n * strip_words, state);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = DecodePair<kForm>(state[2 * i], state[2 * i + 1]);
    MmaF16(high.c[2 * n], a, b[0], b[1]);
    MmaF16(high.c[2 * n + 1], a, b[2], b[3]);
    if constexpr (kTwoTerms) {
      MmaF16(low.c[2 * n], a_low, b[0], b[1]);
      MmaF16(low.c[2 * n + 1], a_low, b[2], b[3]);
    }
  }
}

// Block: 16 rows of one job x 128 columns. Warp w: segment w % 4, columns 64 * (w / 4) ...
template <int kB2, WeightForm kForm, bool kTwoTerms>
__global__ void __launch_bounds__(kExl3Threads) Exl3ProductKernel(Exl3Call call) {
  constexpr bool kInteger = kForm == WeightForm::kMul1Integer;
  __shared__ float partial[contract::kSegments][16][kExl3BlockColumns + 4];
  __shared__ float correction[16];
  const RowTile tile = call.tiles[blockIdx.y];
  const Exl3Job job = call.jobs[tile.job];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const int segment = warp % contract::kSegments, half = warp / contract::kSegments;
  const std::int64_t column0 = blockIdx.x * kExl3BlockColumns + 64 * half, k_tiles = call.in / 16, strip_words = k_tiles * Run<kB2>::kWords;
  const contract::SegmentRange range = contract::SegmentOf(call.in, segment);
  const auto row_of = [&](const __half* codes, int row) {
    return row < tile.rows ? reinterpret_cast<const std::uint16_t*>(codes + (tile.begin + row) * call.in) : nullptr;
  };

  if (kInteger && warp == 0 && lane < 16 && lane < tile.rows) {
    const float *scales = call.scales + (tile.begin + lane) * (call.in / 128), *sums = call.sums + (tile.begin + lane) * (call.in / 128);
    float fold[contract::kSegments];
    for (int s = 0; s < contract::kSegments; ++s) {
      const contract::SegmentRange r = contract::SegmentOf(call.in, s);
      fold[s] = 0.0f;
      for (std::int64_t b = r.begin / 128; b < r.end / 128; ++b) fold[s] = contract::Fma(sums[b], scales[b], fold[s]);
    }
    correction[lane] = contract::Mul(contract::FoldSegments(fold[0], fold[1], fold[2], fold[3]), 476.0f * 0x1p-18f);
  }

  Accumulators sum, low, y;
  sum.Clear(), low.Clear(), y.Clear();
  const std::uint32_t* strips = job.tiles + column0 / 16 * strip_words;
  for (std::int64_t k0 = range.begin; k0 < range.end; k0 += 128) {
#pragma unroll 2
    for (int step = 0; step < 8; ++step) {
      const std::int64_t k = k0 + 16 * step;
      const FragmentA a = LoadA(row_of(call.codes, g), row_of(call.codes, g + 8), k, call.in);
      FragmentA a_low{};
      if constexpr (kTwoTerms) a_low = LoadA(row_of(call.low_codes, g), row_of(call.low_codes, g + 8), k, call.in);
      Step<kB2, kForm, kTwoTerms>(strips + k / 16 * Run<kB2>::kWords, strip_words, a, a_low, sum, low);
    }
    if constexpr (kInteger) {
      const std::int64_t block = k0 / 128, blocks = call.in / 128;
      const float scale0 = g < tile.rows ? call.scales[(tile.begin + g) * blocks + block] : 0.0f;
      const float scale8 = g + 8 < tile.rows ? call.scales[(tile.begin + g + 8) * blocks + block] : 0.0f;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float exact = sum.c[n][i];
          if constexpr (kTwoTerms) exact = __int2float_rn(static_cast<int>(sum.c[n][i]) * 256 + static_cast<int>(low.c[n][i]));
          y.c[n][i] = contract::Fma(exact, i < 2 ? scale0 : scale8, y.c[n][i]);
        }
      }
      sum.Clear(), low.Clear();
    }
  }
  const Accumulators& result = kInteger ? y : sum;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[segment][g + (i < 2 ? 0 : 8)][64 * half + 8 * n + 2 * q + (i & 1)] = result.c[n][i];
  }
  __syncthreads();

  for (int row = warp; row < tile.rows; row += kExl3Threads / 32) {
    float v[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int c = 4 * lane + r;
      v[r] = contract::FoldSegments(partial[0][row][c], partial[1][row][c], partial[2][row][c], partial[3][row][c]);
      if constexpr (kInteger) v[r] = contract::Fma(v[r], 1774.0f * 0x1p-18f, -correction[row]);
    }
    ButterflyWarp(v);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::int64_t column = blockIdx.x * kExl3BlockColumns + 4 * lane + r;
      if (column >= call.out_features) continue;
      float value = contract::Mul(v[r], job.output_scale[column]);
      if (job.bias) value = contract::Add(value, job.bias[column]);
      const std::int64_t at = (tile.begin + row) * call.y_stride + column;
      if (call.y_bf16) call.y_bf16[at] = BF16Bits(value);
      else call.y_fp32[at] = value;
    }
  }
}

template <int kB2, WeightForm kForm, bool kTwoTerms>
void LaunchProduct(const Exl3Call& call, std::int64_t tiles, cudaStream_t stream) {
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < tiles; begin += kMaxGridY) {
    Exl3Call part = call;
    part.tiles += begin;
    const auto count = static_cast<unsigned>(tiles - begin < kMaxGridY ? tiles - begin : kMaxGridY);
    Exl3ProductKernel<kB2, kForm, kTwoTerms><<<dim3(static_cast<unsigned>(call.out / kExl3BlockColumns), count), kExl3Threads, 0, stream>>>(part);
  }
  CheckLaunch("exl3 product");
}

template <WeightForm kForm, bool kTwoTerms>
void LaunchForBits(const Exl3Call& call, int bits_x2, std::int64_t tiles, cudaStream_t stream) {
  switch (bits_x2) {
    case 2: return LaunchProduct<2, kForm, kTwoTerms>(call, tiles, stream);
    case 3: return LaunchProduct<3, kForm, kTwoTerms>(call, tiles, stream);
    case 4: return LaunchProduct<4, kForm, kTwoTerms>(call, tiles, stream);
    case 5: return LaunchProduct<5, kForm, kTwoTerms>(call, tiles, stream);
    case 6: return LaunchProduct<6, kForm, kTwoTerms>(call, tiles, stream);
    case 7: return LaunchProduct<7, kForm, kTwoTerms>(call, tiles, stream);
    case 8: return LaunchProduct<8, kForm, kTwoTerms>(call, tiles, stream);
    case 10: return LaunchProduct<10, kForm, kTwoTerms>(call, tiles, stream);
    case 12: return LaunchProduct<12, kForm, kTwoTerms>(call, tiles, stream);
    case 14: return LaunchProduct<14, kForm, kTwoTerms>(call, tiles, stream);
    default: return LaunchProduct<16, kForm, kTwoTerms>(call, tiles, stream);
  }
}

#endif

}  // namespace lockstep::kernels
