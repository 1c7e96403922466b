// What one sequence leaves behind for its later tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/arithmetic.h"

namespace lockstep::reference {

// Rows of equal width at consecutive positions, oldest first; old rows can be dropped.
template <typename Real>
struct RowQueue {
  std::int64_t width = 0;
  std::int64_t first = 0;  // position of the first row kept
  std::vector<Real> values;

  std::int64_t end() const { return first + (width ? static_cast<std::int64_t>(values.size()) / width : 0); }
  const Real* Row(std::int64_t position) const { return values.data() + (position - first) * width; }
  void Append(const Real* row) { values.insert(values.end(), row, row + width); }
  void DropBefore(std::int64_t position) {
    if (position <= first) return;
    values.erase(values.begin(), values.begin() + (position - first) * width);
    first = position;
  }
};

// Projections of the tokens whose group is still open (V4 ratio 4: and of the group before).
template <typename Real>
struct CompressorState {
  RowQueue<Real> kv, gate;
};

template <typename Real>
struct LayerState {
  RowQueue<Real> window;  // [D] after RoPE and quantizer; the last sliding_window - 1 positions
  CompressorState<Real> compressor, index_compressor;
  RowQueue<Real> compressed;   // [D], position = entry
  RowQueue<Real> index_keys;   // [I], entry; with quantizers on the FP4 codes as values, else bf16 values
  RowQueue<Real> index_scales;  // [ceil(I/32)], entry; quantizers on only
};

template <typename Real>
struct SequenceState {
  std::int64_t position = 0;
  std::vector<LayerState<Real>> layers;
  std::vector<std::int32_t> recent_ids;  // compressed ids for Engram, newest first, at most max_ngram_size - 1
};

}  // namespace lockstep::reference
