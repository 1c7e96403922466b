#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/contract/total_order.h"
#include "kernels/sampling/sampling_simd.h"
#include "kernels/sampling/sampling_weight.h"

namespace lockstep::kernels {
namespace {

struct Candidate {
  std::uint64_t key;  // larger is better
  std::uint64_t weight;
};

// Candidates in order of rank, sorted only as far as somebody looks.
class Ranking {
 public:
  explicit Ranking(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  std::size_t size() const { return candidates_.size(); }
  // The weight of the best `count`.
  std::uint64_t Weight(std::size_t count) {
    if (count > 0 && count < size()) (*this)[count - 1];  // they come first from here on
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += candidates_[i].weight;
    return sum;
  }
  const Candidate& operator[](std::size_t rank) {
    while (rank >= sorted_) SortMore();
    return candidates_[rank];
  }

 private:
  void SortMore() {
    constexpr std::size_t kFirst = 64, kGrowth = 8;
    const std::size_t to = std::min(candidates_.size(), sorted_ == 0 ? kFirst : sorted_ * kGrowth);
    const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_), end = candidates_.begin() + static_cast<std::ptrdiff_t>(to);
    const auto better = [](const Candidate& a, const Candidate& b) { return a.key > b.key; };
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), better);
    std::sort(begin, end, better);
    sorted_ = to;
  }

  std::vector<Candidate> candidates_;
  std::size_t sorted_ = 0;
};

using Shares = void(const float* logits, std::int64_t n, float best, float temperature, float* shares_V);

std::vector<Candidate> Candidates(std::span<const float> logits_V, float best, const SamplingRow& row, Shares* shares) {
  std::vector<float> share_V(logits_V.size());
  shares(logits_V.data(), static_cast<std::int64_t>(logits_V.size()), best, row.temperature, share_V.data());
  std::vector<Candidate> candidates;
  for (std::size_t v = 0; v < logits_V.size(); ++v) {
    if (const std::uint64_t weight = WeightOfShare(share_V[v], row); weight > 0) {
      candidates.push_back({contract::RankKey(logits_V[v], static_cast<std::uint32_t>(v)), weight});
    }
  }
  return candidates;
}

std::int32_t Draw(std::vector<Candidate> candidates, const SamplingRow& row) {
  Ranking ranking(std::move(candidates));
  const std::size_t kept = row.top_k > 0 ? std::min(ranking.size(), static_cast<std::size_t>(row.top_k)) : ranking.size();
  const std::uint64_t total = ranking.Weight(kept), nucleus = NucleusWeight(total, row.top_p);
  std::uint64_t reached = total, sum = 0;
  if (nucleus < total) {
    reached = 0;
    for (std::size_t i = 0; reached < nucleus; ++i) reached += ranking[i].weight;
  }
  const std::uint64_t drawn = DrawnWeight(row.draw, reached);
  std::size_t rank = 0;
  while ((sum += ranking[rank].weight) <= drawn) ++rank;
  return static_cast<std::int32_t>(contract::IndexOfRankKey(ranking[rank].key));
}

std::int32_t SampleWith(std::span<const float> logits_V, const SamplingRow& row, Shares* shares) {
  std::size_t best = 0;
  for (std::size_t v = 0; v < logits_V.size(); ++v) {
    if (!std::isfinite(logits_V[v])) return -1;
    if (logits_V[v] > logits_V[best]) best = v;
  }
  if (row.temperature == 0.0f) return static_cast<std::int32_t>(best);
  return Draw(Candidates(logits_V, logits_V[best], row, shares), row);
}

Shares* SharesFor(Isa isa) { return ForIsa(isa, &generic::SamplingShares, &avx2::SamplingShares, &avx512::SamplingShares); }

template <Isa isa>
void RunSample(Stream& stream, const SampleArgs& args) {
  static Shares* const shares = SharesFor(isa);
  const auto rows = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      args.out_T[t] = SampleWith({args.logits_TV + t * args.vocab, static_cast<std::size_t>(args.vocab)}, args.row_T[t], shares);
    }
  };
  AsCpu(stream).ParallelFor(args.rows, 1, std::cref(rows));
}

}  // namespace

std::int32_t SampleRow(std::span<const float> logits_V, const SamplingRow& row) {
  static Shares* const shares = SharesFor(BestIsa());
  return SampleWith(logits_V, row, shares);
}

Kernel<SampleArgs> CpuSample(Isa isa) {
  return {ForIsa(isa, &RunSample<Isa::kGeneric>, &RunSample<Isa::kAvx2>, &RunSample<Isa::kAvx512>), "sample/F"};
}

}  // namespace lockstep::kernels
