// Problems of attention: what the test compares and the benchmark times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/kv_rows/kv_rows_cases.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// A token of a sequence of its own. Its window rows from `position - in_step + 1` on belong to the step.
struct AttentionToken {
  std::int64_t position = 0;
  std::int64_t in_step = 1;
  std::int64_t stored = 0;    // compressed rows
  std::int64_t selected = 0;  // of them; with all_visible: how many are visible
};

struct AttentionCase {
  std::vector<AttentionToken> tokens = {{}};
  int heads = 1, head_dim = 16, window = 8;
  FormatKind window_kind = FormatKind::kBf16, compressed_kind = FormatKind::kBf16;
  bool all_visible = false;
  int page_shift = 4;
  Recipe recipe = Recipe::kNormal;
  std::int64_t more_ring_rows = 3;

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
  int top_k() const {
    std::int64_t most = 0;
    for (const AttentionToken& token : tokens) most = std::max(most, token.selected);
    return static_cast<int>(most) + 2;
  }
  RowFormat FormatOf(FormatKind kind) const {
    const int block = kind == FormatKind::kBf16 ? 0 : kind == FormatKind::kFp4E4M3 ? 16 : 32;
    return {.kind = kind,
            .width = head_dim,
            .quantized = kind == FormatKind::kFp8 ? (head_dim * 7 + 7) / 8 : 0,
            .block = block};
  }
  RowFormat window_format() const { return FormatOf(window_kind); }
  RowFormat compressed_format() const { return FormatOf(compressed_kind); }
  std::int64_t ring_rows() const { return window + more_ring_rows; }
};

struct AttentionProblem : AttentionCase {
  using Output = std::tuple<std::vector<std::uint16_t>>;
  static constexpr auto kKernel = &KernelTable::attention;
  // Of one token. What is not in its window or not selected is poison.
  struct Sequence {
    std::vector<std::byte> ring, step_rows, compressed;
  };
  std::vector<Sequence> sequences;
  std::vector<std::uint16_t> q_THD;
  std::vector<float> sink_H;
  std::vector<float> rope_table;  // empty: heads do not turn back
  int rope_dim = 0;
  std::vector<std::int32_t> selected_TK, count_T;

  explicit AttentionProblem(const AttentionCase& c) : AttentionCase(c) {
    Inputs inputs(61);
    q_THD = inputs.BF16(rows() * heads * head_dim, recipe);
    sink_H = inputs.F32(heads, Recipe::kNormal);
    for (const AttentionToken& token : tokens) {
      sequences.emplace_back();
      FillWindow(token, inputs, &sequences.back());
      FillCompressed(token, inputs, &sequences.back());
    }
  }
  std::int64_t FirstPosition(const AttentionToken& token) const {
    return std::max<std::int64_t>(0, token.position - window + 1);
  }
  std::int64_t StepBegin(const AttentionToken& token) const {
    return std::max<std::int64_t>(0, token.position - token.in_step + 1);
  }
  // Where window position p of token t lies.
  const std::byte* WindowRow(std::int64_t t, std::int64_t p) const {
    const AttentionToken& token = tokens[static_cast<std::size_t>(t)];
    const Sequence& sequence = sequences[static_cast<std::size_t>(t)];
    const std::int64_t begin = StepBegin(token), bytes = window_format().row_bytes();
    return p >= begin ? sequence.step_rows.data() + (p - begin) * bytes
                      : sequence.ring.data() + p % ring_rows() * bytes;
  }
  RowsCase Compressed(const AttentionToken& token) const {
    return {.format = compressed_format(),
            .rows = std::max<std::int64_t>(1, token.stored),
            .page_shift = page_shift};
  }
  // The entries that token t attends to, ascending.
  std::vector<std::int64_t> Entries(std::int64_t t) const {
    const std::int64_t count = tokens[static_cast<std::size_t>(t)].selected;
    std::vector<std::int64_t> entries;
    for (std::int64_t i = 0; i < count; ++i)
      entries.push_back(all_visible ? i : selected_TK[static_cast<std::size_t>(t * top_k() + i)]);
    return entries;
  }
  const std::byte* CompressedRow(std::int64_t t, std::int64_t entry) const {
    return sequences[static_cast<std::size_t>(t)].compressed.data() +
           Compressed(tokens[static_cast<std::size_t>(t)]).RowOffset(entry);
  }

