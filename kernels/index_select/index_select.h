// The indexer: scores of all visible index keys and the choice of the best. Contract: docs/numerics.md section 6, Index score and
// Selection; family I (quantizers on) or H(profile) (off). The score matrix is never materialised beyond a row.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

// A token of the step: its sequence's keys and how many of them it sees.
struct IndexRow {
  PagedRows keys;
  std::int64_t visible = 0;
};

struct IndexSelectArgs {
  const IndexRow* row_T = nullptr;      // device [T]
  std::int64_t rows = 0;
  std::int64_t max_visible = 0;  // at least the largest `visible` of the rows: what the host knows, and all that a launch may depend on
  const std::uint16_t* q_THI = nullptr;  // bf16 [T][heads][dim], after RoPE, before the quantizer
  const std::uint16_t* weight_TH = nullptr;  // bf16 [T][heads], weights_proj output
  int heads = 0;
  int dim = 0;
  RowFormat key_format;  // kHadamardFp4, kFp4E8M0 or kBf16; queries are treated the same way
  int top_k = 0;
  std::int32_t* selected_TK = nullptr;  // [T][top_k] ascending entries
  std::int32_t* count_T = nullptr;      // -1: a score is NaN
  // Candidate blocks (V4.1): written by the candidate source, read by later sources; both null elsewhere.
  int candidate_block = 0;
  int candidate_top_blocks = 0;
  std::int32_t* candidates_out = nullptr;        // [T][candidate_top_blocks] ascending blocks
  std::int32_t* candidate_count_out = nullptr;   // [T]
  const std::int32_t* candidates_in = nullptr;
  const std::int32_t* candidate_count_in = nullptr;
  float* scores_out = nullptr;  // optional, for dumps and tests: [T][scores_stride]; not written with candidates_in
  std::int64_t scores_stride = 0;
};

}  // namespace lockstep::kernels
