// Matrices side by side in one call against a call for each of them, bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/linear/linear_cases.h"
#include "kernels/linear/linear.h"
#include "kernels/testing/implementations.h"

namespace lockstep::kernels {
namespace {

constexpr int kGroups = 3;
constexpr std::uint16_t kGuard = 0x7e5a;

std::vector<std::uint16_t> Outputs(const Implementation& implementation, LinearArgs args, bool together) {
  const std::int64_t width = kGroups * std::int64_t{args.spec->out_features} + 2;
  std::vector<std::uint16_t> y(static_cast<std::size_t>(args.rows * width), kGuard);
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  args.y_bf16 = memory.InOut(y);
  args.y_stride = width;
  args.overflow = memory.InOut(overflow);
  for (int g = 0; g < (together ? 1 : kGroups); ++g) implementation.kernels().linear(implementation.stream(), together ? args : GroupOf(args, g));
  memory.Finish();
  EXPECT_EQ(overflow[0], 0);
  return y;
}

void CheckSameBits(const LinearCase& form, std::int64_t rows) {
  const NumericsOptions numerics;
  LinearMaker maker(5);
  std::vector<TestLinear> linears;
  for (int g = 0; g < kGroups; ++g) linears.push_back(maker.Make(form));
  const LinearSpec spec = MakeLinearSpec(linears.front().weight, numerics, 32);
  std::vector<std::vector<std::byte>> blobs;
  for (const TestLinear& linear : linears) {
    blobs.emplace_back(static_cast<std::size_t>(spec.bytes));
    PackLinear(linear.weight, spec, blobs.back().data());
  }
  const std::vector<std::uint16_t> x = maker.InputRows(rows, kGroups * form.in, Recipe::kNormal);
  for (const Implementation& implementation : Implementations(numerics.profile, 2)) {
    CallMemory memory(implementation);
    std::vector<const std::byte*> placed;
    for (const std::vector<std::byte>& blob : blobs) placed.push_back(memory.In(blob));
    LinearArgs args;
    args.spec = &spec;
    args.groups = kGroups;
    args.blob_G = placed.data();
    args.x = memory.In(x);
    args.x_stride = kGroups * form.in;
    args.rows = rows;
    EXPECT_EQ(Outputs(implementation, args, true), Outputs(implementation, args, false)) << implementation.name() << ", rows " << rows;
  }
}

TEST(LinearGroups, AreTheLinearsSideBySide) {
  const LinearCase forms[] = {{.kind = LinearSpec::Kind::kExl3, .out = 128, .in = 256, .bits_x2 = 10},
                              {.kind = LinearSpec::Kind::kExl3, .out = 64, .in = 160, .bits_x2 = 6, .codebook = Codebook::kMcg},
                              {.kind = LinearSpec::Kind::kBF16, .out = 40, .in = 96}};
  for (const LinearCase& form : forms) {
    for (const std::int64_t rows : {1, 2, 17}) CheckSameBits(form, rows);
  }
}

}  // namespace
}  // namespace lockstep::kernels
