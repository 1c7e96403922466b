// Expert choice of each token. Contract: docs/numerics.md section 6, Router; family F.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {

struct RouterArgs {
  const std::uint16_t* x_TE = nullptr;     // bf16
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const float* gate_XE = nullptr;          // fp32 (widened BF16)
  int experts = 0;
  const float* bias_X = nullptr;           // null on hash layers
  const std::int64_t* tid2eid = nullptr;   // [V][top_k] on hash layers, else null
  const std::int32_t* ids = nullptr;       // token ids, hash layers
  int top_k = 0;
  bool normalize = true;
  float epsilon = 0.0f;                    // added to the sum: 1e-20 (V4.1) or 0
  float scaling = 1.0f;
  std::int32_t* experts_TK = nullptr;      // ascending by id; -1 in all places if a score is NaN
  float* weights_TK = nullptr;
};

// The router, then pair_groups of what it wrote: groups has the router's experts_TK, weights_TK, top_k and experts, and its rows. Beside them sinkhorn,
// which only the end of the site waits for.
struct RouteArgs {
  RouterArgs router;
  PairGroupsArgs groups;
  SinkhornArgs mix;  // without rows: absent
};

}  // namespace lockstep::kernels
