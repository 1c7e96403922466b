// Problems of the family F operations on rows: what the test compares and the benchmark times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// Shapes. T = rows, S = streams, E = hidden.
struct StreamCase {
  std::int64_t rows = 1;
  int streams = 1;
  std::int64_t hidden = 1;
  Recipe recipe = Recipe::kNormal;
};
struct RmsNormCase {
  std::int64_t rows = 1, n = 1;
  Recipe recipe = Recipe::kNormal;
  bool weighted = true, in_place = false;
  std::int64_t gap = 5;  // elements between rows; rows stay as aligned as it is
};
struct RopeCase {
  std::int64_t rows = 1;
  int heads = 1, width = 2, rope_dim = 2;
  bool inverse = false;
  Recipe recipe = Recipe::kNormal;
};
struct HcMixCase : StreamCase {
  bool read_out = false;
  int iterations = 20;
};
struct HcSiteCase : StreamCase {
  bool leaves = true;         // there is a site before
  bool pre_of_before = false; // V4.1: collapse with its coefficients
  int top_k = 0;              // of the sum that the site before left; 0: none
};
struct CombineCase {
  std::int64_t rows = 1;
  int top_k = 1;
  std::int64_t hidden = 1;
  Recipe recipe = Recipe::kNormal;
};

using BF16Output = std::tuple<std::vector<std::uint16_t>>;

struct EmbedProblem : StreamCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::embed;
  std::vector<std::uint16_t> table_VE;
  std::vector<std::int32_t> ids;

  explicit EmbedProblem(const StreamCase& c) : StreamCase(c) {
    constexpr std::int64_t kVocab = 50;
    Inputs inputs(1);
    table_VE = inputs.BF16(kVocab * hidden, recipe);
    for (std::int64_t t = 0; t < rows; ++t)
      ids.push_back(static_cast<std::int32_t>(inputs.Integer(0, kVocab - 1)));
  }
  Output Start() const { return UnwrittenBF16(rows * streams * hidden); }
  EmbedArgs Place(CallMemory& memory, Output& y) const {
    return {.ids = memory.In(ids),
            .rows = rows,
            .table_VE = memory.In(table_VE),
            .streams = streams,
            .hidden = hidden,
            .stream_TSE = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    const double row_bytes = 2.0 * static_cast<double>(rows * hidden);
    return {.bytes = row_bytes * (1 + streams), .items = static_cast<double>(rows)};
  }
};

struct RmsNormProblem : RmsNormCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::rms_norm;
  std::int64_t x_stride, y_stride;
  std::vector<std::uint16_t> x;  // [rows][x_stride]; what lies between rows is poison
  std::vector<float> weight;
  static constexpr float kEps = 1e-6f;

  explicit RmsNormProblem(const RmsNormCase& c)
      : RmsNormCase(c), x_stride(n + gap), y_stride(in_place ? n + gap : n + 3 * gap) {
    Inputs inputs(2);
    x = inputs.BF16(rows * x_stride, recipe);
    for (std::int64_t i = 0; i < rows * x_stride; ++i)
      if (i % x_stride >= n) x[static_cast<std::size_t>(i)] = kPoisonBF16;
    weight = inputs.F32(n, Recipe::kNormal);
  }
  Output Start() const { return in_place ? x : UnwrittenBF16(rows * y_stride); }
  RmsNormArgs Place(CallMemory& memory, Output& y) const {
    RmsNormArgs args = {.x_stride = x_stride,
                        .rows = rows,
                        .n = n,
                        .weight = weighted ? memory.In(weight) : nullptr,
                        .eps = kEps,
                        .y = memory.InOut(std::get<0>(y)),
                        .y_stride = y_stride};
    args.x = in_place ? args.y : memory.In(x);
    return args;
  }
  Work work() const {
    const auto values = static_cast<double>(rows * n);
    return {.bytes = 4 * values + (weighted ? 4.0 * static_cast<double>(n) : 0.0),
            .products = values,
            .items = static_cast<double>(rows)};
  }
};

