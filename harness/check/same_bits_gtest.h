// EXPECT_TRUE(SameBits(got, expected)).
#pragma once

#include <gtest/gtest.h>

#include <span>

#include "harness/check/same_bits.h"

namespace lockstep::harness {

inline testing::AssertionResult SameBits(std::span<const float> got, std::span<const float> expected) {
  const std::optional<BitDifference> difference = FindDifference(got, expected);
  return difference ? testing::AssertionFailure() << difference->Describe() : testing::AssertionSuccess();
}

}  // namespace lockstep::harness
