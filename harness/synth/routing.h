// Expert popularity: how a router is biased so that picks follow a power law.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::synth {

// Expected picks of an expert a token, by popularity rank, falling as a power of the rank (a Zipf law): they
// sum to `picks`, and the first half of the experts gets the share `skew` of them, 0.5 (all equal) <= skew < 1.
// No expert gets more than 0.9.
std::vector<double> PopularityLaw(int experts, int picks, double skew);

// gate.bias by popularity rank for a router whose logits are standard normal and independent. An expert of
// popularity f is picked about as often as its score sqrt(softplus(z)) exceeds a threshold less its bias, so
// the bias is that threshold less the score's (1 - f)-quantile. That overshoots, because the threshold varies
// from token to token; the law is flattened until simulated picks give the first half the share `skew`.
// Multiples of 1/1024, so that no rounding of a math library shows.
std::vector<float> PopularityBias(int experts, int picks, double skew);

// A random order of the experts: [r] is the expert of popularity rank r.
std::vector<int> PopularityOrder(int experts, std::uint64_t seed, const std::string& name);

// Distinct experts for each of `tokens` token ids, drawn by the law, [tokens * picks]: the table of a
// hash-routed layer.
std::vector<std::int64_t> PopularityTable(const std::vector<double>& law, const std::vector<int>& order,
                                          int tokens, int picks, std::uint64_t seed, const std::string& name);

}  // namespace lockstep::synth
