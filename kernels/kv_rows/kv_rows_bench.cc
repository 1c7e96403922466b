// Packing and widening 64 rows of each of the models' formats, one thread: BM_PackRows/{format}/{isa},
// BM_UnpackRows/{format}/{isa}.
#include "kernels/kv_rows/kv_rows_cases.h"
#include "kernels/testing/bench.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  using namespace lockstep::kernels;
  for (const auto& [name, format] : ModelFormats()) {
    const RowsCase rows = {.format = format, .rows = 64, .page_shift = 4};
    RegisterProblem<PackProblem>("BM_PackRows/" + name, Profile::kSm90, [rows] { return PackProblem(rows); });
    RegisterProblem<UnpackProblem>("BM_UnpackRows/" + name, Profile::kSm90,
                                   [rows] { return UnpackProblem(rows); });
  }
  return RunBenchmarks(argc, argv);
}
