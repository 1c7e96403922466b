// From one hyper-connection site to the next in one launch, for few rows: blocks of lanes expand the streams for themselves and walk the dots' chains,
// the last block of a row gathers their lanes, chooses the coefficients and collapses. Contract: docs/numerics.md section 6, mHC mix, Collapse, Expand.
#include <algorithm>

#include "kernels/device/dots.cuh"
#include "kernels/device/lane_words.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/device/warpgroups.cuh"
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
constexpr int kMaxSums = 2, kMaxPicks = 6;  // rows, and picks of each, that a site sums up itself
static_assert(kDots % kDotsOfWarp == 0);

// Loops here stay loops: a block runs this code once, and fetching instructions takes longer than running them.

// What becomes of a row's streams, eight channels of a thread at a time. With kSum, f is made on the way, as combine makes it.
template <bool kSum>
class Expansion {
 public:
  // Before the wait: the pairs were chosen before the kernel that made their rows let this one start. Few rows: 32 bits name an element.
  __device__ Expansion(const HcSiteArgs& site, int row)
      : n_(static_cast<int>(site.mix.hidden)), picks_(site.sum.top_k), leaves_(kSum || site.leave.f_TE), row_(row * n_), stream_TSE_(site.mix.stream_TSE),
        f_TE_(kSum ? site.sum.shared_TE : site.leave.f_TE), expert_rows_(site.sum.expert_rows) {
    const int own = min(static_cast<int>(threadIdx.x & 31), kStreams + kPairs - 1);
    coefficient_ = own < kStreams ? site.leave.post_TS + row * kStreams + own : site.leave.mix_TSS + row * kPairs + own - kStreams;
#pragma unroll
    for (int k = 0; kSum && k < kMaxPicks; ++k) pick_[k] = __ldcg(site.sum.pair_of + row * picks_ + min(k, picks_ - 1)) * n_;
  }

  // After the wait. Calls store(unit, k, bf16 of stream k) for all of a block's units of eight channels, the first of which is first(unit).
  template <class First, class Store>
  __device__ void Run(int units, const First& first, const Store& store) const {
    const int lane = threadIdx.x & 31;
    const float coefficient = leaves_ ? *coefficient_ : 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i - lane < units; i += kThreads) {  // warps stay whole: lanes past the end do the last unit again
      const int unit = min(i, units - 1), d = first(unit);
      uint4 bits[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) bits[j] = *reinterpret_cast<const uint4*>(stream_TSE_ + (row_ * kStreams + j * n_ + d));
      if (leaves_) {
        Eight(bits, Output(d), coefficient, [&](int k, uint4 y) { store(unit, k, y); });
      } else {
#pragma unroll
        for (int k = 0; k < kStreams; ++k) store(unit, k, bits[k]);
      }
    }
  }

 private:
  // The site before's.
  __device__ Channels<8> Output(int d) const {
    const Channels<8> own = Channels<8>::Load(f_TE_ + (row_ + d));
    if constexpr (!kSum) return own;
    constexpr std::uint32_t kNothing = 0x80008000u;  // -0, which no sum notices; a branch would let loads wait for each other
    uint4 bits[kMaxPicks];
#pragma unroll
    for (int k = 0; k < kMaxPicks; ++k) {
      bits[k] = *reinterpret_cast<const uint4*>(expert_rows_ + (pick_[k] + d));
      if (k >= picks_) bits[k] = make_uint4(kNothing, kNothing, kNothing, kNothing);
    }
    Channels<8> f = Channels<8>::From(bits[0]);
#pragma unroll
    for (int k = 1; k < kMaxPicks; ++k) Accumulate(Channels<8>::From(bits[k]), f);
    Accumulate(own, f);
    return Channels<8>::From(f.Bits());
  }

  __device__ static void Accumulate(const Channels<8>& y, Channels<8>& f) {
#pragma unroll
    for (int i = 0; i < 8; ++i) f.value[i] = Add(f.value[i], y.value[i]);
  }

  template <class Store>
  __device__ static void Eight(const uint4 (&bits)[kStreams], const Channels<8>& f, float coefficient, const Store& store) {
    const auto of_lane = [coefficient](int lane) { return __shfl_sync(0xffffffffu, coefficient, lane); };
    Channels<8> x[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) x[j] = Channels<8>::From(bits[j]);
#pragma unroll 1
    for (int k = 0; k < kStreams; ++k) {
      Channels<8> sum;
      const float post = of_lane(k);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.value[i] = Mul(post, f.value[i]);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const float mix = of_lane(kStreams + j * kStreams + k);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum.value[i] = Fma(mix, x[j].value[i], sum.value[i]);
      }
      store(k, sum.Bits());
    }
  }

  const int n_, picks_;
  const bool leaves_;  // else there is no site before
  const int row_;      // elements of rows before
  int pick_[kMaxPicks];
  const std::uint16_t *stream_TSE_, *f_TE_, *expert_rows_;  // with kSum, f are the shared expert's rows
  const float* coefficient_;  // the lane's: post, then the mixing matrix
};

