#include "kernels/contract/cpu_isa.h"

#include <gtest/gtest.h>

#include <string>

#include "model/error.h"

namespace lockstep {
namespace {

TEST(CpuIsaTest, NamesRoundTrip) {
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(ParseIsa(NameOf(isa)), isa);
}

TEST(CpuIsaTest, UnknownNameSaysWhatWasExpected) {
  for (const char* name : {"", "sse", "AVX2", "avx512 "}) {
    try {
      ParseIsa(name);
      ADD_FAILURE() << "accepted '" << name << "'";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("generic, avx2 or avx512"), std::string::npos) << error.what();
    }
  }
}

TEST(CpuIsaTest, EverythingBelowASupportedIsaIsSupported) {
  EXPECT_TRUE(CpuSupports(Isa::kGeneric));
  EXPECT_TRUE(!CpuSupports(Isa::kAvx512) || CpuSupports(Isa::kAvx2));
  EXPECT_EQ(SupportedIsas().front(), Isa::kGeneric);
  EXPECT_EQ(SupportedIsas().back(), BestIsa());
}

TEST(CpuIsaTest, MaskIsHonouredOrRefused) {
  EXPECT_EQ(SelectIsa(""), BestIsa());
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (CpuSupports(isa)) {
      EXPECT_EQ(SelectIsa(NameOf(isa)), isa);
    } else {
      EXPECT_THROW(SelectIsa(NameOf(isa)), InputError);
    }
  }
}

TEST(CpuIsaTest, ForIsaPicksTheBuild) {
  int one = 1, two = 2, three = 3;
  EXPECT_EQ(ForIsa(Isa::kGeneric, &one, &two, &three), &one);
  EXPECT_EQ(ForIsa(Isa::kAvx2, &one, &two, &three), &two);
  EXPECT_EQ(ForIsa(Isa::kAvx512, &one, &two, &three), &three);
}

}  // namespace
}  // namespace lockstep
