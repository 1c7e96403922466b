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
  JobList<Exl3Job> list;
  InputRows input;
  std::int64_t in = 0, out = 0;        // padded
  std::int64_t in_features = 0, out_features = 0;
  int act_limit = 0;
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

inline constexpr int kExl3Threads = 512;  // 4 segments x 4 quarters of the 128 columns
inline constexpr int kExl3BlockColumns = 128;
inline constexpr int kExl3WarpColumns = 32;

// Runs the product for a codebook and rate. Defined in exl3_mul1.cu and exl3_half.cu.
void LaunchMul1Product(const Exl3Call& call, int bits_x2, cudaStream_t stream);
void LaunchHalfProduct(const Exl3Call& call, Codebook codebook, int bits_x2, cudaStream_t stream);

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

// The words of a lane's run: its last one and the one or two before (the ring wraps).
template <int kB2>
struct RunWords {
  static constexpr bool kThree = Run<kB2>::kSpan + 28 > 64;  // shifts stay below 32
  std::uint32_t w[kThree ? 3 : 2];

  __device__ void Load(const std::uint32_t* tile) {
    const int last = (4 * kB2 * ((threadIdx.x & 31) + 1) - 1) >> 5;
#pragma unroll
    for (int i = 0; i < (kThree ? 3 : 2); ++i) w[i] = __ldg(tile + (last < i ? last - i + Run<kB2>::kWords : last - i));
  }

  // One funnel shift brings the run's end to bit 0; then every state lies at a constant offset.
  __device__ void States(std::uint32_t (&state)[8]) const {
    const int end = 4 * kB2 * ((threadIdx.x & 31) + 1), shift = 32 * ((end - 1) / 32 + 1) - end;
    std::uint32_t window[3];
    window[0] = __funnelshift_r(w[0], w[1], shift);
    window[1] = kThree ? __funnelshift_r(w[1], w[kThree ? 2 : 1], shift) : w[1] >> shift;
    window[2] = kThree ? w[kThree ? 2 : 1] >> shift : 0u;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int offset = Run<kB2>::EndOffset(j), word = offset / 32, bit = offset % 32;
      const std::uint32_t bits = bit <= 16 ? window[word] >> bit : __funnelshift_r(window[word], window[word < 2 ? word + 1 : 2], bit);
      state[j] = bits & 0xffffu;
    }
  }
};

