// Bitwise comparison with a readable first difference.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "reference/state.h"

namespace lockstep::reference {

// memcmp equality; a failure names the first element that differs.
testing::AssertionResult SameBits(std::span<const float> got, std::span<const float> expected);

// Everything that later tokens can read is bitwise equal.
testing::AssertionResult SameState(const SequenceState<float>& got, const SequenceState<float>& expected);

}  // namespace lockstep::reference
