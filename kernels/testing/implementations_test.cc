// What the differential tests stand on: implementations that are what their names say, and comparisons that
// see.
#include "kernels/testing/implementations.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/testing/comparison.h"
#include "kernels/testing/inputs.h"
#include "kernels/testing/limits.h"
#include "kernels/testing/truth.h"

namespace lockstep::kernels {
namespace {

TEST(Implementations, AreTheInstructionSetsOfTheMachineThenTheDevice) {
  for (const Profile profile : {Profile::kSm90, Profile::kFma}) {
    const std::vector<Implementation> all = Implementations(profile);
    const std::vector<Isa> isas = SupportedIsas();
    const std::size_t devices = profile == Profile::kSm90 ? DeviceImplementations().size() : 0;
    ASSERT_EQ(all.size(), isas.size() + devices);
    for (std::size_t i = 0; i < isas.size(); ++i) {
      EXPECT_EQ(all[i].name(), NameOf(isas[i]));
      EXPECT_EQ(all[i].device(), nullptr);
    }
    for (std::size_t i = isas.size(); i < all.size(); ++i) EXPECT_NE(all[i].device(), nullptr);
  }
}

// An implementation that were another's code under a new name would be compared with itself.
TEST(Implementations, ShareNoKernel) {
  std::multiset<void*> kernels;
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    const KernelTable& t = implementation.kernels();
    const auto add = [&](const auto& kernel) { kernels.insert(reinterpret_cast<void*>(kernel.run)); };
    add(t.embed), add(t.rms_norm), add(t.rope), add(t.norm_rope), add(t.hc_mix), add(t.sinkhorn), add(t.hc_collapse_norm), add(t.hc_expand), add(t.hc_site),
        add(t.linear), add(t.linear_set);
    add(t.pack_rows), add(t.norm_rope_pack), add(t.unpack_rows), add(t.compress), add(t.store_history), add(t.attention_inputs), add(t.index_select),
        add(t.attention);
    add(t.router), add(t.route), add(t.expert_ffn), add(t.combine), add(t.engram_gate), add(t.sample);
  }
  for (void* kernel : kernels) EXPECT_EQ(kernels.count(kernel), 1u);
  EXPECT_EQ(kernels.count(nullptr), 0u);
}

TEST(CallMemory, BringsBackWhatItTookIn) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    std::vector<std::int32_t> changed = {1, 2, 3};
    const std::vector<float> read = {4, 5}, none;
    CallMemory memory(implementation);
    EXPECT_NE(memory.In(read), nullptr);
    EXPECT_EQ(memory.In(none), nullptr);
    std::int32_t* placed = memory.InOut(changed);
    EXPECT_EQ(placed == changed.data(), implementation.device() == nullptr)
        << "the CPU works on the caller's arrays";
    memory.Finish();
    EXPECT_EQ(changed, (std::vector<std::int32_t>{1, 2, 3})) << implementation;
  }
}

TEST(SameBits, SeesEveryBit) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(SameBits(std::vector<float>{1, nan}, std::vector<float>{1, nan}));
  EXPECT_FALSE(SameBits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
  EXPECT_FALSE(SameBits(std::vector<float>{1, 2}, std::vector<float>{1}));
  const testing::AssertionResult result = SameBits(std::vector<float>{1, 2, 3}, std::vector<float>{1, 2, 4});
  EXPECT_NE(std::string(result.message()).find("element 2 of 3 is 3, expected 4"), std::string::npos)
      << result.message();
}

TEST(SameOutputs, NamesTheOutputThatDiffers) {
  const std::tuple<std::vector<float>, std::vector<std::int32_t>> a = {{1}, {2}}, b = {{1}, {3}};
  EXPECT_TRUE(SameOutputs(a, a));
  EXPECT_TRUE(SameBytes(a, a));
  EXPECT_FALSE(SameBytes(a, b));
  const testing::AssertionResult result = SameOutputs(a, b);
  EXPECT_NE(std::string(result.message()).find("output 1"), std::string::npos) << result.message();
}

TEST(Trustworthy, RefusesResultsThatProveLittle) {
  EXPECT_TRUE(Trustworthy(std::vector<float>{1, 0, 2, 3}, 4));
  EXPECT_FALSE(Trustworthy(std::vector<float>{1, 0, 0, 0}, 4));
  EXPECT_FALSE(Trustworthy(std::vector<float>{2, 2, 2}, 3));
  EXPECT_FALSE(Trustworthy(std::vector<float>{1, 2, std::numeric_limits<float>::infinity()}, 3));
}

void ExpectNear(float got, double bound) { ExpectWithin(std::vector<float>{got}, {{1.0, bound}}, 100); }

TEST(ExpectWithin, RefusesResultsBeyondTheBoundAndBoundsThatSeeNothing) {
  ExpectNear(1.0f, 1e-6);
  ExpectNear(1.000001f, 1.5e-6);
  EXPECT_FATAL_FAILURE(ExpectNear(1.00001f, 1e-6), "element 0");
  EXPECT_NONFATAL_FAILURE(ExpectNear(1.0f, 1e-3), "perturbed");
  EXPECT_FATAL_FAILURE(ExpectNear(std::numeric_limits<float>::quiet_NaN(), 1e-6), "element 0");
}

TEST(Limits, AreThoseOfAMachine) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    EXPECT_GT(BytesPerSecond(implementation, 4096), 1e8) << implementation;
    EXPECT_GT(ProductsPerSecond(implementation), 1e7) << implementation;
    const Work work = {.bytes = 1e4, .products = 1e9};
    EXPECT_GE(FloorSeconds(implementation, work), 1e9 / ProductsPerSecond(implementation)) << implementation;
    EXPECT_GT(FloorSeconds(implementation, {.bytes = 1e6}), 0.0) << implementation;
  }
}

}  // namespace
}  // namespace lockstep::kernels
