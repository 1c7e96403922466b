// Linears on the device, profile sm90: dense and block-scaled products; EXL3 ones are in exl3.cu. Contract: docs/numerics.md sections 3 and 4.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/contract/segments.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/dense_bf16.h"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/linear_cuda_slots.h"
#include "kernels/linear/mma_sm80.cuh"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

// Jobs and row tiles of a launch: short lists travel as kernel parameters, so that decode uploads nothing; long ones lie in device memory.
template <class Job>
struct JobList {
  static constexpr int kSmall = 48;
  const Job* jobs = nullptr;  // null: the small arrays
  const RowTile* tiles = nullptr;
  std::int64_t num_tiles = 0;
  Job small_jobs[kSmall];
  RowTile small_tiles[kSmall];

  __device__ const Job& JobOf(const RowTile& tile) const { return jobs ? jobs[tile.job] : small_jobs[tile.job]; }
  __device__ const RowTile& Tile(std::int64_t i) const { return tiles ? tiles[i] : small_tiles[i]; }
};

// Where a row of a call finds its input.
struct InputRows {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_index = nullptr;

  __device__ const std::uint16_t* Row(std::int64_t row) const { return x + (x_index ? x_index[row] : row) * x_stride; }
};

// Jobs and tiles where the kernels find them: in the parameters if they fit.
template <class Job>
JobList<Job> MakeJobList(CudaStream& stream, const std::vector<Job>& jobs, const std::vector<RowTile>& tiles) {
  JobList<Job> list;
  list.num_tiles = static_cast<std::int64_t>(tiles.size());
  if (jobs.size() <= JobList<Job>::kSmall && tiles.size() <= JobList<Job>::kSmall) {
    std::copy(jobs.begin(), jobs.end(), list.small_jobs);
    std::copy(tiles.begin(), tiles.end(), list.small_tiles);
    return list;
  }
  list.jobs = reinterpret_cast<const Job*>(stream.Upload(kLinearJobs, jobs.data(), jobs.size() * sizeof(Job)));
  list.tiles = reinterpret_cast<const RowTile*>(stream.Upload(kLinearTiles, tiles.data(), tiles.size() * sizeof(RowTile)));
  return list;
}

// Launches over all tiles, at most a grid's worth at a time.
template <class Launch>
void ForTiles(std::int64_t num_tiles, Launch launch) {
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < num_tiles; begin += kMaxGridY) launch(begin, static_cast<unsigned>(std::min(kMaxGridY, num_tiles - begin)));
}

// --- dense and block-scaled ------------------------------------------------------------------------------------------

struct DenseJob {
  const std::byte* weight;
  const std::uint8_t* scale;
};

struct DenseCall {
  LinearSpec spec;
  JobList<DenseJob> list;
  InputRows input;  // bf16, fp16 or FP8 codes as fp16
  const float* x_scales = nullptr;  // [total_rows][ceil(in/activation_block)]
  std::uint16_t* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
};

__device__ void StoreOutput(const DenseCall& call, std::int64_t row, std::int64_t column, float value) {
  if (column >= call.spec.out_features) return;
  const std::int64_t at = row * call.y_stride + column;
  if (call.y_bf16) call.y_bf16[at] = BF16Bits(value);
  else call.y_fp32[at] = value;
}

// FP8 or FP4 code k of row n as fp16 or bf16 bits.
template <bool kBf16Operands>
__device__ std::uint32_t StoredCode(const DenseCall& call, const DenseJob& job, std::int64_t n, std::int64_t k) {
  const LinearSpec& s = call.spec;
  if (n >= s.out_features || k >= s.in_features) return 0u;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(job.weight);
  const float value = s.kind == Kind::kFp8Block ? E4M3Value(bytes[n * s.in_features + k])
                                                : E2M1Value((bytes[(n * s.in_features + k) / 2] >> (k % 2 * 4)) & 0xfu);
  return kBf16Operands ? BF16Bits(value) : static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(value)));
}

