// Row operations in V4.1's sizes, one thread.
//   elementwise_bench --benchmark_filter=BM_Mhc
#include <vector>

#include "kernels/elementwise/elementwise_cases.h"
#include "kernels/testing/bench.h"

namespace lockstep::kernels {
namespace {

template <typename Problem, typename Case>
void Register(const std::string& name, const Case& shape) {
  RegisterProblem<Problem>(name, Profile::kSm90, [=] { return Problem(shape); });
}

void RegisterAll() {
  const std::vector<float> cos_sin(64 * 100, 0.7f);  // any angles
  for (const auto& [rows, shape] : ModelStreams()) {
    Register<EmbedProblem>("BM_Embed/" + rows, shape);
    Register<RmsNormProblem>("BM_RmsNorm/" + rows, RmsNormCase{.rows = shape.rows, .n = shape.hidden});
    const RopeCase rope = {.rows = shape.rows, .heads = 64, .width = 512, .rope_dim = 64};
    RegisterProblem<RopeProblem>("BM_Rope/" + rows, Profile::kSm90, [=] { return RopeProblem(rope, cos_sin); });
    Register<HcMixProblem>("BM_Mhc/mix/" + rows, HcMixCase{shape});
    Register<HcCollapseNormProblem>("BM_Mhc/collapse/" + rows, shape);
    Register<HcExpandProblem>("BM_Mhc/expand/" + rows, shape);
    Register<CombineProblem>("BM_Combine/" + rows,
                             CombineCase{.rows = shape.rows, .top_k = 6, .hidden = shape.hidden});
    Register<EngramGateProblem>("BM_EngramGate/" + rows, shape);
  }
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  return lockstep::kernels::RunBenchmarks(argc, argv);
}
