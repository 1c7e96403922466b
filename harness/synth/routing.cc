#include "harness/synth/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "harness/synth/counter_rng.h"

namespace lockstep::synth {
namespace {

constexpr double kMostPicks = 0.9;

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// The argument in [low, high] at which the rising function reaches `target`.
template <typename Function>
double Solve(Function rising, double low, double high, double target) {
  constexpr double kPrecision = 1e-12;
  while (high - low > kPrecision) {
    const double middle = 0.5 * (low + high);
    (rising(middle) < target ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

std::vector<double> PowerLaw(int experts, double exponent) {
  std::vector<double> weights;
  for (int r = 0; r < experts; ++r) weights.push_back(std::pow(r + 1.0, -exponent));
  return weights;
}

double FirstHalfShare(const std::vector<double>& weights) {
  const auto half = weights.begin() + static_cast<std::ptrdiff_t>(weights.size() / 2);
  return std::accumulate(weights.begin(), half, 0.0) / std::accumulate(weights.begin(), weights.end(), 0.0);
}

// The score that a standard normal logit exceeds with probability f.
double ScoreExceededBy(double f) {
  const double z = Solve(NormalCdf, -9, 9, 1 - f);
  return std::sqrt(std::log1p(std::exp(z)));
}

// The bias that gives each rank its popularity if all tokens have one threshold.
std::vector<float> QuantileBias(const std::vector<double>& law) {
  constexpr double kGrid = 1024;
  const double mean = std::accumulate(law.begin(), law.end(), 0.0) / static_cast<double>(law.size());
  const double threshold = ScoreExceededBy(mean);
  std::vector<float> bias;
  for (const double f : law) {
    bias.push_back(static_cast<float>(std::round((threshold - ScoreExceededBy(f)) * kGrid) / kGrid));
  }
  return bias;
}

// Router scores of a fixed set of tokens.
class ScoreSample {
 public:
  explicit ScoreSample(int experts) : experts_(static_cast<std::size_t>(experts)) {
    const CounterRng rng(0, "router score sample");
    for (std::int64_t i = 0; i < std::int64_t{kTokens} * experts; ++i) {
      const double z = rng.NormalInt(i) / kNormalDeviation;
      scores_TX_.push_back(static_cast<float>(std::sqrt(std::log1p(std::exp(z)))));
    }
  }

  // Share of the picks that falls on the first half of the experts when each token takes its best.
  double FirstHalfShare(const std::vector<float>& bias, int picks) const {
    std::vector<std::pair<float, std::size_t>> choice(experts_);
    std::int64_t first_half = 0;
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t e = 0; e < experts_; ++e) choice[e] = {-(scores_TX_[t * experts_ + e] + bias[e]), e};
      std::nth_element(choice.begin(), choice.begin() + (picks - 1), choice.end());
      first_half += std::count_if(choice.begin(), choice.begin() + picks,
                                  [&](const auto& pick) { return pick.second < experts_ / 2; });
    }
    return static_cast<double>(first_half) / (static_cast<double>(kTokens) * picks);
  }

 private:
  static constexpr int kTokens = 2000;
  std::size_t experts_;
  std::vector<float> scores_TX_;
};

}  // namespace

std::vector<double> PopularityLaw(int experts, int picks, double skew) {
  const double exponent = Solve([&](double a) { return FirstHalfShare(PowerLaw(experts, a)); }, 0, 20, skew);
  std::vector<double> law = PowerLaw(experts, exponent);
  const double total = std::accumulate(law.begin(), law.end(), 0.0);
  for (double& f : law) f = std::min(f * picks / total, kMostPicks);
  return law;
}

std::vector<float> PopularityBias(int experts, int picks, double skew) {
  const ScoreSample sample(experts);
  const double flattened = Solve(
      [&](double s) { return sample.FirstHalfShare(QuantileBias(PopularityLaw(experts, picks, s)), picks); },
      0.5, skew, skew);
  return QuantileBias(PopularityLaw(experts, picks, flattened));
}

std::vector<int> PopularityOrder(int experts, std::uint64_t seed, const std::string& name) {
  const CounterRng rng(seed, name);
  std::vector<int> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[rng.Below(static_cast<std::int64_t>(i), static_cast<std::uint32_t>(i))]);
  }
  return order;
}

std::vector<std::int64_t> PopularityTable(const std::vector<double>& law, const std::vector<int>& order,
                                          int tokens, int picks, std::uint64_t seed, const std::string& name) {
  constexpr double kGrid = 1 << 16;
  std::vector<std::uint32_t> upper;  // running sums of the law, as integers
  for (const double f : law)
    upper.push_back((upper.empty() ? 0 : upper.back()) + 1 + static_cast<std::uint32_t>(f * kGrid));
  const CounterRng rng(seed, name);
  std::vector<std::int64_t> table;
  std::int64_t draw = 0;
  for (int token = 0; token < tokens; ++token) {
    const auto first = static_cast<std::ptrdiff_t>(table.size());
    while (static_cast<std::ptrdiff_t>(table.size()) - first < picks) {
      const std::uint32_t u = rng.Below(draw++, upper.back());
      const std::int64_t expert =
          order[static_cast<std::size_t>(std::upper_bound(upper.begin(), upper.end(), u) - upper.begin())];
      if (std::find(table.begin() + first, table.end(), expert) == table.end()) table.push_back(expert);
    }
  }
  return table;
}

}  // namespace lockstep::synth