__device__ float WeightScale(const DenseCall& call, const DenseJob& job, std::int64_t n, std::int64_t k) {
  const LinearSpec& s = call.spec;
  if (n >= s.out_features) return 0.0f;
  const std::int64_t columns = (s.in_features + s.block - 1) / s.block, row = s.kind == Kind::kFp8Block ? n / s.block : n;
  const unsigned exponent = job.scale[row * columns + k / s.block];
  return exponent == 0 ? 0x1p-127f : PowerOfExponent(exponent);
}

constexpr int kDenseThreads = 128;  // a warp a K segment
constexpr int kDenseColumns = 32;

// Block: 16 rows x 32 columns; the four warps take the four K segments, which fold in shared memory.
template <bool kBf16Operands, bool kScaled>
__global__ void __launch_bounds__(kDenseThreads) DenseKernel(const __grid_constant__ DenseCall call, std::int64_t first_tile) {
  __shared__ float partial[contract::kSegments][16][kDenseColumns];
  const RowTile tile = call.list.Tile(first_tile + blockIdx.y);
  const DenseJob job = call.list.JobOf(tile);
  const int segment = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x) * kDenseColumns, in = call.spec.in_features;
  const contract::SegmentRange range = contract::SegmentOf(in, segment);
  const auto row_at = [&](int r) -> const std::uint16_t* { return r < tile.rows ? call.input.Row(tile.begin + r) : nullptr; };
  const std::uint16_t *row0 = row_at(g), *row8 = row_at(g + 8);
  const auto product = [&](float (&c)[4], const FragmentA& a, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (kBf16Operands) MmaBF16(c, a, b0, b1);
    else MmaF16(c, a, b0, b1);
  };
  float sum[4][4] = {}, y[4][4] = {};
  const std::int64_t step_end = kScaled ? call.spec.block : range.end - range.begin;
  for (std::int64_t k_begin = range.begin; k_begin < range.end; k_begin += step_end) {
    const std::int64_t k_end = min(k_begin + step_end, range.end);
    for (std::int64_t k = k_begin; k < k_end; k += 16) {
      const FragmentA a = LoadA(row0, row8, k, k_end);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::int64_t column = column0 + 8 * n + g;
        std::uint32_t b0, b1;
        if constexpr (kScaled) {
          const auto pair = [&](std::int64_t i) {
            return (i < k_end ? StoredCode<kBf16Operands>(call, job, column, i) : 0u) |
                   ((i + 1 < k_end ? StoredCode<kBf16Operands>(call, job, column, i + 1) : 0u) << 16);
          };
          b0 = pair(k + 2 * q), b1 = pair(k + 2 * q + 8);
        } else {
          const std::uint16_t* w = column < call.spec.out_features ? reinterpret_cast<const std::uint16_t*>(job.weight) + column * in : nullptr;
          b0 = w ? LoadPair(w, k + 2 * q, in) : 0u, b1 = w ? LoadPair(w, k + 2 * q + 8, in) : 0u;
        }
        product(sum[n], a, b0, b1);
      }
    }
    if constexpr (kScaled) {
      const int act = call.spec.activation_block;
      const std::int64_t scales = act > 0 ? (in + act - 1) / act : 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = g + (i < 2 ? 0 : 8);
          float scale = WeightScale(call, job, column0 + 8 * n + 2 * q + (i & 1), k_begin);
          if (act > 0 && r < tile.rows) scale = contract::Mul(call.x_scales[(tile.begin + r) * scales + k_begin / act], scale);
          y[n][i] = contract::Fma(sum[n][i], scale, y[n][i]);
          sum[n][i] = 0.0f;
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[segment][g + (i < 2 ? 0 : 8)][8 * n + 2 * q + (i & 1)] = kScaled ? y[n][i] : sum[n][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.rows * kDenseColumns; i += kDenseThreads) {
    const int r = i / kDenseColumns, c = i % kDenseColumns;
    StoreOutput(call, tile.begin + r, column0 + c, contract::FoldSegments(partial[0][r][c], partial[1][r][c], partial[2][r][c], partial[3][r][c]));
  }
}

