// Family F operations on rows: a block of 128 threads is the 128 lanes of a dot. The orders are docs/numerics.md section 6.
#include "kernels/device/cuda_stream.cuh"
#include "kernels/elementwise/elementwise_cuda.h"

namespace lockstep::kernels {
namespace {

using contract::Add;
using contract::Div;
using contract::Fma;
using contract::Mul;
using contract::Sub;

constexpr int kMaxStreams = 8;

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

__global__ void EmbedKernel(EmbedArgs a) {
  const std::int64_t t = blockIdx.x;
  const std::uint16_t* source = a.table_VE + a.ids[t] * a.hidden;
  for (int s = 0; s < a.streams; ++s) {
    for (std::int64_t i = threadIdx.x; i < a.hidden; i += blockDim.x) a.stream_TSE[(t * a.streams + s) * a.hidden + i] = source[i];
  }
}

__global__ void __launch_bounds__(kLanesF) RmsNormKernel(RmsNormArgs a) {
  const std::int64_t t = blockIdx.x;
  const std::uint16_t* x = a.x + t * a.x_stride;
  const float r = RmsScale(x, a.n, a.eps);
  ScaleRow(x, r, a.weight, a.n, a.y + t * a.y_stride);
}

__global__ void RopeKernel(RopeArgs a) {
  const std::int64_t t = blockIdx.x;
  const int half = a.rope_dim / 2;
  const float* cosine = a.table + a.positions[t] * a.rope_dim;
  for (int i = threadIdx.x; i < a.heads * half; i += blockDim.x) {
    const int h = i / half, j = i % half;
    std::uint16_t* x = a.x + (t * a.heads + h + 1) * a.width - a.rope_dim + 2 * j;
    const float c = cosine[j], s = a.inverse ? -cosine[half + j] : cosine[half + j];
    const float re = BF16Value(x[0]), im = BF16Value(x[1]);
    x[0] = BF16Bits(Sub(Mul(re, c), Mul(im, s)));
    x[1] = BF16Bits(Add(Mul(re, s), Mul(im, c)));
  }
}

// --- hyper-connections -----------------------------------------------------------------------------------------------

// Block (output, token): one dot a block; output number `outputs` is the row's RMS scale.
__global__ void __launch_bounds__(kLanesF) HcProjectKernel(HcMixArgs a, int outputs, float* m) {
  const int i = blockIdx.x;
  const std::int64_t t = blockIdx.y, width = a.streams * a.hidden;
  const std::uint16_t* u = a.stream_TSE + t * width;
  float result;
  if (i == outputs) {
    result = RmsScale(u, width, a.rms_eps);
  } else {
    const float* row = a.fn + i * width;
    result = DotFBlock([row](std::int64_t k) { return row[k]; }, [u](std::int64_t k) { return BF16Value(u[k]); }, width);
  }
  if (threadIdx.x == 0) m[t * (outputs + 1) + i] = result;
}

__device__ void NormalizeLines(float* c, int n, int line_stride, int element_stride, float eps) {
  for (int line = 0; line < n; ++line) {
    float* first = c + line * line_stride;
    float sum = first[0];
    for (int i = 1; i < n; ++i) sum = Add(sum, first[i * element_stride]);
    sum = Add(sum, eps);
    for (int i = 0; i < n; ++i) first[i * element_stride] = Div(first[i * element_stride], sum);
  }
}

__device__ void Sinkhorn(float* c, int n, int iterations, float eps) {
  for (int j = 0; j < n; ++j) {
    float* row = c + j * n;
    float top = row[0], sum = 0.0f;
    for (int k = 1; k < n; ++k) top = row[k] > top ? row[k] : top;
    for (int k = 0; k < n; ++k) {
      row[k] = contract::Exp(Sub(row[k], top));
      sum = k == 0 ? row[k] : Add(sum, row[k]);
    }
    for (int k = 0; k < n; ++k) row[k] = Add(Div(row[k], sum), eps);
  }
  NormalizeLines(c, n, 1, n, eps);
  for (int i = 1; i < iterations; ++i) {
    NormalizeLines(c, n, n, 1, eps);
    NormalizeLines(c, n, 1, n, eps);
  }
}

// One thread a token.
__global__ void HcFinishKernel(HcMixArgs a, int outputs, const float* m) {
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t >= a.rows) return;
  const int n = a.streams;
  const float* row = m + t * (outputs + 1);
  const float r = row[outputs];
  float mix[kMaxStreams * kMaxStreams];
  for (int i = 0; i < outputs; ++i) {
    const int kind = a.read_out || i < n ? 0 : i < 2 * n ? 1 : 2;
    const float logit = Add(Mul(Mul(row[i], r), a.scale[kind]), a.base[i]);
    if (kind == 0) a.pre_TS[t * n + i] = Add(contract::Sigmoid(logit), a.hc_eps);
    if (kind == 1) a.post_TS[t * n + i - n] = Mul(2.0f, contract::Sigmoid(logit));
    if (kind == 2) mix[i - 2 * n] = logit;
  }
  if (a.read_out) return;
  Sinkhorn(mix, n, a.sinkhorn_iters, a.hc_eps);
  for (int i = 0; i < n * n; ++i) a.mix_TSS[t * n * n + i] = mix[i];
}

__global__ void __launch_bounds__(kLanesF) HcCollapseNormKernel(HcCollapseNormArgs a) {
  const std::int64_t t = blockIdx.x;
  const std::uint16_t* stream = a.stream_TSE + t * a.streams * a.hidden;
  const float* pre = a.pre_TS + t * a.streams;
  std::uint16_t* x = a.x_TE + t * a.hidden;
  for (std::int64_t d = threadIdx.x; d < a.hidden; d += blockDim.x) {
    float sum = Mul(pre[0], BF16Value(stream[d]));
    for (int s = 1; s < a.streams; ++s) sum = Fma(pre[s], BF16Value(stream[s * a.hidden + d]), sum);
    x[d] = BF16Bits(sum);
  }
  __syncthreads();
  const float r = RmsScale(x, a.hidden, a.eps);
  ScaleRow(x, r, a.norm_weight, a.hidden, x);
}

__global__ void HcExpandKernel(HcExpandArgs a) {
  const std::int64_t t = blockIdx.x;
  const int n = a.streams;
  std::uint16_t* stream = a.stream_TSE + t * n * a.hidden;
  const float *post = a.post_TS + t * n, *mix = a.mix_TSS + t * n * n;
  for (std::int64_t d = threadIdx.x; d < a.hidden; d += blockDim.x) {
    const float f = BF16Value(a.f_TE[t * a.hidden + d]);
    float x[kMaxStreams];
    for (int j = 0; j < n; ++j) x[j] = BF16Value(stream[j * a.hidden + d]);
    for (int k = 0; k < n; ++k) {
      float sum = Mul(post[k], f);
      for (int j = 0; j < n; ++j) sum = Fma(mix[j * n + k], x[j], sum);
      stream[k * a.hidden + d] = BF16Bits(sum);
    }
  }
}

// --- the rest --------------------------------------------------------------------------------------------------------

__global__ void CombineKernel(CombineArgs a) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t d = threadIdx.x; d < a.hidden; d += blockDim.x) {
    float sum = 0.0f;
    for (int k = 0; k < a.top_k; ++k) {
      const float y = BF16Value(a.expert_rows[static_cast<std::int64_t>(a.pair_of[t * a.top_k + k]) * a.hidden + d]);
      sum = k == 0 ? y : Add(sum, y);
    }
    a.out_TE[t * a.hidden + d] = BF16Bits(Add(sum, BF16Value(a.shared_TE[t * a.hidden + d])));
  }
}

