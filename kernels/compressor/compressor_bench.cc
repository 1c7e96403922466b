// Pooling and history in the models' sizes, one thread: BM_Compress/{ratio}/{rows}/{isa},
// BM_StoreHistory/{ratio}/{rows}/{isa}.
#include "kernels/compressor/compressor_cases.h"
#include "kernels/testing/bench.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  using namespace lockstep::kernels;
  for (const auto& [name, shape] : ModelCompressors()) {
    RegisterProblem<CompressProblem>("BM_Compress/" + name, Profile::kSm90,
                                     [shape = shape] { return CompressProblem(shape); });
    RegisterProblem<StoreHistoryProblem>("BM_StoreHistory/" + name, Profile::kSm90,
                                         [shape = shape] { return StoreHistoryProblem(shape); });
  }
  return RunBenchmarks(argc, argv);
}
