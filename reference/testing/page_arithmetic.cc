#include "reference/testing/page_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "model/error.h"

namespace lockstep::reference::page {
namespace {

constexpr int kSmallestExponent = -133;  // the adder's grid ends here

float FoldAll(std::vector<float> values) {
  for (std::size_t stride = values.size() / 2; stride >= 1; stride /= 2) {
    for (std::size_t i = 0; i < stride; ++i) values[i] += values[i + stride];
  }
  return values[0];
}

int StoredExponent(float x, OperandFormat format) {
  return std::max(std::ilogb(x), format == OperandFormat::kFp16 ? -14 : -126);
}

float MmaBlock(BlockRule rule, float c, Floats a, Floats b, OperandFormat format) {
  if (std::isinf(c)) return c;
  int top = kSmallestExponent;
  if (c != 0) top = std::max({top, std::ilogb(c), -126});
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == 0 || b[i] == 0) continue;
    top = std::max(top, StoredExponent(a[i], format) + StoredExponent(b[i], format));
  }
  const int grid = top - rule.fraction_bits;
  const auto units = [&](double x) { return std::trunc(std::ldexp(x, -grid)); };
  double sum = units(c);
  for (std::size_t i = 0; i < a.size(); ++i) sum += units(static_cast<double>(a[i]) * b[i]);
  return RoundTowardZero(std::ldexp(sum, grid));
}

float JitBlock(float c, Floats a, Floats b) {
  float products[4] = {};
  for (std::size_t i = 0; i < a.size(); ++i) products[i] = a[i] * b[i];
  return c + (((products[0] + products[1]) + products[2]) + products[3]);
}

float DotLanes(Floats a, Floats b, std::size_t lanes) {
  std::vector<float> lane(lanes, 0.0f);
  for (std::size_t k = 0; k < a.size(); ++k) lane[k % lanes] = std::fma(a[k], b[k], lane[k % lanes]);
  return FoldAll(std::move(lane));
}

}  // namespace

float RoundTowardZero(double x) {
  const float nearest = static_cast<float>(x);
  if (std::isinf(nearest)) {
    return std::fabs(x) >= 0x1p128 ? nearest : std::copysign(std::numeric_limits<float>::max(), nearest);
  }
  const bool beyond = std::fabs(static_cast<double>(nearest)) > std::fabs(x);
  const float result = beyond ? std::nextafter(nearest, 0.0f) : nearest;
  return result == 0 ? 0.0f : result;
}

float DotF(Floats a, Floats b) { return DotLanes(a, b, 128); }

BlockRule RuleOf(Profile profile) {
  switch (profile) {
    case Profile::kSm90:
      return {16, 25};
    case Profile::kSm90K8:
      return {8, 25};
    case Profile::kSm80:
    case Profile::kSm75:
      return {8, 24};
    case Profile::kSm70:
      return {4, 23};
    case Profile::kSm70Jit:
      return {4, 0};
    case Profile::kFma:
      break;
  }
  LOCKSTEP_CHECK(false && "profile fma has no blocks");
}

float Chain(Profile profile, float c, Floats a, Floats b, OperandFormat format) {
  const BlockRule rule = RuleOf(profile);
  const auto block = static_cast<std::size_t>(rule.products);
  for (std::size_t k = 0; k < a.size(); k += block) {
    const std::size_t count = std::min(block, a.size() - k);
    const Floats a_block = a.subspan(k, count), b_block = b.subspan(k, count);
    c = profile == Profile::kSm70Jit ? JitBlock(c, a_block, b_block)
                                     : MmaBlock(rule, c, a_block, b_block, format);
  }
  return c;
}

float DotH(Profile profile, Floats a, Floats b, OperandFormat format) {
  return profile == Profile::kFma ? DotLanes(a, b, 16) : Chain(profile, 0.0f, a, b, format);
}

float FoldSegments(std::int64_t k_length, const std::function<float(std::int64_t, std::int64_t)>& sum) {
  const std::int64_t blocks = (k_length + 127) / 128;
  float segment[4];
  for (std::int64_t s = 0; s < 4; ++s) {
    const std::int64_t first = s * blocks / 4, last = (s + 1) * blocks / 4;  // floor: both are non-negative
    segment[s] = first == last ? 0.0f : sum(first * 128, std::min(k_length, last * 128));
  }
  return (segment[0] + segment[1]) + (segment[2] + segment[3]);
}

float DotHS(Profile profile, Floats a, Floats b, OperandFormat format) {
  return FoldSegments(static_cast<std::int64_t>(a.size()), [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
    return DotH(profile, a.subspan(first, count), b.subspan(first, count), format);
  });
}

float DotI(Floats t, std::span<const int> byte_sums, int limit) {
  std::vector<double> code(t.size());
  std::vector<float> scale;
  for (std::size_t begin = 0; begin < t.size(); begin += 128) {
    float largest = 0;
    for (std::size_t k = begin; k < begin + 128; ++k) largest = std::max(largest, std::fabs(t[k]));
    const bool zero = largest < 0x1p-100f;
    const float inverse = zero ? 0.0f : static_cast<float>(limit) / largest;
    scale.push_back(zero ? 0.0f : largest / static_cast<float>(limit));
    for (std::size_t k = begin; k < begin + 128; ++k) {
      code[k] = std::clamp<double>(std::nearbyint(t[k] * inverse), -limit, limit);
    }
  }
  const auto blockwise = [&](const auto& factor) {
    return FoldSegments(static_cast<std::int64_t>(t.size()), [&](std::int64_t begin, std::int64_t end) {
      float y = 0.0f;
      for (auto block = static_cast<std::size_t>(begin); block < static_cast<std::size_t>(end); block += 128) {
        double sum = 0;
        for (std::size_t k = block; k < block + 128; ++k) sum += code[k] * factor(k);
        y = std::fma(static_cast<float>(sum), scale[block / 128], y);
      }
      return y;
    });
  };
  const float y = blockwise([&](std::size_t k) { return byte_sums[k] - 510; });
  const float z = blockwise([](std::size_t) { return 1; });
  return std::fma(y, 1774.0f / 262144.0f, -(z * (476.0f / 262144.0f)));
}

}  // namespace lockstep::reference::page
