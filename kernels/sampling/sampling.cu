// Tokens from rows of logits, a block a row. What sorting finds on the CPU, histograms of weights find here: the exponent at which the running
// weight passes an amount, then the digits of the logit, then the id among equals.
#include <string>

#include "kernels/contract/total_order.h"
#include "kernels/device/launch.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_weight.h"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kBinsAWarp = kBins / kWarps;
constexpr std::int64_t kMaxVocab = 1 << 18;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kBinsAUnit = kBins / -kLowestExponent * 0.99f;  // of the exponent

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
  Histogram histogram;
  unsigned long long weight[kBins];  // by exponent
  unsigned long long warp[kWarps];
  unsigned long long sum;  // of what comes before the chosen bin
  int bin;
  std::uint64_t key;
};

// Calls body(id, logit) for all ids of a row, eight loads at a time: one block waits for memory, not for arithmetic.
template <class Body>
__device__ void ForTokens(const float* logits, int vocab, const Body& body) {
  constexpr int kLoads = 8;
  for (int first = threadIdx.x; first < vocab; first += kLoads * kThreads) {
    float logit[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) logit[i] = first + i * kThreads < vocab ? logits[first + i * kThreads] : 0.0f;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kThreads < vocab) body(first + i * kThreads, logit[i]);
    }
  }
}

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

// A row's logits under a weight. Equal logits weigh the same or nothing, and those that weigh have the smaller ids.
class WeightedRow {
 public:
  __device__ WeightedRow(const float* logits, int vocab, const SampledWeight& weight, SampleShared& shared) : logits_(logits), vocab_(vocab), w_(weight), s_(shared) {
    s_.histogram.Clear();
    ForTokens(logits_, vocab_, [&](int v, float logit) {
      const float exponent = w_.Exponent(logit);
      if (const unsigned long long weight_v = w_.Of(v, logit, exponent); weight_v > 0) s_.histogram.Add(w_.Bin(exponent), weight_v);
    });
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += kThreads) s_.weight[b] = s_.histogram.Sum(b);
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
    unsigned long long before = FindBin([&](int b) { return s_.weight[b]; }, 1, amount);
    const int bin = s_.bin;
    std::uint32_t prefix = 0;
    for (int above = 32; above > 0; above -= kDigitBits) {  // the last digit is shorter
      const int low = max(above - kDigitBits, 0);
      s_.histogram.Clear();
      ForTokens(logits_, vocab_, [&](int v, float logit) {
        const float exponent = w_.Exponent(logit);
        const std::uint32_t key = contract::OrderKey(logit);
        if (w_.Bin(exponent) != bin || (above < 32 && (key >> above) != prefix)) return;
        s_.histogram.Add(static_cast<int>((key >> low) & ((1u << (above - low)) - 1u)), w_.Of(v, logit, exponent));
      });
      __syncthreads();
      before += FindBin([&](int b) { return s_.histogram.Sum(b); }, -1, amount - before);
      prefix = (prefix << (above - low)) | static_cast<std::uint32_t>(s_.bin);
    }
    return FindAmongEqual(prefix, amount, before);
  }

 private:
  // Sets s_.bin to the first bin, upwards or downwards, at which the running weight reaches `amount`; returns the weight before it.
  template <class Bins>
  __device__ unsigned long long FindBin(Bins bins, int direction, unsigned long long amount) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = direction > 0 ? warp * kBinsAWarp : kBins - 1 - warp * kBinsAWarp;
    unsigned long long own = 0, before = 0;
    for (int b = lane; b < kBinsAWarp; b += 32) own += bins(first + direction * b);
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += s_.warp[w];
    if (lane == 0 && before < amount && before + own >= amount) {
      int bin = first;
      for (; before + bins(bin) < amount; bin += direction) before += bins(bin);
      s_.bin = bin;
      s_.sum = before;
    }
    __syncthreads();
    return s_.sum;
  }

  // Ids with the order key `value`, ascending: each warp has a stretch of ids.
  __device__ Reached FindAmongEqual(std::uint32_t value, unsigned long long amount, unsigned long long before) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stretch = (vocab_ + kWarps - 1) / kWarps;
    const int begin = warp * stretch, end = min(begin + stretch, vocab_);
    const auto weight = [&](int v) {
      const float logit = logits_[v];
      return contract::OrderKey(logit) == value ? w_.Of(v, logit, w_.Exponent(logit)) : 0ull;
    };
    unsigned long long own = 0;
