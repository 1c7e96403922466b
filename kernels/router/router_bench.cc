// The router in V4.1's sizes, one thread: BM_RouterTopK/{rows}/{isa}.
#include "kernels/router/router_cases.h"
#include "kernels/testing/bench.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  using namespace lockstep::kernels;
  for (const auto& [rows, shape] : ModelRouters()) {
    RegisterProblem<RouterProblem>("BM_RouterTopK/" + rows, Profile::kSm90,
                                   [shape = shape] { return RouterProblem(shape); });
  }
  return RunBenchmarks(argc, argv);
}
