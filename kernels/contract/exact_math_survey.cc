#include "kernels/contract/exact_math_survey.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/contract/exact_math_digest.h"
#include "model/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kChunk = 4096;

// The distance from |x| to the next larger float, x in the normal range or below.
double UlpOf(double x) {
  if (std::fabs(x) < 0x1p-126) return 0x1p-149;
  return std::ldexp(1.0, std::ilogb(x) - 23);
}

void AddError(const ElementaryInfo& f, float x, float result, Survey* survey) {
  if (!(x >= f.lowest && x <= f.highest)) return;
  const double expected = f.libm(x);
  const double ulp = std::fabs(result - expected) / UlpOf(expected);
  if (ulp > survey->max_ulp || std::isnan(ulp)) {
    survey->max_ulp = ulp;
    survey->worst = x;
  }
}

// inputs are kChunk floats.
Survey SurveyChunk(const ElementaryInfo& f, Isa isa, const float* inputs) {
  float vector[kChunk], scalar[kChunk];
  ElementaryBatch(isa, f.id, inputs, vector, kChunk);
  ElementaryScalar(isa, f.id, inputs, scalar, kChunk);
  Survey survey;
  for (std::uint64_t i = 0; i < kChunk; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(vector[i]);
    survey.digest += contract::DigestTerm(std::bit_cast<std::uint32_t>(inputs[i]), bits);
    survey.scalar_mismatches += bits != std::bit_cast<std::uint32_t>(scalar[i]);
    AddError(f, inputs[i], vector[i], &survey);
  }
  return survey;
}

template <class InputOf>
Survey SurveyNumbers(const ElementaryInfo& f, Isa isa, std::uint64_t first, std::uint64_t count,
                     InputOf input_of) {
  LOCKSTEP_CHECK(count % kChunk == 0);
  Survey survey;
  float inputs[kChunk];
  for (std::uint64_t begin = first; begin < first + count; begin += kChunk) {
    for (std::uint64_t i = 0; i < kChunk; ++i) {
      inputs[i] = std::bit_cast<float>(input_of(static_cast<std::uint32_t>(begin + i)));
    }
    survey += SurveyChunk(f, isa, inputs);
  }
  return survey;
}

}  // namespace

Survey& Survey::operator+=(const Survey& other) {
  digest += other.digest;
  scalar_mismatches += other.scalar_mismatches;
  if (!(other.max_ulp <= max_ulp)) {
    max_ulp = other.max_ulp;
    worst = other.worst;
  }
  return *this;
}

Survey SurveyPatterns(const ElementaryInfo& f, Isa isa, std::uint64_t first, std::uint64_t count) {
  return SurveyNumbers(f, isa, first, count, [](std::uint32_t i) { return i; });
}

Survey SurveySamples(const ElementaryInfo& f, Isa isa, std::uint64_t first, std::uint64_t count) {
  return SurveyNumbers(f, isa, first, count, [](std::uint32_t i) { return contract::SampledInput(i); });
}

std::uint64_t CountDecreases(const ElementaryInfo& f, Isa isa, float lowest, float highest) {
  const bool negative = std::signbit(lowest);
  LOCKSTEP_CHECK(negative == std::signbit(highest));
  // Bit patterns grow away from zero.
  const std::uint32_t first = std::bit_cast<std::uint32_t>(negative ? highest : lowest);
  const std::uint32_t last = std::bit_cast<std::uint32_t>(negative ? lowest : highest);
  std::uint64_t decreases = 0;
  float inputs[kChunk], results[kChunk];
  // Chunks overlap in one element, so that every pair of neighbours is inside one.
  for (std::uint64_t begin = first; begin < last; begin += kChunk - 1) {
    for (std::uint64_t i = 0; i < kChunk; ++i) {
      inputs[i] = std::bit_cast<float>(static_cast<std::uint32_t>(std::min<std::uint64_t>(begin + i, last)));
    }
    ElementaryBatch(isa, f.id, inputs, results, kChunk);
    for (std::uint64_t i = 0; i + 1 < kChunk; ++i) {
      decreases += negative ? results[i] < results[i + 1] : results[i] > results[i + 1];
    }
  }
  return decreases;
}

}  // namespace lockstep
