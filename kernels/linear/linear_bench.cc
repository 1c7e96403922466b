// Weights a second and thread of CPU linears, beside what reading the same bytes costs. Each call takes another
// copy of the matrix, so that weights come from memory, as those of a model do. The first row of every result
// is compared with the reference before anything is timed.
//   linear_bench --benchmark_filter='read|avx512/mul1'
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cases.h"
#include "reference/linear.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

// The expert matrix of V4.1: larger than any L2.
constexpr std::int64_t kOut = 2304, kIn = 5120;
constexpr std::int64_t kMaxRows = 64;
constexpr std::int64_t kCopiedBytes = std::int64_t{128} << 20;  // of all copies: larger than any L3

struct BenchCase {
  std::string name;
  LinearCase weight;
  NumericsOptions numerics;
  std::vector<std::int64_t> rows;
};

std::vector<BenchCase> Cases() {
  std::vector<BenchCase> cases;
  const auto add = [&](std::string name, LinearCase weight, NumericsOptions numerics,
                       std::vector<std::int64_t> rows) {
    weight.out = kOut;
    weight.in = kIn;
    cases.push_back({std::move(name), weight, numerics, std::move(rows)});
  };
  const std::vector<std::int64_t> few = {1, 8}, many = {1, 2, 4, 8, 16, 64};
  for (const int bits_x2 : {4, 5, 6, 7, 8, 10, 12, 16}) {
    const std::string bits = std::to_string(bits_x2 / 2) + (bits_x2 % 2 ? ".5" : "");
    const LinearCase weight = {.kind = Kind::kExl3, .bits_x2 = bits_x2};
    add("mul1/int8/K" + bits, weight, {.act_quant = ActQuant::kInt8}, bits_x2 == 6 ? many : few);
    add("mul1/int16/K" + bits, weight, {.act_quant = ActQuant::kInt16}, few);
  }
  for (const Codebook codebook : {Codebook::kMcg, Codebook::k3inst, Codebook::kMul1}) {
    const LinearCase weight = {.kind = Kind::kExl3, .bits_x2 = 6, .codebook = codebook};
    const std::string name(NameOf(codebook));
    add(name + "/fma/K3", weight, {.profile = Profile::kFma, .act_quant = ActQuant::kNone}, many);
    if (codebook == Codebook::kMcg) add(name + "/sm90/K3", weight, {.profile = Profile::kSm90}, few);
  }
  for (const Profile profile : {Profile::kFma, Profile::kSm90}) {
    const std::string suffix = std::string("/").append(NameOf(profile));
    add("bf16" + suffix, {.kind = Kind::kBF16}, {.profile = profile}, few);
    add("fp8" + suffix, {.kind = Kind::kFp8Block}, {.profile = profile}, few);
    add("fp4" + suffix, {.kind = Kind::kFp4Row}, {.profile = profile}, few);
  }
  add("f32", {.kind = Kind::kF32}, {}, few);
  return cases;
}

struct Prepared {
  TestLinear linear;
  LinearSpec spec;
  std::vector<std::byte> blobs;  // copies of the blob, one after the other
  std::int64_t copies = 0;
  std::vector<std::uint16_t> x;
  reference::Matrix<float> expected_TN;  // row 0
};

Prepared Prepare(const BenchCase& c) {
  Prepared p;
  LinearMaker maker(1);
  p.linear = maker.Make(c.weight);
  p.spec = MakeLinearSpec(p.linear.weight, c.numerics, 32);
  p.copies = kCopiedBytes / p.spec.bytes + 1;
  p.blobs.resize(static_cast<std::size_t>(p.copies * p.spec.bytes));
  for (std::int64_t i = 0; i < p.copies; ++i)
    PackLinear(p.linear.weight, p.spec, p.blobs.data() + i * p.spec.bytes);
  p.x = maker.InputRows(kMaxRows, kIn, Recipe::kNormal);
  reference::Matrix<float> x_TK(1, kIn);
  for (std::int64_t k = 0; k < kIn; ++k) x_TK(0, k) = BF16ToFloat(p.x[static_cast<std::size_t>(k)]);
  reference::LinearEngine<reference::Contract> engine({.numerics = c.numerics}, 32);
  p.expected_TN = engine.Apply(p.linear.weight, x_TK, reference::LinearOutput::kFp32);
  return p;
}

