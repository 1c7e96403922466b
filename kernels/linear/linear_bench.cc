// Linears of V4.1's expert matrix, one thread: BM_TrellisGemv/{codebook}/{K}/{isa},
// BM_TrellisGemm/{codebook}/{K}/{rows}/{isa}, BM_DenseGemv/{form}/{isa}, BM_DenseGemm/{form}/{rows}/{isa},
// BM_Hadamard128/{isa}; BM_HostRead/{threads} is what reading the same bytes costs. Each call takes another
// copy of the matrix, so that weights come from memory, as those of a model do. The first row of every result
// is compared with the reference before anything is timed. Decoding has no part in of_floor: a trellis linear
// at one row cannot come near 1.
//   linear_bench --benchmark_filter='Read|TrellisGem./mul1/3/'
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/linear/hadamard_probe.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cases.h"
#include "kernels/testing/bench.h"
#include "reference/linear.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

// The expert matrix of V4.1: larger than any L2.
constexpr std::int64_t kOut = 2304, kIn = 5120;
constexpr std::int64_t kMaxRows = 64;
constexpr std::int64_t kCopiedBytes = std::int64_t{128} << 20;  // of all copies: larger than any L3

struct BenchCase {
  std::string name;  // behind Gemv or Gemm, before the rows
  LinearCase weight;
  NumericsOptions numerics;
  std::vector<std::int64_t> rows;

  bool trellis() const { return weight.kind == Kind::kExl3; }
  std::string FullName(std::int64_t row_count) const {
    const std::string family = trellis() ? "BM_Trellis" : "BM_Dense";
    return family + (row_count == 1 ? "Gemv/" + name : "Gemm/" + name + "/" + std::to_string(row_count));
  }
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
    add("mul1/" + bits, weight, {.act_quant = ActQuant::kInt8}, bits_x2 == 6 ? many : few);
    add("mul1_int16/" + bits, weight, {.act_quant = ActQuant::kInt16}, few);
  }
  for (const Codebook codebook : {Codebook::kMcg, Codebook::k3inst, Codebook::kMul1}) {
    const LinearCase weight = {.kind = Kind::kExl3, .bits_x2 = 6, .codebook = codebook};
    const std::string name(NameOf(codebook));
    add(name + "_fma/3", weight, {.profile = Profile::kFma, .act_quant = ActQuant::kNone}, many);
    if (codebook == Codebook::kMcg) add(name + "/3", weight, {.profile = Profile::kSm90}, few);
  }
  for (const Profile profile : {Profile::kFma, Profile::kSm90}) {
    const std::string suffix = profile == Profile::kFma ? "_fma" : "";
    add("bf16" + suffix, {.kind = Kind::kBF16}, {.profile = profile}, few);
    add("fp8" + suffix, {.kind = Kind::kFp8Block}, {.profile = profile}, few);
    add("fp4" + suffix, {.kind = Kind::kFp4Row}, {.profile = profile}, few);
  }
  add("f32", {.kind = Kind::kF32}, {}, few);
  return cases;
}

struct PreparedLinear {
  TestLinear linear;
  LinearSpec spec;
  std::vector<std::byte> blobs;  // copies of the blob, one after the other
  std::int64_t copies = 0;
  std::vector<std::uint16_t> x;
  reference::Matrix<float> expected_TN;  // row 0
};

