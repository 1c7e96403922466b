// BF16 linears: few rows by a warp a K segment of eight columns, more by 64 x 64 tiles, many of one input by 128 x 128. A product's order inside a block of 16 is free, so that a thread
// may take four neighbouring channels as its share of the block. Contract: docs/numerics.md sections 2 and 3.
#include "kernels/linear/dense_bf16.h"

#include <tuple>

#include "kernels/contract/segments.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/linear/dense_wide.cuh"

namespace lockstep::kernels {
namespace {

// --- few rows --------------------------------------------------------------------------------------------------------

constexpr int kFewRows = 16, kFewColumns = 8, kFewThreads = 32 * contract::kSegments;
constexpr int kSteps = static_cast<int>(contract::kSegmentBlock) / 16;  // MMA blocks whose operands are loaded together

template <int kHalves>
struct Operands {
  uint2 w[kSteps], x[kHalves][kSteps];

  __device__ void Load(const std::uint16_t* w_row, const std::uint16_t* const (&x_row)[kHalves], int k) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      w[i] = __ldg(reinterpret_cast<const uint2*>(w_row + k + 16 * i));
#pragma unroll
      for (int h = 0; h < kHalves; ++h) x[h][i] = *reinterpret_cast<const uint2*>(x_row[h] + k + 16 * i);
    }
  }
  __device__ void Accumulate(float (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const FragmentA a{{x[0][i].x, kHalves == 2 ? x[kHalves - 1][i].x : 0u, x[0][i].y, kHalves == 2 ? x[kHalves - 1][i].y : 0u}};
      MmaBF16(sum, a, w[i].x, w[i].y);
    }
  }
};

// Block: eight columns; kHalves halves of eight rows. The four warps take the K segments.
template <int kHalves>
__global__ void __launch_bounds__(kFewThreads, 1) DenseRowsKernel(const __grid_constant__ DenseLinear call) {
  BeginKernel();
  __shared__ float partial[contract::kSegments][8 * kHalves][kFewColumns];
  const int segment = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3, column0 = static_cast<int>(blockIdx.x) * kFewColumns;
  const contract::SegmentRange range = contract::SegmentOf(call.in, segment);
  const std::uint16_t* w = call.w + static_cast<std::int64_t>(min(column0 + g, call.out - 1)) * call.in + 4 * q;
  const std::uint16_t* x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) x[h] = call.x + min(std::int64_t{8 * h + g}, call.rows - 1) * call.x_stride + 4 * q;
  float sum[4] = {};
  Operands<kHalves> now, next;
  const int begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
  constexpr int kAhead = 16 * kSteps;
  if (begin < end) now.Load(w, x, begin);
  for (int k = begin; k < end; k += 2 * kAhead) {
    if (k + kAhead < end) next.Load(w, x, k + kAhead);
    now.Accumulate(sum);
    if (k + 2 * kAhead < end) now.Load(w, x, k + 2 * kAhead);
    if (k + kAhead < end) next.Accumulate(sum);
  }
#pragma unroll
  for (int i = 0; i < 2 * kHalves; ++i) partial[segment][g + 8 * (i / 2)][2 * q + i % 2] = sum[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * kHalves * kFewColumns; i += kFewThreads) {
    const int r = i / kFewColumns, c = i % kFewColumns;
    call.Store(r, column0 + c, contract::FoldSegments(partial[0][r][c], partial[1][r][c], partial[2][r][c], partial[3][r][c]));
  }
}

// --- many rows -------------------------------------------------------------------------------------------------------

constexpr int kTile = 64, kTileThreads = 128, kChunk = 64, kStages = 3, kStride = kChunk + 8;

struct TileShared {
  std::uint16_t x[kStages][kTile * kStride], w[kStages][kTile * kStride];
};

struct DenseTile {
  const DenseLinear& call;
  TileShared& s;
  const std::int64_t row0;
  const int column0, warp_row, warp_column;
  float sum[2][4][4];

  __device__ void Fetch(int chunk) {
    if (chunk * kChunk < call.in) {
      const int stage = chunk % kStages;
#pragma unroll
      for (int i = 0; i < kTile * kChunk / 8 / kTileThreads; ++i) {
        const int unit = threadIdx.x + i * kTileThreads, r = unit / (kChunk / 8), k = unit % (kChunk / 8) * 8;
        CopyAsync<16>(s.x[stage] + r * kStride + k, call.x + min(row0 + r, call.rows - 1) * call.x_stride + chunk * kChunk + k);
        CopyAsync<16>(s.w[stage] + r * kStride + k, call.w + static_cast<std::int64_t>(min(column0 + r, call.out - 1)) * call.in + chunk * kChunk + k);
      }
    }
    CommitCopies();
  }