// The last case made; benchmarks of one case follow one another.
const Prepared& PreparedFor(const BenchCase& c) {
  static std::string name;
  static std::unique_ptr<Prepared> prepared;
  if (name != c.name) {
    prepared.reset();
    prepared = std::make_unique<Prepared>(Prepare(c));
    name = c.name;
  }
  return *prepared;
}

void RunLinear(benchmark::State& state, const BenchCase& c, Isa isa, std::int64_t rows) {
  const Prepared& p = PreparedFor(c);
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(1);
  std::vector<float> y(static_cast<std::size_t>(rows * kOut));
  std::int32_t overflow = 0;
  LinearArgs args = {.spec = &p.spec,
                     .blob = p.blobs.data(),
                     .x = p.x.data(),
                     .x_stride = kIn,
                     .rows = rows,
                     .y_fp32 = y.data(),
                     .y_stride = kOut,
                     .overflow = &overflow};
  const Kernel<LinearArgs> kernel = CpuLinear(isa, c.numerics.profile);
  kernel(*stream, args);
  if (std::memcmp(y.data(), p.expected_TN.data(), static_cast<std::size_t>(kOut) * sizeof(float)) != 0) {
    std::fprintf(stderr, "%s differs from the reference\n", c.name.c_str());
    std::abort();
  }
  std::int64_t copy = 0;
  for (auto _ : state) {
    args.blob = p.blobs.data() + copy * p.spec.bytes;
    copy = (copy + 1) % p.copies;
    kernel(*stream, args);
    benchmark::ClobberMemory();
  }
  const double weights = static_cast<double>(kOut * kIn) * static_cast<double>(state.iterations());
  state.counters["Gweights/s"] = benchmark::Counter(weights * 1e-9, benchmark::Counter::kIsRate);
  state.counters["Gproducts/s"] =
      benchmark::Counter(weights * static_cast<double>(rows) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["packed_GB/s"] =
      benchmark::Counter(static_cast<double>(p.spec.bytes) * static_cast<double>(state.iterations()) * 1e-9,
                         benchmark::Counter::kIsRate);
}

// The floor of a row: reading a packed K=3 matrix.
void ReadBlob(benchmark::State& state) {
  constexpr std::size_t kBytes = kOut * kIn * 3 / 8, kWords = kBytes / 8, kCopies = kCopiedBytes / kBytes + 1;
  const std::vector<std::uint64_t> blobs(kCopies * kWords, 1);
  std::size_t copy = 0;
  for (auto _ : state) {
    const std::uint64_t* blob = blobs.data() + copy * kWords;
    copy = (copy + 1) % kCopies;
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i + 8 <= kWords; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) sum[lane] += blob[i + lane];
    }
    for (std::uint64_t& lane : sum) benchmark::DoNotOptimize(lane);
  }
  state.counters["packed_GB/s"] =
      benchmark::Counter(static_cast<double>(kBytes) * static_cast<double>(state.iterations()) * 1e-9,
                         benchmark::Counter::kIsRate);
}

}  // namespace

void RegisterLinearBenches() {
  static const std::vector<BenchCase> cases = Cases();
  benchmark::RegisterBenchmark("read", ReadBlob);
  for (const BenchCase& c : cases) {
    for (const Isa isa : SupportedIsas()) {
      for (const std::int64_t rows : c.rows) {
        const std::string name = std::string(NameOf(isa)).append("/") + c.name + "/rows" + std::to_string(rows);
        benchmark::RegisterBenchmark(name.c_str(), [&c, isa, rows](benchmark::State& state) {
          RunLinear(state, c, isa, rows);
        })->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterLinearBenches();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
