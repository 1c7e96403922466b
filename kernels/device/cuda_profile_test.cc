// The table of docs/numerics.md, section 2, and of the design: which tensor core rule code of one architecture meets on another.
#include "kernels/device/cuda_profile.h"

#include <gtest/gtest.h>

namespace lockstep::kernels {
namespace {

TEST(CudaProfile, CodeForTheDevice) {
  EXPECT_EQ(ProfileOfCode(70, 70), Profile::kSm70);
  EXPECT_EQ(ProfileOfCode(70, 72), Profile::kSm70);
  EXPECT_EQ(ProfileOfCode(75, 75), Profile::kSm75);
  for (const int arch : {80, 86, 89}) EXPECT_EQ(ProfileOfCode(arch, arch), Profile::kSm80) << arch;
  for (const int arch : {90, 100, 120}) EXPECT_EQ(ProfileOfCode(arch, arch), Profile::kSm90) << arch;
}

TEST(CudaProfile, CodeForAnOlderArchitecture) {
  EXPECT_EQ(ProfileOfCode(80, 89), Profile::kSm80);
  EXPECT_EQ(ProfileOfCode(80, 90), Profile::kSm90);
  EXPECT_EQ(ProfileOfCode(75, 86), Profile::kSm80);
  EXPECT_EQ(ProfileOfCode(75, 90), Profile::kSm90K8);
  for (const int device : {75, 80, 90, 120}) EXPECT_EQ(ProfileOfCode(70, device), Profile::kSm70Jit) << device;
}

}  // namespace
}  // namespace lockstep::kernels
