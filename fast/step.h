// One step of the engine: tokens of several sequences that pass the layers together, and the device memory they pass through.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fast/kv_state.h"
#include "kernels/device/backend.h"
#include "kernels/sampling/sampling.h"

namespace lockstep::fast {

// New tokens of one sequence in a step. Rows of the step: first those restored from the tail stash, then the new tokens.
struct Segment {
  KvState* state = nullptr;
  std::span<const std::int32_t> ids;  // new tokens at positions state->position..
  std::int64_t prompt_end = 0;        // position after the last token of the prompt that these are part of; == their end in decode
  std::int64_t last_rows = 0;         // logits wanted for positions >= prompt_end - last_rows
  std::vector<float> logits;          // out: [rows wanted in this step][V]
  // Not null: a token is drawn from the last of these rows where the logits are, and they stay there. Outlives the step.
  const kernels::SamplingRow* draw = nullptr;
  std::int32_t drawn = -1;  // out, if the step reaches that row

  // Tokens of the running step between the state and this segment, which is of the step after it; 0 in a segment that runs.
  std::int64_t ahead = 0;

  // Filled by PlanSegments.
  std::int64_t first_row = 0;      // row of the step of `first_position`
  std::int64_t first_position = 0;  // of the segment's first row; below state->position when stash rows come in front
  bool run_decoder = true;          // false: the layers from the last kv source on wait, and the streams go to the stash

  std::int64_t begin() const { return state->position + ahead; }
  std::int64_t decoder_begin() const { return state->decoder_position + ahead; }  // tokens whose decoder half is done before this step
  std::int64_t end() const { return begin() + static_cast<std::int64_t>(ids.size()); }
  std::int64_t rows() const { return end() - first_position; }
  std::int64_t RowOf(std::int64_t position) const { return first_row + position - first_position; }
  // Token at a position up to end().
  std::int32_t IdAt(std::int64_t position) const {
    return position < begin() ? state->ids[static_cast<std::size_t>(position)] : ids[static_cast<std::size_t>(position - begin())];
  }
};

// Rows [begin, end) of the step.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t rows() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

// Which rows of a layer do what. Kv rows enter the layer; out rows leave it. Without the exact tail both are all rows.
class TailRule {
 public:
  TailRule(const ModelConfig& config, bool exact_tail) : config_(config), exact_tail_(exact_tail) {}

  // First layer of the decoder half: the last kv source of V4.1, or num_layers when there is no tail.
  int first_decoder_layer() const;
  // Positions >= this need layer `layer`'s output (its window KV), for a prompt that ends at `end` with `last_rows` logits.
  std::int64_t OutBegin(int layer, std::int64_t end, std::int64_t last_rows) const;
  std::int64_t KvBegin(int layer, std::int64_t end, std::int64_t last_rows) const;

 private:
  const ModelConfig& config_;
  bool exact_tail_;
};

// Tokens of a prompt to take in the next step, at most `budget`. A chunk that is not the prompt's last ends before the first position whose
// logits are wanted or starts at or after it: so the decoder half either waits as a whole, with its last streams in the stash, or drops
// none of the chunk's rows.
std::int64_t ChunkRows(std::int64_t position, std::int64_t prompt_end, std::int64_t last_rows, std::int64_t budget);

// Sets the filled fields of every segment and returns the rows of the step.
std::int64_t PlanSegments(const ModelConfig& config, const TailRule& rule, std::span<Segment> segments);

}  // namespace lockstep::fast
