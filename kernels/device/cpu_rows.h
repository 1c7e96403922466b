// How a CPU kernel is put together: a function on rows [begin, end), compiled once per instruction set, run over the stream's threads.
#pragma once

#include <cstdint>

#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"

namespace lockstep::kernels {

template <typename Args>
using RowsFunction = void (*)(const Args& args, std::int64_t begin, std::int64_t end);

// Runs `rows` over args.rows in pieces of `grain`.
template <typename Args, RowsFunction<Args> rows, std::int64_t grain>
void RunRows(Stream& stream, const Args& args) {
  AsCpu(stream).ParallelFor(args.rows, grain, [&args](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

// The kernel for `isa` out of its three builds.
template <typename Args, RowsFunction<Args> generic, RowsFunction<Args> avx2, RowsFunction<Args> avx512, std::int64_t grain = 1>
Kernel<Args> RowsKernel(Isa isa, std::string_view contract) {
  return {ForIsa(isa, &RunRows<Args, generic, grain>, &RunRows<Args, avx2, grain>, &RunRows<Args, avx512, grain>), contract};
}

}  // namespace lockstep::kernels
