// Few pairs: one block. Many: a block an expert, which counts the pairs of lower experts and its own, then places its own; no block waits for another.
#include "kernels/device/block_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/pair_groups/pair_groups_cuda.h"
#include "kernels/pair_groups/pair_groups_few.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kFewThreads = 256;
constexpr int kMaxExperts = 1024;
static_assert(kMaxExperts <= kThreads && kWarps == 32);

// Neighbouring pairs that a thread takes at a time: a block goes over all of them in few rounds, each of which waits for memory once.
constexpr int kEight = 8;

// Experts of pairs first .. first + 7; -2 from `all` on.
__device__ void LoadEight(const std::int32_t* experts, std::int64_t first, std::int64_t all, int (&e)[kEight]) {
  const std::int32_t* from = experts + first;
  if (first + kEight <= all && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    *reinterpret_cast<int4*>(e) = *reinterpret_cast<const int4*>(from);
    *reinterpret_cast<int4*>(e + 4) = *reinterpret_cast<const int4*>(from + 4);
  } else {
#pragma unroll
    for (int i = 0; i < kEight; ++i) e[i] = first + i < all ? from[i] : -2;
  }
}

struct Census {
  int lower, own;     // pairs of lower experts, and of this one
  int lower_experts;  // lower experts that have pairs
  bool nan;
};

// Every thread gets the block's result.
__device__ Census CountPairs(const PairGroupsArgs& a, int expert) {
  __shared__ bool seen[kMaxExperts];
  __shared__ int lower_of_warp[kWarps], own_of_warp[kWarps];
  seen[threadIdx.x] = false;
  __syncthreads();
  const std::int64_t all = a.rows * a.top_k;
  int lower = 0, own = 0;
  bool nan = false;
#pragma unroll 1
  for (std::int64_t first = kEight * threadIdx.x; first < all; first += kEight * kThreads) {
    int e[kEight];
    LoadEight(a.experts_TK, first, all, e);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      nan = nan || e[i] == -1;
      own += e[i] == expert ? 1 : 0;
      if (e[i] < 0 || e[i] >= expert) continue;
      ++lower;
      seen[e[i]] = true;
    }
  }
  const int all_lower = BlockSums<int>::Of(lower, lower_of_warp).all, all_own = BlockSums<int>::Of(own, own_of_warp).all;
  const int lower_experts = __syncthreads_count(seen[threadIdx.x]);
  return {all_lower, all_own, lower_experts, __syncthreads_or(nan) != 0};
}

// The expert's pairs in the order of the rows.
__device__ void PlacePairs(const PairGroupsArgs& a, int expert, int first_place) {
  __shared__ int of_warp[2][kWarps];
  const std::int64_t all = a.rows * a.top_k;
  int turn = 0;
#pragma unroll 1
  for (std::int64_t base = 0; base < all; base += kEight * kThreads, turn ^= 1) {
    const std::int64_t first = base + kEight * threadIdx.x;
    int e[kEight], own = 0;
    LoadEight(a.experts_TK, first, all, e);
#pragma unroll
    for (int i = 0; i < kEight; ++i) own += e[i] == expert ? 1 : 0;
    const auto sums = BlockSums<int>::Of(own, of_warp[turn]);
    int place = first_place + sums.before;
    first_place += sums.all;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (e[i] != expert) continue;
      a.token[place] = static_cast<std::int32_t>((first + i) / a.top_k);
      a.weight[place] = a.weights_TK[first + i];
      a.pair_of_TK[first + i] = place++;
    }
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

__global__ void __launch_bounds__(kThreads, 1) PairGroupsKernel(const __grid_constant__ PairGroupsArgs a) {
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

__global__ void __launch_bounds__(kFewThreads) FewPairGroupsKernel(const __grid_constant__ PairGroupsArgs a) {
  BeginKernel();
  __shared__ std::int32_t expert[kFewPairs];
  __shared__ float weight[kFewPairs];
  const int i = threadIdx.x;
  if (i < a.rows * a.top_k) expert[i] = a.experts_TK[i], weight[i] = a.weights_TK[i];
  __syncthreads();
  GroupFewPairs(a, expert, weight);
}

void RunPairGroups(Stream& stream, const PairGroupsArgs& a) {
  if (HasFewPairs(a)) Launch(FewPairGroupsKernel, 1, kFewThreads, 0, AsCuda(stream), a);
  else Launch(PairGroupsKernel, static_cast<unsigned>(a.experts + (a.shared ? 1 : 0)), kThreads, 0, AsCuda(stream), a);
  CheckLaunch("pair_groups");
}

}  // namespace

Kernel<PairGroupsArgs> CudaPairGroups() { return {&RunPairGroups, "pair_groups"}; }

}  // namespace lockstep::kernels
