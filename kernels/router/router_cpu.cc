#include "kernels/router/router_cpu.h"

#include "kernels/device/cpu_rows.h"
#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/router/router_rows.h"

namespace lockstep::kernels {
namespace {

template <Isa isa>
void RunRoute(Stream& stream, const RouteArgs& a) {
  CpuRouter(isa)(stream, a.router);
  CpuPairGroups()(stream, a.groups);
  CpuSinkhorn(isa)(stream, a.mix);
}

}  // namespace

Kernel<RouterArgs> CpuRouter(Isa isa) {
  return RowsKernel<RouterArgs, generic::RouterRows, avx2::RouterRows, avx512::RouterRows>(isa, "router/F");
}

Kernel<RouteArgs> CpuRoute(Isa isa) {
  return {ForIsa(isa, &RunRoute<Isa::kGeneric>, &RunRoute<Isa::kAvx2>, &RunRoute<Isa::kAvx512>), "route/F"};
}

}  // namespace lockstep::kernels