// Two weights as fp16 bits: mul1 integer form b - 510, or the format's fp16.
template <WeightForm kForm>
__device__ inline std::uint32_t DecodePair(std::uint32_t s0, std::uint32_t s1) {
  if constexpr (kForm == WeightForm::kMul1Integer || kForm == WeightForm::kMul1Half) {
    const std::uint32_t b0 = __dp4a(s0 * 0x83DCD12Du, 0x01010101u, 0u), b1 = __dp4a(s1 * 0x83DCD12Du, 0x01010101u, 0u);
    if constexpr (kForm == WeightForm::kMul1Integer) {
      const std::uint32_t biased = __byte_perm(b0, b1, 0x5410) | 0x64006400u;  // fp16 1024 + b
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

inline constexpr int kWarpTiles = kExl3WarpColumns / 8;  // n8 tiles of a warp

// Accumulators of a warp: 16 rows x its columns.
struct Accumulators {
  float c[kWarpTiles][4];
  __device__ void Clear() {
#pragma unroll
    for (int n = 0; n < kWarpTiles; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
  }
};

// Everything a warp reads for kGroup k16 steps, fetched before the first is used, so that the loads of a group are in flight together.
inline constexpr int kGroup = 4;

template <int kB2, bool kTwoTerms>
struct Group {
  RunWords<kB2> words[kGroup][kWarpTiles / 2];
  FragmentA a[kGroup], low[kTwoTerms ? kGroup : 1];

  // `k`: first input of the group; rows as in LoadA.
  __device__ void Load(const std::uint32_t* strips, std::int64_t strip_words, std::int64_t k, const std::uint16_t* const (&row)[4], std::int64_t in) {
#pragma unroll
    for (int step = 0; step < kGroup; ++step) {
      const std::uint32_t* tile = strips + (k / 16 + step) * Run<kB2>::kWords;
#pragma unroll
      for (int n = 0; n < kWarpTiles / 2; ++n) words[step][n].Load(tile + n * strip_words);
      a[step] = LoadA(row[0], row[1], k + 16 * step, in);
      if constexpr (kTwoTerms) low[step] = LoadA(row[2], row[3], k + 16 * step, in);
    }
  }

  template <WeightForm kForm>
  __device__ void Multiply(Accumulators& high_sum, Accumulators& low_sum) const {
#pragma unroll
    for (int step = 0; step < kGroup; ++step) {
#pragma unroll
      for (int n = 0; n < kWarpTiles / 2; ++n) {
        std::uint32_t state[8], b[4];
        words[step][n].States(state);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = DecodePair<kForm>(state[2 * i], state[2 * i + 1]);
        MmaF16(high_sum.c[2 * n], a[step], b[0], b[1]);
        MmaF16(high_sum.c[2 * n + 1], a[step], b[2], b[3]);
        if constexpr (kTwoTerms) {
          MmaF16(low_sum.c[2 * n], low[step], b[0], b[1]);
          MmaF16(low_sum.c[2 * n + 1], low[step], b[2], b[3]);
        }
      }
    }
  }
};

// z * 476/2^18 of a row (docs/numerics.md section 4) by one warp: lanes hold the blocks' code sums and scales.
__device__ inline float AffineCorrection(const float* sums, const float* scales, std::int64_t in) {
  const int lane = threadIdx.x & 31;
  float fold[contract::kSegments];
#pragma unroll
  for (int s = 0; s < contract::kSegments; ++s) {
    const contract::SegmentRange range = contract::SegmentOf(in, s);
    fold[s] = 0.0f;
    for (std::int64_t begin = range.begin / 128; begin < range.end / 128; begin += 32) {
      const int count = static_cast<int>(min(std::int64_t{32}, range.end / 128 - begin));
      const float sum = lane < count ? sums[begin + lane] : 0.0f, scale = lane < count ? scales[begin + lane] : 0.0f;
      for (int i = 0; i < count; ++i) {
        fold[s] = contract::Fma(__shfl_sync(0xffffffffu, sum, i), __shfl_sync(0xffffffffu, scale, i), fold[s]);
      }
    }
  }
  return contract::Mul(contract::FoldSegments(fold[0], fold[1], fold[2], fold[3]), 476.0f * 0x1p-18f);
}

// Block: 16 rows of one job x 128 columns. Warp w: segment w % 4, columns 32 * (w / 4) ...
template <int kB2, WeightForm kForm, bool kTwoTerms>
__global__ void __launch_bounds__(kExl3Threads) Exl3ProductKernel(const __grid_constant__ Exl3Call call, std::int64_t first_tile) {
  constexpr bool kInteger = kForm == WeightForm::kMul1Integer;
  __shared__ float partial[contract::kSegments][16][kExl3BlockColumns + 4];
  __shared__ float correction[16];
  const RowTile tile = call.list.Tile(first_tile + blockIdx.y);
  const Exl3Job job = call.list.JobOf(tile);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const int segment = warp % contract::kSegments, quarter = warp / contract::kSegments;
  const std::int64_t column0 = blockIdx.x * kExl3BlockColumns + kExl3WarpColumns * quarter, k_tiles = call.in / 16, strip_words = k_tiles * Run<kB2>::kWords;
  const contract::SegmentRange range = contract::SegmentOf(call.in, segment);
  const auto row_of = [&](const __half* codes, int row) {
    return row < tile.rows ? reinterpret_cast<const std::uint16_t*>(codes + (tile.begin + row) * call.in) : nullptr;
  };

  Accumulators sum, low, y;
  sum.Clear(), low.Clear(), y.Clear();
  const std::uint32_t* strips = job.tiles + column0 / 16 * strip_words;
  const std::uint16_t* const rows[4] = {row_of(call.codes, g), row_of(call.codes, g + 8), kTwoTerms ? row_of(call.low_codes, g) : nullptr,
                                        kTwoTerms ? row_of(call.low_codes, g + 8) : nullptr};
  constexpr std::int64_t kGroupInputs = 16 * kGroup;
  for (std::int64_t k0 = range.begin; k0 < range.end; k0 += 128) {
    // Read early, used after the block's products.
    const std::int64_t block = k0 / 128, blocks = call.in / 128;
    const float scale0 = kInteger && g < tile.rows ? call.scales[(tile.begin + g) * blocks + block] : 0.0f;
    const float scale8 = kInteger && g + 8 < tile.rows ? call.scales[(tile.begin + g + 8) * blocks + block] : 0.0f;
#pragma unroll
    for (std::int64_t k = k0; k < k0 + 128; k += kGroupInputs) {
      Group<kB2, kTwoTerms> current;
      current.Load(strips, strip_words, k, rows, call.in);
      current.template Multiply<kForm>(sum, low);
    }
    if constexpr (kInteger) {
#pragma unroll
      for (int n = 0; n < kWarpTiles; ++n) {
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
  if (kInteger && warp < tile.rows) {
    const std::int64_t row = (tile.begin + warp) * (call.in / 128);
    const float z = AffineCorrection(call.sums + row, call.scales + row, call.in);
    if (lane == 0) correction[warp] = z;
  }
  const Accumulators& result = kInteger ? y : sum;
#pragma unroll
  for (int n = 0; n < kWarpTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[segment][g + (i < 2 ? 0 : 8)][kExl3WarpColumns * quarter + 8 * n + 2 * q + (i & 1)] = result.c[n][i];
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
void LaunchProduct(const Exl3Call& call, cudaStream_t stream) {
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.list.num_tiles; begin += kMaxGridY) {
    const std::int64_t left = call.list.num_tiles - begin;
    const dim3 grid(static_cast<unsigned>(call.out / kExl3BlockColumns), static_cast<unsigned>(left < kMaxGridY ? left : kMaxGridY));
    Exl3ProductKernel<kB2, kForm, kTwoTerms><<<grid, kExl3Threads, 0, stream>>>(call, begin);
  }
  CheckLaunch("exl3 product");
}

template <WeightForm kForm, bool kTwoTerms>
void LaunchForBits(const Exl3Call& call, int bits_x2, cudaStream_t stream) {
  switch (bits_x2) {
    case 2: return LaunchProduct<2, kForm, kTwoTerms>(call, stream);
    case 3: return LaunchProduct<3, kForm, kTwoTerms>(call, stream);
    case 4: return LaunchProduct<4, kForm, kTwoTerms>(call, stream);
    case 5: return LaunchProduct<5, kForm, kTwoTerms>(call, stream);
    case 6: return LaunchProduct<6, kForm, kTwoTerms>(call, stream);
    case 7: return LaunchProduct<7, kForm, kTwoTerms>(call, stream);
    case 8: return LaunchProduct<8, kForm, kTwoTerms>(call, stream);
    case 10: return LaunchProduct<10, kForm, kTwoTerms>(call, stream);
    case 12: return LaunchProduct<12, kForm, kTwoTerms>(call, stream);
    case 14: return LaunchProduct<14, kForm, kTwoTerms>(call, stream);
    default: return LaunchProduct<16, kForm, kTwoTerms>(call, stream);
  }
}

#endif

}  // namespace lockstep::kernels
