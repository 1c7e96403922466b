// Packing and widening rows of the KV state: a block a row.
#include "kernels/device/launch.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/kv_rows/kv_rows_cuda.h"
#include "kernels/kv_rows/norm_rope_pack.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;

__device__ std::byte* RowAt(std::byte* const* pages, int page_shift, std::int64_t row_bytes, std::int64_t i) {
  return pages[i >> page_shift] + (i & ((std::int64_t{1} << page_shift) - 1)) * row_bytes;
}

__global__ void __launch_bounds__(kThreads) PackKernel(const __grid_constant__ PackRowsArgs a, const __grid_constant__ PackedForm form) {
  BeginKernel();
  __shared__ __align__(16) float x[kMaxPackedWidth];
  const std::int64_t i = blockIdx.x;
  const PackTargets targets(a, i, form.row_bytes);
  if (targets.none()) return;
  for (int d = threadIdx.x; d < a.format.width; d += kThreads) x[d] = BF16Value(a.x[i * a.x_stride + d]);
  __syncthreads();
  PackRow(a.format, x, form.hadamard_scale, targets);
}

__global__ void __launch_bounds__(NormRopePackRow::kThreads) NormRopePackKernel(const __grid_constant__ NormRopePackArgs a, const __grid_constant__ PackedForm form) {
  StartNextKernel();
  const std::int64_t i = blockIdx.x;
  const NormRopePackRow row(a, i, form);
  WaitForKernelsBefore();
  std::uint16_t* out = a.rope.x + i * a.rope.width;
  row.Run(a.norm.rows > 0 ? a.norm.x + i * a.norm.x_stride : out, out);
}

__global__ void __launch_bounds__(kThreads) UnpackKernel(const __grid_constant__ UnpackRowsArgs a, std::int64_t row_bytes) {
  BeginKernel();
  const std::int64_t i = blockIdx.x;
  const std::byte* row = a.flat ? a.flat + i * row_bytes : RowAt(a.src.pages, a.src.page_shift, a.src.row_bytes, a.first + i);
  for (int d = threadIdx.x; d < a.format.width; d += kThreads) a.y[i * a.y_stride + d] = PackedChannel(a.format, row, d);
}

void RunPack(Stream& stream, const PackRowsArgs& a) {
  if (a.rows == 0) return;
  Launch(PackKernel, Blocks(a.rows, 1), kThreads, 0, AsCuda(stream), a, PackedForm(a.format));
  CheckLaunch("pack_rows");
}

void RunNormRopePack(Stream& stream, const NormRopePackArgs& a) {
  if (a.rope.rows == 0) return;
  if (NormRopePackRow::Takes(a)) {
    Launch(NormRopePackKernel, Blocks(a.rope.rows, 1), NormRopePackRow::kThreads, 0, AsCuda(stream), a, PackedForm(a.pack.format));
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
