// Family F operations on rows: embedding, norms, RoPE, combine, Engram. Hyper-connections are in hyper_connections.cu. The orders are
// docs/numerics.md section 6.
#include <type_traits>

#include "kernels/device/launch.cuh"
#include "kernels/elementwise/channels.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/norm_row.cuh"

namespace lockstep::kernels {
namespace {

using contract::Add;
using contract::Div;
using contract::Fma;
using contract::Mul;
using contract::Sub;

__device__ float RmsScale(const std::uint16_t* x, std::int64_t n, float eps) {
  const auto value = [x](std::int64_t k) { return BF16Value(x[k]); };
  return contract::Rsqrt(Add(Div(DotFBlock(value, value, n), static_cast<float>(n)), eps));
}

__device__ void ScaleRow(const std::uint16_t* x, float r, const float* weight, std::int64_t n, std::uint16_t* y) {
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float scaled = Mul(BF16Value(x[i]), r);
    y[i] = BF16Bits(weight ? Mul(scaled, weight[i]) : scaled);
  }
}

// Channels that a thread takes at a time where all rows are 16-byte aligned: 8, else 1.
template <int kWidth>
using Width = std::integral_constant<int, kWidth>;
template <class Launch>
void WithWidth(bool by_eights, const Launch& launch) {
  if (by_eights) launch(Width<8>());
  else launch(Width<1>());
}

constexpr int kRowThreads = 128;

// Block: a stretch of channels (y) of a row (x).
template <int kWidth>
__global__ void __launch_bounds__(kRowThreads) EmbedKernel(const __grid_constant__ EmbedArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x, d = kWidth * (blockIdx.y * std::int64_t{kRowThreads} + threadIdx.x);
  if (d >= a.hidden) return;
  const auto values = Channels<kWidth>::Load(a.table_VE + a.ids[t] * a.hidden + d);
  for (int s = 0; s < a.streams; ++s) values.Store(a.stream_TSE + (t * a.streams + s) * a.hidden + d);
}

// A block a row of any length and alignment.
__global__ void __launch_bounds__(kLanesF) RmsNormRowKernel(const __grid_constant__ RmsNormArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x;
  const std::uint16_t* x = a.x + t * a.x_stride;
  const float r = RmsScale(x, a.n, a.eps);
  ScaleRow(x, r, a.weight, a.n, a.y + t * a.y_stride);
}

// A warp a row; with kRope, the rows are heads whose last channels turn.
template <int kChunks, bool kRope>
__global__ void __launch_bounds__(256) RmsNormWarpKernel(const __grid_constant__ RmsNormArgs a, const __grid_constant__ RopeArgs rope) {
  BeginKernel();
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x / 32) + threadIdx.x / 32;
  if (t >= a.rows) return;
  NormRowOfWarp<kChunks, kRope>(a, rope, t);
}

// A block a row, for few and longer ones: every warp sums the row for itself and scales a chunk of it.
constexpr int kFewNormRows = 16, kLongChunks = 12;
__global__ void __launch_bounds__(32 * kLongChunks) RmsNormFewKernel(const __grid_constant__ RmsNormArgs a) {
  StartNextKernel();
  using Row = NormRow<kLongChunks>;
  const int d = kLanesF * (static_cast<int>(threadIdx.x) / 32) + Row::First(), n = static_cast<int>(a.n);
  const float4 weight = a.weight && d < n ? *reinterpret_cast<const float4*>(a.weight + d) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
  WaitForKernelsBefore();
  const std::uint16_t* x = a.x + blockIdx.x * a.x_stride;
  const float r = Row(x, n).Scale(a.eps);
  const uint2 bits = d < n ? *reinterpret_cast<const uint2*>(x + d) : make_uint2(0u, 0u);
  __syncthreads();  // all have read what is written now
  if (d < n) *reinterpret_cast<uint2*>(a.y + blockIdx.x * a.y_stride + d) = ScaleFour(bits, r, weight);
}

