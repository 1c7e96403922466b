// The floating-point environment that the contract needs, in a plain translation unit of this build: each
// expression has another value under contraction, flush-to-zero, other rounding or excess precision. Oracle:
// IEEE 754.
#include <gtest/gtest.h>

#include <cfenv>

namespace lockstep {
namespace {

// Not volatile in the expressions themselves: a product and a sum in one statement is what contraction would
// fuse.
__attribute__((noinline)) float MultiplyAdd(float a, float b, float c) { return a * b + c; }
__attribute__((noinline)) float Multiply(float a, float b) { return a * b; }
__attribute__((noinline)) float AddThree(float a, float b, float c) { return (a + b) + c; }

TEST(FpEnvironmentTest, RoundsToNearest) { EXPECT_EQ(std::fegetround(), FE_TONEAREST); }

TEST(FpEnvironmentTest, ProductAndSumRoundApart) {
  const float a = 1.0f + 0x1p-12f;  // a*a = 1 + 2^-11 + 2^-24: the last bit is lost if the product rounds
  EXPECT_EQ(MultiplyAdd(a, a, -(1.0f + 0x1p-11f)), 0.0f);
}

TEST(FpEnvironmentTest, SubnormalsAreKept) {
  EXPECT_EQ(Multiply(0x1p-100f, 0x1p-49f), 0x1p-149f);
  EXPECT_EQ(Multiply(0x1p-149f, 2.0f), 0x1p-148f);
}

TEST(FpEnvironmentTest, NoReassociationOrExcessPrecision) {
  EXPECT_EQ(AddThree(1.0f, 0x1p-24f, 0x1p-24f), 1.0f);
  EXPECT_EQ(AddThree(0x1p100f, -0x1p100f, 1.0f), 1.0f);
}

}  // namespace
}  // namespace lockstep
