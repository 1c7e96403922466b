// Compiled once per instruction set. Family F operations on rows; the order of every operation is docs/numerics.md section 6.
#include "kernels/contract/exact_math_vec.h"
#include "kernels/contract/fold.h"
#include "kernels/elementwise/elementwise_rows.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kMaxStreams = 8;

int Lanes(std::int64_t n, std::int64_t i) { return n - i < 16 ? static_cast<int>(n - i) : 16; }

float RmsScale(const std::uint16_t* x, std::int64_t n, float eps) {
  const float sum = DotF(BF16Elements{x}, BF16Elements{x}, n);
  return Rsqrt(Add(Div(sum, static_cast<float>(n)), eps));
}

// y = bf16((x * r) * weight).
void ScaleRow(const std::uint16_t* x, float r, const float* weight, std::int64_t n, std::uint16_t* y) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const int count = Lanes(n, i);
    const F32x16 w = weight ? LoadN(weight + i, count) : F32x16(1.0f);
    StoreBF16N(Mul(Mul(LoadBF16N(x + i, count), F32x16(r)), w), y + i, count);
  }
}

// Sum over the streams j of coefficient[j * stride] * X_j, starting from `start` where `has_start`, else from the first product.
F32x16 WeightedStreams(F32x16 start, bool has_start, const float* coefficient, int stride, const F32x16* streams, int count) {
  F32x16 sum = has_start ? Fma(F32x16(coefficient[0]), streams[0], start) : Mul(F32x16(coefficient[0]), streams[0]);
  for (int j = 1; j < count; ++j) sum = Fma(F32x16(coefficient[j * stride]), streams[j], sum);
  return sum;
}

// --- hyper-connection coefficients -----------------------------------------------------------------------------------

// Softmax of the rows of C[n, n] plus eps.
void SoftmaxRows(float* c, int n, float eps) {
  for (int j = 0; j < n; ++j) {
    float* row = c + j * n;
    float top = row[0];
    for (int k = 1; k < n; ++k) top = row[k] > top ? row[k] : top;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) {
      row[k] = Exp(Sub(row[k], top));
      sum = k == 0 ? row[k] : Add(sum, row[k]);
    }
    for (int k = 0; k < n; ++k) row[k] = Add(Div(row[k], sum), eps);
  }
}

// Divides each line of C[n, n] by its sum plus eps: rows (across 1, along n) or columns.
void NormalizeLines(float* c, int n, int line_stride, int element_stride, float eps) {
  for (int line = 0; line < n; ++line) {
    float* first = c + line * line_stride;
    float sum = first[0];
    for (int i = 1; i < n; ++i) sum = Add(sum, first[i * element_stride]);
    sum = Add(sum, eps);
    for (int i = 0; i < n; ++i) first[i * element_stride] = Div(first[i * element_stride], sum);
  }
}

void Sinkhorn(float* c, int n, int iterations, float eps) {
  SoftmaxRows(c, n, eps);
  NormalizeLines(c, n, 1, n, eps);
  for (int i = 1; i < iterations; ++i) {
    NormalizeLines(c, n, n, 1, eps);
    NormalizeLines(c, n, 1, n, eps);
  }
}

void HcMixRow(const HcMixArgs& a, std::int64_t row) {
  const int n = a.streams;
  const std::int64_t width = n * a.hidden;
  const std::uint16_t* u = a.stream_TSE + row * width;
  const float r = RmsScale(u, width, a.rms_eps);
  const int outputs = a.read_out ? n : 2 * n + n * n;
  for (int i = 0; i < outputs; ++i) {
    const float m = Mul(DotF(F32Elements{a.fn + i * width}, BF16Elements{u}, width), r);
    const int kind = a.read_out || i < n ? 0 : i < 2 * n ? 1 : 2;
    const float logit = Add(Mul(m, a.scale[kind]), a.base[i]);
    if (kind == 0) a.pre_TS[row * n + i] = Add(Sigmoid(logit), a.hc_eps);
    if (kind == 1) a.post_TS[row * n + i - n] = Mul(2.0f, Sigmoid(logit));
    if (kind == 2) a.mix_TSS[row * n * n + i - 2 * n] = logit;
  }
  if (!a.read_out && a.sinkhorn_iters > 0) Sinkhorn(a.mix_TSS + row * n * n, n, a.sinkhorn_iters, a.hc_eps);
}

}  // namespace

void SinkhornRows(const SinkhornArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) Sinkhorn(a.mix_TSS + t * a.streams * a.streams, a.streams, a.iterations, a.eps);
}

void EmbedRows(const EmbedArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::uint16_t* source = a.table_VE + a.ids[t] * a.hidden;
    for (int s = 0; s < a.streams; ++s) {
      __builtin_memcpy(a.stream_TSE + (t * a.streams + s) * a.hidden, source, static_cast<std::size_t>(a.hidden) * sizeof(source[0]));
    }
  }
}

void RmsNormRows(const RmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::uint16_t* x = a.x + t * a.x_stride;
    ScaleRow(x, RmsScale(x, a.n, a.eps), a.weight, a.n, a.y + t * a.y_stride);
  }
}