  Output Start() const { return UnwrittenBF16(rows() * heads * head_dim); }
  AttentionArgs Place(CallMemory& memory, Output& y) const {
    std::vector<AttentionRow> table;
    bool any_stored = false;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const AttentionToken& token = tokens[t];
      any_stored = any_stored || token.stored > 0;
      table.push_back({.window = {.ring = memory.In(sequences[t].ring),
                                  .ring_rows = ring_rows(),
                                  .step_rows = memory.In(sequences[t].step_rows),
                                  .step_begin = StepBegin(token),
                                  .row_bytes = window_format().row_bytes()},
                       .compressed = token.stored > 0
                                         ? Compressed(token).Pages(memory, memory.In(sequences[t].compressed))
                                         : PagedRows{},
                       .position = token.position,
                       .visible = all_visible ? token.selected : 0});
    }
    const bool lists = any_stored && !all_visible;
    return {.row_T = memory.Own(std::move(table)),
            .rows = rows(),
            .q_THD = memory.In(q_THD),
            .heads = heads,
            .head_dim = head_dim,
            .window = window,
            .window_format = window_format(),
            .compressed_format = compressed_format(),
            .all_visible = all_visible,
            .max_visible = all_visible ? top_k() : 0,
            .selected_TK = lists ? memory.In(selected_TK) : nullptr,
            .count_T = lists ? memory.In(count_T) : nullptr,
            .top_k = top_k(),
            .sink_H = memory.In(sink_H),
            .rope_table = memory.In(rope_table),
            .rope_dim = rope_dim,
            .out_THD = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    double keys = 0, bytes = 4.0 * static_cast<double>(rows() * heads * head_dim);
    for (const AttentionToken& token : tokens) {
      const auto in_window = static_cast<double>(token.position - FirstPosition(token) + 1);
      keys += in_window + static_cast<double>(token.selected);
      bytes += in_window * static_cast<double>(window_format().row_bytes()) +
               static_cast<double>(token.selected * compressed_format().row_bytes());
    }
    return {.bytes = bytes, .products = 2 * keys * heads * head_dim, .items = static_cast<double>(rows())};
  }

 private:
  static constexpr std::byte kPoisonByte{0xff};

  // Values of about one.
  void Fill(const RowFormat& format, Inputs& inputs, std::byte* row) const {
    const bool e4m3_scales = format.kind == FormatKind::kFp4E4M3;
    FillPackedRow(format, recipe, e4m3_scales ? 24 : 117, e4m3_scales ? 40 : 119, inputs, row);
  }
  void FillWindow(const AttentionToken& token, Inputs& inputs, Sequence* sequence) {
    const RowFormat format = window_format();
    sequence->ring.assign(static_cast<std::size_t>(ring_rows() * format.row_bytes()), kPoisonByte);
    sequence->step_rows.assign(
        static_cast<std::size_t>((token.position - StepBegin(token) + 2) * format.row_bytes()), kPoisonByte);
    const std::int64_t begin = StepBegin(token);
    for (std::int64_t p = FirstPosition(token); p <= token.position; ++p) {
      std::byte* row = p >= begin ? sequence->step_rows.data() + (p - begin) * format.row_bytes()
                                  : sequence->ring.data() + p % ring_rows() * format.row_bytes();
      Fill(format, inputs, row);
    }
  }
  void FillCompressed(const AttentionToken& token, Inputs& inputs, Sequence* sequence) {
    const RowsCase stored = Compressed(token);
    sequence->compressed.assign(static_cast<std::size_t>(stored.stored_bytes()), kPoisonByte);
    std::vector<std::int32_t> list;
    for (std::int64_t entry = 0; entry < token.stored; ++entry) {
      const std::int64_t missing = token.selected - static_cast<std::int64_t>(list.size());
      const bool take = missing > 0 && (all_visible || token.stored - entry <= missing ||
                                        inputs.Integer(1, token.stored - entry) <= missing);
      if (!take) continue;
      list.push_back(static_cast<std::int32_t>(entry));
      Fill(stored.format, inputs, sequence->compressed.data() + stored.RowOffset(entry));
    }
    count_T.push_back(static_cast<std::int32_t>(list.size()));
    list.resize(static_cast<std::size_t>(top_k()), -1000000);
    selected_TK.insert(selected_TK.end(), list.begin(), list.end());
  }
};

// V4.1's attention over a full window and N selected entries, for each of so many tokens.
inline AttentionCase V41Attention(std::int64_t rows, std::int64_t selected) {
  AttentionCase c = {.heads = 64,
                     .head_dim = 512,
                     .window = 128,
                     .window_kind = FormatKind::kFp8,
                     .compressed_kind = FormatKind::kFp4E4M3,
                     .page_shift = 6};
  c.tokens.clear();
  for (std::int64_t t = 0; t < rows; ++t)
    c.tokens.push_back({.position = 5000 + t, .stored = 2 * selected, .selected = selected});
  return c;
}

}  // namespace lockstep::kernels
