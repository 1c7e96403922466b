// Tokens from rows of logits, a team of blocks a row. What sorting finds on the CPU, a histogram of weights and a short sort find here: the exponent at
// which the running weight passes an amount, then the token among the few of that exponent.
#include <algorithm>
#include <string>

#include "kernels/contract/total_order.h"
#include "kernels/device/block_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/sampling/block_order.cuh"
#include "kernels/sampling/row_team.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_weight.h"

namespace lockstep::kernels {
namespace {

enum Slot { kTeamSlot = 1 };

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBinBits = 11, kBins = 1 << kBinBits;
constexpr std::int64_t kMaxVocab = 1 << 18;
constexpr float kBinsAUnit = kBins / -kLowestExponent * 0.99f;  // of the exponent
constexpr int kHeld = 4 * kThreads;                             // logits that a block keeps in shared memory: its share of 129,280
static_assert(kBins == kTeamSums && kBins == 2 * kThreads && 1 + kThreads <= kTeamWords && kMaxTeam <= kWarps);

// Sums of weights in bins. Weights are cut in three, because shared memory adds words of 32 bits at full speed.
struct Histogram {
  static constexpr int kParts = 3, kPartBits = 14;
  static_assert(kMaxVocab << kPartBits <= std::int64_t{1} << 32);
  std::uint32_t part[kParts][kBins];

