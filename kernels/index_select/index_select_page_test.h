// The indexer as loops of docs/numerics.md section 6, Index score and Selection, with the reference's quantizers, products and total order: what tests expect.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/index_select/index_select_cases.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/truth.h"
#include "reference/arithmetic.h"
#include "reference/mma_block.h"
#include "reference/quantize.h"
#include "reference/selection.h"

namespace lockstep::kernels {

inline std::string Describe(const IndexCase& c, Profile profile) {
  return std::to_string(c.rows()) + " rows, at most " + std::to_string(c.max_visible()) + " visible, " +
         std::to_string(c.heads) + " x " + std::to_string(c.dim) + ", format " +
         std::to_string(static_cast<int>(c.format)) + ", top " + std::to_string(c.top_k) + ", blocks of " +
         std::to_string(c.candidate_block) + (c.restricted() ? ", restricted" : "") + ", recipe " +
         std::to_string(static_cast<int>(c.recipe)) + ", " + std::string(NameOf(profile));
}

// --- scores by the page
// ----------------------------------------------------------------------------------------------

// Codes as values, and a scale for each 32.
struct QuantizedVector {
  std::vector<float> codes, scales;
};

inline QuantizedVector QuantizeQuery(const IndexProblem& p, std::int64_t t, std::int64_t h) {
  QuantizedVector q = {Widened<float>(p.q_THI, (t * p.heads + h) * p.dim, p.dim), {}};
  if (p.format == FormatKind::kHadamardFp4) {
    reference::Butterfly(q.codes.data(), p.dim);
    for (float& value : q.codes)
      value = RoundToBF16(value * static_cast<float>(1 / std::sqrt(static_cast<double>(p.dim))));
  }
  for (int begin = 0; begin < p.dim; begin += 32) {
    float* block = q.codes.data() + begin;
    q.scales.push_back(
        reference::ActQuant4Block(block, std::min(32, p.dim - begin), reference::Fp4Scale::kE8M0, block));
  }
  return q;
}

inline QuantizedVector StoredKey(const IndexProblem& p, std::int64_t t, std::int64_t j) {
  const auto* row = reinterpret_cast<const std::uint8_t*>(p.Key(t, j));
  QuantizedVector key;
  for (int d = 0; d < p.dim; ++d) {
    if (p.format == FormatKind::kBf16)
      key.codes.push_back(BF16ToFloat(static_cast<std::uint16_t>(row[2 * d] | row[2 * d + 1] << 8)));
    else
      key.codes.push_back(E2M1ToFloat((row[d / 2] >> (d % 2 * 4)) & 0xf));
  }
  for (int b = 0; p.format != FormatKind::kBf16 && 32 * b < p.dim; ++b)
    key.scales.push_back(E8M0ToFloat(row[(p.dim + 1) / 2 + b]));
  return key;
}

inline float DotOfBlocks(const QuantizedVector& q, const QuantizedVector& k) {
  float d = 0;
  for (std::size_t b = 0; b < q.scales.size(); ++b) {
    float sum = 0;  // exact in any order
    for (std::size_t i = 32 * b; i < std::min(q.codes.size(), 32 * (b + 1)); ++i)
      sum += q.codes[i] * k.codes[i];
    d = std::fma(sum, q.scales[b] * k.scales[b], d);
  }
  return d;
}

// Bf16 weights of the heads, scaled.
inline std::vector<float> Weights(const IndexProblem& p, std::int64_t t) {
  std::vector<float> weights = Widened<float>(p.weight_TH, t * p.heads, p.heads);
  for (float& w : weights) w *= static_cast<float>(1 / std::sqrt(static_cast<double>(p.dim * p.heads)));
  return weights;
}

inline std::vector<float> ScoresOf(const IndexProblem& p, Profile profile, std::int64_t t) {
  const bool quantized = p.format != FormatKind::kBf16;
  std::vector<QuantizedVector> queries;
  for (std::int64_t h = 0; h < p.heads; ++h)
    queries.push_back(quantized
                          ? QuantizeQuery(p, t, h)
                          : QuantizedVector{Widened<float>(p.q_THI, (t * p.heads + h) * p.dim, p.dim), {}});
  const std::vector<float> weights = Weights(p, t);
  std::vector<float> scores;
  for (std::int64_t j = 0; j < p.visible[static_cast<std::size_t>(t)]; ++j) {
    const QuantizedVector key = StoredKey(p, t, j);
    std::vector<float> part(std::bit_ceil(static_cast<std::size_t>(p.heads)), 0.0f);
    for (std::size_t h = 0; h < queries.size(); ++h) {
      const float d = quantized ? DotOfBlocks(queries[h], key)
                                : reference::DotH(profile, queries[h].codes.data(), key.codes.data(), p.dim);
      part[h] = (d > 0 ? d : 0.0f) * weights[h];
    }
    scores.push_back(reference::Fold(part.data(), static_cast<std::int64_t>(part.size())));
  }
  return scores;
}

// --- selection by the page
// -------------------------------------------------------------------------------------------

inline std::vector<std::int64_t> KeptBlocks(const IndexProblem& p, const std::vector<float>& scores) {
  std::vector<float> best;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    if (j % static_cast<std::size_t>(p.candidate_block) == 0) best.push_back(scores[j]);
    best.back() = std::max(best.back(), scores[j]);
  }
  if (!best.empty()) best.back() = std::numeric_limits<float>::infinity();
  return reference::SelectTop(best, p.candidate_top_blocks, "blocks").indices;
}

inline void Restrict(const IndexProblem& p, std::int64_t t, std::vector<float>* scores) {
  const std::int32_t* list = p.candidates.data() + t * p.candidate_top_blocks;
  for (std::size_t j = 0; j < scores->size(); ++j) {
    const auto block = static_cast<std::int32_t>(j) / p.candidate_block;
    if (std::find(list, list + p.candidate_counts[static_cast<std::size_t>(t)], block) ==
        list + p.candidate_counts[static_cast<std::size_t>(t)])
      (*scores)[j] = -std::numeric_limits<float>::infinity();
  }
}

inline void StoreList(const std::vector<std::int64_t>& list, std::int64_t t, std::int64_t stride,
               std::vector<std::int32_t>* out, std::vector<std::int32_t>* count) {
  std::copy(list.begin(), list.end(), out->begin() + t * stride);
  (*count)[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(list.size());
}

inline IndexProblem::Output PageOf(const IndexProblem& p, Profile profile) {
  IndexProblem::Output expected = p.Start();
  auto& [selected, count, candidates, candidate_count, all_scores] = expected;
  for (std::int64_t t = 0; t < p.rows(); ++t) {
    std::vector<float> scores = ScoresOf(p, profile, t);
    if (p.restricted())
      Restrict(p, t, &scores);
    else
      std::copy(scores.begin(), scores.end(), all_scores.begin() + t * p.scores_stride());
    StoreList(reference::SelectTop(scores, p.top_k, "entries").indices, t, p.top_k, &selected, &count);
    if (p.source()) StoreList(KeptBlocks(p, scores), t, p.candidate_top_blocks, &candidates, &candidate_count);
  }
  return expected;
}

inline void ExpectPage(const IndexCase& c, Profile profile = Profile::kSm90) {
  const IndexProblem problem(c);
  ExpectEverywhere(problem, PageOf(problem, profile), profile, Describe(c, profile));
}

}  // namespace lockstep::kernels
