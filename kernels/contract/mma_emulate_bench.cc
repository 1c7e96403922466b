// Products a second and core of the emulated tensor core, beside a plain fp32 fma loop over the same operands
// (profile fma). K = 512, four rows against 16 columns unless the name says otherwise, cache resident.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/contract/mma_emulate.h"
#include "kernels/contract/mma_emulate_probe.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLength = 512;

std::vector<std::uint16_t> RandomHalves(std::size_t n) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> values;
  for (std::size_t i = 0; i < n; ++i) {
    values.push_back(FloatToF16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500.0f));
  }
  return values;
}

void RunEmulate(benchmark::State& state, Isa isa, Profile profile, int rows) {
  const std::vector<std::uint16_t> bits = RandomHalves(16 * kLength);
  std::vector<float> values_a(kLength), values_b(16 * kLength), c(64);
  std::vector<std::int32_t> exponents_a(kLength / 2), exponents_b(8 * kLength);
  contract::DecodeMmaRow(MmaFormat::kF16, bits.data(), kLength, values_a.data(), exponents_a.data());
  contract::DecodeMmaPanel(MmaFormat::kF16, bits.data(), kLength, values_b.data(), exponents_b.data());
  MmaEmulateCall call{};
  call.profile = profile;
  call.rows = rows;
  call.k = kLength;
  for (int r = 0; r < rows; ++r) {
    call.values_a[r] = values_a.data();
    call.exponents_a[r] = exponents_a.data();
  }
  call.values_b = values_b.data();
  call.exponents_b = exponents_b.data();
  call.c = c.data();
  const auto accumulate = ForIsa(isa, mma_emulate_probe::generic::Accumulate,
                                 mma_emulate_probe::avx2::Accumulate, mma_emulate_probe::avx512::Accumulate);
  for (auto _ : state) {
    std::fill(c.begin(), c.end(), 0.0f);
    accumulate(call);
    benchmark::DoNotOptimize(c.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 16 * rows * kLength);
}

void RunDecodePanel(benchmark::State& state, Isa isa) {
  const std::vector<std::uint16_t> bits = RandomHalves(16 * kLength);
  std::vector<float> values(16 * kLength);
  std::vector<std::int32_t> exponents(8 * kLength);
  const auto decode = ForIsa(isa, mma_emulate_probe::generic::DecodePanel, mma_emulate_probe::avx2::DecodePanel,
                             mma_emulate_probe::avx512::DecodePanel);
  for (auto _ : state) {
    decode(MmaFormat::kF16, bits.data(), kLength, values.data(), exponents.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 16 * kLength);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (Isa isa : SupportedIsas()) {
    const std::string isa_name(NameOf(isa));
    for (Profile profile : kAllProfiles) {
      const std::string name = "BM_MmaEmulate/" + std::string(NameOf(profile)) + "/" + isa_name;
      benchmark::RegisterBenchmark(name.c_str(), RunEmulate, isa, profile, 4);
    }
    benchmark::RegisterBenchmark(("BM_MmaEmulate/sm90/one_row/" + isa_name).c_str(), RunEmulate, isa,
                                 Profile::kSm90, 1);
    benchmark::RegisterBenchmark(("BM_MmaDecodePanel/" + isa_name).c_str(), RunDecodePanel, isa);
  }
  return true;
}();

}  // namespace
}  // namespace lockstep
