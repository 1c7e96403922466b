// From one hyper-connection site to the next in one launch, for few rows: blocks of lanes expand the streams for themselves and walk the dots' chains,
// the last block of a row gathers their lanes, chooses the coefficients and collapses. Contract: docs/numerics.md section 6, mHC mix, Collapse, Expand.
#include <algorithm>

#include "kernels/device/dots.cuh"
#include "kernels/device/lane_words.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/elementwise/channels.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/mixing_matrix.cuh"

namespace lockstep::kernels {
namespace {

using contract::Add;
using contract::Div;
using contract::Fma;
using contract::Mul;

constexpr int kStreams = 4, kPairs = kStreams * kStreams, kOutputs = 2 * kStreams + kPairs, kDots = kOutputs + 1;  // the last: the streams with themselves
constexpr int kBlockLanes = 32, kLaneBlocks = kLanesF / kBlockLanes, kLaneBlocksOfRow = kDots * kLaneBlocks;
constexpr int kDotsOfWarp = 5, kGatherers = kDots / kDotsOfWarp * 32;
constexpr int kThreads = kLanesF + kGatherers;
constexpr int kMaxRows = 8;
static_assert(kDots % kDotsOfWarp == 0);

// Loops here stay loops: a block runs this code once, and fetching instructions takes longer than running them.

// Calls store(k, bf16 of stream k) for eight channels of what a row's streams become.
template <class Store>
__device__ void ExpandEight(const HcSiteArgs& site, std::int64_t t, int d, const Store& store) {
  const HcExpandArgs& a = site.leave;
  const std::uint16_t* stream = site.mix.stream_TSE + t * kStreams * site.mix.hidden + d;
  uint4 bits[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) bits[j] = *reinterpret_cast<const uint4*>(stream + j * site.mix.hidden);
  if (!a.f_TE) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) store(k, bits[k]);
    return;
  }
  const Channels<8> f = Channels<8>::Load(a.f_TE + t * a.hidden + d);
  Channels<8> x[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) x[j] = Channels<8>::From(bits[j]);
  const float *post = a.post_TS + t * kStreams, *mix = a.mix_TSS + t * kPairs;
#pragma unroll 1
  for (int k = 0; k < kStreams; ++k) {
    Channels<8> sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum.value[i] = Mul(post[k], f.value[i]);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sum.value[i] = Fma(mix[j * kStreams + k], x[j].value[i], sum.value[i]);
    }
    store(k, sum.Bits());
  }
}

// 32 lanes of one dot of a row.
__device__ void WalkLanes(const HcSiteArgs& a, std::int64_t t, int dot, int lane0, LaneWord* words, float* memory) {
  const int chunks = static_cast<int>(a.mix.hidden) / kLanesF, steps = kStreams * chunks, lane = threadIdx.x & 31;
  const bool self = dot == kOutputs;
  float *w = memory, *x = memory + steps * kBlockLanes;  // [steps][32] each
#pragma unroll 1
  for (int i = threadIdx.x; i < steps * (kBlockLanes / 4) && !self; i += kThreads) {
    const int step = i / (kBlockLanes / 4), four = i % (kBlockLanes / 4) * 4;
    CopyAsync<16>(w + step * kBlockLanes + four, a.mix.fn + (std::int64_t{dot} * steps + step) * kLanesF + lane0 + four);
  }
  CommitCopies();
  WaitForKernelsBefore();
#pragma unroll 1
  for (int i = threadIdx.x; i < chunks * (kBlockLanes / 8); i += kThreads) {
    const int chunk = i / (kBlockLanes / 8), eight = i % (kBlockLanes / 8) * 8;
    ExpandEight(a, t, chunk * kLanesF + lane0 + eight, [&](int k, uint4 bits) {
      auto* into = reinterpret_cast<float4*>(x + (k * chunks + chunk) * kBlockLanes + eight);
      into[0] = WidenFour(make_uint2(bits.x, bits.y)), into[1] = WidenFour(make_uint2(bits.z, bits.w));
    });
  }
  WaitForCopies<0>();
  __syncthreads();
  if (threadIdx.x >= kBlockLanes) return;
  const float* left = self ? x : w;
  float sum = 0.0f;
#pragma unroll 16
  for (int i = 0; i < steps; ++i) sum = Fma(left[i * kBlockLanes + lane], x[i * kBlockLanes + lane], sum);
  SendLane(words + dot * kLanesF + lane0 + lane, sum);
}

