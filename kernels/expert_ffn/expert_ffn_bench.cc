// Weights a second of CPU experts: decode steps of one token and batches of more, V4.1's sizes, one thread.
// Each call takes other experts, so that weights come from memory. A first call is compared with the generic
// build, which the test compares with the reference.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/expert_ffn/expert_ffn_cases.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

constexpr std::int64_t kHidden = 5120, kFeatures = 2304;
constexpr std::size_t kExperts = 12;
constexpr std::int64_t kExpertsOfToken = 6;

struct Form {
  const char* name;
  Codebook codebook;
  Profile profile;
};
constexpr Form kForms[] = {{"mul1", Codebook::kMul1, Profile::kSm90},
                           {"mcg/fma", Codebook::kMcg, Profile::kFma}};

const ExpertProblem& ProblemOf(const Form& form, std::int64_t rows) {
  static std::string made;
  static std::unique_ptr<ExpertProblem> problem;
  const std::string name = std::string(form.name).append("/") + std::to_string(rows);
  if (made != name) {
    problem.reset();
    const LinearCase weight = {.kind = Kind::kExl3, .bits_x2 = 6, .codebook = form.codebook};
    problem = std::make_unique<ExpertProblem>(
        ExpertCase{.experts = std::vector<ExpertForm>(kExperts, {weight, weight, weight}),
                   .rows = std::vector<std::int64_t>(kExperts, rows),
                   .tokens = rows,
                   .hidden = kHidden,
                   .features = kFeatures});
    made = name;
  }
  return *problem;
}

// The first or second half of the experts.
ExpertFfnArgs HalfOf(ExpertFfnArgs args, bool second) {
  args.num_jobs = kExpertsOfToken;
  if (second) args.jobs += kExpertsOfToken;
  return args;
}

void RunExperts(benchmark::State& state, const Form& form, Isa isa, std::int64_t rows) {
  const ExpertProblem& problem = ProblemOf(form, rows);
  const std::size_t size = static_cast<std::size_t>(problem.pairs() * kHidden);
  const Implementation generic(Isa::kGeneric, form.profile, 1), implementation(isa, form.profile, 1);
  CallMemory memory(implementation);
  std::vector<ExpertJob> jobs;
  std::vector<std::uint16_t> y(size), expected(size);
  std::int32_t overflow = 0;
  ExpertFfnArgs args = problem.Place(memory, jobs);
  args.overflow = &overflow;
  args.y = expected.data();
  generic.kernels().expert_ffn(generic.stream(), HalfOf(args, false));
  args.y = y.data();
  implementation.kernels().expert_ffn(implementation.stream(), HalfOf(args, false));
  if (y != expected) {
    std::fprintf(stderr, "%s differs from the generic build\n", form.name);
    std::abort();
  }
  bool second = false;
  for (auto _ : state) {
    implementation.kernels().expert_ffn(implementation.stream(), HalfOf(args, second));
    second = !second;
    benchmark::ClobberMemory();
  }
  const double weights =
      static_cast<double>(kExpertsOfToken * 3 * kHidden * kFeatures) * static_cast<double>(state.iterations());
  state.counters["Gweights/s"] = benchmark::Counter(weights * 1e-9, benchmark::Counter::kIsRate);
  state.counters["Gproducts/s"] =
      benchmark::Counter(weights * static_cast<double>(rows) * 1e-9, benchmark::Counter::kIsRate);
}

void RegisterAll() {
  for (const Form& form : kForms) {
    for (const std::int64_t rows : {1, 4, 16}) {
      for (const Isa isa : SupportedIsas()) {
        if (isa == Isa::kGeneric) continue;
        const std::string name =
            std::string(NameOf(isa)).append("/").append(form.name).append("/rows") + std::to_string(rows);
        benchmark::RegisterBenchmark(name.c_str(), [&form, isa, rows](benchmark::State& state) {
          RunExperts(state, form, isa, rows);
        })->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
