#include "harness/invariance/configuration.h"

#include <cstddef>
#include <functional>

#include "harness/check/pairwise.h"
#include "kernels/contract/cpu_isa.h"

namespace lockstep::harness {
namespace {

using fast::CpuLane;

// A chunk at least this long takes every prompt of a check in one piece: layer-major.
constexpr std::int64_t kWholePrompt = 4096;
constexpr int kMaxThreads = 8;

// One setting: how many values it has, and how to set the i-th. The first and last values are its extremes.
struct Factor {
  int levels = 0;
  std::function<void(Configuration&, int)> set;
};

template <typename T, typename Member>
Factor Values(std::vector<T> values, Member Configuration::*member) {
  const int levels = static_cast<int>(values.size());
  return {levels, [values = std::move(values), member](Configuration& c, int i) {
            c.*member = values[static_cast<std::size_t>(i)];
          }};
}

std::vector<Factor> DeviceFactors(const kernels::DeviceSpec* device) {
  if (device != nullptr) return {{1, [spec = *device](Configuration& c, int) { c.device = spec; }}};
  const std::vector<Isa> isas = SupportedIsas();
  return {{kMaxThreads, [](Configuration& c, int i) { c.device.threads = i + 1; }},
          {static_cast<int>(isas.size()),
           [isas](Configuration& c, int i) { c.device.isa = isas[static_cast<std::size_t>(i)]; }},
          {2, [](Configuration& c, int i) {
             c.device.indices = i == 0 ? std::vector{0} : std::vector{0, 1};
           }}};
}

std::vector<Factor> Factors(const std::vector<NumericsOptions>& arithmetics,
                            const kernels::DeviceSpec* device) {
  std::vector<Factor> factors = DeviceFactors(device);
  const std::vector<Factor> others = {
      Values(arithmetics, &Configuration::numerics),
      Values(std::vector<std::int64_t>{1, 5, 16, 64, kWholePrompt}, &Configuration::chunk_rows),
      Values(std::vector<std::int64_t>{1, 7, 64}, &Configuration::attention_tile_rows),
      Values(std::vector{0, 2, 6}, &Configuration::page_shift),
      Values(std::vector<char>{false, true}, &Configuration::exact_tail),
      Values(std::vector{Placement::kNone, Placement::kChanging, Placement::kRandom, Placement::kAll},
             &Configuration::placement),
      Values(std::vector<char>{false, true}, &Configuration::zero_hit_skipping),
      Values(std::vector{CpuLane::kOff, CpuLane::kAll, CpuLane::kAuto}, &Configuration::cpu_lane),
      Values(std::vector{1, 2, 3}, &Configuration::staging_slots),
      Values(std::vector<char>{false, true}, &Configuration::graphs),
      Values(std::vector{Wanted::kAll, Wanted::kSome, Wanted::kOne}, &Configuration::wanted),
      Values(std::vector{0, 1, 3}, &Configuration::companions),
      Values(std::vector<char>{false, true}, &Configuration::cancels),
      Values(std::vector<char>{false, true}, &Configuration::forks),
  };
  factors.insert(factors.end(), others.begin(), others.end());
  return factors;
}

Configuration Decode(const std::vector<Factor>& factors, const std::vector<int>& row, std::uint64_t seed) {
  Configuration configuration;
  configuration.seed = seed;
  for (std::size_t f = 0; f < factors.size(); ++f) factors[f].set(configuration, row[f]);
  return configuration;
}

fast::Residency InitialResidency(Placement placement) {
  switch (placement) {
    case Placement::kAll:
      return fast::Residency::kAll;
    case Placement::kNone:
      return fast::Residency::kNone;
    case Placement::kRandom:
    case Placement::kChanging:
      return fast::Residency::kRandom;
  }
  return fast::Residency::kAuto;
}

std::string OnOff(bool on) { return on ? "on" : "off"; }

}  // namespace

std::string NameOf(const NumericsOptions& numerics) {
  return std::string(NameOf(numerics.profile)) + " fake-quant=" + (numerics.fake_quant ? "official" : "none") +
         " act-quant=" + std::string(NameOf(numerics.act_quant));
}

std::string Configuration::Name() const {
  constexpr const char* kPlacement[] = {"all", "none", "random", "changing"};
  constexpr const char* kLane[] = {"off", "auto", "all"};
  constexpr const char* kWanted[] = {"all", "some", "one"};
  std::string name = harness::NameOf(numerics);
  const auto add = [&name](const char* key, const std::string& value) {
    name += std::string(" ") + key + "=" + value;
  };
  add("chunk", std::to_string(chunk_rows));
  add("tile", std::to_string(attention_tile_rows));
  add("page", std::to_string(1 << page_shift));
  add("devices", std::to_string(device.count()));
  if (device.kind == kernels::DeviceSpec::Kind::kCpu) {
    add("threads", std::to_string(device.threads));
    add("isa", std::string(lockstep::NameOf(device.isa)));
  }
  add("tail", OnOff(exact_tail));
  add("experts", kPlacement[static_cast<int>(placement)]);
  add("skip", OnOff(zero_hit_skipping));
  add("lane", kLane[static_cast<int>(cpu_lane)]);
  add("slots", std::to_string(staging_slots));
  add("graphs", OnOff(graphs));
  add("rows", kWanted[static_cast<int>(wanted)]);
  add("companions", std::to_string(companions));
  add("cancels", OnOff(cancels));
  add("forks", OnOff(forks));
  return name;
}

fast::EngineOptions Configuration::Options() const {
  fast::EngineOptions options;
  options.device = device;
  options.numerics = numerics;
  options.chunk_rows = chunk_rows;
  options.attention_tile_rows = attention_tile_rows;
  options.page_shift = page_shift;
  options.exact_tail = exact_tail;
  options.zero_hit_skipping = zero_hit_skipping;
  options.residency = InitialResidency(placement);
  options.residency_seed = seed;
  options.cpu_lane = cpu_lane;
  options.staging_slots = staging_slots;
  options.poison = poison;
  options.graphs = graphs ? fast::Graphs::kOn : fast::Graphs::kOff;
  return options;
}

std::vector<Configuration> MakeMatrix(MatrixSize size, const std::vector<NumericsOptions>& arithmetics,
                                      const kernels::DeviceSpec* device) {
  const std::vector<Factor> factors = Factors(arithmetics, device);
  // The first and last values, all of one kind and alternating.
  std::vector<int> levels;
  std::vector<std::vector<int>> extremes(4);
  for (std::size_t f = 0; f < factors.size(); ++f) {
    const int last = factors[f].levels - 1;
    levels.push_back(factors[f].levels);
    for (std::size_t e = 0; e < extremes.size(); ++e) {
      const bool high = e < 2 ? e == 1 : f % 2 == e % 2;
      extremes[e].push_back(high ? last : 0);
    }
  }
  std::vector<Configuration> matrix;
  for (const std::vector<int>& row : CoverLevels(levels, size == MatrixSize::kQuick ? 1 : 2, extremes)) {
    matrix.push_back(Decode(factors, row, matrix.size()));
  }
  return matrix;
}

std::vector<NumericsOptions> MatrixArithmetics(MatrixSize size) {
  std::vector<NumericsOptions> all(3);
  all[0].profile = Profile::kSm90;
  all[1].profile = all[2].profile = Profile::kFma;
  all[2].fake_quant = false;
  if (size == MatrixSize::kQuick) return all;
  NumericsOptions unquantized;
  unquantized.fake_quant = false;
  all.push_back(unquantized);
  for (const Profile profile : {Profile::kSm80, Profile::kSm70, Profile::kSm70Jit}) {
    NumericsOptions other;
    other.profile = profile;
    all.push_back(other);
  }
  for (const ActQuant act_quant : {ActQuant::kInt8, ActQuant::kInt16, ActQuant::kNone}) {
    NumericsOptions other;
    other.profile = Profile::kFma;
    other.act_quant = act_quant;
    all.push_back(other);
  }
  return all;
}

}  // namespace lockstep::harness