// The block that ends a row: five warps gather the dots, all collapse; then four norm, one makes the coefficients and four store the streams.
class SiteEnd {
 public:
  __device__ SiteEnd(const HcSiteArgs& args, std::int64_t row, LaneWord* row_words, std::byte* memory)
      : a(args), t(row), n(static_cast<int>(args.mix.hidden)), words(row_words), norm(reinterpret_cast<float*>(memory)),
        streams(reinterpret_cast<std::uint16_t*>(norm + n)), collapsed(streams + kStreams * n) {}

  static std::size_t SharedBytes(std::int64_t hidden) { return static_cast<std::size_t>(hidden) * (sizeof(float) + (kStreams + 1) * sizeof(std::uint16_t)); }

  __device__ void Run() {
    __shared__ float dots[kDots], lanes[kLanesF];
    __shared__ float2 terms[kOutputs];  // scale and base
    if (const int i = threadIdx.x; i < kOutputs) terms[i] = make_float2(a.mix.scale[i < kStreams ? 0 : i < 2 * kStreams ? 1 : 2], a.mix.base[i]);
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < n; i += 4 * kThreads) CopyAsync<16>(norm + i, a.collapse.norm_weight + i);
    CommitCopies();
    WaitForKernelsBefore();
#pragma unroll 1
    for (int d = 8 * threadIdx.x; d < n; d += 8 * kThreads) {
      ExpandEight(a, t, d, [&](int k, uint4 bits) { *reinterpret_cast<uint4*>(streams + k * n + d) = bits; });
    }
    WaitForCopies<0>();
    if (threadIdx.x >= kLanesF) GatherDots(dots);
    __syncthreads();
    const int output = min(static_cast<int>(threadIdx.x & 31), kOutputs - 1);
    const float logit = Logit(dots, output, terms[output]), sigmoid = contract::Sigmoid(logit), pre = Add(sigmoid, a.mix.hc_eps);
    Collapse(pre);
    __syncthreads();
    if (threadIdx.x < kLanesF) Norm(lanes);
    else if (threadIdx.x < kLanesF + 32) StoreCoefficients(logit, sigmoid, pre);
    else StoreStreams();
  }

 private:
  // A warp folds its share of the dots.
  __device__ void GatherDots(float* dots) {
    const int first = (threadIdx.x - kLanesF) / 32 * kDotsOfWarp, lane = threadIdx.x & 31;
    LaneWord* own = words + first * kLanesF + lane;
    float quarter[kDotsOfWarp][4];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < 4 * kDotsOfWarp; ++i) there = ReceiveLane(own + 32 * i, quarter[i / 4][i % 4]) && there;
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int i = 0; i < kDotsOfWarp; ++i) {
      const float folded = FoldWarp(Add(Add(quarter[i][0], quarter[i][2]), Add(quarter[i][1], quarter[i][3])));
      if (lane == i) dots[first + i] = folded;
    }
#pragma unroll
    for (int i = 0; i < 4 * kDotsOfWarp; ++i) ClearLane(own + 32 * i);
  }

  __device__ float Logit(const float* dots, int output, float2 scale_base) const {
    const float r = contract::Rsqrt(Add(Div(dots[kOutputs], static_cast<float>(kStreams * n)), a.mix.rms_eps));
    return Add(Mul(Mul(dots[output], r), scale_base.x), scale_base.y);
  }

  // `own_pre` of lane s is this site's coefficient of stream s.
  __device__ void Collapse(float own_pre) const {
    const bool own = a.collapse.pre_TS == a.mix.pre_TS;
    float pre[kStreams];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) pre[s] = own ? __shfl_sync(0xffffffffu, own_pre, s) : a.collapse.pre_TS[t * kStreams + s];