struct RopeProblem : RopeCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::rope;
  std::vector<std::uint16_t> x;
  std::vector<float> table;             // [table rows][rope_dim], as given
  std::vector<std::int64_t> positions;  // rows of the table

  // `cos_sin`: [positions][rope_dim], cosines before sines.
  RopeProblem(const RopeCase& c, const std::vector<float>& cos_sin) : RopeCase(c), table(cos_sin) {
    Inputs inputs(3);
    x = inputs.BF16(rows * heads * width, recipe);
    const std::int64_t table_rows = static_cast<std::int64_t>(table.size()) / rope_dim;
    for (std::int64_t t = 0; t < rows; ++t) positions.push_back(inputs.Integer(0, table_rows - 1));
    table.resize(table.size() + kMargin, kPoison);
  }
  Output Start() const { return x; }
  RopeArgs Place(CallMemory& memory, Output& y) const {
    return {.x = memory.InOut(std::get<0>(y)),
            .rows = rows,
            .heads = heads,
            .width = width,
            .rope_dim = rope_dim,
            .table = memory.In(table),
            .positions = memory.In(positions),
            .inverse = inverse};
  }
  Work work() const {
    const auto values = static_cast<double>(rows * heads * rope_dim);
    return {.bytes = 4 * values + 4.0 * static_cast<double>(rows * rope_dim),
            .products = 2 * values,
            .items = static_cast<double>(rows)};
  }
};

// Heads normed without a weight, then turned, in place.
struct NormRopeProblem {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::norm_rope;
  RopeProblem rope;

  NormRopeProblem(const RopeCase& c, const std::vector<float>& cos_sin) : rope(c, cos_sin) {}
  Output Start() const { return rope.Start(); }
  NormRopeArgs Place(CallMemory& memory, Output& y) const {
    NormRopeArgs args;
    args.rope = rope.Place(memory, y);
    args.norm = {args.rope.x, rope.width, rope.rows * rope.heads, rope.width, nullptr, RmsNormProblem::kEps, args.rope.x, rope.width};
    return args;
  }
  Work work() const { return rope.work(); }
};

// The coefficients of a site, or of V4's read-out.
struct HcMixProblem : HcMixCase {
  using Output = std::tuple<std::vector<float>, std::vector<float>, std::vector<float>>;  // pre, post, mix
  static constexpr auto kKernel = &KernelTable::hc_mix;
  static constexpr float kRmsEps = 1e-6f, kHcEps = 1e-6f;
  std::vector<std::uint16_t> stream_TSE;
  std::vector<float> fn, base, scale;

  explicit HcMixProblem(const HcMixCase& c) : HcMixCase(c) {
    Inputs inputs(4);
    stream_TSE = inputs.BF16(rows * streams * hidden, recipe);
    fn = inputs.F32(outputs() * streams * hidden, Recipe::kNormal,
                    1.0f / std::sqrt(static_cast<float>(streams * hidden)));
    base = inputs.F32(outputs(), Recipe::kNormal, 0.5f);
    scale = {1.1f, 0.7f, 1.3f};
    if (read_out) scale = {0.9f, kPoison, kPoison};
  }
  std::int64_t outputs() const { return read_out ? streams : 2 * streams + streams * streams; }
  Output Start() const {
    return {UnwrittenF32(rows * streams), UnwrittenF32(rows * streams), UnwrittenF32(rows * streams * streams)};
  }
  HcMixArgs Place(CallMemory& memory, Output& y) const {
    return {.stream_TSE = memory.In(stream_TSE),
            .rows = rows,
            .streams = streams,
            .hidden = hidden,
            .fn = memory.In(fn),
            .base = memory.In(base),
            .scale = memory.In(scale),
            .rms_eps = kRmsEps,
            .hc_eps = kHcEps,
            .sinkhorn_iters = iterations,
            .read_out = read_out,
            .pre_TS = memory.InOut(std::get<0>(y)),
            .post_TS = read_out ? nullptr : memory.InOut(std::get<1>(y)),
            .mix_TSS = read_out ? nullptr : memory.InOut(std::get<2>(y))};
  }
  Work work() const {
    const auto width = static_cast<double>(streams * hidden);
    return {.bytes = 2 * width * static_cast<double>(rows) + 4 * width * static_cast<double>(outputs()),
            .products = width * static_cast<double>(rows * (outputs() + 1)),
            .items = static_cast<double>(rows)};
  }
};

