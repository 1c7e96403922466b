// Linears of one input in one call against a call for each of them, bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cases.h"
#include "kernels/testing/implementations.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

constexpr std::int64_t kIn = 256;
constexpr std::uint16_t kGuard = 0x7e5a;

// A member of a set: its matrix and how many rows it takes, from which on.
struct Member {
  LinearCase form;
  std::int64_t first = 0, rows = 0;
  bool fp32 = false;
};

// What the members write, [rows + 1][out + 1] each with guards at the ends.
struct Outputs {
  std::vector<std::vector<std::uint16_t>> bf16;
  std::vector<std::vector<float>> fp32;
  bool operator==(const Outputs&) const = default;
};

// Matrices and input of a set, the same for all implementations.
struct LinearSet {
  std::int64_t rows = 0, in = 0;
  std::vector<Member> members;
  std::vector<LinearSpec> specs;
  std::vector<std::vector<std::byte>> blobs;
  std::vector<std::uint16_t> x_TK;
  std::vector<float> norm_weight;  // empty: no norm
};

LinearSet MakeSet(const std::vector<Member>& members, std::int64_t rows) {
  LinearSet set{.members = members};
  LinearMaker maker(9);
  for (const Member& member : members) {
    const TestLinear linear = maker.Make(member.form);
    set.specs.push_back(MakeLinearSpec(linear.weight, NumericsOptions(), 32));
    set.blobs.emplace_back(static_cast<std::size_t>(set.specs.back().bytes));
    PackLinear(linear.weight, set.specs.back(), set.blobs.back().data());
  }
  set.rows = rows;
  set.in = members.empty() ? kIn : members.front().form.in;
  set.x_TK = maker.InputRows(rows, set.in, Recipe::kNormal);
  return set;
}

// In one call, or one after the other, the norm first.
Outputs RunSet(const Implementation& implementation, const LinearSet& set, bool together) {
  Outputs y;
  for (const Member& member : set.members) {
    const auto count = static_cast<std::size_t>((member.rows + 1) * (member.form.out + 1));
    y.bf16.emplace_back(member.fp32 ? 0 : count, kGuard);
    y.fp32.emplace_back(member.fp32 ? count : 0, 7.0f);
  }
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  std::uint16_t* x = memory.Scratch(set.x_TK);
  std::int32_t* flag = memory.InOut(overflow);
  std::vector<LinearArgs> linears;
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    const Member& member = set.members[i];
    LinearArgs args;
    args.spec = &set.specs[i];
    args.blob = memory.In(set.blobs[i]);
    args.x = x + member.first * set.in;
    args.x_stride = set.in;
    args.rows = member.rows;
    args.y_bf16 = member.fp32 ? nullptr : memory.InOut(y.bf16[i]);
    args.y_fp32 = member.fp32 ? memory.InOut(y.fp32[i]) : nullptr;
    args.y_stride = member.form.out + 1;
    args.overflow = flag;
    linears.push_back(args);
  }
  const RmsNormArgs norm = {x, set.in, set.norm_weight.empty() ? 0 : set.rows, set.in, memory.In(set.norm_weight), 1e-6f, x, set.in};
  if (together) {
    implementation.kernels().linear_set(implementation.stream(), {linears.data(), static_cast<int>(linears.size()), norm});
  } else {
    if (norm.rows > 0) implementation.kernels().rms_norm(implementation.stream(), norm);
    for (const LinearArgs& args : linears) implementation.kernels().linear(implementation.stream(), args);
  }
  memory.Finish();
  EXPECT_EQ(overflow[0], 0);
  return y;
}

void CheckSameBits(const std::vector<Member>& members, std::int64_t rows) {
  const LinearSet set = MakeSet(members, rows);
  for (const Implementation& implementation : Implementations(Profile::kSm90, 2)) {
    EXPECT_TRUE(RunSet(implementation, set, true) == RunSet(implementation, set, false)) << implementation.name() << ", rows " << rows;
  }
}

