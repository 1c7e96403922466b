// Benchmarks over the problems of a kernel folder: named NAME/.../ISA, each compared with the generic build
// before it is timed, each with bytes, products and items a second and the fraction of the floor that it
// reaches (1: as fast as the machine reads the bytes and multiplies).
#pragma once

#include <benchmark/benchmark.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "kernels/testing/implementations.h"
#include "kernels/testing/limits.h"
#include "kernels/testing/problem.h"

namespace lockstep::kernels {

// How a benchmark's time is taken. CPU time is steadier on a shared machine, but does not see the threads'
// waits.
enum class TimedBy { kCpuTime, kRealTime, kDeviceTime };

inline double SecondsOf(TimedBy by) {
  timespec now;
  clock_gettime(by == TimedBy::kCpuTime ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Registers NAME so that Google Benchmark's time is the same as SecondsOf's.
template <typename Callable>
benchmark::internal::Benchmark* RegisterTimed(const std::string& name, TimedBy by, Callable run) {
  benchmark::internal::Benchmark* registered = benchmark::RegisterBenchmark(name.c_str(), run);
  if (by == TimedBy::kRealTime) registered->UseRealTime();
  if (by == TimedBy::kDeviceTime) registered->UseManualTime();
  return registered;
}

// Times `call(i)`, i = 0, 1, ..., each of which does `work`. A device's calls are enqueued in runs, so that a
// launch does not count as the kernel.
template <typename Callable>
void TimeCalls(benchmark::State& state, const Implementation& implementation, TimedBy by, const Work& work,
               Callable call) {
  const int run = by == TimedBy::kDeviceTime ? 20 : 1;
  double seconds = 0;
  std::int64_t number = 0;
  const double begin = SecondsOf(by);
  for (auto _ : state) {
    const double run_begin = run > 1 ? SecondsOf(by) : 0;
    for (int i = 0; i < run; ++i) call(number++);
    benchmark::ClobberMemory();
    if (run == 1) continue;
    implementation.Synchronize();
    const double each = (SecondsOf(by) - run_begin) / run;
    state.SetIterationTime(each);
    seconds += each;
  }
  if (run == 1) seconds = SecondsOf(by) - begin;
  const auto iterations = static_cast<double>(state.iterations());
  const auto rate = [&](double each) { return benchmark::Counter(each * iterations, benchmark::Counter::kIsRate); };
  state.counters["bytes/s"] = rate(work.bytes);
  state.counters["products/s"] = rate(work.products);
  state.counters["items/s"] = rate(work.items);
  state.counters["of_floor"] = FloorSeconds(implementation, work) * iterations / seconds;
}

// The problem that is being timed, with what it must give. Only the last one stays in memory.
template <typename Problem>
struct Prepared {
  Problem problem;
  typename Problem::Output expected;
};

template <typename Problem>
const Prepared<Problem>& PreparedFor(const std::string& name, const std::function<Problem()>& make,
                                     Profile profile) {
  static std::string last;
  static std::unique_ptr<Prepared<Problem>> prepared;
  if (last != name) {
    prepared.reset();
    Problem problem = make();
    typename Problem::Output expected = RunOn(Implementation(Isa::kGeneric, profile, 1), problem);
    prepared.reset(new Prepared<Problem>{std::move(problem), std::move(expected)});
    last = name;
  }
  return *prepared;
}

// Registers NAME/ISA for every implementation, with one thread. `make` is called when the first of them runs.
template <typename Problem>
void RegisterProblem(const std::string& name, Profile profile, std::function<Problem()> make) {
  for (const Implementation& implementation : Implementations(profile)) {
    const std::string full_name = name + "/" + implementation.name();
    const TimedBy by = implementation.device() ? TimedBy::kDeviceTime : TimedBy::kCpuTime;
    RegisterTimed(full_name, by, [=](benchmark::State& state) {
      const auto& [problem, expected] = PreparedFor(name, make, profile);
      if (!SameBytes(RunOn(implementation, problem), expected)) {
        std::fprintf(stderr, "%s differs from the generic build\n", full_name.c_str());
        std::abort();
      }
      typename Problem::Output output = problem.Start();
      CallMemory memory(implementation);
      const auto args = problem.Place(memory, output);
      const auto& kernel = implementation.kernels().*Problem::kKernel;
      TimeCalls(state, implementation, by, problem.work(),
                [&](std::int64_t) { kernel(implementation.stream(), args); });
    });
  }
}

inline int RunBenchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace lockstep::kernels