void RopeRows(const RopeArgs& a, std::int64_t begin, std::int64_t end) {
  const int half = a.rope_dim / 2;
  for (std::int64_t t = begin; t < end; ++t) {
    const float* cosine = a.table + a.positions[t] * a.rope_dim;
    const float* sine = cosine + half;
    for (int h = 0; h < a.heads; ++h) {
      std::uint16_t* x = a.x + (t * a.heads + h + 1) * a.width - a.rope_dim;
      for (int first = 0; first < half; first += 8) {
        const int pairs = half - first < 8 ? half - first : 8;
        float in[16], out[16];
        Store(LoadBF16N(x + 2 * first, 2 * pairs), in);
        for (int j = 0; j < pairs; ++j) {
          const float c = cosine[first + j], s = a.inverse ? -sine[first + j] : sine[first + j];
          out[2 * j] = Sub(Mul(in[2 * j], c), Mul(in[2 * j + 1], s));
          out[2 * j + 1] = Add(Mul(in[2 * j], s), Mul(in[2 * j + 1], c));
        }
        StoreBF16N(LoadN(out, 2 * pairs), x + 2 * first, 2 * pairs);
      }
    }
  }
}

void HcMixRows(const HcMixArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) HcMixRow(a, t);
}

void HcCollapseNormRows(const HcCollapseNormArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    const std::uint16_t* stream = a.stream_TSE + t * a.streams * a.hidden;
    std::uint16_t* x = a.x_TE + t * a.hidden;
    for (std::int64_t i = 0; i < a.hidden; i += 16) {
      const int count = Lanes(a.hidden, i);
      F32x16 streams[kMaxStreams];
      for (int s = 0; s < a.streams; ++s) streams[s] = LoadBF16N(stream + s * a.hidden + i, count);
      StoreBF16N(WeightedStreams(F32x16(0.0f), false, a.pre_TS + t * a.streams, 1, streams, a.streams), x + i, count);
    }
    ScaleRow(x, RmsScale(x, a.hidden, a.eps), a.norm_weight, a.hidden, x);
  }
}

void HcExpandRows(const HcExpandArgs& a, std::int64_t begin, std::int64_t end) {
  const int n = a.streams;
  for (std::int64_t t = begin; t < end; ++t) {
    std::uint16_t* stream = a.stream_TSE + t * n * a.hidden;
    const float* post = a.post_TS + t * n;
    const float* mix = a.mix_TSS + t * n * n;
    for (std::int64_t i = 0; i < a.hidden; i += 16) {
      const int count = Lanes(a.hidden, i);
      const F32x16 f = LoadBF16N(a.f_TE + t * a.hidden + i, count);
      F32x16 streams[kMaxStreams];
      for (int s = 0; s < n; ++s) streams[s] = LoadBF16N(stream + s * a.hidden + i, count);
      for (int k = 0; k < n; ++k) {
        StoreBF16N(WeightedStreams(Mul(F32x16(post[k]), f), true, mix + k, n, streams, n), stream + k * a.hidden + i, count);
      }
    }
  }
}

void CombineRows(const CombineArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t i = 0; i < a.hidden; i += 16) {
      const int count = Lanes(a.hidden, i);
      F32x16 sum(0.0f);
      for (int k = 0; k < a.top_k; ++k) {
        const F32x16 y = LoadBF16N(a.expert_rows + static_cast<std::int64_t>(a.pair_of[t * a.top_k + k]) * a.hidden + i, count);
        sum = k == 0 ? y : Add(sum, y);
      }
      StoreBF16N(Add(sum, LoadBF16N(a.shared_TE + t * a.hidden + i, count)), a.out_TE + t * a.hidden + i, count);
    }
  }
}

namespace {

// x * qk, the rounded left operand of the gate's dot.
struct GateElements {
  const std::uint16_t* x;
  const float* qk;
  LOCKSTEP_INLINE F32x16 At(std::int64_t k) const { return Mul(LoadBF16(x + k), Load(qk + k)); }
  LOCKSTEP_INLINE F32x16 At(std::int64_t k, int n) const { return Mul(LoadBF16N(x + k, n), LoadN(qk + k, n)); }
};

}  // namespace

void EngramGateRows(const EngramGateArgs& a, std::int64_t begin, std::int64_t end) {
  const float root = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a.hidden)));
  for (std::int64_t t = begin; t < end; ++t) {
    const std::uint16_t* kv = a.kv + t * (a.streams + 1) * a.hidden;
    const std::uint16_t* value = kv + a.streams * a.hidden;
    for (int s = 0; s < a.streams; ++s) {
      std::uint16_t* x = a.stream_TSE + (t * a.streams + s) * a.hidden;
      const std::uint16_t* key = kv + s * a.hidden;
      const float dot = DotF(GateElements{x, a.qk_SE + s * a.hidden}, BF16Elements{key}, a.hidden);
      const float g = Mul(Mul(Mul(dot, RmsScale(x, a.hidden, a.eps)), RmsScale(key, a.hidden, a.eps)), root);
      const float magnitude = __builtin_fabsf(g);
      const float alpha = Sigmoid(__builtin_copysignf(__builtin_sqrtf(magnitude > 1e-6f ? magnitude : 1e-6f), g));
      for (std::int64_t i = 0; i < a.hidden; i += 16) {
        const int count = Lanes(a.hidden, i);
        StoreBF16N(Fma(F32x16(alpha), LoadBF16N(value + i, count), LoadBF16N(x + i, count)), x + i, count);
      }
    }
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
