// Seeded inputs of tests and benches: the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "model/float_formats.h"

namespace lockstep::kernels {

// kNormal: values as a model has them. kLattice: small integers whose sums are exact in every order. kSpiky:
// normal, with outliers, subnormals and signed zeros.
enum class Recipe { kNormal, kLattice, kSpiky };
inline constexpr Recipe kRecipes[] = {Recipe::kNormal, Recipe::kLattice, Recipe::kSpiky};

// What lies behind inputs and must not be read: a NaN. What lies behind outputs and must stay.
inline constexpr std::uint16_t kPoisonBF16 = 0x7fc1;
inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::uint16_t kGuardBF16 = 0x7e5a;
inline constexpr float kGuard = -12345.0f;
inline constexpr std::int32_t kGuardInt = -77;
// Elements of poison or guard behind an array: more than any vector reads at once.
inline constexpr std::size_t kMargin = 64;

class Inputs {
 public:
  explicit Inputs(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Bits() { return random_(); }
  // In [low, high].
  std::int64_t Integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  // Standard deviation `scale`, but for kLattice: -3 .. 3.
  float Value(Recipe recipe, float scale = 1.0f) {
    if (recipe == Recipe::kLattice) return static_cast<float>(static_cast<int>(random_() % 7) - 3);
    const float value = scale * normal_(random_);
    if (recipe == Recipe::kNormal) return value;
    switch (random_() % 16) {
      case 0:
        return value * 200.0f;
      case 1:
        return value * 0x1p-110f;
      case 2:
        return std::copysign(0.0f, value);
      case 3:
        return value * 0x1p-16f;  // subnormal in fp16
      default:
        return value;
    }
  }
  // n values and kMargin of poison behind them.
  std::vector<std::uint16_t> BF16(std::int64_t n, Recipe recipe, float scale = 1.0f) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(n) + kMargin, kPoisonBF16);
    for (std::int64_t i = 0; i < n; ++i)
      values[static_cast<std::size_t>(i)] = FloatToBF16(Value(recipe, scale));
    return values;
  }
  std::vector<float> F32(std::int64_t n, Recipe recipe, float scale = 1.0f) {
    std::vector<float> values(static_cast<std::size_t>(n) + kMargin, kPoison);
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = Value(recipe, scale);
    return values;
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

// An output of n elements that nobody has written yet, with its margin: expectations start from it too.
inline std::vector<std::uint16_t> UnwrittenBF16(std::int64_t n) {
  return std::vector<std::uint16_t>(static_cast<std::size_t>(n) + kMargin, kGuardBF16);
}
inline std::vector<float> UnwrittenF32(std::int64_t n) {
  return std::vector<float>(static_cast<std::size_t>(n) + kMargin, kGuard);
}
inline std::vector<std::int32_t> UnwrittenInt(std::int64_t n) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(n) + kMargin, kGuardInt);
}

// Exact values of bf16 elements [begin, begin + n).
template <typename Real>
std::vector<Real> Widened(const std::vector<std::uint16_t>& bits, std::int64_t begin, std::int64_t n) {
  std::vector<Real> values;
  for (std::int64_t i = begin; i < begin + n; ++i)
    values.push_back(static_cast<Real>(BF16ToFloat(bits[static_cast<std::size_t>(i)])));
  return values;
}

}  // namespace lockstep::kernels
