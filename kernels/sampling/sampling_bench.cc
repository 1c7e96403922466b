// Drawing from a vocabulary of V4's size, one thread: BM_Sample/{way}/{isa}.
#include "kernels/sampling/sampling_cases.h"
#include "kernels/testing/bench.h"
#include "kernels/testing/inputs.h"

namespace lockstep::kernels {
namespace {

struct SampleProblem {
  using Output = std::tuple<std::vector<std::int32_t>>;
  static constexpr auto kKernel = &KernelTable::sample;
  static constexpr std::int64_t kVocab = 129280;
  std::vector<SamplingRow> row_T;
  std::vector<float> logits_TV = ModelLogits(kVocab, 1);

  explicit SampleProblem(SamplingRow way) : row_T{way} { row_T[0].draw = std::uint64_t{1} << 52; }
  Output Start() const { return UnwrittenInt(1); }
  SampleArgs Place(CallMemory& memory, Output& y) const {
    return {.logits_TV = memory.In(logits_TV), .rows = 1, .vocab = kVocab, .row_T = memory.In(row_T), .out_T = memory.InOut(std::get<0>(y))};
  }
  Work work() const { return {.bytes = 4.0 * static_cast<double>(kVocab), .items = 1.0}; }
};

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  using namespace lockstep;
  using namespace lockstep::kernels;
  for (const auto& [name, way] : SamplingWays()) {
    RegisterProblem<SampleProblem>("BM_Sample/" + name, Profile::kSm90, [way = way] { return SampleProblem(way); });
  }
  return RunBenchmarks(argc, argv);
}