#pragma unroll 8
    for (int v = begin + lane; v < end; v += 32) own += weight(v);
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += s_.warp[w];
    if (lane == 0 && before < amount && before + own >= amount) {
      int v = begin;
      while ((before += weight(v)) < amount) ++v;
      s_.key = contract::RankKey(logits_[v], static_cast<std::uint32_t>(v));
      s_.sum = before;
    }
    __syncthreads();
    return {s_.key, s_.sum};
  }

  const float* logits_;
  int vocab_;
  SampledWeight w_;
  SampleShared& s_;
};

// Rank key of a row's best; 0 where a logit is not finite.
__device__ std::uint64_t BestKey(const float* logits, int vocab, SampleShared& s) {
  unsigned long long best = 0;
  bool bad = false;
  ForTokens(logits, vocab, [&](int v, float logit) {
    bad = bad || !isfinite(logit);
    best = max(best, static_cast<unsigned long long>(contract::RankKey(logit, static_cast<std::uint32_t>(v))));
  });
  bad = __syncthreads_or(bad);
  for (int stride = 16; stride > 0; stride /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, stride));
  if (threadIdx.x % 32 == 0) s.warp[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = max(best, s.warp[w]);
  __syncthreads();
  return bad ? 0 : best;
}

__device__ std::uint64_t DrawKey(const float* logits, int vocab, const SamplingRow& row, float best, SampleShared& shared) {
  SampledWeight weight{row, best};
  if (row.top_k > 0) {
    weight.count = true;
    WeightedRow counted(logits, vocab, weight, shared);
    const auto kept = static_cast<unsigned long long>(row.top_k);
    if (kept < counted.Total()) weight.lowest = counted.Reach(kept).key;
    weight.count = false;
  }
  WeightedRow weighted(logits, vocab, weight, shared);
  const unsigned long long total = weighted.Total(), nucleus = NucleusWeight(total, row.top_p);
  const unsigned long long reached = nucleus < total ? weighted.Reach(nucleus).weight : total;
  return weighted.Reach(DrawnWeight(row.draw, reached) + 1).key;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a) {
  BeginKernel();
  __shared__ SampleShared shared;
  const std::int64_t t = blockIdx.x;
  const SamplingRow row = a.row_T[t];
  const float* logits = a.logits_TV + t * a.vocab;
  const int vocab = static_cast<int>(a.vocab);
  std::uint64_t key = BestKey(logits, vocab, shared);
  if (key != 0 && row.temperature != 0.0f) key = DrawKey(logits, vocab, row, logits[contract::IndexOfRankKey(key)], shared);
  if (threadIdx.x == 0) a.out_T[t] = key == 0 ? -1 : static_cast<std::int32_t>(contract::IndexOfRankKey(key));
}

void RunSample(Stream& stream, const SampleArgs& a) {
  if (a.rows == 0) return;
  if (a.vocab > kMaxVocab) throw InputError("sampling: " + std::to_string(a.vocab) + " tokens, expected at most 262144 on a CUDA device");
  Launch(SampleKernel, dim3(static_cast<unsigned>(a.rows)), kThreads, 0, AsCuda(stream), a);
  CheckLaunch("sample");
}

}  // namespace

Kernel<SampleArgs> CudaSample() { return {&RunSample, "sample/F"}; }

}  // namespace lockstep::kernels
