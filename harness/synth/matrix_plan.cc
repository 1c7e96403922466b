#include "harness/synth/matrix_plan.h"

#include <algorithm>
#include <array>

#include "harness/synth/counter_rng.h"
#include "model/error.h"

namespace lockstep::synth {
namespace {

constexpr std::array<int, 11> kRatesX2 = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
constexpr std::array<Codebook, 3> kCodebooks = {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1};

std::optional<int> RateNamed(std::string_view name) {
  for (const int rate : kRatesX2) {
    const std::string text = std::to_string(rate / 2) + (rate % 2 == 0 ? "" : ".5");
    if (name == text) return rate;
  }
  return std::nullopt;
}

std::optional<Codebook> CodebookNamed(std::string_view name) {
  if (name == "mixed") return std::nullopt;
  for (const Codebook codebook : kCodebooks) {
    if (name == NameOf(codebook)) return codebook;
  }
  throw InputError("--codebook: unknown codebook '" + std::string(name) +
                   "', expected mul1, mcg, 3inst or mixed");
}

}  // namespace

MatrixPlan::MatrixPlan(std::string_view bits, std::string_view codebook, int layers, std::uint64_t seed)
    : bits_name_(bits), codebook_(CodebookNamed(codebook)), layers_(layers), seed_(seed) {
  if (bits == "native") {
    kind_ = Kind::kNative;
  } else if (bits == "2.9") {
    kind_ = Kind::kPack29;
  } else if (bits == "mixed") {
    kind_ = Kind::kMixed;
  } else if (const std::optional<int> rate = RateNamed(bits)) {
    kind_ = Kind::kUniform;
    bits_x2_ = *rate;
  } else {
    throw InputError("--bits: unknown value '" + bits_name_ +
                     "', expected native, mixed, 2.9, or 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7 or 8");
  }
}

Exl3Form MatrixPlan::FormOf(MatrixRole role, int layer, const std::string& name) const {
  const CounterRng rng(seed_, name + ".form");
  Exl3Form form;
  form.codebook = codebook_ ? *codebook_ : kCodebooks[rng.Below(0, kCodebooks.size())];
  switch (kind_) {
    case Kind::kNative:
      LOCKSTEP_CHECK(false);
      break;
    case Kind::kPack29:
      form.bits_x2 = 2 * Pack29Bits(role, layer);
      break;
    case Kind::kUniform:
      form.bits_x2 = UniformBitsX2(role);
      break;
    case Kind::kMixed:
      form.bits_x2 = kRatesX2[rng.Below(1, kRatesX2.size())];
      if (form.codebook != Codebook::kMul1) form.bits_x2 += form.bits_x2 % 2;
      break;
  }
  return form;
}

// Published for 40 layers: routed K = 3, but 2 in layers 18 to 22; shared and Engram 5 near both ends (layers
// 0-10 and 30-39), else 4. Other depths keep the proportions.
int MatrixPlan::Pack29Bits(MatrixRole role, int layer) const {
  constexpr int kPublishedLayers = 40;
  const int place = layer * kPublishedLayers / std::max(layers_, 1);
  switch (role) {
    case MatrixRole::kRoutedExpert:
      return place >= 18 && place <= 22 ? 2 : 3;
    case MatrixRole::kSharedExpert:
    case MatrixRole::kEngram:
      return place <= 10 || place >= 30 ? 5 : 4;
    case MatrixRole::kAttention:
      return 5;
    case MatrixRole::kHead:
      return 6;
    case MatrixRole::kIndexKey:
      return 8;
  }
  return 0;
}

int MatrixPlan::UniformBitsX2(MatrixRole role) const {
  const auto more = [&](int bits) { return std::min(16, (bits_x2_ + bits_x2_ % 2) + 2 * bits); };
  switch (role) {
    case MatrixRole::kRoutedExpert:
      return bits_x2_;
    case MatrixRole::kSharedExpert:
    case MatrixRole::kEngram:
      return more(1);
    case MatrixRole::kAttention:
    case MatrixRole::kIndexKey:
      return more(2);
    case MatrixRole::kHead:
      return more(3);
  }
  return 0;
}

}  // namespace lockstep::synth