#pragma unroll 1
    for (int d = 8 * threadIdx.x; d < n; d += 8 * kThreads) {
      Channels<8> y;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        const Channels<8> x = Channels<8>::Load(streams + s * n + d);
#pragma unroll
        for (int i = 0; i < 8; ++i) y.value[i] = s == 0 ? Mul(pre[0], x.value[i]) : Fma(pre[s], x.value[i], y.value[i]);
      }
      y.Store(collapsed + d);
    }
  }

  // Four warps: thread l sums up the norm's lane l.
  __device__ void Norm(float* lanes) const {
    const int lane = threadIdx.x;
    float sum = 0.0f;
#pragma unroll 8
    for (int d = lane; d < n; d += kLanesF) {
      const float y = BF16Value(collapsed[d]);
      sum = Fma(y, y, sum);
    }
    lanes[lane] = sum;
    asm volatile("bar.sync 1, %0;" ::"n"(kLanesF) : "memory");  // of these four warps
    const float r = contract::Rsqrt(Add(Div(FoldLanes(lanes), static_cast<float>(n)), a.collapse.eps));
#pragma unroll 1
    for (int d = 8 * lane; d < n; d += 8 * kLanesF) {
      Channels<8> x = Channels<8>::Load(collapsed + d);
#pragma unroll
      for (int i = 0; i < 8; ++i) x.value[i] = Mul(Mul(x.value[i], r), norm[d + i]);
      x.Store(a.collapse.x_TE + t * n + d);
    }
  }

  // A warp whose lanes have the outputs' logits.
  __device__ void StoreCoefficients(float logit, float sigmoid, float pre) const {
    const int lane = threadIdx.x & 31;
    MixingMatrix<1, kStreams> mix(kStreams);
    mix.c[0] = __shfl_sync(0xffffffffu, logit, 2 * kStreams + mix.Own(0));
    if (lane < kStreams) a.mix.pre_TS[t * kStreams + lane] = pre;
    else if (lane < 2 * kStreams) a.mix.post_TS[t * kStreams + lane - kStreams] = Mul(2.0f, sigmoid);
    __syncwarp();
    if (a.mix.sinkhorn_iters > 0) mix.Sinkhorn(a.mix.sinkhorn_iters, a.mix.hc_eps);
    if (lane < kPairs) a.mix.mix_TSS[t * kPairs + lane] = mix.c[0];
  }

  // Every block of lanes has read the row: its dots are there.
  __device__ void StoreStreams() const {
    if (!a.leave.f_TE) return;
    constexpr int kFirst = kLanesF + 32;
    std::uint16_t* to = a.leave.stream_TSE + t * kStreams * n;
#pragma unroll 4
    for (int i = 8 * (threadIdx.x - kFirst); i < kStreams * n; i += 8 * (kThreads - kFirst)) *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(streams + i);
  }

  const HcSiteArgs& a;
  const std::int64_t t;
  const int n;
  LaneWord* words;
  float* norm;               // [n]
  std::uint16_t* streams;    // [4][n], expanded
  std::uint16_t* collapsed;  // [n]
};

// Blocks: 100 of lanes for every row, then one for each row that ends it and has to start last.
__global__ void __launch_bounds__(kThreads) SiteKernel(const __grid_constant__ HcSiteArgs a, LaneWord* words) {
  StartNextKernel();
  extern __shared__ __align__(16) std::byte memory[];
  const int lane_blocks = static_cast<int>(a.mix.rows) * kLaneBlocksOfRow, block = blockIdx.x;
  if (block >= lane_blocks) {
    const std::int64_t t = block - lane_blocks;
    SiteEnd(a, t, words + t * kDots * kLanesF, memory).Run();
    return;
  }
  const std::int64_t t = block / kLaneBlocksOfRow;
  const int part = block % kLaneBlocksOfRow;
  WalkLanes(a, t, part / kLaneBlocks, part % kLaneBlocks * kBlockLanes, words + t * kDots * kLanesF, reinterpret_cast<float*>(memory));
}

bool Takes(const HcSiteArgs& a) {
  const std::int64_t n = a.mix.hidden;
  return a.mix.rows <= kMaxRows && a.mix.streams == kStreams && n % kLanesF == 0 && n <= 8192 && a.collapse.norm_weight;
}

void RunHcSite(Stream& s, const HcSiteArgs& a) {
  if (a.mix.rows == 0) return;
  CudaStream& stream = AsCuda(s);
  if (!Takes(a)) {
    if (a.leave.f_TE) CudaHcExpand()(stream, a.leave);
    CudaHcMix()(stream, a.mix);
    CudaHcCollapseNorm()(stream, a.collapse);
    return;
  }
  const auto rows = static_cast<std::size_t>(a.mix.rows);
  auto* words = reinterpret_cast<LaneWord*>(stream.ZeroedScratch(rows * kDots * kLanesF * sizeof(LaneWord)));
  const auto walk = static_cast<std::size_t>(kStreams * a.mix.hidden / kLanesF * kBlockLanes) * 2 * sizeof(float);
  const std::size_t bytes = std::max(walk, SiteEnd::SharedBytes(a.mix.hidden));
  AllowShared(SiteKernel, stream.device());
  Launch(SiteKernel, static_cast<unsigned>(rows * (kLaneBlocksOfRow + 1)), kThreads, bytes, stream, a, words);
  CheckLaunch("hc_site");
}

}  // namespace

Kernel<HcSiteArgs> CudaHcSite() { return {&RunHcSite, "hc_site/F"}; }

}  // namespace lockstep::kernels
