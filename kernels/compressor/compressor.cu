// Pooling of token groups: the exponentials of a channel by several threads, its ascending sums by one. Contract: docs/numerics.md section 6, Compressor.
#include <string>

#include "kernels/compressor/compressor_cuda.h"
#include "kernels/compressor/pooled_tokens.cuh"
#include "kernels/device/launch.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

using contract::Add;

constexpr int kThreads = 256;

// Block: an entry (x) and kThreads / kParts channels (y); kParts threads share a channel's tokens.
template <int kParts>
__global__ void __launch_bounds__(kThreads) CompressKernel(const __grid_constant__ CompressorArgs a) {
  BeginKernel();
  constexpr int kChannels = kThreads / kParts;
  extern __shared__ float memory[];
  __shared__ float tops[kParts][kChannels];
  const int lane = threadIdx.x % kChannels, part = threadIdx.x / kChannels;
  const std::int64_t i = blockIdx.x, c = blockIdx.y * std::int64_t{kChannels} + lane;
  const PoolEntry entry = a.entry_N[i];
  if (entry.own < 0) {
    if (part == 0 && c < a.width) a.latent[i * a.width + c] = 0;
    return;
  }
  const PooledTokens pooled(a, entry);
  const int tokens = pooled.count;
  float *weight = memory + lane, *value = memory + tokens * kChannels + lane;  // [tokens][channels]
  float top = -__int_as_float(0x7f800000);
#pragma unroll 4
  for (int r = part; r < tokens && c < a.width; r += kParts) {
    const PooledTokens::Token token = pooled.At(r);
    const float gate = token.ape ? Add(token.gate[c], token.ape[c]) : token.gate[c];
    weight[r * kChannels] = gate;
    value[r * kChannels] = token.kv[c];
    top = fmaxf(gate, top);
  }
  tops[part][lane] = top;
  __syncthreads();
#pragma unroll
  for (int other = 0; other < kParts; ++other) top = fmaxf(tops[other][lane], top);
  for (int r = part; r < tokens && c < a.width; r += kParts) weight[r * kChannels] = contract::Exp(contract::Sub(weight[r * kChannels], top));
  __syncthreads();
  if (part != 0 || c >= a.width) return;
  float denominator = weight[0], numerator = contract::Mul(weight[0], value[0]);
#pragma unroll 8
  for (int r = 1; r < tokens; ++r) {
    denominator = Add(denominator, weight[r * kChannels]);
    numerator = contract::Fma(weight[r * kChannels], value[r * kChannels], numerator);
  }
  a.latent[i * a.width + c] = BF16Bits(contract::Div(numerator, denominator));
}

__global__ void StoreHistoryKernel(const __grid_constant__ StoreHistoryArgs a) {
  BeginKernel();
  const std::int64_t t = blockIdx.x;
  float* slot = a.slot_T[t];
  if (!slot) return;
  const float* ape = a.ape ? a.ape + a.position_T[t] % a.ratio * a.channels : nullptr;
  for (std::int64_t c = threadIdx.x; c < a.channels; c += blockDim.x) {
    const float gate = a.gate[t * a.channels + c];
    slot[c] = a.kv[t * a.channels + c];
    slot[a.channels + c] = ape ? Add(gate, ape[c]) : gate;
  }
}

void RunCompress(Stream& stream, const CompressorArgs& a) {
  if (a.entries == 0) return;
  const int tokens = a.overlap ? 2 * a.ratio : a.ratio, parts = tokens >= 32 ? 8 : 1, channels = kThreads / parts;
  const std::size_t bytes = static_cast<std::size_t>(tokens * channels) * 2 * sizeof(float);
  constexpr std::size_t kMostBytes = 200 << 10;
  if (bytes > kMostBytes) throw InputError("compressor: groups of " + std::to_string(a.ratio) + " tokens, expected at most 400 on a CUDA device");
  const auto kernel = parts == 8 ? &CompressKernel<8> : &CompressKernel<1>;
  CudaStream& cuda = AsCuda(stream);
  AllowShared(kernel, cuda.device());
  Launch(kernel, dim3(static_cast<unsigned>(a.entries), Blocks(a.width, channels)), kThreads, bytes, cuda, a);
  CheckLaunch("compress");
}

void RunStoreHistory(Stream& stream, const StoreHistoryArgs& a) {
  if (a.rows == 0) return;
  Launch(StoreHistoryKernel, static_cast<unsigned>(a.rows), kThreads, 0, AsCuda(stream), a);
  CheckLaunch("store_history");
}

}  // namespace

Kernel<CompressorArgs> CudaCompress() { return {&RunCompress, "compress/F"}; }
Kernel<StoreHistoryArgs> CudaStoreHistory() { return {&RunStoreHistory, "store_history/F"}; }

}  // namespace lockstep::kernels
