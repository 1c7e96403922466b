// Index scores with the choice of the best 512, one thread: BM_IndexScore/{rows}/{N}/{isa},
// BM_CandidateBlocks/{N}/{isa} (the candidate source), BM_RestrictedScore/{N}/{isa} (the sources after it), and
// the choice alone, BM_Top512Ref/{N}.
#include <vector>

#include "kernels/index_select/index_select_cases.h"
#include "kernels/index_select/top_k.h"
#include "kernels/testing/bench.h"

namespace lockstep::kernels {
namespace {

void Register(const std::string& name, const IndexCase& shape) {
  RegisterProblem<IndexProblem>(name, Profile::kSm90, [shape] { return IndexProblem(shape); });
}

void Top512(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const std::vector<float> scores = Inputs(1).F32(n, Recipe::kNormal);
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(n));
  std::int32_t out[512];
  const Work work = {.bytes = 4.0 * static_cast<double>(n), .items = static_cast<double>(n)};
  TimeCalls(state, Implementation(BestIsa(), Profile::kSm90, 1), TimedBy::kCpuTime, work, [&](std::int64_t) {
    benchmark::DoNotOptimize(SelectBest(scores.data(), nullptr, n, 512, keys.data(), out));
  });
}

void RegisterAll() {
  for (const auto& [name, shape] : ModelIndexers()) Register("BM_IndexScore/" + name, shape);
  for (const std::int64_t n : {16384, 65536}) {
    const std::string visible = std::to_string(n);
    Register("BM_IndexScore/1/" + visible, V41Index(1, n));
    Register("BM_CandidateBlocks/" + visible, V41Candidates(n, true));
    Register("BM_RestrictedScore/" + visible, V41Candidates(n, false));
  }
  benchmark::RegisterBenchmark("BM_Top512Ref", Top512)->Arg(4096)->Arg(65536)->Arg(262144);
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  return lockstep::kernels::RunBenchmarks(argc, argv);
}
