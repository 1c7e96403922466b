// Experts in V4.1's sizes. BM_ExpertFull/{codebook}/{threads}/{isa}: the six experts of one token;
// BM_MoeGemv/{codebook}/{K}/{experts}/{isa} and BM_MoeGrouped/{codebook}/{K}/{rows}/{isa} (six experts; 24 on
// the device, which alone has the large ones): one and more rows for each. Half of the experts take turns, so
// that weights come from memory. The rows of the first expert are compared before anything is timed: with the
// generic build or, many, with the fastest.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/expert_ffn/expert_ffn_cases.h"
#include "kernels/testing/bench.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kHidden = 5120, kFeatures = 2304;

struct BenchCase {
  std::string name;
  Codebook codebook = Codebook::kMul1;
  Profile profile = Profile::kSm90;
  int bits_x2 = 6;
  std::int64_t experts = 6, rows = 1;
  int threads = 1;
  bool device_only = false;
};

std::string FormName(const BenchCase& c) {
  return std::string(NameOf(c.codebook)) + (c.profile == Profile::kFma ? "_fma" : "");
}
std::string Bits(const BenchCase& c) { return std::to_string(c.bits_x2 / 2); }

std::vector<BenchCase> Cases() {
  std::vector<BenchCase> cases;
  const BenchCase forms[] = {{.codebook = Codebook::kMul1},
                             {.codebook = Codebook::kMcg},
                             {.codebook = Codebook::kMcg, .profile = Profile::kFma}};
  for (const BenchCase& form : forms) {
    BenchCase c = form;
    for (const int threads : {1, 2}) {
      c.threads = threads;
      c.name = "BM_ExpertFull/" + FormName(c) + "/" + std::to_string(threads);
      cases.push_back(c);
    }
    c.threads = 1;
    for (const std::int64_t rows : {4, 16}) {
      c.rows = rows;
      c.name = "BM_MoeGrouped/" + FormName(c) + "/" + Bits(c) + "/" + std::to_string(rows);
      cases.push_back(c);
    }
    if (form.profile == Profile::kFma) continue;
    c = form;
    c.device_only = true;
    for (const int bits_x2 : {4, 6, 10}) {
      c.bits_x2 = bits_x2;
      for (const std::int64_t experts : {6, 7, 24}) {
        c.experts = experts;
        c.name = "BM_MoeGemv/" + FormName(c) + "/" + Bits(c) + "/" + std::to_string(experts);
        cases.push_back(c);
      }
    }
    c.bits_x2 = 6;
    for (const std::int64_t rows : {8, 32, 64, 128, 256}) {
      c.rows = rows;
      c.name = "BM_MoeGrouped/" + FormName(c) + "/" + Bits(c) + "/" + std::to_string(rows);
      cases.push_back(c);
    }
  }
  return cases;
}

// Twice the experts of a call.
ExpertCase ShapeOf(const BenchCase& c) {
  const LinearCase weight = {.kind = LinearSpec::Kind::kExl3, .bits_x2 = c.bits_x2, .codebook = c.codebook};
  const auto experts = static_cast<std::size_t>(2 * c.experts);
  return {.experts = std::vector<ExpertForm>(experts, {weight, weight, weight}),
          .rows = std::vector<std::int64_t>(experts, c.rows),
          .tokens = c.rows,
          .hidden = kHidden,
          .features = kFeatures,
          .numerics = {.profile = c.profile}};
}

// What the first expert gives; other rows are as they were.
std::vector<std::uint16_t> RunFirst(const Implementation& implementation, const ExpertProblem& problem) {
  std::vector<std::uint16_t> y = UnwrittenBF16(problem.pairs() * kHidden);
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  std::vector<ExpertJob> jobs;
  ExpertFfnArgs args = problem.Place(memory, jobs);
  args.num_jobs = 1;
  args.y = memory.InOut(y);
  args.overflow = memory.InOut(overflow);
  implementation.kernels().expert_ffn(implementation.stream(), args);
  memory.Finish();
  return y;
}

struct PreparedExperts {
  ExpertProblem problem;
  std::vector<std::uint16_t> expected;  // RunFirst

  explicit PreparedExperts(const BenchCase& c) : problem(ShapeOf(c)) {
    const bool few = c.rows <= 16;
    expected = RunFirst(
        few ? Implementation(Isa::kGeneric, c.profile, 1)
            : Implementation(BestIsa(), c.profile, static_cast<int>(std::thread::hardware_concurrency())),
        problem);
  }
};

// The last case made; benchmarks of one case follow one another.
const PreparedExperts& PreparedFor(const BenchCase& c) {
  static std::string name;
  static std::unique_ptr<PreparedExperts> prepared;
  if (name != c.name) {
    prepared.reset();
    prepared = std::make_unique<PreparedExperts>(c);
    name = c.name;
  }
  return *prepared;
}

void RunExperts(benchmark::State& state, const BenchCase& c, const Implementation& implementation, TimedBy by) {
  const PreparedExperts& prepared = PreparedFor(c);
  if (RunFirst(implementation, prepared.problem) != prepared.expected) {
    std::fprintf(stderr, "%s on %s differs\n", c.name.c_str(), implementation.name().c_str());
    std::abort();
  }
  std::vector<std::uint16_t> y = UnwrittenBF16(prepared.problem.pairs() * kHidden);
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  std::vector<ExpertJob> jobs;
  ExpertFfnArgs args = prepared.problem.Place(memory, jobs);
  args.num_jobs = c.experts;
  args.y = memory.InOut(y);
  args.overflow = memory.InOut(overflow);
  const auto weights = static_cast<double>(c.experts * 3 * kHidden * kFeatures);
  // As in linear_bench: an instruction of the CPU makes four products of int8 codes.
  const double together = c.codebook == Codebook::kMul1 && !implementation.device() ? 4 : 1;
  const Work work = {.bytes = static_cast<double>(prepared.problem.packed_bytes()) / 2,
                     .footprint = static_cast<double>(prepared.problem.packed_bytes()),
                     .products = weights * static_cast<double>(c.rows) / together / c.threads,
                     .items = weights};
  TimeCalls(state, implementation, by, work, [&](std::int64_t i) {
    args.jobs = jobs.data() + i % 2 * c.experts;
    implementation.kernels().expert_ffn(implementation.stream(), args);
  });
}

void RegisterAll() {
  static const std::vector<BenchCase> cases = Cases();
  for (const BenchCase& c : cases) {
    for (const Implementation& implementation :
         c.device_only ? DeviceImplementations() : Implementations(c.profile, c.threads)) {
      if (implementation.device() && c.threads > 1) continue;
      if (implementation.name() == NameOf(Isa::kGeneric) && c.rows > 4) continue;  // minutes
      const TimedBy by = implementation.device() ? TimedBy::kDeviceTime
                         : c.threads > 1         ? TimedBy::kRealTime
                                                 : TimedBy::kCpuTime;
      RegisterTimed(
          c.name + "/" + implementation.name(), by,
          [&c, implementation, by](benchmark::State& state) { RunExperts(state, c, implementation, by); })
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  return lockstep::kernels::RunBenchmarks(argc, argv);
}