// F32 weights: a warp an output.
__global__ void F32Kernel(const __grid_constant__ DenseCall call, std::int64_t first_tile) {
  const RowTile tile = call.list.Tile(first_tile + blockIdx.y);
  const std::int64_t unit = blockIdx.x * static_cast<std::int64_t>(blockDim.x / 32) + threadIdx.x / 32, out = call.spec.out_features;
  const std::int64_t local = unit / out, column = unit % out;
  if (local >= tile.rows) return;
  const std::int64_t row = tile.begin + local;
  const std::uint16_t* x = call.input.Row(row);
  const float* w = reinterpret_cast<const float*>(call.list.JobOf(tile).weight) + column * call.spec.in_features;
  const float value = DotFWarp([x](std::int64_t k) { return BF16Value(x[k]); }, [w](std::int64_t k) { return w[k]; }, call.spec.in_features);
  if ((threadIdx.x & 31) == 0) StoreOutput(call, row, column, value);
}

// Rows of x as FP8 codes widened to fp16, a warp an activation block; or rounded to fp16 (activation_block 0).
__global__ void PrepareDenseKernel(const __grid_constant__ DenseCall call, std::int64_t first_tile, int activation_block, std::uint16_t* out,
                                   float* scales, std::int32_t* overflow) {
  const RowTile tile = call.list.Tile(first_tile + blockIdx.y);
  const std::int64_t in = call.spec.in_features;
  const int width = activation_block > 0 ? activation_block : 128, lane = threadIdx.x & 31;
  const std::int64_t blocks = (in + width - 1) / width, unit = blockIdx.x * static_cast<std::int64_t>(blockDim.x / 32) + threadIdx.x / 32;
  const std::int64_t local = unit / blocks, block = unit % blocks;
  if (local >= tile.rows) return;
  const std::int64_t row = tile.begin + local, begin = block * width, end = min(begin + width, in);
  const std::uint16_t* x = call.input.Row(row);
  if (activation_block == 0) {
    for (std::int64_t k = begin + lane; k < end; k += 32) {
      const __half value = __float2half_rn(BF16Value(x[k]));
      if (__hisinf(value) && overflow) *overflow = 1;
      out[row * in + k] = __half_as_ushort(value);
    }
    return;
  }
  float top = 0.0f;
  for (std::int64_t k = begin + lane; k < end; k += 32) top = fmaxf(top, fabsf(BF16Value(x[k])));
  top = MaxWarp(top);
  const float scale = PowerOfExponent(CeilExponent(contract::Mul(fmaxf(top, 1e-4f), static_cast<float>(1.0 / 448.0))));
  for (std::int64_t k = begin + lane; k < end; k += 32) {
    const float v = fmaxf(fminf(contract::Div(BF16Value(x[k]), scale), 448.0f), -448.0f);
    out[row * in + k] = __half_as_ushort(__float2half_rn(E4M3Value(E4M3Code(v))));
  }
  if (lane == 0) scales[row * blocks + block] = scale;
}

