#include "fast/engram_table.h"

#include <array>
#include <cmath>
#include <string>

#include "model/error.h"
#include "model/float_formats.h"
#include "model/text/engram_map.h"

namespace lockstep::fast {
namespace {

constexpr std::int64_t kScaleBlock = 32;
constexpr int kMaxColumns = 256;

}  // namespace

EngramTable::EngramTable(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  const EngramConfig& engram = checkpoint.config.engram;
  if (engram.layer_ids.empty()) return;
  if (engram.max_ngram_size > kMaxNgram || engram.columns() > kMaxColumns) {
    throw InputError(checkpoint.dir + "/config.json: engram_max_ngram_size above 16 or more than 256 table columns are not supported");
  }
  token_map_ = checkpoint.engram_token_map.empty() ? LoadEngramTokenMap(checkpoint.dir, checkpoint.config) : checkpoint.engram_token_map;
  pad_ = token_map_[static_cast<std::size_t>(engram.pad_id)];
  for (int i = 0; i < static_cast<int>(engram.layer_ids.size()); ++i) hashes_.push_back(MakeEngramHash(engram, i));
}

void EngramTable::Gather(int index, std::span<const std::int32_t> recent, std::uint16_t* out) const {
  const EngramConfig& engram = checkpoint_.config.engram;
  const int layer = engram.layer_ids[static_cast<std::size_t>(index)];
  const EngramWeights& weights = *checkpoint_.weights.layers[static_cast<std::size_t>(layer)].engram;
  std::array<std::int32_t, kMaxNgram> compressed, shifted;
  std::array<std::int64_t, kMaxColumns> row_numbers;
  for (std::size_t i = 0; i < recent.size(); ++i) compressed[i] = token_map_[static_cast<std::size_t>(recent[i])];
  const std::span ids(shifted.data(), static_cast<std::size_t>(engram.max_ngram_size));
  EngramShift(std::span(compressed).first(recent.size()), pad_, ids);
  const std::span rows(row_numbers.data(), static_cast<std::size_t>(engram.columns()));
  lockstep::EngramRows(hashes_[static_cast<std::size_t>(index)], ids, rows);
  const std::int64_t dim = engram.head_dim;
  std::vector<std::byte> code_bytes, scale_bytes;
  for (std::int64_t row : rows) {
    const std::byte* codes = weights.table.RowBytes(row, &code_bytes).data();
    const std::byte* scales = weights.table_scale.empty() ? nullptr : weights.table_scale.RowBytes(row, &scale_bytes).data();
    for (std::int64_t d = 0; d < dim; ++d) {
      const float scale = scales ? FloatAt(weights.table_scale.dtype, scales, d / kScaleBlock) : 1.0f;
      const float value = RoundToBF16(FloatAt(weights.table.dtype, codes, d) * scale);
      if (!std::isfinite(value)) {
        throw InputError(weights.table.file + ": tensor " + weights.table.name + " holds a value that is not finite in row " + std::to_string(row));
      }
      *out++ = FloatToBF16(value);
    }
  }
}

}  // namespace lockstep::fast
