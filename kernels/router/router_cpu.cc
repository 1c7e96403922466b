#include "kernels/router/router_cpu.h"

#include "kernels/device/cpu_rows.h"
#include "kernels/router/router_rows.h"

namespace lockstep::kernels {

Kernel<RouterArgs> CpuRouter(Isa isa) {
  return RowsKernel<RouterArgs, generic::RouterRows, avx2::RouterRows, avx512::RouterRows>(isa, "router/F");
}

}  // namespace lockstep::kernels