// `total_rows`: highest row of the call + 1.
void RunDense(CudaStream& stream, const GroupedLinear& g, const LinearSpec& spec, const std::vector<DenseJob>& jobs, const std::vector<RowTile>& tiles,
              std::int64_t total_rows, const LinearPart& part) {
  DenseCall call;
  call.spec = spec;
  call.list = MakeJobList(stream, jobs, tiles);
  call.input = {part.x, part.x_stride, g.x_index};
  call.y_bf16 = part.y_bf16;
  call.y_fp32 = part.y_fp32;
  call.y_stride = part.y_stride;
  const bool scaled = spec.kind == Kind::kFp8Block || spec.kind == Kind::kFp4Row, codes = scaled && spec.activation_block > 0;
  if (codes || spec.kind == Kind::kF16) {
    const int width = codes ? spec.activation_block : 128;
    const std::int64_t blocks = (spec.in_features + width - 1) / width;
    auto* x = reinterpret_cast<std::uint16_t*>(stream.Scratch(kLinearCodes, static_cast<std::size_t>(total_rows * spec.in_features) * 2));
    auto* scales = reinterpret_cast<float*>(stream.Scratch(kLinearScales, static_cast<std::size_t>(total_rows * blocks) * sizeof(float)));
    ForTiles(call.list.num_tiles, [&](std::int64_t begin, unsigned count) {
      PrepareDenseKernel<<<dim3(Blocks(16 * blocks, 4), count), 128, 0, stream.handle()>>>(call, begin, codes ? spec.activation_block : 0, x, scales, g.overflow);
    });
    call.input = {x, spec.in_features, nullptr};
    call.x_scales = scales;
  }
  ForTiles(call.list.num_tiles, [&](std::int64_t begin, unsigned count) {
    const dim3 grid(Blocks(spec.out_features, kDenseColumns), count);
    if (spec.kind == Kind::kF32) {
      F32Kernel<<<dim3(Blocks(16 * std::int64_t{spec.out_features}, 8), count), 256, 0, stream.handle()>>>(call, begin);
    } else if (codes) {
      DenseKernel<false, true><<<grid, kDenseThreads, 0, stream.handle()>>>(call, begin);
    } else if (scaled) {
      DenseKernel<true, true><<<grid, kDenseThreads, 0, stream.handle()>>>(call, begin);
    } else if (spec.kind == Kind::kF16) {
      DenseKernel<false, false><<<grid, kDenseThreads, 0, stream.handle()>>>(call, begin);
    } else {
      DenseKernel<true, false><<<grid, kDenseThreads, 0, stream.handle()>>>(call, begin);
    }
  });
  CheckLaunch("linear");
}

// Jobs that one launch can serve together.
auto ShapeOf(const LinearSpec& s) { return std::make_tuple(s.kind, s.out_features, s.in_features, s.block, s.activation_block); }

// The part's jobs that are not EXL3, a launch a shape.
void RunDensePart(CudaStream& stream, const GroupedLinear& g, int part) {
  std::map<decltype(ShapeOf(LinearSpec())), std::vector<RowRun>> shapes;
  const auto at = [&](std::int32_t job) { return static_cast<std::size_t>(job * g.parts() + part); };
  std::int64_t total_rows = 0;
  for (const RowRun& run : g.runs) {
    total_rows = std::max(total_rows, run.begin + run.rows);
    if (g.specs[at(run.job)]->kind != Kind::kExl3) shapes[ShapeOf(*g.specs[at(run.job)])].push_back(run);
  }
  for (const auto& [shape, runs] : shapes) {
    std::vector<DenseJob> jobs;
    std::vector<RowTile> tiles;
    for (const RowRun& run : runs) {
      const LinearSpec& s = *g.specs[at(run.job)];
      const std::byte* blob = g.blobs[at(run.job)];
      for (std::int64_t begin = 0; begin < run.rows; begin += 16) {
        tiles.push_back({static_cast<std::int32_t>(jobs.size()), static_cast<std::int32_t>(std::min<std::int64_t>(16, run.rows - begin)), run.begin + begin});
      }
      jobs.push_back({blob + s.weight, reinterpret_cast<const std::uint8_t*>(blob + s.scale)});
    }
    RunDense(stream, g, *g.specs[at(runs.front().job)], jobs, tiles, total_rows, g.part[static_cast<std::size_t>(part)]);
  }
}

// The rows of some linears, all the same number, a part each: launches for all of them, which take `beside` along. `norm` as in LinearSetArgs.
void RunSideBySide(CudaStream& stream, const LinearArgs* const* linears, int count, const RmsNormArgs& norm = {}, std::vector<DenseLinear> beside = {}) {
  GroupedLinear g;
  if (norm.rows > 0) g.norm_weight = norm.weight, g.norm_eps = norm.eps;
  g.beside = std::move(beside);
  for (int i = 0; i < count; ++i) {
    const LinearArgs& a = *linears[i];
    g.part.push_back({a.x, a.x_stride, a.y_bf16, a.y_fp32, a.y_stride});
    g.specs.push_back(a.spec);
    g.blobs.push_back(a.blob);
  }
  g.runs.push_back({0, 0, linears[0]->rows});
  g.overflow = linears[0]->overflow;
  RunGroupedLinear(stream, g);
}

