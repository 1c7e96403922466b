// Family F operations on whole rows: embedding, RMSNorm, RoPE, hyper-connections, combine. docs/numerics.md section 6.
// All bf16 arrays are uint16; T = rows of the step, S = streams, E = hidden size.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"

namespace lockstep::kernels {

// stream[t][s][:] = bf16 of table row ids[t].
struct EmbedArgs {
  const std::int32_t* ids = nullptr;
  std::int64_t rows = 0;
  const std::uint16_t* table_VE = nullptr;  // bf16
  int streams = 0;
  std::int64_t hidden = 0;
  std::uint16_t* stream_TSE = nullptr;
};

// y = bf16((x * Rsqrt(F(x,x)/n + eps)) * weight); weight null: ones. In place allowed.
struct RmsNormArgs {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t n = 0;
  const float* weight = nullptr;
  float eps = 0.0f;
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
};

// Rotates the last rope_dim channels of every head, in place.
struct RopeArgs {
  std::uint16_t* x = nullptr;  // [rows][heads][width]
  std::int64_t rows = 0;
  int heads = 1;
  int width = 0;
  int rope_dim = 0;
  const float* table = nullptr;               // [position][rope_dim]: rope_dim/2 cosines, then sines
  const std::int64_t* positions = nullptr;    // device [rows], index of the table row
  bool inverse = false;
};

// rms_norm of heads, then rope on what it wrote: norm.y is rope.x, its rows are the heads of rope's rows, as wide and one after the other.
struct NormRopeArgs {
  RmsNormArgs norm;
  RopeArgs rope;
};

// Coefficients of a site. read_out: only pre, scale has one element, fn has S rows.
struct HcMixArgs {
  const std::uint16_t* stream_TSE = nullptr;
  std::int64_t rows = 0;
  int streams = 0;
  std::int64_t hidden = 0;
  const float* fn = nullptr;  // [2S + S*S][S*E]
  const float* base = nullptr;
  const float* scale = nullptr;  // [3]
  float rms_eps = 0.0f, hc_eps = 0.0f;
  int sinkhorn_iters = 0;  // 0: mix_TSS gets the logits, for sinkhorn
  bool read_out = false;
  float* pre_TS = nullptr;
  float* post_TS = nullptr;
  float* mix_TSS = nullptr;
};

// What hc_mix without iterations has left to do: logits to a doubly stochastic matrix, in place.
struct SinkhornArgs {
  float* mix_TSS = nullptr;
  std::int64_t rows = 0;
  int streams = 0;
  int iterations = 0;
  float eps = 0.0f;
};

// x = RMSNorm(bf16(sum_i pre_i X_i); weight).
struct HcCollapseNormArgs {
  const std::uint16_t* stream_TSE = nullptr;
  const float* pre_TS = nullptr;
  std::int64_t rows = 0;
  int streams = 0;
  std::int64_t hidden = 0;
  const float* norm_weight = nullptr;
  float eps = 0.0f;
  std::uint16_t* x_TE = nullptr;
};

// X_k = bf16(post_k f + sum_j C_jk X_j), in place.
struct HcExpandArgs {
  const std::uint16_t* f_TE = nullptr;
  const float* post_TS = nullptr;
  const float* mix_TSS = nullptr;
  std::int64_t rows = 0;
  int streams = 0;
  std::int64_t hidden = 0;
  std::uint16_t* stream_TSE = nullptr;
};

// out = bf16(sum of the token's expert rows ascending by expert id, then the shared expert).
struct CombineArgs {
  const std::uint16_t* expert_rows = nullptr;  // bf16 [pairs][E]
  const std::int32_t* pair_of = nullptr;       // device [T][top_k]: pair of the token's i-th expert, ids ascending
  int top_k = 0;
  const std::uint16_t* shared_TE = nullptr;
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  std::uint16_t* out_TE = nullptr;
};

// From one site to the next: hc_expand of the site before, then hc_mix and hc_collapse_norm of this one, on the same streams. All three name the same
// rows, streams and hidden size. The coefficients that `leave` reads may lie where `mix` writes; collapse.pre_TS is mix.pre_TS or the site before's.
// With `sum`, whose out_TE is leave.f_TE, combine of the same rows comes first; what f_TE holds after the call is then not said, and sum.pair_of is
// older than the call that made sum.expert_rows.
struct HcSiteArgs {
  CombineArgs sum;     // without rows: f_TE is there
  HcExpandArgs leave;  // as it is by default: there is no site before
  HcMixArgs mix;       // not a read-out
  HcCollapseNormArgs collapse;
};

// Engram read-out into the streams, in place (docs/numerics.md section 6, Engram).
struct EngramGateArgs {
  const std::uint16_t* kv = nullptr;  // bf16 [T][(S+1)*E]: keys of the streams, then the value
  const float* qk_SE = nullptr;       // q_weight * k_weight
  std::int64_t rows = 0;
  int streams = 0;
  std::int64_t hidden = 0;
  float eps = 0.0f;
  std::uint16_t* stream_TSE = nullptr;
};

}  // namespace lockstep::kernels
