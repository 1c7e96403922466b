// What lies between an attention's projections and its first product, for few rows in one launch: each part has blocks of its own, longest first.
#include <algorithm>

#include "kernels/attention_inputs/attention_inputs_cuda.h"
#include "kernels/compressor/compressor_cuda.h"
#include "kernels/compressor/pooled_tokens.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/elementwise/mixing_matrix.cuh"
#include "kernels/elementwise/norm_row.cuh"
#include "kernels/kv_rows/kv_rows_cuda.h"
#include "kernels/kv_rows/norm_rope_pack.cuh"

namespace lockstep::kernels {
namespace {

using contract::Add;

constexpr int kThreads = NormRopePackRow::kThreads, kWarps = kThreads / 32, kHeadChunks = 4;
constexpr std::int64_t kFewRows = 16;
constexpr int kPooled = 2, kStreams = 4;

// The numbers of blocks come first: what a block reads of a launch's parameters it waits for, a line at a time. Parts of one kind are arrays: an index finds a
// parameter, an address would be read from memory.
struct InputBlocks {
  int pooled[kPooled], window, query, index_query, history[kPooled], mix;
  NormRopePackArgs pack[kPooled + 1];  // of the entries, the index keys and the window
  PackedForm form[kPooled + 1];
  CompressorArgs compress[kPooled];
  StoreHistoryArgs keep[kPooled];
  NormRopeArgs turn_query;
  RopeArgs turn_index_query;
  SinkhornArgs finish_mix;