// Block (stream, token).
__global__ void __launch_bounds__(kLanesF) EngramGateKernel(EngramGateArgs a, float root) {
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

__global__ void ArgmaxKernel(ArgmaxArgs a) {
  __shared__ float best_value[256];
  __shared__ std::int64_t best_index[256];
  const float* logits = a.logits_TV + blockIdx.x * a.vocab;
  float value = -__int_as_float(0x7f800000);
  std::int64_t index = a.vocab;
  bool nan = false;
  for (std::int64_t v = threadIdx.x; v < a.vocab; v += blockDim.x) {
    nan = nan || logits[v] != logits[v];
    if (logits[v] > value || index == a.vocab) value = logits[v], index = v;
  }
  nan = __syncthreads_or(nan);
  best_value[threadIdx.x] = value;
  best_index[threadIdx.x] = index;
  for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (threadIdx.x >= stride) continue;
    const float other = best_value[threadIdx.x + stride];
    const std::int64_t other_index = best_index[threadIdx.x + stride];
    const bool better = other_index < a.vocab && (other > best_value[threadIdx.x] || (other == best_value[threadIdx.x] && other_index < best_index[threadIdx.x]));
    if (better) best_value[threadIdx.x] = other, best_index[threadIdx.x] = other_index;
  }
  if (threadIdx.x == 0) a.out_T[blockIdx.x] = nan ? -1 : static_cast<std::int32_t>(best_index[0]);
}

