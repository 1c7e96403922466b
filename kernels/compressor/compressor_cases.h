// Problems of the compressor: what the test compares and the benchmark times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/compressor/compressor.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// A step of `rows` tokens from `position` on; the tokens before it are history.
struct CompressorCase {
  std::int64_t position = 0, rows = 1;
  int ratio = 2;
  bool overlap = false, ape = false;
  std::int64_t width = 1;
  Recipe recipe = Recipe::kNormal;
  std::int64_t more_slots = 0;  // of the history, beyond what the open groups need

  std::int64_t channels() const { return overlap ? 2 * width : width; }
  std::int64_t first_entry() const { return position / ratio; }
  std::int64_t entries() const { return (position + rows) / ratio - first_entry(); }
  std::int64_t history_slots() const { return (overlap ? 2 : 1) * ratio + more_slots; }
};

// Projections of all tokens of a sequence, before ape.
struct CompressorSequence : CompressorCase {
  std::vector<float> kv, gate, ape_values;  // [position + rows][channels], [ratio][channels]

  explicit CompressorSequence(const CompressorCase& c) : CompressorCase(c) {
    Inputs inputs(41);
    kv = inputs.F32((position + rows) * channels(), recipe);
    gate =
        inputs.F32((position + rows) * channels(), recipe == Recipe::kSpiky ? Recipe::kNormal : recipe, 2.0f);
    ape_values = inputs.F32(ratio * channels(), recipe);
  }
  float Kv(std::int64_t token, std::int64_t c) const {
    return kv[static_cast<std::size_t>(token * channels() + c)];
  }
  // With ape.
  float Gate(std::int64_t token, std::int64_t c) const {
    const float value = gate[static_cast<std::size_t>(token * channels() + c)];
    return ape ? value + ape_values[static_cast<std::size_t>(token % ratio * channels() + c)] : value;
  }
  // The tokens of the step alone.
  std::vector<float> StepRows(const std::vector<float>& values) const {
    return std::vector<float>(values.begin() + position * channels(), values.end());
  }
  // The ring with tokens [begin, end), other slots as `history` has them.
  void StoreTokens(std::int64_t begin, std::int64_t end, std::vector<float>* history) const {
    for (std::int64_t token = begin; token < end; ++token) {
      float* slot = history->data() + token % history_slots() * 2 * channels();
      for (std::int64_t c = 0; c < channels(); ++c) {
        slot[c] = Kv(token, c);
        slot[channels() + c] = Gate(token, c);
      }
    }
  }
};

struct CompressProblem : CompressorSequence {
  using Output = std::tuple<std::vector<std::uint16_t>>;  // latent
  static constexpr auto kKernel = &KernelTable::compress;
  std::vector<float> step_kv, step_gate, history;  // slots of tokens that no open group needs are poison

  static constexpr std::int64_t kOthersRows = 2;  // of another sequence, before this one's

  explicit CompressProblem(const CompressorCase& c)
      : CompressorSequence(c),
        step_kv(StepRows(kv)),
        step_gate(StepRows(gate)),
        history(static_cast<std::size_t>(history_slots() * 2 * channels()) + kMargin, kPoison) {
    const std::int64_t own = first_entry() * ratio;
    StoreTokens(std::max<std::int64_t>(0, overlap ? own - ratio : own), position, &history);
  }
  Output Start() const { return UnwrittenBF16(entries() * width); }
  CompressorArgs Place(CallMemory& memory, Output& y) const {
    std::vector<PoolEntry> pool;
    for (std::int64_t i = 0; i < entries(); ++i)
      pool.push_back({(first_entry() + i) * ratio, position, kOthersRows, memory.In(history)});
    return {.kv = memory.Own(BehindOthers(step_kv)),
            .gate = memory.Own(BehindOthers(step_gate)),
            .entry_N = memory.Own(std::move(pool)),
            .entries = entries(),
            .ratio = ratio,
            .overlap = overlap,
            .width = width,
            .ape = ape ? memory.In(ape_values) : nullptr,
            .history_slots = history_slots(),
            .latent = memory.InOut(std::get<0>(y))};
  }
  std::vector<float> BehindOthers(const std::vector<float>& values) const {
    std::vector<float> all(static_cast<std::size_t>(kOthersRows * channels()), kPoison);
    all.insert(all.end(), values.begin(), values.end());
    return all;
  }
  Work work() const {
    const auto pooled = static_cast<double>(entries() * ratio * channels());
    return {.bytes = 8 * pooled + 2.0 * static_cast<double>(entries() * width),
            .products = pooled,
            .items = static_cast<double>(rows)};
  }
};

struct StoreHistoryProblem : CompressorSequence {
  using Output = std::tuple<std::vector<float>>;  // history
  static constexpr auto kKernel = &KernelTable::store_history;
  std::vector<float> step_kv, step_gate;

  explicit StoreHistoryProblem(const CompressorCase& c)
      : CompressorSequence(c), step_kv(StepRows(kv)), step_gate(StepRows(gate)) {}
  Output Start() const { return UnwrittenF32(history_slots() * 2 * channels()); }
  StoreHistoryArgs Place(CallMemory& memory, Output& y) const {
    float* history = memory.InOut(std::get<0>(y));
    std::vector<std::int64_t> positions;
    std::vector<float*> slots;
    for (std::int64_t t = 0; t < rows; ++t) {
      const bool kept = t >= rows - history_slots();
      positions.push_back(position + t);
      slots.push_back(kept ? history + (position + t) % history_slots() * 2 * channels() : nullptr);
    }
    return {.kv = memory.In(step_kv),
            .gate = memory.In(step_gate),
            .rows = rows,
            .position_T = memory.Own(std::move(positions)),
            .slot_T = memory.Own(std::move(slots)),
            .ratio = ratio,
            .channels = channels(),
            .ape = ape ? memory.In(ape_values) : nullptr};
  }
  Work work() const {
    const std::int64_t stored = std::min(rows, history_slots());
    return {.bytes = 16.0 * static_cast<double>(stored * channels()), .items = static_cast<double>(stored)};
  }
};

// What models pool: V4.1's ratio 2, V4's ratios 4 and 128; the token that completes a group, and a chunk of
// 256.
inline std::vector<Named<CompressorCase>> ModelCompressors() {
  std::vector<Named<CompressorCase>> cases;
  for (const CompressorCase& form :
       {CompressorCase{.ratio = 2}, CompressorCase{.ratio = 4, .overlap = true, .ape = true},
        CompressorCase{.ratio = 128, .ape = true}}) {
    for (const std::int64_t rows : {1, 256}) {
      CompressorCase c = form;
      c.width = 512;
      c.rows = rows;
      c.position = rows == 1 ? 3 * c.ratio - 1 : 0;
      cases.push_back({std::to_string(c.ratio) + "/" + std::to_string(rows), c});
    }
  }
  return cases;
}

}  // namespace lockstep::kernels