template <int kPairs>
__global__ void __launch_bounds__(kRowThreads) RopeKernel(const __grid_constant__ RopeArgs a) {
  BeginKernel();
  TurnPart<kPairs>(a, blockIdx.x * std::int64_t{kRowThreads} + threadIdx.x);
}

// Block: a stretch of channels (y) of a row (x).
template <int kWidth>
__global__ void __launch_bounds__(kRowThreads) CombineKernel(const __grid_constant__ CombineArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x, d = kWidth * (blockIdx.y * std::int64_t{kRowThreads} + threadIdx.x);
  if (d >= a.hidden) return;
  Channels<kWidth> sum{};
#pragma unroll 6
  for (int k = 0; k < a.top_k; ++k) {
    const auto y = Channels<kWidth>::Load(a.expert_rows + a.pair_of[t * a.top_k + k] * a.hidden + d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.value[i] = k == 0 ? y.value[i] : Add(sum.value[i], y.value[i]);
  }
  const auto shared = Channels<kWidth>::Load(a.shared_TE + t * a.hidden + d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum.value[i] = Add(sum.value[i], shared.value[i]);
  sum.Store(a.out_TE + t * a.hidden + d);
}

// Block (stream, token).
__global__ void __launch_bounds__(kLanesF) EngramGateKernel(EngramGateArgs a, float root) {
  BeginKernel();
  const int s = blockIdx.x;
  const std::int64_t t = blockIdx.y;
  const std::uint16_t* kv = a.kv + t * (a.streams + 1) * a.hidden;
  const std::uint16_t *key = kv + s * a.hidden, *value = kv + a.streams * a.hidden;
  const float* qk = a.qk_SE + s * a.hidden;
  std::uint16_t* x = a.stream_TSE + (t * a.streams + s) * a.hidden;
  const float dot = DotFBlock([x, qk](std::int64_t k) { return Mul(BF16Value(x[k]), qk[k]); },
                              [key](std::int64_t k) { return BF16Value(key[k]); }, a.hidden);
  const float x_scale = RmsScale(x, a.hidden, a.eps), key_scale = RmsScale(key, a.hidden, a.eps);
  const float g = Mul(Mul(Mul(dot, x_scale), key_scale), root);
  const float magnitude = fabsf(g);
  const float alpha = contract::Sigmoid(copysignf(__fsqrt_rn(magnitude > 1e-6f ? magnitude : 1e-6f), g));
  for (std::int64_t d = threadIdx.x; d < a.hidden; d += blockDim.x) x[d] = BF16Bits(Fma(alpha, BF16Value(value[d]), BF16Value(x[d])));
}

template <int kWidth>
dim3 ChannelGrid(std::int64_t rows, std::int64_t hidden) {
  return dim3(static_cast<unsigned>(rows), Blocks(hidden, kWidth * kRowThreads));
}

void RunEmbed(Stream& stream, const EmbedArgs& a) {
  if (a.rows == 0) return;
  WithWidth(a.hidden % 8 == 0, [&]<int kWidth>(Width<kWidth>) {
    Launch(EmbedKernel<kWidth>, ChannelGrid<kWidth>(a.rows, a.hidden), kRowThreads, 0, AsCuda(stream), a);
  });
  CheckLaunch("embed");
}
// Whether a thread can take four neighbouring channels at a time.
bool ByFours(const RmsNormArgs& a) { return a.n % 4 == 0 && a.x_stride % 4 == 0 && a.y_stride % 4 == 0; }

void LaunchNormWarps(void (*kernel)(RmsNormArgs, RopeArgs), CudaStream& stream, const RmsNormArgs& a, const RopeArgs& rope) {
  const unsigned warps = a.rows >= 1024 ? 8 : 1;  // few rows: a processor each
  Launch(kernel, Blocks(a.rows, warps), 32 * warps, 0, stream, a, rope);
}

void RunRmsNorm(Stream& stream, const RmsNormArgs& a) {
  if (a.rows == 0) return;
  if (!ByFours(a) || a.n > kLongChunks * kLanesF) Launch(RmsNormRowKernel, static_cast<unsigned>(a.rows), kLanesF, 0, AsCuda(stream), a);
  else if (a.n <= 4 * kLanesF) LaunchNormWarps(RmsNormWarpKernel<4, false>, AsCuda(stream), a, {});
  else if (a.rows <= kFewNormRows) Launch(RmsNormFewKernel, static_cast<unsigned>(a.rows), 32 * Blocks(a.n, kLanesF), 0, AsCuda(stream), a);
  else LaunchNormWarps(RmsNormWarpKernel<kLongChunks, false>, AsCuda(stream), a, {});
  CheckLaunch("rms_norm");
}
void RunRope(Stream& stream, const RopeArgs& a) {
  if (a.rows == 0) return;
  const std::int64_t pairs = a.rows * a.heads * (a.rope_dim / 2);
  if (a.rope_dim % 4 == 0 && a.width % 4 == 0) Launch(RopeKernel<2>, Blocks(pairs / 2, kRowThreads), kRowThreads, 0, AsCuda(stream), a);
  else Launch(RopeKernel<1>, Blocks(pairs, kRowThreads), kRowThreads, 0, AsCuda(stream), a);
  CheckLaunch("rope");
}
void RunNormRope(Stream& stream, const NormRopeArgs& a) {
  if (a.norm.rows == 0) return;
  if (ByFours(a.norm) && a.norm.n <= 4 * kLanesF && a.rope.rope_dim % 4 == 0) {
    LaunchNormWarps(RmsNormWarpKernel<4, true>, AsCuda(stream), a.norm, a.rope);
  } else {
    RunRmsNorm(stream, a.norm);
    RunRope(stream, a.rope);
  }
  CheckLaunch("norm_rope");
}
void RunCombine(Stream& stream, const CombineArgs& a) {
  if (a.rows == 0) return;
  WithWidth(a.hidden % 8 == 0, [&]<int kWidth>(Width<kWidth>) {
    Launch(CombineKernel<kWidth>, ChannelGrid<kWidth>(a.rows, a.hidden), kRowThreads, 0, AsCuda(stream), a);
  });
  CheckLaunch("combine");
}
void RunEngramGate(Stream& stream, const EngramGateArgs& a) {
  const float root = static_cast<float>(1.0 / sqrt(static_cast<double>(a.hidden)));
  constexpr std::int64_t kMaxGridY = 32768;
  for (std::int64_t begin = 0; begin < a.rows; begin += kMaxGridY) {
    EngramGateArgs part = a;
    part.kv += begin * (a.streams + 1) * a.hidden;
    part.stream_TSE += begin * a.streams * a.hidden;
    const auto rows = static_cast<unsigned>(a.rows - begin < kMaxGridY ? a.rows - begin : kMaxGridY);
    Launch(EngramGateKernel, dim3(static_cast<unsigned>(a.streams), rows), kLanesF, 0, AsCuda(stream), part, root);
  }
  CheckLaunch("engram_gate");
}

}  // namespace

Kernel<EmbedArgs> CudaEmbed() { return {&RunEmbed, "embed/F"}; }
Kernel<RmsNormArgs> CudaRmsNorm() { return {&RunRmsNorm, "rms_norm/F"}; }
Kernel<RopeArgs> CudaRope() { return {&RunRope, "rope/F"}; }
Kernel<NormRopeArgs> CudaNormRope() { return {&RunNormRope, "norm_rope/F"}; }
Kernel<CombineArgs> CudaCombine() { return {&RunCombine, "combine/F"}; }
Kernel<EngramGateArgs> CudaEngramGate() { return {&RunEngramGate, "engram_gate/F"}; }

}  // namespace lockstep::kernels
