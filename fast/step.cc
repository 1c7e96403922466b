#include "fast/step.h"

#include <algorithm>

#include "model/error.h"

namespace lockstep::fast {

int TailRule::first_decoder_layer() const {
  const bool tail = exact_tail_ && config_.is_v41() && !config_.kv_source_layer_ids.empty();
  return tail ? config_.kv_source_layer_ids.back() : config_.num_layers;
}

// Layer l's output at a position reaches the logits through l+1..: each later layer looks sliding_window - 1 positions back.
std::int64_t TailRule::OutBegin(int layer, std::int64_t end, std::int64_t last_rows) const {
  if (layer < first_decoder_layer()) return 0;
  const std::int64_t reach = last_rows + std::int64_t{config_.sliding_window - 1} * (config_.num_layers - 1 - layer);
  return std::max<std::int64_t>(0, end - reach);
}

std::int64_t TailRule::KvBegin(int layer, std::int64_t end, std::int64_t last_rows) const {
  if (layer < first_decoder_layer()) return 0;
  return std::max<std::int64_t>(0, OutBegin(layer, end, last_rows) - (config_.sliding_window - 1));
}

std::int64_t ChunkRows(std::int64_t position, std::int64_t prompt_end, std::int64_t last_rows, std::int64_t budget) {
  const std::int64_t end = std::min(position + budget, prompt_end), wanted = prompt_end - last_rows;
  const bool crosses = position < wanted && wanted < end && end < prompt_end;
  return (crosses ? wanted : end) - position;
}

std::int64_t PlanSegments(const ModelConfig& config, const TailRule& rule, std::span<Segment> segments) {
  const int first = rule.first_decoder_layer();
  std::int64_t rows = 0;
  for (Segment& segment : segments) {
    const std::int64_t wanted = segment.prompt_end - segment.last_rows;
    LOCKSTEP_CHECK(ChunkRows(segment.begin(), segment.prompt_end, segment.last_rows, segment.end() - segment.begin()) ==
                   segment.end() - segment.begin());
    segment.first_position = segment.begin();
    segment.run_decoder = first == config.num_layers || wanted <= segment.begin() || segment.end() == segment.prompt_end;
    if (first < config.num_layers && segment.run_decoder) {
      const std::int64_t needed = std::max(segment.decoder_begin(), rule.KvBegin(first, segment.prompt_end, segment.last_rows));
      segment.first_position = std::min(segment.begin(), needed);
    }
    segment.first_row = rows;
    rows += segment.rows();
  }
  return rows;
}

}  // namespace lockstep::fast
