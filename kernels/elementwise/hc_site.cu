// From one hyper-connection site to the next in one launch, for few rows: blocks of lanes expand the streams for themselves and walk the dots' chains,
// the last block of a row gathers their lanes, chooses the coefficients and collapses. Contract: docs/numerics.md section 6, mHC mix, Collapse, Expand.
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
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlockLanes = 32, kLaneBlocks = kLanesF / kBlockLanes, kLaneBlocksOfRow = kDots * kLaneBlocks;
constexpr int kMaxRows = 8;
constexpr int kMaxChunks = 40;  // of 128 channels

// What a row's streams become; eight channels of each.
struct Leaving {
  const HcExpandArgs& a;
  const std::uint16_t* stream;
  const std::uint16_t* f;  // null: they stay
  float post[kStreams], mix[kPairs];

  __device__ Leaving(const HcExpandArgs& leave, std::int64_t t)
      : a(leave), stream(leave.stream_TSE + t * kStreams * leave.hidden), f(leave.f_TE ? leave.f_TE + t * leave.hidden : nullptr) {
    if (!f) return;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) post[s] = leave.post_TS[t * kStreams + s];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) mix[p] = leave.mix_TSS[t * kPairs + p];
  }

  __device__ void Expand(int d, uint4 (&to)[kStreams]) const {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) to[j] = *reinterpret_cast<const uint4*>(stream + j * a.hidden + d);
    if (!f) return;
    const Channels<8> from = Channels<8>::Load(f + d);
    Channels<8> x[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) x[j] = Channels<8>::From(to[j]);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      Channels<8> sum;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum.value[i] = Mul(post[k], from.value[i]);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sum.value[i] = Fma(mix[j * kStreams + k], x[j].value[i], sum.value[i]);
      }
      to[k] = sum.Bits();
    }
  }
};

// 32 lanes of one dot of a row.
__device__ void WalkLanes(const HcSiteArgs& a, std::int64_t t, int dot, int lane0, LaneWord* words, float* memory) {
  const int chunks = static_cast<int>(a.mix.hidden) / kLanesF, steps = kStreams * chunks, lane = threadIdx.x & 31;
  const bool self = dot == kOutputs;
  float *w = memory, *x = memory + steps * kBlockLanes;  // [steps][32] each
  for (int i = threadIdx.x; i < steps * (kBlockLanes / 4) && !self; i += kThreads) {
    const int step = i / (kBlockLanes / 4), four = i % (kBlockLanes / 4) * 4;
    CopyAsync<16>(w + step * kBlockLanes + four, a.mix.fn + (std::int64_t{dot} * steps + step) * kLanesF + lane0 + four);
  }
  CommitCopies();
  WaitForKernelsBefore();
  const Leaving leaving(a.leave, t);
  for (int i = threadIdx.x; i < chunks * (kBlockLanes / 8); i += kThreads) {
    const int chunk = i / (kBlockLanes / 8), eight = i % (kBlockLanes / 8) * 8;
    uint4 to[kStreams];
    leaving.Expand(chunk * kLanesF + lane0 + eight, to);
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      auto* into = reinterpret_cast<float4*>(x + (s * chunks + chunk) * kBlockLanes + eight);
      into[0] = WidenFour(make_uint2(to[s].x, to[s].y)), into[1] = WidenFour(make_uint2(to[s].z, to[s].w));
    }
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

// The block that ends a row: four warps collapse, lane by lane of the norm; the others gather the dots, make the coefficients and store the streams.
class SiteEnd {
 public:
  __device__ SiteEnd(const HcSiteArgs& args, std::int64_t row, LaneWord* row_words, std::byte* memory)
      : a(args), t(row), n(static_cast<int>(args.mix.hidden)), words(row_words), norm(reinterpret_cast<float*>(memory)),
        streams(reinterpret_cast<std::uint16_t*>(norm + n)) {}

  __device__ void Run() {
    __shared__ float dots[kDots], lanes[kLanesF];
    for (int i = 4 * threadIdx.x; i < n; i += 4 * kThreads) CopyAsync<16>(norm + i, a.collapse.norm_weight + i);
    CommitCopies();
    WaitForKernelsBefore();
    ExpandAll();
    WaitForCopies<0>();
    __syncthreads();
    if (threadIdx.x < kLanesF) {
      Collapse(dots, lanes);
    } else {
      GatherDots(dots);
      __syncthreads();
      if (threadIdx.x < kLanesF + 32) Coefficients(dots);
      else StoreStreams();
    }
  }

 private:
  static constexpr int kGatherWarps = kWarps - kLanesF / 32, kDotsOfWarp = (kDots + kGatherWarps - 1) / kGatherWarps;

  __device__ void ExpandAll() {
    const Leaving leaving(a.leave, t);
    for (int d = 8 * threadIdx.x; d < n; d += 8 * kThreads) {
      uint4 to[kStreams];
      leaving.Expand(d, to);
#pragma unroll
      for (int s = 0; s < kStreams; ++s) *reinterpret_cast<uint4*>(streams + s * n + d) = to[s];
    }
  }

  __device__ float Logit(const float* dots, float r, int output, int kind) const { return Add(Mul(Mul(dots[output], r), a.mix.scale[kind]), a.mix.base[output]); }
  __device__ float RmsOfStreams(const float* dots) const { return contract::Rsqrt(Add(Div(dots[kOutputs], static_cast<float>(kStreams * n)), a.mix.rms_eps)); }

  // A warp folds its share of the dots.
  __device__ void GatherDots(float* dots) {
    const int warp = threadIdx.x / 32 - kLanesF / 32, lane = threadIdx.x & 31;
    float quarter[kDotsOfWarp][4];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < 4 * kDotsOfWarp; ++i) {
        const int dot = warp + kGatherWarps * (i / 4);
        if (dot < kDots) there = ReceiveLane(words + dot * kLanesF + 32 * (i % 4) + lane, quarter[i / 4][i % 4]) && there;
      }
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int i = 0; i < kDotsOfWarp; ++i) {
      const int dot = warp + kGatherWarps * i;
      const float folded = FoldWarp(Add(Add(quarter[i][0], quarter[i][2]), Add(quarter[i][1], quarter[i][3])));
      if (lane == 0 && dot < kDots) dots[dot] = folded;
    }
#pragma unroll
    for (int i = 0; i < 4 * kDotsOfWarp; ++i) {
      const int dot = warp + kGatherWarps * (i / 4);
      if (dot < kDots) ClearLane(words + dot * kLanesF + 32 * (i % 4) + lane);
    }
  }

  // Thread l has the channels of the norm's lane l.
  __device__ void Collapse(const float* dots, float* lanes) {
    const int lane = threadIdx.x, chunks = n / kLanesF;
    std::uint32_t pair[kMaxChunks][kStreams / 2];  // of streams
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c >= chunks) break;
      const std::uint16_t* at = streams + c * kLanesF + lane;
