// Seeded numbers for tests: the same on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reference/mma_block.h"

namespace lockstep::reference {

class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  std::uint64_t Bits() { return bits_(); }
  double Uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }  // [0, 1)
  std::int64_t Integer(std::int64_t low, std::int64_t high) {                // [low, high]
    return low + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double Normal();
  // Student's t with three degrees of freedom: heavy tails, variance 3.
  double HeavyTailed();

 private:
  std::mt19937_64 bits_;
};

enum class Shape {
  kNormal,
  kWide,        // exponents spread over 16 octaves
  kCancelling,  // neighbouring products nearly cancel
  kLattice,     // integers so small that every partial sum is exact
};
std::string NameOf(Shape shape);

// Nearest value of a 16-bit format.
float RoundTo(OperandFormat format, double value);

// A dot product's operands, exactly representable in `format`. The last product is at least 1, so that losing
// it shows.
struct DotOperands {
  std::vector<float> a, b;
};
DotOperands DrawDot(Shape shape, std::int64_t n, OperandFormat format, Random& random);

// sum a_k b_k and sum |a_k b_k| in long double.
double ExactDot(const std::vector<float>& a, const std::vector<float>& b);
double AbsoluteDot(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace lockstep::reference
