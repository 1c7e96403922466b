// Tokens from rows of logits, a team of blocks a row. What sorting finds on the CPU, histograms of weights find here: the exponent at which the running
// weight passes an amount, then the digits of the logit, then the id among equals.
#include <algorithm>
#include <string>

#include "kernels/contract/total_order.h"
#include "kernels/device/launch.cuh"
#include "kernels/sampling/row_team.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_weight.h"

namespace lockstep::kernels {
namespace {

enum Slot { kTeamSlot = 1 };

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kBinsAWarp = kBins / kWarps;
constexpr std::int64_t kMaxVocab = 1 << 18;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kBinsAUnit = kBins / -kLowestExponent * 0.99f;  // of the exponent
constexpr int kMaxTeam = 16;  // blocks a row: eight ids a thread of 129,280
static_assert(kBins <= kTeamWords && kWarps <= kTeamWords);

// Sums of weights in bins. Weights are cut in three, because shared memory adds words of 32 bits at full speed.
struct Histogram {
  static constexpr int kParts = 3, kPartBits = 14;
  static_assert(kMaxVocab << kPartBits <= std::int64_t{1} << 32);
  std::uint32_t part[kParts][kBins];

  __device__ void Clear() {
    __syncthreads();
    for (int i = threadIdx.x; i < kParts * kBins; i += kThreads) part[i / kBins][i % kBins] = 0;
    __syncthreads();
  }
  __device__ void Add(int bin, unsigned long long weight) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (const auto bits = static_cast<std::uint32_t>(weight >> (p * kPartBits)) & ((1u << kPartBits) - 1u); bits != 0) atomicAdd(&part[p][bin], bits);
    }
  }
  __device__ unsigned long long Sum(int bin) const {
    unsigned long long sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += static_cast<unsigned long long>(part[p][bin]) << (p * kPartBits);
    return sum;
  }
};

struct SampleShared {
  union {
    Histogram own;                   // of the block's ids
    unsigned long long all[kBins];   // of the row's
  };
  unsigned long long weight[kBins];  // by exponent
  unsigned long long warp[kWarps];
  unsigned long long sum;  // of what comes before the chosen bin
  int bin;
  std::uint64_t key;
};

// The ids of a row that a block looks at.
struct Tokens {
  const float* logits;
  int begin, end;

  // Calls body(id, logit) for all of them, eight loads at a time: loads are what a block waits for.
  template <class Body>
  __device__ void ForEach(const Body& body) const {
    constexpr int kLoads = 8;
    for (int first = begin + static_cast<int>(threadIdx.x); first < end; first += kLoads * kThreads) {
      float logit[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) logit[i] = first + i * kThreads < end ? logits[first + i * kThreads] : 0.0f;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (first + i * kThreads < end) body(first + i * kThreads, logit[i]);
      }
    }
  }
};

__device__ unsigned long long SumWarp(unsigned long long value) {
  for (int stride = 16; stride > 0; stride /= 2) value += __shfl_xor_sync(kAllLanes, value, stride);
  return value;
}

// The first token in order of rank at which the running weight reaches an amount.
struct Reached {
  std::uint64_t key;
  unsigned long long weight;  // running, that token's included
};

// What counts of a row, and by which bin: exponents fall with the rank, so bins follow each other in order of rank.
struct SampledWeight {
  SamplingRow row;
  float best;
  std::uint64_t lowest = 0;  // rank key of the last token that counts
  bool count = false;        // every token as one

  __device__ float Exponent(float logit) const { return SamplingExponent(logit, best, row); }
  __device__ int Bin(float exponent) const { return exponent < kLowestExponent ? kBins : static_cast<int>(contract::Mul(-exponent, kBinsAUnit)); }
  __device__ unsigned long long Of(int v, float logit, float exponent) const {
    if (contract::RankKey(logit, static_cast<std::uint32_t>(v)) < lowest) return 0;
    const std::uint64_t weight = SamplingWeight(exponent, row);
    return count && weight > 0 ? 1 : weight;
  }
};

