// Elements a second of the elementary functions, by build; an L1-resident array.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/contract/exact_math_batch.h"

namespace lockstep {
namespace {

void RunFunction(benchmark::State& state, Isa isa, Elementary f) {
  std::vector<float> in(1024), out(1024);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.01f + 0.02f * static_cast<float>(i);
  for (auto _ : state) {
    ElementaryBatch(isa, f, in.data(), out.data(), in.size());
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(in.size()));
}

[[maybe_unused]] const bool kRegistered = [] {
  for (Isa isa : SupportedIsas()) {
    for (const ElementaryInfo& f : kElementaryFunctions) {
      const std::string name = "BM_ExactMath/" + std::string(f.name) + "/" + std::string(NameOf(isa));
      benchmark::RegisterBenchmark(name.c_str(), RunFunction, isa, f.id);
    }
  }
  return true;
}();

}  // namespace
}  // namespace lockstep