void RunEmbed(Stream& stream, const EmbedArgs& a) {
  EmbedKernel<<<Blocks(a.rows, 1), 256, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("embed");
}
void RunRmsNorm(Stream& stream, const RmsNormArgs& a) {
  RmsNormKernel<<<Blocks(a.rows, 1), kLanesF, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("rms_norm");
}
void RunRope(Stream& stream, const RopeArgs& a) {
  RopeKernel<<<Blocks(a.rows, 1), 256, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("rope");
}
void RunHcMix(Stream& stream, const HcMixArgs& a) {
  const int outputs = a.read_out ? a.streams : 2 * a.streams + a.streams * a.streams;
  constexpr std::int64_t kMaxGridY = 32768;
  auto* m = reinterpret_cast<float*>(AsCuda(stream).Scratch(0, static_cast<std::size_t>(a.rows * (outputs + 1)) * sizeof(float)));
  for (std::int64_t begin = 0; begin < a.rows; begin += kMaxGridY) {
    HcMixArgs part = a;
    part.stream_TSE += begin * a.streams * a.hidden;
    const auto rows = static_cast<unsigned>(a.rows - begin < kMaxGridY ? a.rows - begin : kMaxGridY);
    HcProjectKernel<<<dim3(static_cast<unsigned>(outputs + 1), rows), kLanesF, 0, AsCuda(stream).handle()>>>(part, outputs, m + begin * (outputs + 1));
  }
  HcFinishKernel<<<Blocks(a.rows, 32), 32, 0, AsCuda(stream).handle()>>>(a, outputs, m);
  CheckLaunch("hc_mix");
}
void RunHcCollapseNorm(Stream& stream, const HcCollapseNormArgs& a) {
  HcCollapseNormKernel<<<Blocks(a.rows, 1), kLanesF, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("hc_collapse_norm");
}
void RunHcExpand(Stream& stream, const HcExpandArgs& a) {
  HcExpandKernel<<<Blocks(a.rows, 1), 512, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("hc_expand");
}
void RunCombine(Stream& stream, const CombineArgs& a) {
  CombineKernel<<<Blocks(a.rows, 1), 512, 0, AsCuda(stream).handle()>>>(a);
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
    EngramGateKernel<<<dim3(static_cast<unsigned>(a.streams), rows), kLanesF, 0, AsCuda(stream).handle()>>>(part, root);
  }
  CheckLaunch("engram_gate");
}
void RunArgmax(Stream& stream, const ArgmaxArgs& a) {
  ArgmaxKernel<<<Blocks(a.rows, 1), 256, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("argmax");
}

}  // namespace

Kernel<EmbedArgs> CudaEmbed() { return {&RunEmbed, "embed/F"}; }
Kernel<RmsNormArgs> CudaRmsNorm() { return {&RunRmsNorm, "rms_norm/F"}; }
Kernel<RopeArgs> CudaRope() { return {&RunRope, "rope/F"}; }
Kernel<HcMixArgs> CudaHcMix() { return {&RunHcMix, "hc_mix/F"}; }
Kernel<HcCollapseNormArgs> CudaHcCollapseNorm() { return {&RunHcCollapseNorm, "hc_collapse_norm/F"}; }
Kernel<HcExpandArgs> CudaHcExpand() { return {&RunHcExpand, "hc_expand/F"}; }
Kernel<CombineArgs> CudaCombine() { return {&RunCombine, "combine/F"}; }
Kernel<EngramGateArgs> CudaEngramGate() { return {&RunEngramGate, "engram_gate/F"}; }
Kernel<ArgmaxArgs> CudaArgmax() { return {&RunArgmax, "argmax/F"}; }

}  // namespace lockstep::kernels