// EXL3 linears of one input length, form and number of rows share their launches.
auto LaunchOf(const LinearArgs& a) {
  const LinearSpec& s = *a.spec;
  return std::make_tuple(s.in_features, s.in_padded, s.act_limit, s.codebook == Codebook::kMul1, a.rows, a.overflow);
}

// BF16 linears of few rows, for the first launch of EXL3 ones that has few rows too.
class BesideExl3 {
 public:
  bool Add(const LinearArgs& a) {
    const std::optional<DenseLinear> linear = FewRowsDense(a);
    if (!linear || dense_.size() == DenseBeside::kMax) return false;
    dense_.push_back(*linear);
    return true;
  }
  std::vector<DenseLinear> Take(std::int64_t rows) { return rows <= kExl3SmallSlots ? std::exchange(dense_, {}) : std::vector<DenseLinear>(); }
  void RunTheRest(CudaStream& stream) const {
    for (const DenseLinear& linear : dense_) LaunchFewRowsDense(stream, linear);
  }

 private:
  std::vector<DenseLinear> dense_;
};

// `norm`: that no linear runs without (TakesNorm).
void RunLinears(CudaStream& stream, const std::vector<LinearArgs>& linears, const RmsNormArgs& norm = {}) {
  std::map<decltype(LaunchOf(LinearArgs())), std::vector<const LinearArgs*>> launches;
  DenseBf16Set dense;
  BesideExl3 beside;
  for (const LinearArgs& a : linears) {
    if (a.rows == 0) continue;
    if (a.spec->kind == Kind::kExl3) {
      launches[LaunchOf(a)].push_back(&a);
    } else if (const LinearArgs* alone = &a; !dense.Add(stream, a) && !beside.Add(a) && !RunDenseBf16(stream, a)) {
      RunSideBySide(stream, &alone, 1);
    }
  }
  dense.Run(stream);
  for (const auto& [launch, members] : launches) {
    for (std::size_t i = 0; i < members.size(); i += kMaxLinearParts) {
      const int count = static_cast<int>(std::min<std::size_t>(kMaxLinearParts, members.size() - i));
      RunSideBySide(stream, &members[i], count, norm, beside.Take(members[i]->rows));
    }
  }
  beside.RunTheRest(stream);
}

void AddGroups(const LinearArgs& a, std::vector<LinearArgs>* linears) {
  for (int i = 0; i < a.groups; ++i) linears->push_back(a.groups > 1 ? GroupOf(a, i) : a);
}

void RunLinear(Stream& stream, const LinearArgs& a) {
  std::vector<LinearArgs> linears;
  AddGroups(a, &linears);
  RunLinears(AsCuda(stream), linears);
}

// Whether all linears of a set norm their rows while they prepare them.
bool TakesNorm(const std::vector<LinearArgs>& linears, const RmsNormArgs& norm) {
  const bool fits = norm.rows > 0 && norm.rows <= kExl3OwnRows && norm.n <= kExl3NormInputs && norm.n % 4 == 0 && norm.x_stride % 4 == 0 && norm.weight;
  return fits && std::ranges::all_of(linears, [&](const LinearArgs& a) { return a.spec->kind == Kind::kExl3 && a.spec->in_features == norm.n; });
}

void RunLinearSet(Stream& stream, const LinearSetArgs& set) {
  std::vector<LinearArgs> linears;
  for (int i = 0; i < set.count; ++i) AddGroups(set.linears[i], &linears);
  if (TakesNorm(linears, set.norm)) return RunLinears(AsCuda(stream), linears, set.norm);
  if (set.norm.rows > 0) CudaRmsNorm()(stream, set.norm);
  RunLinears(AsCuda(stream), linears);
}

}  // namespace

void RunGroupedLinear(CudaStream& stream, const GroupedLinear& g) {
  RunGroupedExl3(stream, g);
  for (int part = 0; part < g.parts(); ++part) RunDensePart(stream, g, part);
}

Kernel<LinearSetArgs> CudaLinearSet() { return {&RunLinearSet, "linear/H(sm90)+I+F"}; }
Kernel<LinearArgs> CudaLinear() { return {&RunLinear, "linear/H(sm90)+I+F"}; }

}  // namespace lockstep::kernels