  __device__ void Clear() {
    for (int i = threadIdx.x; i < kParts * kBins; i += kThreads) part[i / kBins][i % kBins] = 0;
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

// The first token in order of rank at which the running weight reaches an amount.
struct Reached {
  std::uint64_t key;
  unsigned long long weight;  // running, that token's included
};

struct SampleShared {
  union {
    Histogram own;                // of the block's ids
    std::uint64_t key[kThreads];  // candidates
  };
  float logit[kHeld];
  unsigned long long warp[kWarps];
  int bin, count;
  unsigned long long before;  // weight before the bin
  Reached reached;
};

// The ids of a row that a block looks at.
struct Tokens {
  const float* logits;  // of the row; those of [begin, end) are there
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

// The largest value of all threads of a team.
__device__ unsigned long long TeamMax(RowTeam& team, unsigned long long value, SampleShared& s) {
  value = WarpMax(value);
  const int lane = threadIdx.x % 32;
  if (lane == 0) s.warp[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) value = WarpMax(s.warp[lane]);
  if (threadIdx.x == 0) team.Leave(0, value);
  team.Meet();
  return WarpMax(lane < team.blocks() ? team.Word(lane, 0) : 0ull);
}

// What counts of a row, and by which bin: exponents fall with the rank, so bins follow each other in order of rank.
struct SampledWeight {
  SamplingRow row;
  float best;
  std::uint64_t lowest = 0;  // rank key of the last token that counts
  bool count = false;        // every token as one

  __device__ float Exponent(float logit) const { return SamplingExponent(logit, best, row); }
  __device__ int Bin(float exponent) const { return exponent < kLowestExponent ? kBins : static_cast<int>(contract::Mul(-exponent, kBinsAUnit)); }
  __device__ unsigned long long Of(std::uint64_t key, float exponent) const {
    if (key < lowest) return 0;
    const std::uint64_t weight = SamplingWeight(exponent, row);
    return count && weight > 0 ? 1 : weight;
  }
};

// A row's tokens under a weight. All blocks of the team take the same steps.
class WeightedRow {
 public:
  __device__ WeightedRow(RowTeam& team, const Tokens& tokens, const SampledWeight& weight, SampleShared& shared)
      : team_(team), tokens_(tokens), w_(weight), s_(shared), bins_(ExponentBin, *this) {}

  __device__ unsigned long long total() const { return bins_.sums.all; }

  // `amount` is above 0 and at most the total.
  __device__ Reached Reach(unsigned long long amount) {
    unsigned long long before = bins_.Find(amount, s_);
    Range range{s_.bin};
    int candidates;
    while ((candidates = Gather(range)) > kThreads) {
      const unsigned long long highest = TeamMax(team_, Largest(range, 0ull), s_), lowest = ~TeamMax(team_, Largest(range, ~0ull), s_);
      const int shift = max(64 - __clzll(static_cast<long long>(highest - lowest)) - kBinBits, 0);
      const Bins keys([&](int bin, std::uint64_t key) { return range.Has(bin, key) ? static_cast<int>((highest - key) >> shift) : kBins; }, *this);
      before += keys.Find(amount - before, s_);
      range.high = highest - (static_cast<unsigned long long>(s_.bin) << shift);
      range.low = range.high - min(range.high, (std::uint64_t{1} << shift) - 1);
    }
    const Reached reached = Pick(candidates, amount - before);
    return {reached.key, before + reached.weight};
  }

 private:
  // Tokens of one bin of exponents, within rank keys.
  struct Range {
    int bin;
    std::uint64_t low = 0, high = ~std::uint64_t{0};
    __device__ bool Has(int bin_v, std::uint64_t key) const { return bin_v == bin && key >= low && key <= high; }
  };

  static __device__ int ExponentBin(int bin, std::uint64_t /*key*/) { return bin; }

  // Calls body(bin of the exponent, rank key, exponent) for the block's tokens.
  template <class Body>
  __device__ void ForEach(const Body& body) const {
    tokens_.ForEach([&](int v, float logit) {
      const float exponent = w_.Exponent(logit);
      body(w_.Bin(exponent), contract::RankKey(logit, static_cast<std::uint32_t>(v)), exponent);
    });
  }

  // The team's weight in each bin: a thread has two.
  struct Bins {
    unsigned long long weight[2];
    BlockSums<unsigned long long> sums;  // up to the thread's bins

    template <class BinOf>
    __device__ Bins(const BinOf& bin_of, WeightedRow& row) {
      Histogram& own = row.s_.own;
      own.Clear();
      __syncthreads();
      row.ForEach([&](int exponent_bin, std::uint64_t key, float exponent) {
        const int bin = bin_of(exponent_bin, key);
        if (bin >= kBins) return;
        if (const unsigned long long weight_v = row.w_.Of(key, exponent); weight_v > 0) own.Add(bin, weight_v);
      });
      __syncthreads();
      row.team_.AddAndMeet([&](int bin) { return own.Sum(bin); });
      const ulonglong2 two = row.team_.Sums();
      weight[0] = two.x;
      weight[1] = two.y;
      sums = BlockSums<unsigned long long>::Of(weight[0] + weight[1], row.s_.warp);
    }

    // Sets s.bin to the first bin at which the running weight reaches `amount`; returns the weight before it.
    __device__ unsigned long long Find(unsigned long long amount, SampleShared& s) const {
      if (sums.before < amount && sums.before + weight[0] + weight[1] >= amount) {
        const bool second = sums.before + weight[0] < amount;
        s.bin = 2 * static_cast<int>(threadIdx.x) + (second ? 1 : 0);
        s.before = sums.before + (second ? weight[0] : 0ull);
      }
      __syncthreads();
      return s.before;
    }
  };

  // The largest rank key of the thread's tokens in a range, each with all bits of `flip` turned.
  __device__ unsigned long long Largest(const Range& range, std::uint64_t flip) const {
    unsigned long long largest = 0;
    ForEach([&](int bin, std::uint64_t key, float) {
      if (range.Has(bin, key)) largest = max(largest, static_cast<unsigned long long>(key ^ flip));
    });
    return largest;
  }

  // How many tokens of the team are in a range; up to kThreads of them go to s_.key, in any order.
  __device__ int Gather(const Range& range) {
    if (threadIdx.x == 0) s_.count = 0;
    __syncthreads();
    ForEach([&](int bin, std::uint64_t key, float) {
      if (!range.Has(bin, key)) return;
      if (const int i = atomicAdd(&s_.count, 1); i < kThreads) team_.Leave(1 + i, key);
    });
    __syncthreads();
    if (threadIdx.x == 0) team_.Leave(0, static_cast<unsigned long long>(s_.count));
    team_.Meet();
    const int lane = threadIdx.x % 32, block = threadIdx.x / 32;
    const auto own = static_cast<int>(lane < team_.blocks() ? team_.Word(lane, 0) : 0ull);
    const int upto = RunningSumOfWarp(own), count = __shfl_sync(kAllLanes, own, block), to = __shfl_sync(kAllLanes, upto, block) - count;
    const int all = __shfl_sync(kAllLanes, upto, 31);
    if (all <= kThreads) {
      for (int i = lane; i < count; i += 32) s_.key[to + i] = team_.Word(block, 1 + i);
    }
    __syncthreads();
    return all;
  }

  // Of the first `count` candidates in s_.key.
  __device__ Reached Pick(int count, unsigned long long amount) {
    const int i = static_cast<int>(threadIdx.x);
    const std::uint64_t key = SortDescending(i < count ? s_.key[i] : 0, count, s_.key);
    const unsigned long long weight = i < count ? w_.Of(key, w_.Exponent(contract::ValueOfRankKey(key))) : 0;
    const auto sums = BlockSums<unsigned long long>::Of(weight, s_.warp);
    if (sums.before < amount && sums.before + weight >= amount) s_.reached = {key, sums.before + weight};
    __syncthreads();
    return s_.reached;
  }

  RowTeam& team_;
  Tokens tokens_;
  SampledWeight w_;
  SampleShared& s_;
  Bins bins_;  // by exponent
};

// Rank key of a row's best; 0 where a logit is not finite. Leaves the logits in `held`, if it is not null.
__device__ std::uint64_t BestKey(RowTeam& team, const Tokens& tokens, float* held, SampleShared& s) {
  unsigned long long best = 0;
  tokens.ForEach([&](int v, float logit) {
    if (held) held[v - tokens.begin] = logit;
    best = max(best, isfinite(logit) ? static_cast<unsigned long long>(contract::RankKey(logit, static_cast<std::uint32_t>(v))) : ~0ull);
  });
  best = TeamMax(team, best, s);
  return best == ~0ull ? 0 : best;
}

__device__ std::uint64_t DrawKey(RowTeam& team, const Tokens& tokens, const SamplingRow& row, float best, SampleShared& shared) {
  SampledWeight weight{row, best};
  if (row.top_k > 0) {
    weight.count = true;
    WeightedRow counted(team, tokens, weight, shared);
    const auto kept = static_cast<unsigned long long>(row.top_k);
    if (kept < counted.total()) weight.lowest = counted.Reach(kept).key;
    weight.count = false;
  }
  WeightedRow weighted(team, tokens, weight, shared);
  const unsigned long long total = weighted.total(), nucleus = NucleusWeight(total, row.top_p);
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
  Tokens tokens = {a.logits_TV + t * a.vocab, begin, min(begin + share, vocab)};
  const bool held = share <= kHeld;
  std::uint64_t key = BestKey(team, tokens, held ? shared.logit : nullptr, shared);
  if (held) tokens.logits = shared.logit - begin;
  if (key != 0 && row.temperature != 0.0f) key = DrawKey(team, tokens, row, contract::ValueOfRankKey(key), shared);
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