// A row's logits under a weight. Equal logits weigh the same or nothing, and those that weigh have the smaller ids. All blocks of the team take the same steps.
class WeightedRow {
 public:
  __device__ WeightedRow(RowTeam& team, const Tokens& tokens, const SampledWeight& weight, SampleShared& shared) : team_(team), tokens_(tokens), w_(weight), s_(shared) {
    s_.own.Clear();
    tokens_.ForEach([&](int v, float logit) {
      const float exponent = w_.Exponent(logit);
      if (const unsigned long long weight_v = w_.Of(v, logit, exponent); weight_v > 0) s_.own.Add(w_.Bin(exponent), weight_v);
    });
    AddUp();
    for (int b = threadIdx.x; b < kBins; b += kThreads) s_.weight[b] = s_.all[b];
    __syncthreads();
  }

  __device__ unsigned long long Total() {
    unsigned long long sum = 0;
    for (int b = threadIdx.x; b < kBins; b += kThreads) sum += s_.weight[b];
    sum = SumWarp(sum);
    if (threadIdx.x % 32 == 0) s_.warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += s_.warp[w];
    __syncthreads();
    return sum;
  }

  // `amount` is above 0 and at most the total.
  __device__ Reached Reach(unsigned long long amount) {
    unsigned long long before = FindBin(s_.weight, 1, amount);
    const int bin = s_.bin;
    std::uint32_t prefix = 0;
    for (int above = 32; above > 0; above -= kDigitBits) {  // the last digit is shorter
      const int low = max(above - kDigitBits, 0);
      s_.own.Clear();
      tokens_.ForEach([&](int v, float logit) {
        const float exponent = w_.Exponent(logit);
        const std::uint32_t key = contract::OrderKey(logit);
        if (w_.Bin(exponent) != bin || (above < 32 && (key >> above) != prefix)) return;
        s_.own.Add(static_cast<int>((key >> low) & ((1u << (above - low)) - 1u)), w_.Of(v, logit, exponent));
      });
      AddUp();
      before += FindBin(s_.all, -1, amount - before);
      prefix = (prefix << (above - low)) | static_cast<std::uint32_t>(s_.bin);
    }
    return FindAmongEqual(prefix, amount, before);
  }

 private:
  // The blocks' histograms to their sum.
  __device__ void AddUp() {
    __syncthreads();
    team_.Leave(kBins, [&](int b) { return s_.own.Sum(b); });
    team_.Meet();
    for (int b = threadIdx.x; b < kBins; b += kThreads) s_.all[b] = team_.Sum(b);
    __syncthreads();
  }

  // Sets s_.bin to the first bin, upwards or downwards, at which the running weight reaches `amount`; returns the weight before it.
  __device__ unsigned long long FindBin(const unsigned long long* bins, int direction, unsigned long long amount) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = direction > 0 ? warp * kBinsAWarp : kBins - 1 - warp * kBinsAWarp;
    unsigned long long own = 0, before = 0;
    for (int b = lane; b < kBinsAWarp; b += 32) own += bins[first + direction * b];
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += s_.warp[w];
    if (lane == 0 && before < amount && before + own >= amount) {
      int bin = first;
      for (; before + bins[bin] < amount; bin += direction) before += bins[bin];
      s_.bin = bin;
      s_.sum = before;
    }
    __syncthreads();
    return s_.sum;
  }

  // Ids with the order key `value`, ascending: each warp of the team has a stretch of ids.
  __device__ Reached FindAmongEqual(std::uint32_t value, unsigned long long amount, unsigned long long before) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stretch = (tokens_.end - tokens_.begin + kWarps - 1) / kWarps;
    const int begin = min(tokens_.begin + warp * stretch, tokens_.end), end = min(begin + stretch, tokens_.end);
    const auto weight = [&](int v) {
      const float logit = tokens_.logits[v];
      return contract::OrderKey(logit) == value ? w_.Of(v, logit, w_.Exponent(logit)) : 0ull;
    };
    unsigned long long own = 0;
