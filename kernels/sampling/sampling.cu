// Tokens from rows of logits, a block a row. What sorting finds on the CPU, histograms of weights find here: the digits of the logit at which
// the running weight passes an amount, then the id among equals.
#include "kernels/contract/total_order.h"
#include "kernels/device/launch.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_weight.h"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kBinsAWarp = kBins / kWarps;
constexpr unsigned kAllLanes = 0xffffffffu;

struct SampleShared {
  unsigned long long weight[kBins];
  unsigned long long warp[kWarps];
  unsigned long long sum;  // of what comes before the chosen bin
  std::uint32_t bin;
  std::uint64_t key;
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

// A row's logits.
class SampledRow {
 public:
  __device__ SampledRow(const float* logits, int vocab, SampleShared& shared) : logits_(logits), vocab_(vocab), s_(shared) {}

  // Rank key of the best; 0 where a logit is not finite.
  __device__ std::uint64_t Best() {
    std::uint64_t best = 0;
    bool bad = false;
    for (int v = threadIdx.x; v < vocab_; v += kThreads) {
      const float logit = logits_[v];
      bad = bad || !isfinite(logit);
      best = max(best, contract::RankKey(logit, static_cast<std::uint32_t>(v)));
    }
    bad = __syncthreads_or(bad);
    for (int stride = 16; stride > 0; stride /= 2) best = max(best, static_cast<std::uint64_t>(__shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(best), stride)));
    if (threadIdx.x % 32 == 0) s_.warp[threadIdx.x / 32] = best;
    __syncthreads();
    best = 0;
    for (int w = 0; w < kWarps; ++w) best = max(best, static_cast<std::uint64_t>(s_.warp[w]));
    return bad ? 0 : best;
  }

  template <class Weight>
  __device__ unsigned long long Total(Weight weight) {
    unsigned long long sum = 0;
    for (int v = threadIdx.x; v < vocab_; v += kThreads) sum += weight(v, logits_[v]);
    return SumBlock(sum);
  }

  // `amount` is above 0 and at most the total; equal logits weigh the same or nothing, and those that weigh have the smaller ids.
  template <class Weight>
  __device__ Reached Reach(Weight weight, unsigned long long amount) {
    std::uint32_t prefix = 0;
    unsigned long long before = 0;
    for (int shift = 32 - kDigitBits; shift > -kDigitBits; shift -= kDigitBits) {
      const int low = max(shift, 0), above = shift + kDigitBits;  // the last digit is shorter
      for (int b = threadIdx.x; b < kBins; b += kThreads) s_.weight[b] = 0;
      __syncthreads();
      for (int v = threadIdx.x; v < vocab_; v += kThreads) {
        const std::uint32_t key = contract::OrderKey(logits_[v]);
        if (above < 32 && (key >> above) != prefix) continue;
        if (const std::uint64_t w = weight(v, logits_[v]); w > 0) atomicAdd(&s_.weight[(key >> low) & ((1u << (above - low)) - 1u)], static_cast<unsigned long long>(w));
      }
      __syncthreads();
      FindBin(amount - before);
      before += s_.sum;
      prefix = (prefix << (above - low)) | s_.bin;
      __syncthreads();
    }
    return FindAmongEqual(weight, prefix, amount, before);
  }

 private:
  __device__ unsigned long long SumBlock(unsigned long long sum) {
    sum = SumWarp(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s_.warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += s_.warp[w];
    return sum;
  }

  // The bin from the top down at which the running weight reaches `amount`, and the weight before it.
  __device__ void FindBin(unsigned long long amount) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, top = kBins - 1 - warp * kBinsAWarp;
    unsigned long long own = 0;
    for (int b = lane; b < kBinsAWarp; b += 32) own += s_.weight[top - b];
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    unsigned long long before = 0;
    for (int w = 0; w < warp; ++w) before += s_.warp[w];
    if (lane == 0 && before < amount && before + own >= amount) {
      int bin = top;
      while (before + s_.weight[bin] < amount) before += s_.weight[bin--];
      s_.bin = static_cast<std::uint32_t>(bin);
      s_.sum = before;
    }
    __syncthreads();
  }

  // Ids with the order key `value` in ascending order: each warp has a stretch of ids.
  template <class Weight>
  __device__ Reached FindAmongEqual(Weight weight, std::uint32_t value, unsigned long long amount, unsigned long long before) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stretch = (vocab_ + kWarps - 1) / kWarps;
    const int begin = warp * stretch, end = min(begin + stretch, vocab_);
    unsigned long long own = 0;
    for (int v = begin + lane; v < end; v += 32) own += contract::OrderKey(logits_[v]) == value ? weight(v, logits_[v]) : 0;
    own = SumWarp(own);
    if (lane == 0) s_.warp[warp] = own;
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += s_.warp[w];
    if (lane == 0 && before < amount && before + own >= amount) {
      int v = begin;
      for (;; ++v) {
        before += contract::OrderKey(logits_[v]) == value ? weight(v, logits_[v]) : 0;
        if (before >= amount) break;
      }
      s_.key = contract::RankKey(logits_[v], static_cast<std::uint32_t>(v));
      s_.sum = before;
    }
    __syncthreads();
    const Reached reached = {s_.key, s_.sum};
    __syncthreads();
    return reached;
  }

  const float* logits_;
  int vocab_;
  SampleShared& s_;
};

__device__ std::uint64_t DrawKey(SampledRow& sampled, const SamplingRow& row, float best) {
  std::uint64_t lowest = 0;
  const auto weight = [&](int v, float logit) {
    return contract::RankKey(logit, static_cast<std::uint32_t>(v)) < lowest ? std::uint64_t{0} : SamplingWeight(logit, best, row);
  };
  if (row.top_k > 0) {
    const auto count = [&](int v, float logit) { return weight(v, logit) > 0 ? std::uint64_t{1} : std::uint64_t{0}; };
    const unsigned long long all = sampled.Total(count), kept = static_cast<unsigned long long>(row.top_k);
    if (kept < all) lowest = sampled.Reach(count, kept).key;
  }
  const unsigned long long total = sampled.Total(weight), nucleus = NucleusWeight(total, row.top_p);
  const unsigned long long reached = nucleus < total ? sampled.Reach(weight, nucleus).weight : total;
  return sampled.Reach(weight, DrawnWeight(row.draw, reached) + 1).key;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a) {
  BeginKernel();
  __shared__ SampleShared shared;
  const std::int64_t t = blockIdx.x;
  const SamplingRow row = a.row_T[t];
  const float* logits = a.logits_TV + t * a.vocab;
  SampledRow sampled(logits, static_cast<int>(a.vocab), shared);
  std::uint64_t key = sampled.Best();
  if (key != 0 && row.temperature != 0.0f) key = DrawKey(sampled, row, logits[contract::IndexOfRankKey(key)]);
  if (threadIdx.x == 0) a.out_T[t] = key == 0 ? -1 : static_cast<std::int32_t>(contract::IndexOfRankKey(key));
}

void RunSample(Stream& stream, const SampleArgs& a) {
  if (a.rows == 0) return;
  Launch(SampleKernel, dim3(static_cast<unsigned>(a.rows)), kThreads, 0, AsCuda(stream), a);
  CheckLaunch("sample");
}

}  // namespace

Kernel<SampleArgs> CudaSample() { return {&RunSample, "sample/F"}; }

}  // namespace lockstep::kernels
