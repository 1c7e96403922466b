#include "kernels/kv_rows/kv_rows_cpu.h"

#include "kernels/device/cpu_rows.h"
#include "kernels/kv_rows/kv_pack_rows.h"

namespace lockstep::kernels {

Kernel<PackRowsArgs> CpuPackRows(Isa isa) {
  return RowsKernel<PackRowsArgs, generic::PackRowsRows, avx2::PackRowsRows, avx512::PackRowsRows>(isa, "pack_rows/F");
}

Kernel<UnpackRowsArgs> CpuUnpackRows(Isa isa) {
  return RowsKernel<UnpackRowsArgs, generic::UnpackRowsRows, avx2::UnpackRowsRows, avx512::UnpackRowsRows>(isa, "unpack_rows/F");
}

}  // namespace lockstep::kernels