LinearCase Exl3(std::int64_t out, int bits_x2, Codebook codebook = Codebook::kMul1, std::int64_t in = kIn) {
  return {.kind = Kind::kExl3, .out = out, .in = in, .bits_x2 = bits_x2, .codebook = codebook};
}

// What a layer projects from its input: several widths, rates, codebooks and forms, bf16 and fp32 outputs.
std::vector<Member> Projections(std::int64_t rows) {
  return {{Exl3(384, 5), 0, rows},
          {Exl3(128, 5), 0, rows},
          {Exl3(256, 6), 0, rows, true},
          {Exl3(200, 8), 0, rows, true},
          {Exl3(128, 5, Codebook::kMcg), 0, rows},
          {Exl3(256, 4, Codebook::k3inst), 0, rows, true},
          {{.kind = Kind::kBF16, .out = 64, .in = kIn}, 0, rows},
          {{.kind = Kind::kF32, .out = 24, .in = kIn}, 0, rows, true}};
}

TEST(LinearSet, IsItsLinears) {
  for (const std::int64_t rows : {1, 2, 5, 8, 9, 40, 130}) CheckSameBits(Projections(rows), rows);
}

// BF16 linears share tiles of rows where these are very many; nine are more than go together, and the last two begin or end elsewhere.
TEST(LinearSet, IsItsBF16LinearsOfVeryManyRows) {
  constexpr std::int64_t kRows = 1042;
  std::vector<Member> members;
  for (const std::int64_t out : {64, 130, 1, 128, 256, 8, 16, 24, 32, 40, 48}) members.push_back({{.kind = Kind::kBF16, .out = out, .in = kIn}, 0, kRows, out % 3 == 1});
  members[9].first = 3, members[9].rows = kRows - 3;
  members[10].rows = 1028;
  CheckSameBits(members, kRows);
}

TEST(LinearSet, TakesRowsOfItsOwnForEach) {
  std::vector<Member> members = Projections(6);
  members[0].rows = 3;
  members[1].first = 2, members[1].rows = 4;
  members[2].rows = 0;
  members[4].first = 5, members[4].rows = 1;
  CheckSameBits(members, 6);
}

// Queries and index queries of latents: EXL3 of all forms, sets with another kind of matrix, row lengths that fill their blocks or do not; and a row's norm is
// its own.
TEST(LinearSet, NormsItsRowsFirst) {
  for (const std::int64_t in : {64, 128, 1024, 1100, 1280, 1408}) {
    for (const std::int64_t rows : {1, 2, 3, 9, 40}) {
      std::vector<Member> members = {{Exl3(384, 6, Codebook::kMul1, in), 0, rows}, {Exl3(128, 10, Codebook::kMul1, in), 0, rows, true}};
      if (in != 1100) members.push_back({Exl3(128, 5, Codebook::kMcg, in), 0, rows});
      if (in == 128) members.push_back({{.kind = Kind::kBF16, .out = 64, .in = in}, 0, rows});
      LinearSet set = MakeSet(members, rows);
      for (std::int64_t k = 0; k < in; ++k) set.norm_weight.push_back(0.5f + static_cast<float>(k % 37) / 29.0f);
      for (std::int64_t k = 0; rows > 1 && k < in; ++k) set.x_TK[static_cast<std::size_t>(in + k)] = FloatToBF16(BF16ToFloat(set.x_TK[static_cast<std::size_t>(in + k)]) * 9.0f);
      const Outputs expected = RunSet(Implementation(Isa::kGeneric, Profile::kSm90, 1), set, false);
      for (const Implementation& implementation : Implementations(Profile::kSm90, 2)) {
        EXPECT_TRUE(RunSet(implementation, set, true) == expected) << implementation.name() << ", rows " << rows << " of " << in;
      }
    }
  }
}

TEST(LinearSet, MayBeOneLinearOrNone) {
  CheckSameBits({}, 1);
  CheckSameBits({{Exl3(128, 7), 0, 1}}, 1);
}

}  // namespace
}  // namespace lockstep::kernels