struct HcCollapseNormProblem : StreamCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::hc_collapse_norm;
  static constexpr float kEps = 1e-6f;
  std::vector<std::uint16_t> stream_TSE;
  std::vector<float> pre_TS, weight;

  explicit HcCollapseNormProblem(const StreamCase& c) : StreamCase(c) {
    Inputs inputs(5);
    stream_TSE = inputs.BF16(rows * streams * hidden, recipe);
    pre_TS = inputs.F32(rows * streams, recipe == Recipe::kLattice ? recipe : Recipe::kNormal, 0.5f);
    weight = inputs.F32(hidden, Recipe::kNormal);
  }
  Output Start() const { return UnwrittenBF16(rows * hidden); }
  HcCollapseNormArgs Place(CallMemory& memory, Output& y) const {
    return {.stream_TSE = memory.In(stream_TSE),
            .pre_TS = memory.In(pre_TS),
            .rows = rows,
            .streams = streams,
            .hidden = hidden,
            .norm_weight = memory.In(weight),
            .eps = kEps,
            .x_TE = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    const auto values = static_cast<double>(rows * hidden);
    return {.bytes = 2 * values * (streams + 1),
            .products = values * (streams + 2),
            .items = static_cast<double>(rows)};
  }
};

struct HcExpandProblem : StreamCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::hc_expand;
  std::vector<std::uint16_t> f_TE, stream_TSE;
  std::vector<float> post_TS, mix_TSS;

  explicit HcExpandProblem(const StreamCase& c) : StreamCase(c) {
    Inputs inputs(6);
    f_TE = inputs.BF16(rows * hidden, recipe);
    stream_TSE = inputs.BF16(rows * streams * hidden, recipe);
    const Recipe coefficients = recipe == Recipe::kLattice ? recipe : Recipe::kNormal;
    post_TS = inputs.F32(rows * streams, coefficients);
    mix_TSS = inputs.F32(rows * streams * streams, coefficients, 0.5f);
  }
  Output Start() const { return stream_TSE; }
  HcExpandArgs Place(CallMemory& memory, Output& y) const {
    return {.f_TE = memory.In(f_TE),
            .post_TS = memory.In(post_TS),
            .mix_TSS = memory.In(mix_TSS),
            .rows = rows,
            .streams = streams,
            .hidden = hidden,
            .stream_TSE = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    const auto values = static_cast<double>(rows * hidden);
    return {.bytes = 2 * values * (2 * streams + 1),
            .products = values * streams * (streams + 1),
            .items = static_cast<double>(rows)};
  }
};

// Pairs lie in random order; those that no token has are poison.
struct CombineProblem : CombineCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::combine;
  std::vector<std::uint16_t> expert_rows, shared_TE;
  std::vector<std::int32_t> pair_of;

  explicit CombineProblem(const CombineCase& c) : CombineCase(c) {
    Inputs inputs(7);
    const std::int64_t used = rows * top_k, pairs = used + 3;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pairs));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t i = pairs - 1; i > 0; --i)
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(inputs.Integer(0, i))]);
    expert_rows = inputs.BF16(pairs * hidden, recipe);
    for (std::int64_t i = used; i < pairs; ++i)
      std::fill_n(expert_rows.begin() + order[static_cast<std::size_t>(i)] * hidden, hidden, kPoisonBF16);
    pair_of.assign(order.begin(), order.begin() + used);
    shared_TE = inputs.BF16(rows * hidden, recipe);
  }
  Output Start() const { return UnwrittenBF16(rows * hidden); }
  CombineArgs Place(CallMemory& memory, Output& y) const {
    return {.expert_rows = memory.In(expert_rows),
            .pair_of = memory.In(pair_of),
            .top_k = top_k,
            .shared_TE = memory.In(shared_TE),
            .rows = rows,
            .hidden = hidden,
            .out_TE = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    const auto values = static_cast<double>(rows * hidden);
    return {.bytes = 2 * values * (top_k + 2),
            .products = values * (top_k + 1),
            .items = static_cast<double>(rows)};
  }
};

