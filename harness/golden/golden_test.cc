// A check that cannot fail is no check: any change of a recorded run must be seen.
#include "harness/golden/golden.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "model/test_util.h"

namespace lockstep::golden {
namespace {

GoldenRun Example() {
  return {.ids = {5, 6, 7}, .margins = {0.5f, 0.25f, 1.5f}, .digests = {"00", "01", "02", "03"}};
}

TEST(GoldenRun, EqualRunsDoNotDiffer) { EXPECT_EQ(Difference(Example(), Example()), ""); }

TEST(GoldenRun, EveryKindOfChangeIsNamed) {
  GoldenRun changed = Example();
  changed.digests[2] = "ff";
  EXPECT_EQ(Difference(Example(), changed), "logits differ from position 2 on");
  changed = Example();
  changed.digests.pop_back();
  EXPECT_EQ(Difference(Example(), changed), "logits differ from position 3 on");
  changed = Example();
  changed.ids[1] = 8;
  EXPECT_EQ(Difference(Example(), changed), "generated token 1 differs");
  changed = Example();
  changed.margins[0] = 0.75f;
  EXPECT_EQ(Difference(Example(), changed), "the margin of generated token 0 differs");
}

TEST(GoldenRun, ComesBackAsItWasSaved) {
  const TestDirectory dir;
  std::filesystem::create_directories(dir.File("tokens"));
  std::filesystem::create_directories(dir.File("digests"));
  GoldenRun other = Example();
  other.ids[0] = 99;
  SaveRun(dir.path(), "m", "sm90", Example());
  SaveRun(dir.path(), "m", "fma", other);
  EXPECT_EQ(LoadRun(dir.path(), "m", "sm90"), Example());
  EXPECT_EQ(LoadRun(dir.path(), "m", "fma"), other);
  ExpectInputError([&] { LoadRun(dir.path(), "m", "sm70"); }, {"tokens/m.json", "sm70"});
}

TEST(GoldenRun, AnotherNumericsVersionIsRefused) {
  const TestDirectory dir;
  dir.Put("tokens/m.json", R"({"numerics": 0, "profiles": {"sm90": {"ids": [], "margins": []}}})");
  ExpectInputError([&] { LoadRun(dir.path(), "m", "sm90"); }, {"tokens/m.json", "numerics"});
}

}  // namespace
}  // namespace lockstep::golden
