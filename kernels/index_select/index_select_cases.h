// Problems of the indexer: what the test compares and the benchmark times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/index_select/index_select.h"
#include "kernels/kv_rows/kv_rows_cases.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// Token t sees visible[t] keys of a sequence of its own, or of the first one's.
struct IndexCase {
  std::vector<std::int64_t> visible = {1};
  int heads = 1, dim = 32;
  FormatKind format = FormatKind::kFp4E8M0;
  int top_k = 1;
  int page_shift = 4;
  bool one_sequence = false;
  // Candidate blocks: 0: none. Written by a source, read by the others (`kept` of them, in each token's list).
  int candidate_block = 0, candidate_top_blocks = 0;
  bool candidate_source = true;
  Recipe recipe = Recipe::kNormal;

  std::int64_t rows() const { return static_cast<std::int64_t>(visible.size()); }
  std::int64_t max_visible() const { return *std::max_element(visible.begin(), visible.end()); }
  RowFormat key_format() const {
    return {.kind = format, .width = dim, .block = format == FormatKind::kBf16 ? 0 : 32};
  }
  bool restricted() const { return candidate_block > 0 && !candidate_source; }
  bool source() const { return candidate_block > 0 && candidate_source; }
};

struct IndexProblem : IndexCase {
  // selected, count, candidates, candidate count, scores
  using Output = std::tuple<std::vector<std::int32_t>, std::vector<std::int32_t>, std::vector<std::int32_t>,
                            std::vector<std::int32_t>, std::vector<float>>;
  static constexpr auto kKernel = &KernelTable::index_select;
  std::vector<std::uint16_t> q_THI, weight_TH;
  std::vector<std::vector<std::byte>>
      keys;  // of each token's sequence, paged; what lies between rows is poison
  std::vector<std::int32_t> candidates, candidate_counts;  // read by restricted problems

  explicit IndexProblem(const IndexCase& c) : IndexCase(c) {
    Inputs inputs(51);
    q_THI = inputs.BF16(rows() * heads * dim, recipe);
    weight_TH = inputs.BF16(rows() * heads, recipe);
    const bool lattice = recipe == Recipe::kLattice;
    for (std::int64_t t = 0; t < rows(); ++t) {
      KeepSomeBlocks(t, inputs);
      if (t != SequenceOf(t)) continue;
      const RowsCase stored = Keys(t);
      keys.emplace_back(static_cast<std::size_t>(stored.stored_bytes()), std::byte{0xff});
      for (std::int64_t j = 0; j < stored.rows; ++j)
        FillPackedRow(stored.format, recipe, lattice ? 127 : 118, lattice ? 127 : 130, inputs,
                      keys.back().data() + stored.RowOffset(j));
    }
  }
  std::int64_t SequenceOf(std::int64_t t) const { return one_sequence ? 0 : t; }
  // A sequence without keys still has a page.
  RowsCase Keys(std::int64_t t) const {
    return {.format = key_format(),
            .rows = std::max<std::int64_t>(1, one_sequence ? max_visible() : visible[static_cast<std::size_t>(t)]),
            .page_shift = page_shift,
            .recipe = recipe};
  }
  const std::byte* Key(std::int64_t t, std::int64_t j) const {
    return keys[static_cast<std::size_t>(SequenceOf(t))].data() + Keys(t).RowOffset(j);
  }
  Output Start() const {
    return {UnwrittenInt(rows() * top_k), UnwrittenInt(rows()), UnwrittenInt(rows() * candidate_top_blocks),
            UnwrittenInt(rows()), UnwrittenF32(rows() * scores_stride())};
  }
  std::int64_t scores_stride() const { return max_visible() + 3; }
  IndexSelectArgs Place(CallMemory& memory, Output& y) const {
    std::vector<IndexRow> table;
    for (std::int64_t t = 0; t < rows(); ++t) {
      const auto row = static_cast<std::size_t>(t);
      const PagedRows pages = t == SequenceOf(t) ? Keys(t).Pages(memory, memory.In(keys[row])) : table.front().keys;
      table.push_back({.keys = pages, .visible = visible[row]});
    }
    return {.row_T = memory.Own(std::move(table)),
            .rows = rows(),
            .max_visible = max_visible(),
            .q_THI = memory.In(q_THI),
            .weight_TH = memory.In(weight_TH),
            .heads = heads,
            .dim = dim,
            .key_format = key_format(),
            .top_k = top_k,
            .selected_TK = memory.InOut(std::get<0>(y)),
            .count_T = memory.InOut(std::get<1>(y)),
            .candidate_block = candidate_block,
            .candidate_top_blocks = candidate_top_blocks,
            .candidates_out = source() ? memory.InOut(std::get<2>(y)) : nullptr,
            .candidate_count_out = source() ? memory.InOut(std::get<3>(y)) : nullptr,
            .candidates_in = restricted() ? memory.In(candidates) : nullptr,
            .candidate_count_in = restricted() ? memory.In(candidate_counts) : nullptr,
            .scores_out = memory.InOut(std::get<4>(y)),
            .scores_stride = scores_stride()};
  }
  Work work() const {
    double seen = 0;
    for (std::size_t t = 0; t < visible.size(); ++t) {
      const auto in_blocks = restricted() ? std::int64_t{candidate_counts[t]} * candidate_block : visible[t];
      seen += static_cast<double>(std::min(in_blocks, visible[t]));
    }
    return {.bytes = seen * static_cast<double>(key_format().row_bytes()),
            .products = seen * heads * dim,
            .items = seen};
  }

 private:
  // An ascending list of blocks with the newest among them; the rest of the list is poison.
  void KeepSomeBlocks(std::int64_t t, Inputs& inputs) {
    if (!restricted()) return;
    const std::int64_t blocks = (visible[static_cast<std::size_t>(t)] + candidate_block - 1) / candidate_block;
    std::vector<std::int32_t> kept;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto room =
          static_cast<std::int64_t>(candidate_top_blocks) - static_cast<std::int64_t>(kept.size());
      if (room > 0 && (b + 1 == blocks || (room > 1 && inputs.Integer(0, 1))))
        kept.push_back(static_cast<std::int32_t>(b));
    }
    candidate_counts.push_back(static_cast<std::int32_t>(kept.size()));
    kept.resize(static_cast<std::size_t>(candidate_top_blocks), -1000000);
    candidates.insert(candidates.end(), kept.begin(), kept.end());
  }
};

// V4.1's and V4's indexers: N visible keys for each of so many tokens, named ROWS/N or v4/ROWS/N.
inline IndexCase V41Index(std::int64_t rows, std::int64_t visible) {
  return {.visible = std::vector<std::int64_t>(static_cast<std::size_t>(rows), visible),
          .heads = 32,
          .dim = 128,
          .top_k = 512,
          .page_shift = 6};
}
inline std::vector<Named<IndexCase>> ModelIndexers() {
  IndexCase v4 = V41Index(1, 1024);
  v4.heads = 64;
  v4.format = FormatKind::kHadamardFp4;
  return {{"1/4096", V41Index(1, 4096)}, {"4/1024", V41Index(4, 1024)}, {"v4/1/1024", v4}};
}
// The candidate source, and the sources after it: 2048 blocks of 8 at most.
inline IndexCase V41Candidates(std::int64_t visible, bool source) {
  IndexCase c = V41Index(1, visible);
  c.candidate_block = 8;
  c.candidate_top_blocks = 2048;
  c.candidate_source = source;
  return c;
}

}  // namespace lockstep::kernels
