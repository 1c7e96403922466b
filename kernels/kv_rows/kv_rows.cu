// Packing and widening rows of the KV state: a block a row.
#include "kernels/device/launch.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/norm_row.cuh"
#include "kernels/kv_rows/kv_pack.cuh"
#include "kernels/kv_rows/kv_rows_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;

__device__ std::byte* RowAt(std::byte* const* pages, int page_shift, std::int64_t row_bytes, std::int64_t i) {
  return pages[i >> page_shift] + (i & ((std::int64_t{1} << page_shift) - 1)) * row_bytes;
}

__global__ void __launch_bounds__(kThreads) PackKernel(const __grid_constant__ PackRowsArgs a, std::int64_t row_bytes, float hadamard_scale) {
  BeginKernel();
  __shared__ __align__(16) float x[kMaxPackedWidth];
  const std::int64_t i = blockIdx.x;
  const PackTargets targets(a, i, row_bytes);
  if (targets.none()) return;
  for (int d = threadIdx.x; d < a.format.width; d += kThreads) x[d] = BF16Value(a.x[i * a.x_stride + d]);
  __syncthreads();
  PackRow(a.format, x, hadamard_scale, targets);
}

// Chunks of 128 channels that the threads of a block have in their norms.
constexpr int kChunks = 4;

// A block a row: every warp takes its norm and a chunk of it, then all pack.
__global__ void __launch_bounds__(kThreads) NormRopePackKernel(const __grid_constant__ NormRopePackArgs a, std::int64_t row_bytes, float hadamard_scale) {
  BeginKernel();
  __shared__ __align__(16) float x[kMaxPackedWidth];
  using Row = NormRow<kChunks>;
  const std::int64_t i = blockIdx.x;
  const PackTargets targets(a.pack, i, row_bytes);
  const int chunk = threadIdx.x / 32, d = kLanesF * chunk + Row::First(), n = a.rope.width, turning = d - (n - a.rope.rope_dim);
  const bool mine = chunk < kChunks && d < n;
  std::uint16_t* out = a.rope.x + i * n;
  uint2 y = make_uint2(0u, 0u);
  if (chunk < kChunks) {
    const float* angles = AnglesOf(a.rope, i);
    const bool normed = a.norm.rows > 0;
    const std::uint16_t* in = normed ? a.norm.x + i * a.norm.x_stride : out;
    if (mine) y = *reinterpret_cast<const uint2*>(in + d);
    if (normed) {
      const float r = Row(in, n).Scale(a.norm.eps);
      if (mine) y = ScaleFour(y, r, a.norm.weight ? a.norm.weight + d : nullptr);
    }
    if (mine && turning >= 0) y = RotateFour(y, angles + turning / 2, a.rope.rope_dim / 2, a.rope.inverse);
    if (mine) *reinterpret_cast<float4*>(x + d) = WidenFour(y);
  }
  __syncthreads();  // all have read what is written now
  if (mine) *reinterpret_cast<uint2*>(out + d) = y;
  if (!targets.none()) PackRow(a.pack.format, x, hadamard_scale, targets);
}

__global__ void __launch_bounds__(kThreads) UnpackKernel(const __grid_constant__ UnpackRowsArgs a, std::int64_t row_bytes) {
  BeginKernel();
  const std::int64_t i = blockIdx.x;
  const std::byte* row = a.flat ? a.flat + i * row_bytes : RowAt(a.src.pages, a.src.page_shift, a.src.row_bytes, a.first + i);
  for (int d = threadIdx.x; d < a.format.width; d += kThreads) a.y[i * a.y_stride + d] = PackedChannel(a.format, row, d);
}

void RunPack(Stream& stream, const PackRowsArgs& a) {
  if (a.rows == 0) return;
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.format.width)));
  Launch(PackKernel, Blocks(a.rows, 1), kThreads, 0, AsCuda(stream), a, a.format.row_bytes(), scale);
  CheckLaunch("pack_rows");
}

void RunNormRopePack(Stream& stream, const NormRopePackArgs& a) {
  const std::int64_t rows = a.rope.rows, n = a.rope.width;
  if (rows == 0) return;
  const bool by_fours = n % 4 == 0 && a.rope.rope_dim % 4 == 0 && a.norm.x_stride % 4 == 0;
  if (by_fours && n <= kChunks * kLanesF && a.rope.heads == 1 && a.pack.x_stride == n) {
    const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(n)));
    Launch(NormRopePackKernel, Blocks(rows, 1), kThreads, 0, AsCuda(stream), a, a.pack.format.row_bytes(), scale);
  } else {
    if (a.norm.rows > 0) CudaRmsNorm()(stream, a.norm);
    CudaRope()(stream, a.rope);
    CudaPackRows()(stream, a.pack);
  }
  CheckLaunch("norm_rope_pack");
}

void RunUnpack(Stream& stream, const UnpackRowsArgs& a) {
  if (a.rows == 0) return;
  Launch(UnpackKernel, Blocks(a.rows, 1), kThreads, 0, AsCuda(stream), a, a.format.row_bytes());
  CheckLaunch("unpack_rows");
}

}  // namespace

Kernel<PackRowsArgs> CudaPackRows() { return {&RunPack, "pack_rows/F"}; }
Kernel<NormRopePackArgs> CudaNormRopePack() { return {&RunNormRopePack, "norm_rope_pack/F"}; }
Kernel<UnpackRowsArgs> CudaUnpackRows() { return {&RunUnpack, "unpack_rows/F"}; }

}  // namespace lockstep::kernels
