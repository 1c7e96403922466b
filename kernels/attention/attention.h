// Attention of every head over window rows and selected compressed rows. Contract: docs/numerics.md section 6, Attention; H(profile).
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

struct AttentionRow {
  WindowRows window;
  PagedRows compressed;       // pages null: no compressed rows
  std::int64_t position = 0;
  std::int64_t visible = 0;   // all_visible: entries 0 .. visible-1 are taken
};

struct AttentionArgs {
  const AttentionRow* row_T = nullptr;  // device [T]
  std::int64_t rows = 0;
  const std::uint16_t* q_THD = nullptr;  // bf16
  int heads = 0;
  int head_dim = 0;
  int window = 0;  // sliding_window W: positions max(0, p-W+1) .. p
  RowFormat window_format, compressed_format;
  bool all_visible = false;                    // take every visible entry instead of a selection
  std::int64_t max_visible = 0;                // all_visible: no row of the step sees more, as far as the host knows; 0: it does not know
  const std::int32_t* selected_TK = nullptr;   // [T][top_k] ascending
  const std::int32_t* count_T = nullptr;
  int top_k = 0;
  const float* sink_H = nullptr;
  // The inverse RoPE of every head's last rope_dim channels, as rope does it on the rounded heads; null: none. head_dim is even then.
  const float* rope_table = nullptr;  // [position][rope_dim]: cosines, then sines
  int rope_dim = 0;
  std::uint16_t* out_THD = nullptr;  // bf16
};

}  // namespace lockstep::kernels
