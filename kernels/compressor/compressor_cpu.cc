#include "kernels/compressor/compressor_cpu.h"

#include "kernels/compressor/compressor_rows.h"
#include "kernels/device/cpu_rows.h"

namespace lockstep::kernels {
namespace {

template <RowsFunction<CompressorArgs> entries>
void RunCompress(Stream& stream, const CompressorArgs& a) {
  const std::int64_t n = (a.position + a.rows) / a.ratio - a.position / a.ratio;
  AsCpu(stream).ParallelFor(n, 1, [&a](std::int64_t begin, std::int64_t end, int) { entries(a, begin, end); });
}

// Only the rows that stay: earlier ones would share their slots.
template <RowsFunction<StoreHistoryArgs> rows>
void RunStoreHistory(Stream& stream, const StoreHistoryArgs& a) {
  const std::int64_t skipped = a.rows > a.history_slots ? a.rows - a.history_slots : 0;
  AsCpu(stream).ParallelFor(a.rows - skipped, 16, [&a, skipped](std::int64_t begin, std::int64_t end, int) { rows(a, begin + skipped, end + skipped); });
}

}  // namespace

Kernel<CompressorArgs> CpuCompress(Isa isa) {
  return {ForIsa(isa, &RunCompress<generic::CompressEntries>, &RunCompress<avx2::CompressEntries>, &RunCompress<avx512::CompressEntries>),
          "compress/F"};
}

Kernel<StoreHistoryArgs> CpuStoreHistory(Isa isa) {
  return {ForIsa(isa, &RunStoreHistory<generic::StoreHistoryRows>, &RunStoreHistory<avx2::StoreHistoryRows>,
                 &RunStoreHistory<avx512::StoreHistoryRows>),
          "store_history/F"};
}

}  // namespace lockstep::kernels
