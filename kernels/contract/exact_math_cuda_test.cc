// The elementary functions on a CUDA device against the digests that CPUs made, over all 2^32 inputs.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/contract/exact_math_cuda.h"

namespace lockstep {
namespace {

TEST(ExactMathCudaTest, DeviceDigestsEqualTheRecord) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_DIR) + "/golden/digests/exact_math.json");
  ASSERT_TRUE(file.is_open());
  const nlohmann::json recorded = nlohmann::json::parse(file);
  for (const ElementaryInfo& f : kElementaryFunctions) {
    const nlohmann::json& entry = recorded.at(std::string(f.name));
    EXPECT_EQ(CudaSampledDigest(f.id), std::stoull(entry.at("sampled").get<std::string>(), nullptr, 16))
        << f.name;
    EXPECT_EQ(CudaFullDigest(f.id), std::stoull(entry.at("full").get<std::string>(), nullptr, 16)) << f.name;
  }
}

}  // namespace
}  // namespace lockstep
