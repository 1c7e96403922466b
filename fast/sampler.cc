#include "fast/sampler.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/contract/exact_math.h"
#include "model/error.h"

namespace lockstep::fast {
namespace {

// Uniform in [0, 1) from a seed and a position (splitmix64 finalizer).
double Uniform(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + position + 0x632be59bd9b4e019u;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

void ApplyPenalties(std::vector<float>& logits, const SamplingParams& params, std::span<const std::int32_t> history, std::int64_t generated) {
  if (params.repetition_penalty == 1.0f && params.presence_penalty == 0.0f && params.frequency_penalty == 0.0f) return;
  std::unordered_map<std::int32_t, std::int64_t> seen, sampled;
  const auto first_sampled = static_cast<std::int64_t>(history.size()) - generated;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(history.size()); ++i) {
    ++seen[history[static_cast<std::size_t>(i)]];
    if (i >= first_sampled) ++sampled[history[static_cast<std::size_t>(i)]];
  }
  for (const auto& [id, count] : seen) {
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  for (const auto& [id, count] : sampled) {
    logits[static_cast<std::size_t>(id)] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
}

}  // namespace

void CheckSampling(const SamplingParams& p) {
  const auto require = [](bool ok, const char* field, const char* range) {
    if (!ok) throw InputError(std::string(field) + ": expected " + range);
  };
  require(p.temperature >= 0.0f && p.temperature <= 100.0f, "temperature", "a number from 0 to 100");
  require(p.top_p > 0.0f && p.top_p <= 1.0f, "top_p", "a number above 0 and at most 1");
  require(p.top_k >= 0, "top_k", "0 or a positive whole number");
  require(p.min_p >= 0.0f && p.min_p < 1.0f, "min_p", "a number from 0 to below 1");
  require(p.repetition_penalty > 0.0f && p.repetition_penalty <= 100.0f, "repetition_penalty", "a number above 0 and at most 100");
  require(p.presence_penalty >= -100.0f && p.presence_penalty <= 100.0f, "presence_penalty", "a number from -100 to 100");
  require(p.frequency_penalty >= -100.0f && p.frequency_penalty <= 100.0f, "frequency_penalty", "a number from -100 to 100");
}

std::int32_t SampleToken(std::span<const float> logits_in, const SamplingParams& params, std::span<const std::int32_t> history,
                         std::int64_t generated, std::int64_t position) {
  std::vector<float> logits(logits_in.begin(), logits_in.end());
  ApplyPenalties(logits, params, history, generated);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  if (params.temperature == 0.0f) return *std::min_element(order.begin(), order.end(), before);

  std::size_t kept = order.size();
  if (params.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(params.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), before);
  order.resize(kept);
  const float best = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weight;
  double total = 0;
  for (std::int32_t id : order) {
    const float w = contract::Exp((logits[static_cast<std::size_t>(id)] - best) / params.temperature);
    if (w < params.min_p) break;
    weight.push_back(w);
    total += w;
  }
  double reached = 0;
  std::size_t nucleus = 0;
  while (nucleus < weight.size() && (nucleus == 0 || reached < params.top_p * total)) reached += weight[nucleus++];
  const double target = Uniform(params.seed, static_cast<std::uint64_t>(position)) * reached;
  double sum = 0;
  for (std::size_t i = 0; i < nucleus; ++i) {
    sum += weight[i];
    if (target < sum) return order[i];
  }
  return order[nucleus - 1];
}

}  // namespace lockstep::fast
