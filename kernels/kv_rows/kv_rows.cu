// Packing and widening rows of the KV state: a block a row.
#include "kernels/device/launch.cuh"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/kv_rows/kv_rows_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 128;

__device__ std::byte* RowAt(std::byte* const* pages, int page_shift, std::int64_t row_bytes, std::int64_t i) {
  return pages[i >> page_shift] + (i & ((std::int64_t{1} << page_shift) - 1)) * row_bytes;
}

// A quantized row from its codes and scales; `in` gives the channels that are not quantized.
__device__ void StoreQuantized(const RowFormat& f, const std::uint8_t* codes, const std::uint8_t* scales, const std::uint16_t* in, std::uint8_t* row) {
  const int width = f.kind == RowFormat::Kind::kFp8 ? f.quantized : f.width;
  const int code_bytes = f.kind == RowFormat::Kind::kFp8 ? width : (width + 1) / 2, scale_bytes = (width + f.block - 1) / f.block;
  for (int d = threadIdx.x; d < code_bytes; d += kThreads) {
    row[d] = f.kind == RowFormat::Kind::kFp8 ? codes[d] : static_cast<std::uint8_t>(codes[2 * d] | (codes[2 * d + 1] << 4));
  }
  for (int b = threadIdx.x; b < scale_bytes; b += kThreads) row[code_bytes + b] = scales[b];
  if (f.kind != RowFormat::Kind::kFp8) return;
  for (int d = width + threadIdx.x; d < f.width; d += kThreads) {
    std::uint8_t* tail = row + code_bytes + scale_bytes + 2 * (d - width);
    tail[0] = static_cast<std::uint8_t>(in[d] & 0xff);
    tail[1] = static_cast<std::uint8_t>(in[d] >> 8);
  }
}

__global__ void __launch_bounds__(kThreads) PackKernel(const __grid_constant__ PackRowsArgs a, std::int64_t row_bytes, float hadamard_scale) {
  BeginKernel();
  __shared__ float x[kMaxPackedWidth];
  __shared__ std::uint8_t codes[kMaxPackedWidth + 1], scales[kMaxPackedWidth];
  const std::int64_t i = blockIdx.x;
  const RowFormat f = a.format;
  const std::uint16_t* in = a.x + i * a.x_stride;
  std::byte* const targets[2] = {a.flat ? a.flat + i * row_bytes : nullptr, a.to_T ? a.to_T[i] : nullptr};
  if (!targets[0] && !targets[1]) return;
  if (f.kind != RowFormat::Kind::kBf16) {
    for (int d = threadIdx.x; d < f.width; d += kThreads) x[d] = BF16Value(in[d]);
    if (threadIdx.x == 0) codes[f.width] = 0;
    __syncthreads();
    if (f.kind == RowFormat::Kind::kHadamardFp4) HadamardBlock(x, f.width, hadamard_scale);
    QuantizeBlocks(f, x, codes, scales);
    __syncthreads();
  }
  for (std::byte* target : targets) {
    if (!target) continue;
    if (f.kind == RowFormat::Kind::kBf16) {
      for (int d = threadIdx.x; d < f.width; d += kThreads) reinterpret_cast<std::uint16_t*>(target)[d] = in[d];
    } else {
      StoreQuantized(f, codes, scales, in, reinterpret_cast<std::uint8_t*>(target));
    }
  }
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

void RunUnpack(Stream& stream, const UnpackRowsArgs& a) {
  if (a.rows == 0) return;
  Launch(UnpackKernel, Blocks(a.rows, 1), kThreads, 0, AsCuda(stream), a, a.format.row_bytes());
  CheckLaunch("unpack_rows");
}

}  // namespace

Kernel<PackRowsArgs> CudaPackRows() { return {&RunPack, "pack_rows/F"}; }
Kernel<UnpackRowsArgs> CudaUnpackRows() { return {&RunUnpack, "unpack_rows/F"}; }

}  // namespace lockstep::kernels