PreparedLinear Prepare(const BenchCase& c) {
  PreparedLinear p;
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
const PreparedLinear& PreparedFor(const BenchCase& c) {
  static std::string name;
  static std::unique_ptr<PreparedLinear> prepared;
  if (name != c.name) {
    prepared.reset();
    prepared = std::make_unique<PreparedLinear>(Prepare(c));
    name = c.name;
  }
  return *prepared;
}

// On the CPU an instruction makes four products of int8 codes, or two of int16, where it makes one of fp32.
Work WorkOf(const BenchCase& c, const PreparedLinear& p, const Implementation& implementation,
            std::int64_t rows) {
  const auto weights = static_cast<double>(kOut * kIn);
  const bool integer = c.trellis() && p.spec.act_limit > 0 && !implementation.device();
  const double together = !integer ? 1 : p.spec.act_limit > 127 ? 2 : 4;
  return {.bytes = static_cast<double>(p.spec.bytes + rows * (2 * kIn + 4 * kOut)),
          .footprint = static_cast<double>(p.blobs.size()),
          .products = weights * static_cast<double>(rows) / together,
          .items = weights};
}

void RunLinear(benchmark::State& state, const BenchCase& c, const Implementation& implementation, TimedBy by,
               std::int64_t rows) {
  const PreparedLinear& p = PreparedFor(c);
  std::vector<float> y(static_cast<std::size_t>(rows * kOut));
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  const std::byte* blobs = memory.In(p.blobs);
  LinearArgs args = {.spec = &p.spec,
                     .blob = blobs,
                     .x = memory.In(p.x),
                     .x_stride = kIn,
                     .rows = rows,
                     .y_fp32 = memory.InOut(y),
                     .y_stride = kOut,
                     .overflow = memory.InOut(overflow)};
  const Kernel<LinearArgs> kernel = implementation.kernels().linear;
  kernel(implementation.stream(), args);
  memory.Finish();
  if (std::memcmp(y.data(), p.expected_TN.data(), static_cast<std::size_t>(kOut) * sizeof(float)) != 0) {
    std::fprintf(stderr, "%s differs from the reference\n", c.FullName(rows).c_str());
    std::abort();
  }
  TimeCalls(state, implementation, by, WorkOf(c, p, implementation, rows), [&](std::int64_t i) {
    args.blob = blobs + i % p.copies * p.spec.bytes;
    kernel(implementation.stream(), args);
  });
}

// The floor of a row: reading a packed K=3 matrix.
void ReadBlob(benchmark::State& state) {
  constexpr std::size_t kBytes = kOut * kIn * 3 / 8, kWords = kBytes / 8, kCopies = kCopiedBytes / kBytes + 1;
  const std::vector<std::uint64_t> blobs(kCopies * kWords, 1);
  const Work work = {.bytes = static_cast<double>(kBytes), .footprint = static_cast<double>(kCopies * kBytes), .items = 1};
  TimeCalls(state, Implementation(BestIsa(), Profile::kSm90, 1), TimedBy::kCpuTime, work, [&](std::int64_t call) {
    const std::uint64_t* blob = blobs.data() + static_cast<std::size_t>(call) % kCopies * kWords;
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i + 8 <= kWords; i += 8) {
      for (std::size_t lane = 0; lane < 8; ++lane) sum[lane] += blob[i + lane];
    }
    for (std::uint64_t& lane : sum) benchmark::DoNotOptimize(lane);
  });
}

void RunHadamard(benchmark::State& state, const Implementation& implementation) {
  constexpr std::int64_t kBlocks = kIn / 128;
  std::vector<float> x(kIn, 0.0f);
  const auto hadamard =
      ForIsa(ParseIsa(implementation.name()), generic::Hadamard128, avx2::Hadamard128, avx512::Hadamard128);
  const Work work = {.bytes = 8.0 * kIn, .products = 7.0 * kIn, .items = kBlocks};
  TimeCalls(state, implementation, TimedBy::kCpuTime, work, [&](std::int64_t) { hadamard(x.data(), kBlocks); });
}

void RegisterAll() {
  static const std::vector<BenchCase> cases = Cases();
  benchmark::RegisterBenchmark("BM_HostRead/1", ReadBlob);
  for (const Isa isa : SupportedIsas()) {
    const Implementation implementation(isa, Profile::kSm90, 1);
    RegisterTimed("BM_Hadamard128/" + implementation.name(), TimedBy::kCpuTime,
                  [=](benchmark::State& state) { RunHadamard(state, implementation); });
  }
  for (const BenchCase& c : cases) {
    for (const Implementation& implementation : Implementations(c.numerics.profile)) {
      const TimedBy by = implementation.device() ? TimedBy::kDeviceTime : TimedBy::kCpuTime;
      for (const std::int64_t rows : c.rows) {
        RegisterTimed(c.FullName(rows) + "/" + implementation.name(), by,
                      [&c, implementation, by, rows](benchmark::State& state) {
                        RunLinear(state, c, implementation, by, rows);
                      })
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  return lockstep::kernels::RunBenchmarks(argc, argv);
}