  explicit InputBlocks(const AttentionInputsArgs& a)
      : pack{a.pooled[0].pack, a.pooled[1].pack, a.window}, form{PackedForm(pack[0].pack.format), PackedForm(pack[1].pack.format), PackedForm(pack[2].pack.format)},
        compress{a.pooled[0].compress, a.pooled[1].compress}, keep{a.pooled[0].history, a.pooled[1].history}, turn_query(a.query), turn_index_query(a.index_query),
        finish_mix(a.mix) {
    for (int p = 0; p < kPooled; ++p) {
      pooled[p] = static_cast<int>(pack[p].rope.rows);
      history[p] = static_cast<int>(keep[p].rows);
    }
    window = static_cast<int>(a.window.rope.rows);
    query = static_cast<int>(a.query.norm.rows > 0 ? Blocks(a.query.norm.rows, kWarps) : TurnBlocks(a.query.rope));
    index_query = static_cast<int>(TurnBlocks(a.index_query));
    mix = static_cast<int>(a.mix.rows);
  }
  static std::int64_t TurnBlocks(const RopeArgs& rope) { return Blocks(rope.rows * rope.heads * (rope.rope_dim / 4), kThreads); }
  int all() const { return pooled[0] + pooled[1] + window + query + index_query + history[0] + history[1] + mix; }
};

// An entry's latent to shared memory, two channels a thread.
__device__ void PoolLatent(const CompressorArgs& a, const PoolEntry& entry, std::uint16_t* latent) {
  const PooledTokens pooled(a, entry);
  const auto two = [](const float* at) { return *reinterpret_cast<const float2*>(at); };
  for (int c = 2 * static_cast<int>(threadIdx.x); c < a.width; c += 2 * kThreads) {
    const auto gate = [&](const PooledTokens::Token& token) {
      const float2 g = two(token.gate + c), ape = token.ape ? two(token.ape + c) : make_float2(0.0f, 0.0f);
      return token.ape ? make_float2(Add(g.x, ape.x), Add(g.y, ape.y)) : g;
    };
    float2 top = make_float2(-__int_as_float(0x7f800000), -__int_as_float(0x7f800000));
#pragma unroll 4
    for (int r = 0; r < pooled.count; ++r) {
      const float2 g = gate(pooled.At(r));
      top.x = fmaxf(g.x, top.x), top.y = fmaxf(g.y, top.y);
    }
    float2 denominator{}, numerator{};
#pragma unroll 4
    for (int r = 0; r < pooled.count; ++r) {
      const PooledTokens::Token token = pooled.At(r);
      const float2 g = gate(token), kv = two(token.kv + c);
      const float x = contract::Exp(contract::Sub(g.x, top.x)), y = contract::Exp(contract::Sub(g.y, top.y));
      denominator = r == 0 ? make_float2(x, y) : make_float2(Add(denominator.x, x), Add(denominator.y, y));
      numerator = r == 0 ? make_float2(contract::Mul(x, kv.x), contract::Mul(y, kv.y)) : make_float2(contract::Fma(x, kv.x, numerator.x), contract::Fma(y, kv.y, numerator.y));
    }
    *reinterpret_cast<std::uint32_t*>(latent + c) = PackBF16(contract::Div(numerator.x, denominator.x), contract::Div(numerator.y, denominator.y));
  }
  __syncthreads();
}

// Row i of the window, which is part kPooled, or of entries, which are pooled first where they are not there yet.
__device__ void PackInput(const InputBlocks& inputs, int part, std::int64_t i) {
  __shared__ __align__(8) std::uint16_t latent[NormRopePackRow::kChunks * kLanesF];
  const NormRopePackArgs& a = inputs.pack[part];
  const NormRopePackRow row(a, i, inputs.form[part]);
  const bool pools = part < kPooled && inputs.compress[part].entries > 0;
  const PoolEntry entry = pools ? inputs.compress[part].entry_N[i] : PoolEntry{};
  WaitForKernelsBefore();
  std::uint16_t* out = a.rope.x + i * a.rope.width;
  if (!pools) return row.Run(a.norm.rows > 0 ? a.norm.x + i * a.norm.x_stride : out, out);
  if (entry.own < 0) return;
  PoolLatent(inputs.compress[part], entry, latent);
  row.Run(latent, nullptr);
}

__device__ void KeepRow(const StoreHistoryArgs& a, std::int64_t t) {
  float* slot = a.slot_T[t];
  const float* ape = a.ape ? a.ape + static_cast<std::uint32_t>(a.position_T[t]) % static_cast<std::uint32_t>(a.ratio) * a.channels : nullptr;
  WaitForKernelsBefore();
  if (!slot) return;
  const auto four = [](const float* at) { return *reinterpret_cast<const float4*>(at); };
  for (int c = 4 * static_cast<int>(threadIdx.x); c < a.channels; c += 4 * kThreads) {
    float4 gate = four(a.gate + t * a.channels + c);
    if (ape) {
      const float4 more = four(ape + c);
      gate = make_float4(Add(gate.x, more.x), Add(gate.y, more.y), Add(gate.z, more.z), Add(gate.w, more.w));
    }
    *reinterpret_cast<float4*>(slot + c) = four(a.kv + t * a.channels + c);
    *reinterpret_cast<float4*>(slot + a.channels + c) = gate;
  }
}

__global__ void __launch_bounds__(kThreads) InputsKernel(const __grid_constant__ InputBlocks inputs) {
  StartNextKernel();
  int block = blockIdx.x;
  if (block < inputs.mix) {
    WaitForKernelsBefore();
    if (threadIdx.x < 32) FinishMix<1, kStreams>(inputs.finish_mix, block);
    return;
  }
  block -= inputs.mix;
  const auto is = [&block](int blocks) {
    if (block < blocks) return true;
    block -= blocks;
    return false;
  };
  if (block < inputs.pooled[0] + inputs.pooled[1] + inputs.window) {
    const int part = is(inputs.pooled[0]) ? 0 : is(inputs.pooled[1]) ? 1 : kPooled;
    return PackInput(inputs, part, block);
  }
  block -= inputs.pooled[0] + inputs.pooled[1] + inputs.window;
  if (block >= inputs.query + inputs.index_query) {
    block -= inputs.query + inputs.index_query;
    const int part = is(inputs.history[0]) ? 0 : 1;
    KeepRow(inputs.keep[part], block);
    return;
  }
  WaitForKernelsBefore();
  if (!is(inputs.query)) {
    TurnPart<2>(inputs.turn_index_query, block * std::int64_t{kThreads} + threadIdx.x);
  } else if (const std::int64_t head = block * std::int64_t{kWarps} + threadIdx.x / 32; inputs.turn_query.norm.rows == 0) {
    TurnPart<2>(inputs.turn_query.rope, block * std::int64_t{kThreads} + threadIdx.x);
  } else if (head < inputs.turn_query.norm.rows) {
    NormRowOfWarp<kHeadChunks, true>(inputs.turn_query.norm, inputs.turn_query.rope, head);
  }
}

bool TurnsByFours(const RopeArgs& a) { return a.rows == 0 || (a.rope_dim % 4 == 0 && a.width % 4 == 0); }
bool PacksByBlocks(const NormRopePackArgs& a) { return a.rope.rows == 0 || NormRopePackRow::Takes(a); }

bool TakesPooled(const PooledRowsArgs& p) {
  const bool pools = p.compress.entries == 0 || (p.compress.entries == p.pack.rope.rows && p.compress.width == p.pack.rope.width);
  return pools && PacksByBlocks(p.pack) && p.pack.rope.rows <= kFewRows && p.history.rows <= kFewRows && p.history.channels % 4 == 0;
}

bool Takes(const AttentionInputsArgs& a) {
  const RmsNormArgs& norm = a.query.norm;
  const bool heads = norm.rows == 0 || (norm.n % 4 == 0 && norm.x_stride % 4 == 0 && norm.y_stride % 4 == 0 && norm.n <= kHeadChunks * kLanesF);
  const std::int64_t rows = std::max({a.query.rope.rows, a.index_query.rows, a.window.rope.rows});
  const bool mixes = a.mix.rows == 0 || (a.mix.rows <= kFewRows && a.mix.streams == kStreams);
  return rows <= kFewRows && mixes && heads && TurnsByFours(a.query.rope) && TurnsByFours(a.index_query) && PacksByBlocks(a.window) && TakesPooled(a.pooled[0]) && TakesPooled(a.pooled[1]);
}

void RunParts(CudaStream& stream, const AttentionInputsArgs& a) {
  if (a.query.norm.rows > 0) CudaNormRope()(stream, a.query);
  else CudaRope()(stream, a.query.rope);
  CudaRope()(stream, a.index_query);
  CudaNormRopePack()(stream, a.window);
  CudaSinkhorn()(stream, a.mix);
  for (const PooledRowsArgs& pooled : a.pooled) {
    CudaCompress()(stream, pooled.compress);
    CudaStoreHistory()(stream, pooled.history);
    CudaNormRopePack()(stream, pooled.pack);
  }
}

void RunAttentionInputs(Stream& s, const AttentionInputsArgs& a) {
  CudaStream& stream = AsCuda(s);
  if (a.empty()) return;
  if (!Takes(a)) return RunParts(stream, a);
  const InputBlocks inputs(a);
  Launch(InputsKernel, static_cast<unsigned>(inputs.all()), kThreads, 0, stream, inputs);
  CheckLaunch("attention_inputs");
}

}  // namespace

Kernel<AttentionInputsArgs> CudaAttentionInputs() { return {&RunAttentionInputs, "attention_inputs/F"}; }

}  // namespace lockstep::kernels
