#include "reference/testing/test_inputs.h"

#include <cmath>
#include <numbers>

#include "model/float_formats.h"

namespace lockstep::reference {

double Random::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

double Random::HeavyTailed() {
  double squares = 0;
  const double numerator = Normal();
  for (int i = 0; i < 3; ++i) {
    const double x = Normal();
    squares += x * x;
  }
  return numerator / std::sqrt(squares / 3.0);
}

std::string NameOf(Shape shape) {
  switch (shape) {
    case Shape::kNormal:
      return "Normal";
    case Shape::kWide:
      return "Wide";
    case Shape::kCancelling:
      return "Cancelling";
    case Shape::kLattice:
      return "Lattice";
  }
  return "";
}

float RoundTo(OperandFormat format, double value) {
  const float single = static_cast<float>(value);
  return format == OperandFormat::kFp16 ? RoundToF16(single) : RoundToBF16(single);
}

DotOperands DrawDot(Shape shape, std::int64_t n, OperandFormat format, Random& random) {
  DotOperands out;
  for (std::int64_t k = 0; k < n; ++k) {
    double a = random.Normal(), b = random.Normal();
    if (shape == Shape::kWide) {
      a = std::ldexp(1.0 + random.Uniform(), static_cast<int>(random.Integer(-8, 7))) * (a < 0 ? -1 : 1);
      b = std::ldexp(1.0 + random.Uniform(), static_cast<int>(random.Integer(-8, 7)));
    }
    if (shape == Shape::kLattice) {
      a = static_cast<double>(random.Integer(-3, 3));
      b = static_cast<double>(random.Integer(-3, 3));
    }
    if (shape == Shape::kCancelling && k % 2 == 1) {
      a = -out.a.back();
      b = out.b.back() * (1.0 + random.Uniform() * 0x1p-6);
    }
    out.a.push_back(RoundTo(format, a));
    out.b.push_back(RoundTo(format, b));
  }
  if (n > 0) {
    out.a.back() = shape == Shape::kLattice ? 1.0f : RoundTo(format, 1.0 + random.Uniform());
    out.b.back() = 1.0f;
  }
  return out;
}

double ExactDot(const std::vector<float>& a, const std::vector<float>& b) {
  long double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += static_cast<long double>(a[k]) * b[k];
  return static_cast<double>(sum);
}

double AbsoluteDot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += std::fabs(static_cast<double>(a[k]) * b[k]);
  return sum;
}

}  // namespace lockstep::reference
