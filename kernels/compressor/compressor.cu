// Pooling of token groups: a thread a channel of an entry.
#include "kernels/compressor/compressor_cuda.h"
#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {
namespace {

using contract::Add;

constexpr int kThreads = 128;

struct Token {
  const float* kv;
  const float* gate;
  const float* ape;  // null: already added
};

__device__ Token TokenAt(const CompressorArgs& a, const PoolEntry& entry, std::int64_t channels, std::int64_t position) {
  if (position >= entry.position) {
    const std::int64_t row = (entry.row + position - entry.position) * channels;
    return {a.kv + row, a.gate + row, a.ape ? a.ape + position % a.ratio * channels : nullptr};
  }
  const float* slot = entry.history + position % a.history_slots * 2 * channels;
  return {slot, slot + channels, nullptr};
}

__global__ void __launch_bounds__(kThreads) CompressKernel(CompressorArgs a) {
  const std::int64_t i = blockIdx.x, c = blockIdx.y * kThreads + threadIdx.x;
  if (c >= a.width) return;
  const PoolEntry entry = a.entry_N[i];
  if (entry.own < 0) {
    a.latent[i * a.width + c] = 0;
    return;
  }
  const std::int64_t channels = a.overlap ? 2 * a.width : a.width;
  const std::int64_t own = entry.own, first = a.overlap && own > 0 ? own - a.ratio : own, end = own + a.ratio;
  const auto channel = [&](std::int64_t p) { return c + (a.overlap && p >= own ? a.width : 0); };
  const auto gate = [&](std::int64_t p) {
    const Token token = TokenAt(a, entry, channels, p);
    return token.ape ? Add(token.gate[channel(p)], token.ape[channel(p)]) : token.gate[channel(p)];
  };
  float top = gate(first);
  for (std::int64_t p = first + 1; p < end; ++p) top = fmaxf(gate(p), top);
  float denominator = 0.0f, numerator = 0.0f;
  for (std::int64_t p = first; p < end; ++p) {
    const float e = contract::Exp(contract::Sub(gate(p), top)), kv = TokenAt(a, entry, channels, p).kv[channel(p)];
    denominator = p == first ? e : Add(denominator, e);
    numerator = p == first ? contract::Mul(e, kv) : contract::Fma(e, kv, numerator);
  }
  a.latent[i * a.width + c] = BF16Bits(contract::Div(numerator, denominator));
}

__global__ void StoreHistoryKernel(StoreHistoryArgs a) {
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
  CompressKernel<<<dim3(static_cast<unsigned>(a.entries), Blocks(a.width, kThreads)), kThreads, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("compress");
}

void RunStoreHistory(Stream& stream, const StoreHistoryArgs& a) {
  StoreHistoryKernel<<<static_cast<unsigned>(a.rows), 256, 0, AsCuda(stream).handle()>>>(a);
  CheckLaunch("store_history");
}

}  // namespace

Kernel<CompressorArgs> CudaCompress() { return {&RunCompress, "compress/F"}; }
Kernel<StoreHistoryArgs> CudaStoreHistory() { return {&RunStoreHistory, "store_history/F"}; }

}  // namespace lockstep::kernels
