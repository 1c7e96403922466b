// Experts made from a seed, and the pairs that they serve: what the test compares and the benchmark times.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/linear/linear_cases.h"
#include "kernels/testing/implementations.h"

namespace lockstep::kernels {

// One form for each of the three matrices; their sizes are filled in.
struct ExpertForm {
  LinearCase gate, up, down;
};

struct ExpertCase {
  std::vector<ExpertForm> experts;
  std::vector<std::int64_t> rows;  // pairs of each expert
  std::int64_t tokens = 1;
  std::int64_t hidden = 0, features = 0;
  NumericsOptions numerics;
  float limit = 10.0f;
  bool routed = true;  // tokens and weights; otherwise pair p is row p, without weight
};

// The case in memory. Between experts lie unused pairs: their y rows must stay as they are.
class ExpertProblem {
 public:
  explicit ExpertProblem(const ExpertCase& c) : c_(c), maker_(7) {
    std::int64_t pairs = 0;
    for (std::size_t e = 0; e < c.experts.size(); ++e) {
      ExpertForm form = c.experts[e];
      for (LinearCase* part : {&form.gate, &form.up}) {
        part->out = c.features;
        part->in = c.hidden;
      }
      form.down.out = c.hidden;
      form.down.in = c.features;
      for (const LinearCase& part : {form.gate, form.up, form.down}) linears_.push_back(maker_.Make(part));
      const std::size_t first = linears_.size() - 3;
      weights_.push_back(
          {.w1 = linears_[first].weight, .w2 = linears_[first + 2].weight, .w3 = linears_[first + 1].weight});
      specs_.push_back(MakeExpertSpec(weights_.back(), c.numerics, 32));
      blobs_.emplace_back(static_cast<std::size_t>(specs_.back().bytes));
      PackExpert(weights_.back(), specs_.back(), blobs_.back().data());
      begins_.push_back(pairs);
      pairs += c.rows[e] + (c.routed ? 1 : 0);
    }
    for (std::size_t e = 0; e < specs_.size(); ++e) {
      jobs_.push_back({.spec = &specs_[e], .begin = begins_[e], .rows = c.rows[e]});
    }
    pairs_ = pairs;
    x_ = maker_.InputRows(c.tokens, c.hidden, Recipe::kNormal);
    std::mt19937 random(11);
    for (std::int64_t p = 0; p < pairs; ++p) {
      token_.push_back(c.routed ? static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(c.tokens))
                                : static_cast<std::int32_t>(p));
      weight_.push_back(0.1f + static_cast<float>(random() % 1000) * 1e-3f);
    }
  }
  ExpertProblem(const ExpertProblem&) = delete;
  ExpertProblem& operator=(const ExpertProblem&) = delete;

  // The arguments of one implementation. The arrays come to `memory`, the jobs into `jobs`; both outlive the
  // call.
  ExpertFfnArgs Place(CallMemory& memory, std::vector<ExpertJob>& jobs) const {
    jobs = jobs_;
    for (std::size_t e = 0; e < jobs.size(); ++e) jobs[e].blob = memory.In(blobs_[e]);
    return {.jobs = jobs.data(),
            .num_jobs = static_cast<std::int64_t>(jobs.size()),
            .x = memory.In(x_),
            .token = c_.routed ? memory.In(token_) : nullptr,
            .weight = c_.routed ? memory.In(weight_) : nullptr,
            .limit = c_.limit,
            .hidden = c_.hidden};
  }

  std::int64_t pairs() const { return pairs_; }
  const std::vector<ExpertWeights>& weights() const { return weights_; }
  const std::vector<ExpertJob>& jobs() const { return jobs_; }
  const std::vector<std::uint16_t>& x() const { return x_; }
  const std::vector<std::int32_t>& token() const { return token_; }
  const std::vector<float>& weight() const { return weight_; }
  std::int64_t packed_bytes() const {
    return std::accumulate(specs_.begin(), specs_.end(), std::int64_t{0},
                           [](std::int64_t sum, const ExpertSpec& s) { return sum + s.bytes; });
  }

 private:
  ExpertCase c_;
  LinearMaker maker_;
  std::vector<TestLinear> linears_;
  std::vector<ExpertWeights> weights_;
  std::vector<ExpertSpec> specs_;
  std::vector<std::vector<std::byte>> blobs_;
  std::vector<std::int64_t> begins_;
  std::vector<ExpertJob> jobs_;
  std::int64_t pairs_ = 0;
  std::vector<std::uint16_t> x_;
  std::vector<std::int32_t> token_;
  std::vector<float> weight_;
};

}  // namespace lockstep::kernels
