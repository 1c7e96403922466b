// Few pairs: one block. Many: a block an expert, which counts the pairs of lower experts and its own, then places its own; no block waits for another.
#include "kernels/device/launch.cuh"
#include "kernels/pair_groups/pair_groups_cuda.h"
#include "kernels/pair_groups/pair_groups_few.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxExperts = 1024;

struct Census {
  int lower, own;        // pairs of lower experts, and of this one
  int lower_experts;     // lower experts that have pairs
  bool nan;
};

// Every thread gets the block's result.
__device__ Census CountPairs(const PairGroupsArgs& a, int expert) {
  __shared__ unsigned seen[kMaxExperts / 32];
  __shared__ int lower_of_warp[kWarps], own_of_warp[kWarps];
  for (int i = threadIdx.x; i < kMaxExperts / 32; i += kThreads) seen[i] = 0;
  __syncthreads();
  int lower = 0, own = 0;
  bool nan = false;
  for (std::int64_t i = threadIdx.x; i < a.rows * a.top_k; i += kThreads) {
    const int e = a.experts_TK[i];
    nan = nan || e == -1;
    own += e == expert ? 1 : 0;
    if (e < 0 || e >= expert) continue;
    ++lower;
    atomicOr(&seen[e / 32], 1u << (e % 32));
  }
  for (int stride = 16; stride > 0; stride /= 2) {
    lower += __shfl_xor_sync(0xffffffffu, lower, stride);
    own += __shfl_xor_sync(0xffffffffu, own, stride);
  }
  if ((threadIdx.x & 31) == 0) {
    lower_of_warp[threadIdx.x / 32] = lower;
    own_of_warp[threadIdx.x / 32] = own;
  }
  nan = __syncthreads_or(nan);
  Census census{0, 0, 0, nan};
  for (int w = 0; w < kWarps; ++w) {
    census.lower += lower_of_warp[w];
    census.own += own_of_warp[w];
  }
  for (int i = 0; i < kMaxExperts / 32; ++i) census.lower_experts += __popc(seen[i]);
  return census;
}

// The expert's pairs in the order of the rows: ranks within a warp by ballot, over warps by their totals.
__device__ void PlacePairs(const PairGroupsArgs& a, int expert, int first) {
  __shared__ int of_warp[kWarps];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const std::int64_t all = a.rows * a.top_k;
  for (std::int64_t base = 0; base < all; base += kThreads) {
    const std::int64_t i = base + threadIdx.x;
    const bool mine = i < all && a.experts_TK[i] == expert;
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = first + __popc(votes & ((1u << lane) - 1u));
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp ? of_warp[w] : 0;
      first += of_warp[w];
    }
    if (mine) {
      a.token[before] = static_cast<std::int32_t>(i / a.top_k);
      a.weight[before] = a.weights_TK[i];
      a.pair_of_TK[i] = before;
    }
    __syncthreads();
  }
}

// The shared expert is past the last routed one: every row is a pair.
__device__ void PlaceShared(const PairGroupsArgs& a) {
  const std::int64_t first = a.rows * a.top_k;
  for (std::int64_t t = threadIdx.x; t < a.rows; t += kThreads) {
    a.token[first + t] = static_cast<std::int32_t>(t);
    a.weight[first + t] = 1.0f;
  }
}

__global__ void __launch_bounds__(kThreads) PairGroupsKernel(const __grid_constant__ PairGroupsArgs a) {
  BeginKernel();
  const int expert = blockIdx.x;
  const bool shared = expert == a.experts;
  const Census census = CountPairs(a, expert);
  const int own = shared ? static_cast<int>(a.rows) : census.own;
  if (threadIdx.x == 0) {
    a.groups.count_X[expert] = own;
    a.groups.begin_X[expert] = shared ? static_cast<int>(a.rows * a.top_k) : census.lower;
    if (own > 0) a.groups.active_X[census.lower_experts] = expert;
    if (blockIdx.x == gridDim.x - 1) *a.groups.num_active = census.lower_experts + (own > 0 ? 1 : 0);
    if (census.nan) *a.nan_flag = 1;
  }
  if (shared) return PlaceShared(a);
  for (std::int64_t i = threadIdx.x; expert == 0 && i < a.rows * a.top_k; i += kThreads) {
    if (a.experts_TK[i] < 0) a.pair_of_TK[i] = 0;
  }
  if (census.own > 0) PlacePairs(a, expert, census.lower);
}

__global__ void __launch_bounds__(kThreads) FewPairGroupsKernel(const __grid_constant__ PairGroupsArgs a) {
  BeginKernel();
  __shared__ std::int32_t expert[kFewPairs];
  __shared__ float weight[kFewPairs];
  const int i = threadIdx.x;
  if (i < a.rows * a.top_k) expert[i] = a.experts_TK[i], weight[i] = a.weights_TK[i];
  __syncthreads();
  GroupFewPairs(a, expert, weight);
}

void RunPairGroups(Stream& stream, const PairGroupsArgs& a) {
  if (HasFewPairs(a)) Launch(FewPairGroupsKernel, 1, kThreads, 0, AsCuda(stream), a);
  else Launch(PairGroupsKernel, static_cast<unsigned>(a.experts + (a.shared ? 1 : 0)), kThreads, 0, AsCuda(stream), a);
  CheckLaunch("pair_groups");
}

}  // namespace

Kernel<PairGroupsArgs> CudaPairGroups() { return {&RunPairGroups, "pair_groups"}; }

}  // namespace lockstep::kernels
