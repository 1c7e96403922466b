// Problems of the router: what the test compares and the benchmark times.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/router/router.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

struct RouterCase {
  std::int64_t rows = 1, hidden = 1;
  int experts = 1, top_k = 1;
  bool hash = false;   // experts from the table of ids, no bias
  bool twins = false;  // experts 2i and 2i+1 have the same row and bias: every choice is a tie
  bool normalize = true;
  float epsilon = 1e-20f, scaling = 1.5f;
  Recipe recipe = Recipe::kNormal;
};

struct RouterProblem : RouterCase {
  using Output = std::tuple<std::vector<std::int32_t>, std::vector<float>>;  // experts, weights
  static constexpr auto kKernel = &KernelTable::router;
  static constexpr std::int64_t kVocab = 40;
  std::vector<std::uint16_t> x_TE;
  std::vector<float> gate_XE, bias_X;
  std::vector<std::int64_t> tid2eid;  // [kVocab][top_k]
  std::vector<std::int32_t> ids;

  explicit RouterProblem(const RouterCase& c) : RouterCase(c) {
    Inputs inputs(21);
    const Recipe others = recipe == Recipe::kLattice ? recipe : Recipe::kNormal;
    x_TE = inputs.BF16(rows * hidden, recipe);
    gate_XE = inputs.F32(experts * hidden, others, 1.0f / std::sqrt(static_cast<float>(hidden)));
    bias_X = inputs.F32(experts, others, 0.1f);
    for (std::int64_t e = 1; twins && e < experts; e += 2) {
      std::copy_n(gate_XE.begin() + (e - 1) * hidden, hidden, gate_XE.begin() + e * hidden);
      bias_X[static_cast<std::size_t>(e)] = bias_X[static_cast<std::size_t>(e - 1)];
    }
    for (std::int64_t t = 0; t < rows; ++t)
      ids.push_back(static_cast<std::int32_t>(inputs.Integer(0, kVocab - 1)));
    for (std::int64_t v = 0; v < kVocab; ++v) {  // distinct experts in no order
      const std::int64_t first = inputs.Integer(0, experts - 1);
      for (int i = 0; i < top_k; ++i) tid2eid.push_back((first + std::int64_t{i} * (experts - 1)) % experts);
    }
  }
  Output Start() const { return {UnwrittenInt(rows * top_k), UnwrittenF32(rows * top_k)}; }
  RouterArgs Place(CallMemory& memory, Output& y) const {
    return {.x_TE = memory.In(x_TE),
            .rows = rows,
            .hidden = hidden,
            .gate_XE = memory.In(gate_XE),
            .experts = experts,
            .bias_X = hash ? nullptr : memory.In(bias_X),
            .tid2eid = hash ? memory.In(tid2eid) : nullptr,
            .ids = hash ? memory.In(ids) : nullptr,
            .top_k = top_k,
            .normalize = normalize,
            .epsilon = epsilon,
            .scaling = scaling,
            .experts_TK = memory.InOut(std::get<0>(y)),
            .weights_TK = memory.InOut(std::get<1>(y))};
  }
  Work work() const {
    const auto gates = static_cast<double>(experts * hidden);
    return {.bytes = 4 * gates + 2.0 * static_cast<double>(rows * hidden),
            .products = gates * static_cast<double>(rows),
            .items = static_cast<double>(rows)};
  }
};

// The choice and its pairs, the shared expert's among them.
struct RouteProblem {
  using Ints = std::vector<std::int32_t>;
  // experts, weights; of the groups: count, begin, active, their number, token, weight, pair of a choice, NaN flag; mixing matrices
  using Output = std::tuple<Ints, std::vector<float>, Ints, Ints, Ints, Ints, Ints, std::vector<float>, Ints, Ints, std::vector<float>>;
  static constexpr auto kKernel = &KernelTable::route;
  RouterProblem router;
  int streams = 4;
  std::vector<float> logits;  // of the matrices

  explicit RouteProblem(const RouterCase& c) : router(c) { logits = Inputs(19).F32(router.rows * streams * streams, Recipe::kNormal); }
  std::int64_t pairs() const { return router.rows * (router.top_k + 1); }
  Output Start() const {
    const std::int64_t groups = router.experts + 1, choices = router.rows * router.top_k;
    return {UnwrittenInt(choices), UnwrittenF32(choices), UnwrittenInt(groups), UnwrittenInt(groups), UnwrittenInt(groups), UnwrittenInt(1),
            UnwrittenInt(pairs()), UnwrittenF32(pairs()), UnwrittenInt(choices), Ints{0}, logits};
  }
  RouteArgs Place(CallMemory& memory, Output& y) const {
    RouteArgs args;
    RouterProblem::Output choice;  // unused
    args.router = router.Place(memory, choice);
    args.router.experts_TK = memory.InOut(std::get<0>(y)), args.router.weights_TK = memory.InOut(std::get<1>(y));
    args.groups = {.experts_TK = args.router.experts_TK,
                   .weights_TK = args.router.weights_TK,
                   .rows = router.rows,
                   .top_k = router.top_k,
                   .experts = router.experts,
                   .shared = true,
                   .groups = {memory.InOut(std::get<2>(y)), memory.InOut(std::get<3>(y)), memory.InOut(std::get<4>(y)), memory.InOut(std::get<5>(y))},
                   .token = memory.InOut(std::get<6>(y)),
                   .weight = memory.InOut(std::get<7>(y)),
                   .pair_of_TK = memory.InOut(std::get<8>(y)),
                   .nan_flag = memory.InOut(std::get<9>(y))};
    args.mix = {memory.InOut(std::get<10>(y)), router.rows, streams, 20, 1e-6f};
    return args;
  }
  Work work() const { return router.work(); }
};

// V4.1's choice of 6 among 384, one token and a small batch.
inline std::vector<Named<RouterCase>> ModelRouters() {
  return {{"1", {.rows = 1, .hidden = 5120, .experts = 384, .top_k = 6}},
          {"16", {.rows = 16, .hidden = 5120, .experts = 384, .top_k = 6}}};
}

}  // namespace lockstep::kernels