  __device__ void Multiply(int chunk) {
    const std::uint16_t *x = s.x[chunk % kStages], *w = s.w[chunk % kStages];
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      std::uint32_t b[2][4];
      LoadTileB(b[0], w, kStride, warp_column, k);
      LoadTileB(b[1], w, kStride, warp_column + 16, k);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const FragmentA a = LoadTileA(x, kStride, warp_row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) MmaBF16(sum[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
};

// Block: 64 columns (x) of 64 rows (y); a warp 32 x 32.
__global__ void __launch_bounds__(kTileThreads, 2) DenseTileKernel(const __grid_constant__ DenseLinear call) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  DenseTile tile{call, *reinterpret_cast<TileShared*>(memory), blockIdx.y * std::int64_t{kTile}, static_cast<int>(blockIdx.x) * kTile, warp / 2 * 32, warp % 2 * 32, {}};
  float half[2][2][4][4];  // s0 + s1 and s2 + s3
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) tile.Fetch(i);
  int chunk = 0;
#pragma unroll
  for (int segment = 0; segment < contract::kSegments; ++segment) {
#pragma unroll
    for (int i = 0; i < 32; ++i) tile.sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
    for (const int end = static_cast<int>(contract::SegmentOf(call.in, segment).end) / kChunk; chunk < end; ++chunk) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      tile.Fetch(chunk + kStages - 1);
      tile.Multiply(chunk);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& into = half[segment / 2][i / 16][i / 4 % 4][i % 4];
      const float own = tile.sum[i / 16][i / 4 % 4][i % 4];
      into = segment % 2 == 0 ? own : contract::Add(into, own);
    }
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int m = i / 16, n = i / 4 % 4, c = i % 4;
    call.Store(tile.row0 + tile.warp_row + 16 * m + 8 * (c / 2) + g, tile.column0 + tile.warp_column + 8 * n + 2 * q + c % 2,
               contract::Add(half[0][m][n][c], half[1][m][n][c]));
  }
}

bool Takes(const LinearArgs& a) {
  const LinearSpec& spec = *a.spec;
  if (spec.kind != LinearSpec::Kind::kBF16 || spec.in_features % contract::kSegmentBlock != 0 || a.x_stride % 8 != 0) return false;
  return (reinterpret_cast<std::uintptr_t>(a.x) | reinterpret_cast<std::uintptr_t>(a.blob + spec.weight)) % 16 == 0;
}

DenseLinear DenseOf(const LinearArgs& a) {
  return {reinterpret_cast<const std::uint16_t*>(a.blob + a.spec->weight), a.x, a.x_stride, a.rows, a.y_stride, a.y_bf16, a.y_fp32, static_cast<int>(a.spec->out_features),
          static_cast<int>(a.spec->in_features)};
}

constexpr std::int64_t kManyRows = 1024, kMostWideRows = 65535 * std::int64_t{WideDense::kTile};  // of a grid
constexpr int kReservedBytes = 1024;  // of shared memory, of every block

}  // namespace

bool DenseBf16Set::Add(CudaStream& stream, const LinearArgs& a) {
  if (!Takes(a) || a.rows < kManyRows || a.rows > kMostWideRows || linears_.size() == kMaxDenseParts) return false;
  if (WideDense::kSharedBytes + kReservedBytes > stream.shared_bytes()) return false;
  const auto input = [](const LinearArgs& l) { return std::make_tuple(l.x, l.x_stride, l.rows, l.spec->in_features); };
  if (!linears_.empty() && input(*linears_.front()) != input(a)) return false;
  linears_.push_back(&a);
  return true;
}

void DenseBf16Set::Run(CudaStream& stream) const {
  if (linears_.empty()) return;
  const LinearArgs& any = *linears_.front();
  WideDenseCall call{any.x, any.x_stride, any.rows, static_cast<int>(any.spec->in_features), 0, {}};
  int tiles = 0;
  for (const LinearArgs* a : linears_) {
    const auto out = static_cast<int>(a->spec->out_features);
    tiles += static_cast<int>(Blocks(out, WideDense::kTile));
    call.part[call.parts++] = {reinterpret_cast<const std::uint16_t*>(a->blob + a->spec->weight), a->y_bf16, a->y_fp32, a->y_stride, out, tiles};
  }
  AllowShared(WideDenseKernel, stream.device());
  Launch(WideDenseKernel, dim3(static_cast<unsigned>(tiles), Blocks(call.rows, WideDense::kTile)), WideDense::kThreads, WideDense::kSharedBytes, stream, call);
  CheckLaunch("linear");
}

std::optional<DenseLinear> FewRowsDense(const LinearArgs& a) {
  if (!Takes(a) || a.rows == 0 || a.rows > kFewRows / 2) return std::nullopt;
  return DenseOf(a);
}

void LaunchFewRowsDense(CudaStream& stream, const DenseLinear& linear) {
  const auto kernel = linear.rows <= kFewRows / 2 ? &DenseRowsKernel<1> : &DenseRowsKernel<2>;
  Launch(kernel, Blocks(linear.out, kFewColumns), kFewThreads, 0, stream, linear);
  CheckLaunch("linear");
}

bool RunDenseBf16(CudaStream& stream, const LinearArgs& a) {
  if (!Takes(a)) return false;
  if (a.rows == 0) return true;
  const DenseLinear call = DenseOf(a);
  if (a.rows <= kFewRows) {
    LaunchFewRowsDense(stream, call);
    return true;
  }
  AllowShared(DenseTileKernel, stream.device());
  constexpr std::int64_t kMostRows = 65535 * std::int64_t{kTile};  // of a grid
  for (std::int64_t begin = 0; begin < a.rows; begin += kMostRows) {
    DenseLinear part = call;
    part.rows = a.rows - begin < kMostRows ? a.rows - begin : kMostRows;
    part.x += begin * a.x_stride;
    if (part.y_bf16) part.y_bf16 += begin * a.y_stride;
    else part.y_fp32 += begin * a.y_stride;
    Launch(DenseTileKernel, dim3(Blocks(call.out, kTile), Blocks(part.rows, kTile)), kTileThreads, sizeof(TileShared), stream, part);
  }
  CheckLaunch("linear");
  return true;
}

}  // namespace lockstep::kernels
