#include "fast/sampler.h"

#include <string>
#include <unordered_map>
#include <vector>

#include "model/error.h"

namespace lockstep::fast {
namespace {

// 53 bits from a seed and a position (splitmix64 finalizer).
std::uint64_t RandomBits(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + position + 0x632be59bd9b4e019u;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x >> 11;
}

void ApplyPenalties(std::vector<float>& logits, const SamplingParams& params, std::span<const std::int32_t> history, std::int64_t generated) {
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

bool HasPenalties(const SamplingParams& p) { return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f; }

kernels::SamplingRow DrawAt(const SamplingParams& p, std::int64_t position) {
  return {p.temperature, p.top_p, p.min_p, p.top_k, RandomBits(p.seed, static_cast<std::uint64_t>(position))};
}

std::int32_t SampleToken(std::span<const float> logits_V, const SamplingParams& params, std::span<const std::int32_t> history,
                         std::int64_t generated, std::int64_t position) {
  if (!HasPenalties(params)) return kernels::SampleRow(logits_V, DrawAt(params, position));
  std::vector<float> logits(logits_V.begin(), logits_V.end());
  ApplyPenalties(logits, params, history, generated);
  return kernels::SampleRow(logits, DrawAt(params, position));
}

}  // namespace lockstep::fast
