#include "fast/engram_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/error.h"
#include "model/float_formats.h"
#include "model/text/engram_map.h"

namespace lockstep::fast {
namespace {

constexpr std::int64_t kScaleBlock = 32;

}  // namespace

EngramTable::EngramTable(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  const EngramConfig& engram = checkpoint.config.engram;
  if (engram.layer_ids.empty()) return;
  token_map_ = LoadEngramTokenMap(checkpoint.dir, checkpoint.config);
  pad_ = token_map_[static_cast<std::size_t>(engram.pad_id)];
  for (int i = 0; i < static_cast<int>(engram.layer_ids.size()); ++i) hashes_.push_back(MakeEngramHash(engram, i));
}

void EngramTable::Gather(int index, std::span<const std::int32_t> ids, std::int64_t position, std::uint16_t* out) const {
  const EngramConfig& engram = checkpoint_.config.engram;
  const int layer = engram.layer_ids[static_cast<std::size_t>(index)];
  const EngramWeights& weights = *checkpoint_.weights.layers[static_cast<std::size_t>(layer)].engram;
  std::vector<std::int32_t> recent;
  for (std::int64_t p = position; p >= 0 && p > position - engram.max_ngram_size; --p) {
    recent.push_back(token_map_[static_cast<std::size_t>(ids[static_cast<std::size_t>(p)])]);
  }
  std::vector<std::int32_t> shifted(static_cast<std::size_t>(engram.max_ngram_size));
  EngramShift(recent, pad_, shifted);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(engram.columns()));
  lockstep::EngramRows(hashes_[static_cast<std::size_t>(index)], shifted, rows);
  const std::int64_t dim = engram.head_dim, scales = (dim + kScaleBlock - 1) / kScaleBlock;
  for (std::int64_t row : rows) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const float scale = weights.table_scale.empty() ? 1.0f : weights.table_scale.Float(row * scales + d / kScaleBlock);
      const float value = RoundToBF16(weights.table.Float(row * dim + d) * scale);
      if (!std::isfinite(value)) {
        throw InputError(weights.table.file + ": tensor " + weights.table.name + " holds a value that is not finite in row " + std::to_string(row));
      }
      *out++ = FloatToBF16(value);
    }
  }
}

}  // namespace lockstep::fast
