#include "kernels/attention_inputs/attention_inputs_cpu.h"

#include "kernels/compressor/compressor_cpu.h"
#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/kv_rows/kv_rows_cpu.h"

namespace lockstep::kernels {
namespace {

template <Isa isa>
void RunAttentionInputs(Stream& stream, const AttentionInputsArgs& a) {
  if (a.query.norm.rows > 0) CpuNormRope(isa)(stream, a.query);
  else CpuRope(isa)(stream, a.query.rope);
  CpuRope(isa)(stream, a.index_query);
  CpuNormRopePack(isa)(stream, a.window);
  CpuSinkhorn(isa)(stream, a.mix);
  for (const PooledRowsArgs& pooled : a.pooled) {
    CpuCompress(isa)(stream, pooled.compress);
    CpuStoreHistory(isa)(stream, pooled.history);
    CpuNormRopePack(isa)(stream, pooled.pack);
  }
}

}  // namespace

Kernel<AttentionInputsArgs> CpuAttentionInputs(Isa isa) {
  return {ForIsa(isa, &RunAttentionInputs<Isa::kGeneric>, &RunAttentionInputs<Isa::kAvx2>, &RunAttentionInputs<Isa::kAvx512>), "attention_inputs/F"};
}

}  // namespace lockstep::kernels
