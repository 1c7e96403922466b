// The 128-point butterfly of every instruction set against the reference's, bit for bit, and against the matrix
// it stands for.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/linear/hadamard_probe.h"
#include "kernels/testing/comparison.h"
#include "kernels/testing/inputs.h"
#include "reference/quantize.h"

namespace lockstep::kernels {
namespace {

auto HadamardOf(Isa isa) { return ForIsa(isa, generic::Hadamard128, avx2::Hadamard128, avx512::Hadamard128); }

TEST(Hadamard128, HasTheBitsOfTheReferencesButterfly) {
  for (const Recipe recipe : kRecipes) {
    const std::vector<float> x = Inputs(71).F32(3 * 128, recipe);
    std::vector<float> expected = x;
    for (int b = 0; b < 3; ++b) reference::Butterfly(expected.data() + 128 * b, 128);
    for (const Isa isa : SupportedIsas()) {
      std::vector<float> y = x;
      HadamardOf(isa)(y.data(), 3);
      EXPECT_TRUE(SameBits(y, expected)) << NameOf(isa);
    }
  }
}

// Element i of row j is -1 to the number of ones in i & j: a unit vector gives a column.
TEST(Hadamard128, UnitVectorsGiveTheColumns) {
  for (const Isa isa : SupportedIsas()) {
    for (unsigned j = 0; j < 128; ++j) {
      std::vector<float> x(128, 0.0f);
      x[j] = 1.0f;
      HadamardOf(isa)(x.data(), 1);
      for (unsigned i = 0; i < 128; ++i)
        ASSERT_EQ(x[i], std::popcount(i & j) % 2 ? -1.0f : 1.0f) << NameOf(isa);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