// From one site to the next; the new coefficients take the place of the old.
struct HcSiteProblem : HcSiteCase {
  using Output = std::tuple<std::vector<std::uint16_t>, std::vector<std::uint16_t>, std::vector<float>, std::vector<float>,
                            std::vector<float>>;  // streams, x, pre, post, mix
  static constexpr auto kKernel = &KernelTable::hc_site;
  HcMixProblem site;
  CombineProblem sum;
  HcExpandProblem left;
  HcCollapseNormProblem entered;

  explicit HcSiteProblem(const HcSiteCase& c) : HcSiteCase(c), site({c}), sum({rows, top_k, hidden, recipe}), left(c), entered(c) {}
  Output Start() const {
    return {left.stream_TSE, UnwrittenBF16(rows * hidden), UnwrittenF32(rows * streams), left.post_TS, left.mix_TSS};
  }
  HcSiteArgs Place(CallMemory& memory, Output& y) const {
    auto& [stream, x, pre, post, mix] = y;
    HcSiteArgs args;
    HcMixProblem::Output coefficients;
    args.mix = site.Place(memory, coefficients);
    args.mix.pre_TS = memory.InOut(pre), args.mix.post_TS = memory.InOut(post), args.mix.mix_TSS = memory.InOut(mix);
    std::uint16_t* streams_at = memory.InOut(stream);
    if (leaves) {
      CombineProblem::Output f;  // unused
      if (top_k > 0) args.sum = sum.Place(memory, f), args.sum.out_TE = memory.Scratch(std::get<0>(sum.Start()));
      args.leave = {.f_TE = top_k > 0 ? args.sum.out_TE : memory.In(left.f_TE),
                    .post_TS = args.mix.post_TS,
                    .mix_TSS = args.mix.mix_TSS,
                    .rows = rows,
                    .streams = streams,
                    .hidden = hidden,
                    .stream_TSE = streams_at};
    }
    args.mix.stream_TSE = streams_at;
    args.collapse = {.stream_TSE = streams_at,
                     .pre_TS = pre_of_before ? memory.In(entered.pre_TS) : args.mix.pre_TS,
                     .rows = rows,
                     .streams = streams,
                     .hidden = hidden,
                     .norm_weight = memory.In(entered.weight),
                     .eps = HcCollapseNormProblem::kEps,
                     .x_TE = memory.InOut(x)};
    return args;
  }
  Work work() const {
    const auto values = static_cast<double>(rows * hidden);
    return {.bytes = 4.0 * static_cast<double>(streams * hidden * site.outputs()) + 2 * values * (2 * streams + 2),
            .products = values * streams * static_cast<double>(site.outputs() + 1 + streams),
            .items = static_cast<double>(rows)};
  }
};

struct EngramGateProblem : StreamCase {
  using Output = BF16Output;
  static constexpr auto kKernel = &KernelTable::engram_gate;
  static constexpr float kEps = 1e-6f;
  std::vector<std::uint16_t> kv, stream_TSE;
  std::vector<float> qk_SE;

  explicit EngramGateProblem(const StreamCase& c) : StreamCase(c) {
    Inputs inputs(8);
    kv = inputs.BF16(rows * (streams + 1) * hidden, recipe);
    stream_TSE = inputs.BF16(rows * streams * hidden, recipe);
    qk_SE = inputs.F32(streams * hidden, recipe == Recipe::kLattice ? recipe : Recipe::kNormal);
  }
  Output Start() const { return stream_TSE; }
  EngramGateArgs Place(CallMemory& memory, Output& y) const {
    return {.kv = memory.In(kv),
            .qk_SE = memory.In(qk_SE),
            .rows = rows,
            .streams = streams,
            .hidden = hidden,
            .eps = kEps,
            .stream_TSE = memory.InOut(std::get<0>(y))};
  }
  Work work() const {
    const auto values = static_cast<double>(rows * streams * hidden);
    return {.bytes = 6 * values + 2.0 * static_cast<double>(rows * hidden),
            .products = 5 * values,
            .items = static_cast<double>(rows)};
  }
};

// One token and a small batch in V4.1's sizes.
inline std::vector<Named<StreamCase>> ModelStreams() {
  return {{"1", {.rows = 1, .streams = 4, .hidden = 5120}}, {"16", {.rows = 16, .streams = 4, .hidden = 5120}}};
}

}  // namespace lockstep::kernels