#pragma unroll 8
    for (int v = begin + lane; v < end; v += 32) own += weight(v);
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    team_.Leave(kWarps, [&](int w) { return s_.warp[w]; });
    team_.Meet();
    unsigned long long earlier = 0;
    for (int i = lane; i < team_.rank() * kWarps + warp; i += 32) earlier += team_.Word(i / kWarps, i % kWarps);
    before += SumWarp(earlier);
    const bool here = lane == 0 && before < amount && before + own >= amount;
    if (here) {
      int v = begin;
      while ((before += weight(v)) < amount) ++v;
      s_.key = contract::RankKey(tokens_.logits[v], static_cast<std::uint32_t>(v));
      s_.sum = before;
    }
    return TellAll(__syncthreads_or(here));
  }

  // What one block has found, to all.
  __device__ Reached TellAll(bool found) {
    team_.Leave(2, [&](int i) { return !found ? 0ull : i == 0 ? static_cast<unsigned long long>(s_.key) : s_.sum; });
    team_.Meet();
    return {team_.Sum(0), team_.Sum(1)};
  }

  RowTeam& team_;
  Tokens tokens_;
  SampledWeight w_;
  SampleShared& s_;
};

// Rank key of a row's best; 0 where a logit is not finite.
__device__ std::uint64_t BestKey(RowTeam& team, const Tokens& tokens, SampleShared& s) {
  unsigned long long best = 0;
  bool bad = false;
  tokens.ForEach([&](int v, float logit) {
    bad = bad || !isfinite(logit);
    best = max(best, static_cast<unsigned long long>(contract::RankKey(logit, static_cast<std::uint32_t>(v))));
  });
  bad = __syncthreads_or(bad);
  for (int stride = 16; stride > 0; stride /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, stride));
  if (threadIdx.x % 32 == 0) s.warp[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = max(best, s.warp[w]);
  team.Leave(2, [&](int i) { return i == 0 ? best : static_cast<unsigned long long>(bad); });
  team.Meet();
  for (int b = 0; b < team.blocks(); ++b) best = max(best, team.Word(b, 0));
  return team.Sum(1) > 0 ? 0 : best;
}

__device__ std::uint64_t DrawKey(RowTeam& team, const Tokens& tokens, const SamplingRow& row, float best, SampleShared& shared) {
  SampledWeight weight{row, best};
  if (row.top_k > 0) {
    weight.count = true;
    WeightedRow counted(team, tokens, weight, shared);
    const auto kept = static_cast<unsigned long long>(row.top_k);
    if (kept < counted.Total()) weight.lowest = counted.Reach(kept).key;
    weight.count = false;
  }
  WeightedRow weighted(team, tokens, weight, shared);
  const unsigned long long total = weighted.Total(), nucleus = NucleusWeight(total, row.top_p);
  const unsigned long long reached = nucleus < total ? weighted.Reach(nucleus).weight : total;
  return weighted.Reach(DrawnWeight(row.draw, reached) + 1).key;
}

// Block (of the row's team, row).
__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a, const TeamMemory memory) {
  BeginKernel();
  __shared__ SampleShared shared;
  RowTeam team(memory);
  const std::int64_t t = blockIdx.y;
  const SamplingRow row = a.row_T[t];
  const int vocab = static_cast<int>(a.vocab), share = (vocab + team.blocks() - 1) / team.blocks();
  const int begin = min(team.rank() * share, vocab);
  const Tokens tokens = {a.logits_TV + t * a.vocab, begin, min(begin + share, vocab)};
  std::uint64_t key = BestKey(team, tokens, shared);
  if (key != 0 && row.temperature != 0.0f) key = DrawKey(team, tokens, row, tokens.logits[contract::IndexOfRankKey(key)], shared);
  if (team.rank() == 0 && threadIdx.x == 0) a.out_T[t] = key == 0 ? -1 : static_cast<std::int32_t>(contract::IndexOfRankKey(key));
  team.Disperse();
}

void RunSample(Stream& s, const SampleArgs& a) {
  if (a.rows == 0) return;
  if (a.vocab > kMaxVocab) throw InputError("sampling: " + std::to_string(a.vocab) + " tokens, expected at most 262144 on a CUDA device");
  CudaStream& stream = AsCuda(s);
  const auto blocks = static_cast<int>(std::clamp<std::int64_t>(stream.processors() / a.rows, 1, kMaxTeam));  // all at once: they wait for each other
  Launch(SampleKernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(a.rows)), kThreads, 0, stream, a, TeamMemory::In(stream, kTeamSlot, a.rows, blocks));
  CheckLaunch("sample");
}

}  // namespace

Kernel<SampleArgs> CudaSample() { return {&RunSample, "sample/F"}; }

}  // namespace lockstep::kernels