#pragma unroll
      for (int s = 0; s < kStreams; s += 2) pair[c][s / 2] = at[s * n] | static_cast<std::uint32_t>(at[(s + 1) * n]) << 16;
    }
    float pre[kStreams];  // this site's, or the one before's
    const bool own = a.collapse.pre_TS == a.mix.pre_TS;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) pre[s] = own ? 0.0f : a.collapse.pre_TS[t * kStreams + s];
    __syncthreads();  // the dots are there
    if (own) Pre(dots, pre);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c >= chunks) break;
      float y = Mul(pre[0], Low(pair[c][0]));
      y = Fma(pre[1], High(pair[c][0]), y);
      y = Fma(pre[2], Low(pair[c][1]), y);
      y = Fma(pre[3], High(pair[c][1]), y);
      pair[c][0] = PackBF16(y, 0.0f);
      sum = Fma(Low(pair[c][0]), Low(pair[c][0]), sum);
    }
    lanes[lane] = sum;
    SynchronizeLanes();
    const float r = contract::Rsqrt(Add(Div(FoldLanes(lanes), static_cast<float>(n)), a.collapse.eps));
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c >= chunks) break;
      const int d = c * kLanesF + lane;
      a.collapse.x_TE[t * n + d] = BF16Bits(Mul(Mul(Low(pair[c][0]), r), norm[d]));
    }
  }

  __device__ static float Low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float High(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
  // The threads of the first four warps.
  __device__ static void SynchronizeLanes() { asm volatile("bar.sync 1, %0;" ::"n"(kLanesF) : "memory"); }

  __device__ float OwnPre(const float* dots, float r, int stream) const { return Add(contract::Sigmoid(Logit(dots, r, stream, 0)), a.mix.hc_eps); }

  // By whole warps.
  __device__ void Pre(const float* dots, float (&pre)[kStreams]) const {
    const float value = OwnPre(dots, RmsOfStreams(dots), threadIdx.x % kStreams);
#pragma unroll
    for (int s = 0; s < kStreams; ++s) pre[s] = __shfl_sync(0xffffffffu, value, s);
  }

  // A warp.
  __device__ void Coefficients(const float* dots) const {
    const int lane = threadIdx.x & 31;
    const float r = RmsOfStreams(dots);
    MixingMatrix<1, kStreams> mix(kStreams);
    mix.c[0] = Logit(dots, r, 2 * kStreams + mix.Own(0), 2);
    if (lane < kStreams) {
      a.mix.pre_TS[t * kStreams + lane] = OwnPre(dots, r, lane);
      a.mix.post_TS[t * kStreams + lane] = Mul(2.0f, contract::Sigmoid(Logit(dots, r, kStreams + lane, 1)));
    }
    mix.Sinkhorn(a.mix.sinkhorn_iters, a.mix.hc_eps);
    if (lane < kPairs) a.mix.mix_TSS[t * kPairs + lane] = mix.c[0];
  }

  // Every block of lanes has read the row: its dots are there.
  __device__ void StoreStreams() const {
    if (!a.leave.f_TE) return;
    constexpr int kStorers = kThreads - kLanesF - 32;
    std::uint16_t* to = a.leave.stream_TSE + t * kStreams * n;
    for (int i = 8 * (threadIdx.x - (kLanesF + 32)); i < kStreams * n; i += 8 * kStorers) *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(streams + i);
  }

  const HcSiteArgs& a;
  const std::int64_t t;
  const int n;
  LaneWord* words;
  float* norm;             // [n]
  std::uint16_t* streams;  // [4][n], expanded
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
  return a.mix.rows <= kMaxRows && a.mix.streams == kStreams && n % kLanesF == 0 && n / kLanesF <= kMaxChunks && a.collapse.norm_weight;
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
  const auto end = static_cast<std::size_t>(a.mix.hidden) * (sizeof(float) + kStreams * sizeof(std::uint16_t));
  const std::size_t bytes = walk > end ? walk : end;
  CheckCuda(cudaFuncSetAttribute(SiteKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "hc_site shared memory");
  Launch(SiteKernel, static_cast<unsigned>(rows * (kLaneBlocksOfRow + 1)), kThreads, bytes, stream, a, words);
  CheckLaunch("hc_site");
}

}  // namespace

Kernel<HcSiteArgs> CudaHcSite() { return {&RunHcSite, "hc_site/F"}; }

}  // namespace lockstep::kernels
