#include "kernels/compressor/compressor_cpu.h"

#include "kernels/compressor/compressor_rows.h"
#include "kernels/device/cpu_rows.h"

namespace lockstep::kernels {
namespace {

template <RowsFunction<CompressorArgs> entries>
void RunCompress(Stream& stream, const CompressorArgs& a) {
  AsCpu(stream).ParallelFor(a.entries, 1, [&a](std::int64_t begin, std::int64_t end, int) { entries(a, begin, end); });
}

}  // namespace

Kernel<CompressorArgs> CpuCompress(Isa isa) {
  return {ForIsa(isa, &RunCompress<generic::CompressEntries>, &RunCompress<avx2::CompressEntries>, &RunCompress<avx512::CompressEntries>),
          "compress/F"};
}

Kernel<StoreHistoryArgs> CpuStoreHistory(Isa isa) {
  return RowsKernel<StoreHistoryArgs, generic::StoreHistoryRows, avx2::StoreHistoryRows, avx512::StoreHistoryRows, 16>(isa, "store_history/F");
}

}  // namespace lockstep::kernels
