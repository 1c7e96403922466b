// Dumps of named steps, for comparison with the reference's. Only a run with a trace comes here; it waits for the device all the time.
#include <algorithm>
#include <vector>

#include "fast/forward.h"
#include "model/float_formats.h"

namespace lockstep::fast {

void Forward::TraceRows(std::string_view step, int layer, const std::uint16_t* values, std::int64_t width, const Ranges& ranges) {
  for (const RowRange& range : ranges) TraceRange(step, layer, values + range.begin * width, width, range);
}

void Forward::TraceRange(std::string_view step, int layer, const std::uint16_t* first, std::int64_t width, RowRange range) {
  if (!r_.options.trace) return;
  std::vector<std::uint16_t> bits;
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    Download(first + (row - range.begin) * width, width, &bits);
    TraceBits(step, layer, record_.positions()[static_cast<std::size_t>(row)], bits);
  }
}

void Forward::TraceBits(std::string_view step, int layer, std::int64_t position, std::span<const std::uint16_t> bits) {
  std::vector<float> values;
  for (std::uint16_t b : bits) values.push_back(BF16ToFloat(b));
  r_.options.trace->OnStep(step, layer, position, values);
}

void Forward::TraceWindow(int layer, RowRange range, const std::byte* packed) {
  if (!r_.options.trace) return;
  kernels::UnpackRowsArgs unpack;
  unpack.format = r_.kv.formats().window;
  unpack.flat = packed;
  unpack.rows = range.rows();
  const std::span<const std::int64_t> positions = record_.positions();
  TracePacked(step::kKv, layer, unpack, {positions.begin() + range.begin, positions.begin() + range.end});
}

// The compressed rows or index keys that the step completes, by their numbers.
void Forward::TraceEntries(std::string_view step, int layer, std::span<Segment> segments, const kernels::RowFormat& format) {
  if (!r_.options.trace) return;
  const int ratio = config_.ratio(layer);
  for (const Segment& s : segments) {
    const LayerKv& kv = s.state->layer(layer);
    const std::int64_t first = s.begin() / ratio, entries = s.end() / ratio - first;
    if (entries == 0) continue;
    std::vector<std::int64_t> numbers;
    for (std::int64_t j = first; j < first + entries; ++j) numbers.push_back(j);
    const PagedStore& store = step == step::kCompressed ? *kv.compressed : *kv.index_keys;
    TracePacked(step, layer, {format, store.View(), first, nullptr, entries, nullptr, 0}, numbers);
  }
}

void Forward::TracePacked(std::string_view step, int layer, const kernels::UnpackRowsArgs& packed, const std::vector<std::int64_t>& positions) {
  const std::int64_t width = packed.format.width;
  kernels::DeviceArray<std::uint16_t> unpacked(device(), static_cast<std::size_t>(packed.rows * width), "dump");
  kernels::UnpackRowsArgs args = packed;
  args.y = unpacked.data();
  args.y_stride = width;
  kernels().unpack_rows(stream(), args);
  std::vector<std::uint16_t> bits;
  Download(unpacked.data(), packed.rows * width, &bits);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    TraceBits(step, layer, positions[i], std::span(bits).subspan(i * static_cast<std::size_t>(width), static_cast<std::size_t>(width)));
  }
}

// Room for the scores that a dump wants. Those of restricted sources are not in order, and not dumped.
void Forward::KeepScores(int layer, RowRange tile, kernels::IndexSelectArgs* args, kernels::DeviceArray<float>* scores) {
  if (args->candidates_in) return;
  for (std::int64_t row = tile.begin; row < tile.end; ++row) {
    args->scores_stride = std::max(args->scores_stride, record_.layer(layer).index.host[row].visible);
  }
  *scores = {device(), static_cast<std::size_t>(tile.rows() * args->scores_stride), "dump"};
  args->scores_out = scores->data();
}

void Forward::TraceSelection(int layer, RowRange tile, const kernels::IndexSelectArgs& args) {
  std::vector<float> scores;
  std::vector<std::int32_t> counts, chosen;
  Download(args.count_T, tile.rows(), &counts);
  for (std::int64_t t = 0; t < tile.rows(); ++t) {
    const std::int64_t row = tile.begin + t, position = record_.positions()[static_cast<std::size_t>(row)];
    if (args.scores_out) {
      Download(args.scores_out + t * args.scores_stride, record_.layer(layer).index.host[row].visible, &scores);
      r_.options.trace->OnStep(step::kIndexScore, layer, position, scores);
    }
    Download(args.selected_TK + t * args.top_k, std::max(counts[static_cast<std::size_t>(t)], 0), &chosen);
    r_.options.trace->OnStep(step::kSelected, layer, position, std::vector<float>(chosen.begin(), chosen.end()));
  }
}

void Forward::TraceCoefficients(std::string_view step, int layer, const Ranges& ranges) {
  if (!r_.options.trace) return;
  const std::int64_t streams = config_.hc_mult;
  for (const RowRange& range : ranges) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::vector<float> values, part;
      Download(ws().next_pre_TS.data() + row * streams, streams, &values);
      Download(ws().post_TS.data() + row * streams, streams, &part);
      values.insert(values.end(), part.begin(), part.end());
      Download(ws().mix_TSS.data() + row * streams * streams, streams * streams, &part);
      values.insert(values.end(), part.begin(), part.end());
      r_.options.trace->OnStep(step, layer, record_.positions()[static_cast<std::size_t>(row)], values);
    }
  }
}

void Forward::TraceRouting(int layer, const Ranges& ranges) {
  if (!r_.options.trace) return;
  const std::int64_t top_k = config_.num_experts_per_tok;
  std::vector<std::int32_t> experts;
  std::vector<float> expert_weights;
  for (const RowRange& range : ranges) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      Download(ws().experts_TK.data() + row * top_k, top_k, &experts);
      Download(ws().weights_TK.data() + row * top_k, top_k, &expert_weights);
      std::vector<float> values(experts.begin(), experts.end());
      values.insert(values.end(), expert_weights.begin(), expert_weights.end());
      r_.options.trace->OnStep(step::kRouter, layer, record_.positions()[static_cast<std::size_t>(row)], values);
    }
  }
}

}  // namespace lockstep::fast
