#include "kernels/kv_rows/kv_rows_cpu.h"

#include "kernels/device/cpu_rows.h"
#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/kv_rows/kv_pack_rows.h"

namespace lockstep::kernels {
namespace {

template <Isa isa>
void RunNormRopePack(Stream& stream, const NormRopePackArgs& a) {
  if (a.norm.rows > 0) CpuRmsNorm(isa)(stream, a.norm);
  CpuRope(isa)(stream, a.rope);
  CpuPackRows(isa)(stream, a.pack);
}

}  // namespace

Kernel<PackRowsArgs> CpuPackRows(Isa isa) {
  return RowsKernel<PackRowsArgs, generic::PackRowsRows, avx2::PackRowsRows, avx512::PackRowsRows>(isa, "pack_rows/F");
}

Kernel<NormRopePackArgs> CpuNormRopePack(Isa isa) {
  return {ForIsa(isa, &RunNormRopePack<Isa::kGeneric>, &RunNormRopePack<Isa::kAvx2>, &RunNormRopePack<Isa::kAvx512>), "norm_rope_pack/F"};
}

Kernel<UnpackRowsArgs> CpuUnpackRows(Isa isa) {
  return RowsKernel<UnpackRowsArgs, generic::UnpackRowsRows, avx2::UnpackRowsRows, avx512::UnpackRowsRows>(isa, "unpack_rows/F");
}

}  // namespace lockstep::kernels
