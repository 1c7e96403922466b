// Expert choice: a warp a score, then a warp a token.
#include "kernels/contract/total_order.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/router/router_cuda.h"

namespace lockstep::kernels {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kMaxTopK = 64;

__global__ void __launch_bounds__(kScoreThreads) ScoreKernel(RouterArgs a, float* score_TX) {
  const std::int64_t e = blockIdx.x * (kScoreThreads / 32) + threadIdx.x / 32, t = blockIdx.y;
  if (e >= a.experts) return;
  const float* gate = a.gate_XE + e * a.hidden;
  const std::uint16_t* x = a.x_TE + t * a.hidden;
  const float z = DotFWarp([gate](std::int64_t k) { return gate[k]; }, [x](std::int64_t k) { return BF16Value(x[k]); }, a.hidden);
  if ((threadIdx.x & 31) == 0) score_TX[t * a.experts + e] = contract::SqrtSoftplus(z);
}

// The largest rank key of a warp.
__device__ unsigned long long MaxKey(unsigned long long key) {
  for (int stride = 16; stride > 0; stride /= 2) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, stride);
    key = other > key ? other : key;
  }
  return key;
}

__global__ void ChooseKernel(RouterArgs a, const float* score_TX) {
  const std::int64_t t = blockIdx.x;
  const int lane = threadIdx.x;
  const float* score = score_TX + t * a.experts;
  __shared__ int chosen[kMaxTopK];
  bool nan = false;
  for (int e = lane; e < a.experts; e += 32) nan = nan || score[e] != score[e] || (a.bias_X && a.bias_X[e] != a.bias_X[e]);
  nan = __any_sync(0xffffffffu, nan);
  if (a.tid2eid) {
    for (int i = lane; i < a.top_k; i += 32) chosen[i] = static_cast<int>(a.tid2eid[static_cast<std::int64_t>(a.ids[t]) * a.top_k + i]);
  } else {
    unsigned long long last = ~0ull;  // keys are distinct: each round takes the largest below the last one
    for (int i = 0; i < a.top_k; ++i) {
      unsigned long long best = 0;
      for (int e = lane; e < a.experts; e += 32) {
        const float value = a.bias_X ? contract::Add(score[e], a.bias_X[e]) : score[e];
        const unsigned long long key = contract::RankKey(value, static_cast<std::uint32_t>(e));
        if (key < last && key > best) best = key;
      }
      last = MaxKey(best);
      if (lane == 0) chosen[i] = static_cast<int>(contract::IndexOfRankKey(last));
    }
  }
  __syncwarp();
  if (lane != 0) return;
  std::int32_t* experts = a.experts_TK + t * a.top_k;
  float* weights = a.weights_TK + t * a.top_k;
  for (int i = 0; i < a.top_k; ++i) {  // insertion sort, ascending ids
    int value = chosen[i], k = i;
    for (; k > 0 && experts[k - 1] > value; --k) experts[k] = experts[k - 1];
    experts[k] = value;
  }
  float sum = score[experts[0]];
  for (int i = 1; i < a.top_k; ++i) sum = contract::Add(sum, score[experts[i]]);
  if (a.epsilon != 0.0f) sum = contract::Add(sum, a.epsilon);
  for (int i = 0; i < a.top_k; ++i) {
    const float s = score[experts[i]];
    weights[i] = contract::Mul(a.normalize ? contract::Div(s, sum) : s, a.scaling);
  }
  for (int i = 0; nan && i < a.top_k; ++i) experts[i] = -1;
}

void RunRouter(Stream& stream, const RouterArgs& a) {
  constexpr std::int64_t kMaxGridY = 32768;
  auto* score = reinterpret_cast<float*>(AsCuda(stream).Scratch(0, static_cast<std::size_t>(a.rows * a.experts) * sizeof(float)));
  for (std::int64_t begin = 0; begin < a.rows; begin += kMaxGridY) {
    RouterArgs part = a;
    part.x_TE += begin * a.hidden;
    const auto rows = static_cast<unsigned>(a.rows - begin < kMaxGridY ? a.rows - begin : kMaxGridY);
    ScoreKernel<<<dim3(Blocks(a.experts, kScoreThreads / 32), rows), kScoreThreads, 0, AsCuda(stream).handle()>>>(part, score + begin * a.experts);
  }
  ChooseKernel<<<Blocks(a.rows, 1), 32, 0, AsCuda(stream).handle()>>>(a, score);
  CheckLaunch("router");
}

}  // namespace

Kernel<RouterArgs> CudaRouter() { return {&RunRouter, "router/F"}; }

}  // namespace lockstep::kernels