// 32 lanes of one dot of a row.
template <bool kSum>
__device__ void WalkLanes(const HcSiteArgs& a, int t, int dot, int lane0, LaneWord* words, float* memory) {
  const int chunks = static_cast<int>(a.mix.hidden) / kLanesF, steps = kStreams * chunks, lane = threadIdx.x & 31;
  const bool self = dot == kOutputs;
  float *w = memory, *x = memory + steps * kBlockLanes;  // [steps][32] each
#pragma unroll 1
  for (int i = threadIdx.x; i < steps * (kBlockLanes / 4) && !self; i += kThreads) {
    const int step = i / (kBlockLanes / 4), four = i % (kBlockLanes / 4) * 4;
    CopyAsync<16>(w + step * kBlockLanes + four, a.mix.fn + (std::int64_t{dot} * steps + step) * kLanesF + lane0 + four);
  }
  CommitCopies();
  const Expansion<kSum> expansion(a, t);
  WaitForKernelsBefore();
  constexpr int kUnits = kBlockLanes / 8;  // of a chunk
  expansion.Run(chunks * kUnits, [&](int unit) { return unit / kUnits * kLanesF + lane0 + unit % kUnits * 8; }, [&](int unit, int k, uint4 bits) {
    auto* into = reinterpret_cast<float4*>(x + k * chunks * kBlockLanes + unit * 8);
    into[0] = WidenFour(make_uint2(bits.x, bits.y)), into[1] = WidenFour(make_uint2(bits.z, bits.w));
  });
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
template <bool kSum>
class SiteEnd {
 public:
  __device__ SiteEnd(const HcSiteArgs& args, int row, LaneWord* row_words, std::byte* memory)
      : a(args), t(row), n(static_cast<int>(args.mix.hidden)), words(row_words), norm(reinterpret_cast<float*>(memory)),
        streams(reinterpret_cast<std::uint16_t*>(norm + n)), collapsed(streams + kStreams * n) {}

  __device__ void Run() {
    __shared__ float dots[kDots], lanes[kLanesF];
    __shared__ float2 terms[kOutputs];  // scale and base
    if (const int i = threadIdx.x; i < kOutputs) terms[i] = make_float2(a.mix.scale[i < kStreams ? 0 : i < 2 * kStreams ? 1 : 2], a.mix.base[i]);
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < n; i += 4 * kThreads) CopyAsync<16>(norm + i, a.collapse.norm_weight + i);
    CommitCopies();
    const Expansion<kSum> expansion(a, t);
    WaitForKernelsBefore();
    expansion.Run(n / 8, [](int unit) { return 8 * unit; }, [&](int unit, int k, uint4 bits) { *reinterpret_cast<uint4*>(streams + k * n + 8 * unit) = bits; });
    WaitForCopies<0>();
    const int output = min(static_cast<int>(threadIdx.x & 31), kOutputs - 1);
    const bool own_pre = a.collapse.pre_TS == a.mix.pre_TS;
    const float pre_before = own_pre || output >= kStreams ? 0.0f : a.collapse.pre_TS[t * kStreams + output];
    if (threadIdx.x >= kLanesF) GatherDots(dots);
    __syncthreads();
    const float logit = Logit(dots, output, terms[output]), sigmoid = contract::Sigmoid(logit), pre = Add(sigmoid, a.mix.hc_eps);
    Collapse(own_pre ? pre : pre_before);
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

  // `pre_of_lane` of lane s is the coefficient of stream s.
  __device__ void Collapse(float pre_of_lane) const {
    float pre[kStreams];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) pre[s] = __shfl_sync(0xffffffffu, pre_of_lane, s);
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
    SyncSome<1, kLanesF>();  // these four warps
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
  const int t, n;
  LaneWord* words;
  float* norm;               // [n]
  std::uint16_t* streams;    // [4][n], expanded
  std::uint16_t* collapsed;  // [n]
};

// Blocks: 100 of lanes for every row, then one for each row that ends it and has to start last.
template <bool kSum>
__global__ void __launch_bounds__(kThreads, kSum ? kMaxSums : 3) SiteKernel(const __grid_constant__ HcSiteArgs a, LaneWord* words) {
  StartNextKernel();
  extern __shared__ __align__(16) std::byte memory[];
  const int lane_blocks = static_cast<int>(a.mix.rows) * kLaneBlocksOfRow, block = blockIdx.x;
  if (block >= lane_blocks) {
    const int t = block - lane_blocks;
    SiteEnd<kSum>(a, t, words + t * kDots * kLanesF, memory).Run();
    return;
  }
  const int t = block / kLaneBlocksOfRow, part = block % kLaneBlocksOfRow;
  WalkLanes<kSum>(a, t, part / kLaneBlocks, part % kLaneBlocks * kBlockLanes, words + t * kDots * kLanesF, reinterpret_cast<float*>(memory));
}

std::size_t SharedBytes(std::int64_t hidden) {
  const std::int64_t walk = 2 * kStreams * hidden / kLanesF * kBlockLanes * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t end = hidden * static_cast<std::int64_t>(sizeof(float) + (kStreams + 1) * sizeof(std::uint16_t));
  return static_cast<std::size_t>(std::max(walk, end));
}

template <bool kSum>
void LaunchSite(CudaStream& stream, const HcSiteArgs& a) {
  const auto rows = static_cast<std::size_t>(a.mix.rows);
  auto* words = reinterpret_cast<LaneWord*>(stream.ZeroedScratch(rows * kDots * kLanesF * sizeof(LaneWord)));
  AllowShared(SiteKernel<kSum>, stream.device());
  Launch(SiteKernel<kSum>, static_cast<unsigned>(rows * (kLaneBlocksOfRow + 1)), kThreads, SharedBytes(a.mix.hidden), stream, a, words);
  CheckLaunch("hc_site");
}

void RunHcSite(Stream& s, const HcSiteArgs& a) {
  if (a.mix.rows == 0) return;
  CudaStream& stream = AsCuda(s);
  const std::int64_t rows = a.mix.rows, n = a.mix.hidden;
  const bool one_launch = rows <= kMaxRows && a.mix.streams == kStreams && n % kLanesF == 0 && n <= 8192 && a.collapse.norm_weight;
  const bool sums = a.sum.rows > 0;
  if (one_launch && sums && rows <= kMaxSums && a.sum.top_k <= kMaxPicks) return LaunchSite<true>(stream, a);
  if (sums) CudaCombine()(stream, a.sum);
  if (one_launch) return LaunchSite<false>(stream, a);
  if (a.leave.f_TE) CudaHcExpand()(stream, a.leave);
  CudaHcMix()(stream, a.mix);
  CudaHcCollapseNorm()(stream, a.collapse);
}

}  // namespace

Kernel<HcSiteArgs> CudaHcSite() { return {&RunHcSite, "hc_site/F"}; }

}  // namespace lockstep::kernels
