// The experts of every instruction set, and of the CUDA device where there is one, against the reference's
// mixture of experts in contract arithmetic, bit for bit.
#include "kernels/expert_ffn/expert_ffn.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/expert_ffn/expert_ffn_cases.h"
#include "reference/moe.h"

namespace {
thread_local bool counting = false;
thread_local int allocations = 0;
}  // namespace

// Out of line, or GCC takes malloc and operator delete for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;
using reference::Matrix;

LinearCase Trellis(int bits_x2, Codebook codebook = Codebook::kMul1) {
  return {.kind = Kind::kExl3, .bits_x2 = bits_x2, .codebook = codebook};
}
ExpertForm Uniform(const LinearCase& form) { return {.gate = form, .up = form, .down = form}; }

// y of every pair by reference::ApplyExperts, one expert at a time. Its output is 0 + expert + 0, so a -0 comes
// back as +0.
class Reference {
 public:
  Reference(const ExpertCase& c, const ExpertProblem& problem)
      : c_(c),
        problem_(problem),
        zero_(maker_.Make(ZeroForm(c.hidden, c.features))),
        zero_down_(maker_.Make(ZeroForm(c.features, c.hidden))) {
    for (TestLinear* linear : {&zero_, &zero_down_})
      std::memset(linear->weight_bytes.data(), 0, linear->weight_bytes.size());
    config_.swiglu_limit = static_cast<double>(c.limit);
  }

  std::vector<std::uint16_t> Outputs() {
    std::vector<std::uint16_t> y(static_cast<std::size_t>(problem_.pairs() * c_.hidden), kGuardBF16);
    reference::LinearEngine<reference::Contract> linears({.numerics = c_.numerics}, 32);
    for (std::size_t e = 0; e < problem_.jobs().size(); ++e) {
      const ExpertJob& job = problem_.jobs()[e];
      LayerWeights layer;
      layer.experts = {c_.routed ? problem_.weights()[e] : Zero()};
      layer.shared_expert = c_.routed ? Zero() : problem_.weights()[e];
      Matrix<float> x_TE(job.rows, c_.hidden);
      std::vector<reference::Routing<float>> routing(static_cast<std::size_t>(job.rows));
      for (std::int64_t r = 0; r < job.rows; ++r) {
        const auto pair = static_cast<std::size_t>(job.begin + r);
        for (std::int64_t k = 0; k < c_.hidden; ++k) {
          x_TE(r, k) =
              BF16ToFloat(problem_.x()[static_cast<std::size_t>(problem_.token()[pair] * c_.hidden + k)]);
        }
        if (c_.routed)
          routing[static_cast<std::size_t>(r)] = {.experts = {0}, .weights = {problem_.weight()[pair]}};
      }
      if (job.rows == 0) continue;
      const Matrix<float> y_TE = reference::ApplyExperts(config_, layer, linears, x_TE, routing);
      for (std::int64_t i = 0; i < y_TE.size(); ++i)
        y[static_cast<std::size_t>(job.begin * c_.hidden + i)] = FloatToBF16(y_TE.data()[i]);
    }
    return y;
  }

 private:
  static LinearCase ZeroForm(std::int64_t in, std::int64_t out) {
    return {.kind = Kind::kBF16, .out = out, .in = in};
  }
  ExpertWeights Zero() const { return {.w1 = zero_.weight, .w2 = zero_down_.weight, .w3 = zero_.weight}; }

  const ExpertCase& c_;
  const ExpertProblem& problem_;
  LinearMaker maker_{3};
  TestLinear zero_, zero_down_;
  ModelConfig config_;
};

std::uint16_t WithoutNegativeZero(std::uint16_t bits) { return bits == 0x8000 ? 0 : bits; }

// y [pairs][hidden] of `problem` and a guard behind it.
std::vector<std::uint16_t> Run(const Implementation& implementation, const ExpertProblem& problem,
                               std::int64_t hidden) {
  std::vector<std::uint16_t> y(static_cast<std::size_t>(problem.pairs() * hidden) + 64, kGuardBF16);
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  std::vector<ExpertJob> jobs;
  ExpertFfnArgs args = problem.Place(memory, jobs);
  args.y = memory.InOut(y);
  args.overflow = memory.InOut(overflow);
  implementation.kernels().expert_ffn(implementation.stream(), args);
  memory.Finish();
  EXPECT_EQ(overflow[0], 0);
  return y;
}

// A case and what the reference makes of it.
class Checked {
 public:
  explicit Checked(const ExpertCase& c) : c_(c), problem_(c), expected_(Reference(c, problem_).Outputs()) {
    std::size_t zeros = 0;
    for (const std::uint16_t bits : expected_) zeros += bits == 0;
    EXPECT_LT(2 * zeros, expected_.size()) << "a result that proves little";
  }

  void Check(const Implementation& implementation) const {
    SCOPED_TRACE(implementation.name() + ", " + std::string(NameOf(c_.numerics.profile)));
    const std::vector<std::uint16_t> y = Run(implementation, problem_, c_.hidden);
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      ASSERT_EQ(WithoutNegativeZero(y[i]), expected_[i])
          << "pair " << i / static_cast<std::size_t>(c_.hidden) << ", output "
          << i % static_cast<std::size_t>(c_.hidden);
    }
    for (std::size_t i = expected_.size(); i < y.size(); ++i) ASSERT_EQ(y[i], kGuardBF16);
  }

 private:
  ExpertCase c_;
  ExpertProblem problem_;
  std::vector<std::uint16_t> expected_;
};

void CheckAgainstReference(const ExpertCase& c, const std::vector<int>& thread_counts) {
  const Checked checked(c);
  for (const int threads : thread_counts) {
    SCOPED_TRACE("threads " + std::to_string(threads));
    for (const Implementation& implementation : Implementations(c.numerics.profile, threads))
      checked.Check(implementation);
  }
}

TEST(ExpertFfnAgainstReference, DecodeOfOneToken) {
  CheckAgainstReference({.experts = std::vector<ExpertForm>(6, Uniform(Trellis(6))),
                         .rows = {1, 1, 1, 1, 1, 1},
                         .tokens = 1,
                         .hidden = 384,
                         .features = 256},
                        {1, 2, 4});
}

TEST(ExpertFfnAgainstReference, EveryProfileAndStorage) {
  const LinearCase forms[] = {Trellis(6),
                              Trellis(5),
                              Trellis(10),
                              Trellis(6, Codebook::kMcg),
                              {.kind = Kind::kBF16},
                              {.kind = Kind::kFp8Block},
                              {.kind = Kind::kFp4Row}};
  for (const LinearCase& form : forms) {
    for (const Profile profile :
         {Profile::kSm90, Profile::kSm80, Profile::kSm70, Profile::kSm70Jit, Profile::kFma}) {
      for (const bool fake_quant : {true, false}) {
        CheckAgainstReference({.experts = {Uniform(form), Uniform(form)},
                               .rows = {3, 2},
                               .tokens = 4,
                               .hidden = 160,
                               .features = 96,
                               .numerics = {.profile = profile, .fake_quant = fake_quant}},
                              {2});
      }
    }
  }
}

// Packs choose rate and codebook for each matrix; sizes need not be whole blocks; experts may get no row.
TEST(ExpertFfnAgainstReference, MixedFormsOddSizesAndEmptyJobs) {
  const ExpertForm mixed = {
      .gate = Trellis(4), .up = Trellis(7, Codebook::k3inst), .down = {.kind = Kind::kBF16}};
  CheckAgainstReference({.experts = {mixed,
                                     Uniform(Trellis(8)),
                                     {.gate = Trellis(16), .up = {.kind = Kind::kF16}, .down = Trellis(3)},
                                     Uniform(Trellis(2))},
                         .rows = {2, 0, 5, 1},
                         .tokens = 7,
                         .hidden = 200,
                         .features = 150},
                        {1, 3});
}

// Few rows of byte and word codes side by side, as routed experts and a shared one of more bits are.
TEST(ExpertFfnAgainstReference, CodesOfBothWidths) {
  const std::vector<ExpertForm> experts = {Uniform(Trellis(6)), Uniform(Trellis(4)), {.gate = Trellis(6), .up = Trellis(10), .down = Trellis(5)}, Uniform(Trellis(10))};
  for (const std::int64_t rows : {1, 2, 3, 8}) {
    CheckAgainstReference({.experts = experts, .rows = {1, rows, 1, rows}, .tokens = rows, .hidden = 256, .features = 128}, {2});
  }
}

// Inputs so long, and blocks so few, that more warps share each segment.
TEST(ExpertFfnAgainstReference, LongInputsOfOneExpert) {
  for (const int bits_x2 : {6, 10}) {
    for (const std::int64_t rows : {1, 2, 5}) {
      CheckAgainstReference({.experts = {Uniform(Trellis(bits_x2))}, .rows = {rows}, .tokens = rows, .hidden = 1280, .features = 640}, {2});
    }
  }
}

// More rows than a chunk and than a batch.
TEST(ExpertFfnAgainstReference, ManyRows) {
  CheckAgainstReference({.experts = {Uniform(Trellis(6)), Uniform(Trellis(4)), Uniform(Trellis(6))},
                         .rows = {70, 130, 150},
                         .tokens = 90,
                         .hidden = 130,
                         .features = 140},
                        {1, 4});
}

TEST(ExpertFfnAgainstReference, SharedExpertAndNoLimit) {
  for (const float limit : {10.0f, 0.5f, 0.0f}) {
    CheckAgainstReference({.experts = {Uniform(Trellis(10))},
                           .rows = {9},
                           .tokens = 9,
                           .hidden = 256,
                           .features = 128,
                           .limit = limit,
                           .routed = false},
                          {1, 2});
  }
}

// The device alone, where there is one: more rows and more experts than a launch's parameters hold.
class ExpertFfnOnDevice : public testing::TestWithParam<Implementation> {
 protected:
  void Check(const ExpertCase& c) { Checked(c).Check(GetParam()); }
};

TEST_P(ExpertFfnOnDevice, EveryNumberOfRows) {
  for (const LinearCase& form :
       {Trellis(6), Trellis(10), Trellis(6, Codebook::kMcg), LinearCase{.kind = Kind::kFp8Block}}) {
    for (const std::int64_t rows : {1, 2, 5, 8, 16, 17, 64, 100, 130, 300}) {
      Check({.experts = std::vector<ExpertForm>(3, Uniform(form)),
             .rows = {rows, 1, rows},
             .tokens = rows,
             .hidden = 160,
             .features = 96});
    }
  }
}

// More outputs than a device has blocks at once, of tiles of both sizes and of a few rows, and downs that begin before all gates and ups have ended.
TEST_P(ExpertFfnOnDevice, ManyTiles) {
  for (const LinearCase& form : {Trellis(6), Trellis(10)}) {
    Check({.experts = std::vector<ExpertForm>(6, Uniform(form)), .rows = {300, 129, 3, 200, 40, 256}, .tokens = 300, .hidden = 256, .features = 1536});
  }
}

TEST_P(ExpertFfnOnDevice, OddGroupsOfExperts) {
  for (const std::size_t experts : {1, 3, 7, 25, 61}) {
    ExpertCase c = {.tokens = 13, .hidden = 130, .features = 140};
    for (std::size_t e = 0; e < experts; ++e) {
      c.experts.push_back(Uniform(e % 5 == 3   ? Trellis(6, Codebook::kMcg)
                                  : e % 5 == 4 ? Trellis(4)
                                               : Trellis(6)));
      c.rows.push_back(static_cast<std::int64_t>(e * 7 % 19));
    }
    c.rows[0] = 33;
    Check(c);
  }
}

TEST_P(ExpertFfnOnDevice, EveryRateAndCodebook) {
  for (const Codebook codebook : {Codebook::k3inst, Codebook::kMcg, Codebook::kMul1}) {
    for (const int bits_x2 : {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}) {
      const ExpertForm form = Uniform(Trellis(bits_x2, codebook));
      Check({.experts = {form, form}, .rows = {9, 1}, .tokens = 4, .hidden = 200, .features = 150});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, ExpertFfnOnDevice, testing::ValuesIn(DeviceImplementations()),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExpertFfnOnDevice);

TEST(ExpertFfnMemory, ASecondCallAllocatesNothing) {
  const ExpertCase c = {.experts = {Uniform(Trellis(6)), Uniform(Trellis(6, Codebook::kMcg))},
                        .rows = {3, 2},
                        .tokens = 4,
                        .hidden = 256,
                        .features = 128};
  const ExpertProblem problem(c);
  for (const Isa isa : SupportedIsas()) {
    const Implementation implementation(isa, Profile::kSm90, 2);
    std::vector<std::uint16_t> y(static_cast<std::size_t>(problem.pairs() * c.hidden));
    std::int32_t overflow = 0;
    CallMemory memory(implementation);
    std::vector<ExpertJob> jobs;
    ExpertFfnArgs args = problem.Place(memory, jobs);
    args.y = y.data();
    args.overflow = &overflow;
    implementation.kernels().expert_ffn(implementation.stream(), args);
    counting = true;
    implementation.kernels().expert_ffn(implementation.stream(), args);
    counting = false;
    EXPECT_EQ(allocations, 0);
  }
}

TEST(ExpertFfnOverflow, ActivationsBeyondFp16RaiseTheFlag) {
  const ExpertCase c = {.experts = {{.gate = Trellis(6), .up = Trellis(6), .down = Trellis(6, Codebook::kMcg)}},
                        .rows = {2},
                        .tokens = 2,
                        .hidden = 256,
                        .features = 256,
                        .limit = 0.0f};
  const ExpertProblem problem(c);
  std::vector<std::uint16_t> large = problem.x();
  for (std::uint16_t& value : large) value = FloatToBF16(BF16ToFloat(value) * 1e4f);
  for (const Profile profile : {Profile::kFma, Profile::kSm90}) {
    for (const Implementation& implementation : Implementations(profile, 2)) {
      SCOPED_TRACE(implementation.name());
      for (const bool overflows : {false, true}) {
        std::vector<std::uint16_t> y(static_cast<std::size_t>(problem.pairs() * c.hidden));
        std::vector<std::int32_t> overflow = {0};
        CallMemory memory(implementation);
        std::vector<ExpertJob> jobs;
        ExpertFfnArgs args = problem.Place(memory, jobs);
        args.y = memory.InOut(y);
        args.overflow = memory.InOut(overflow);
        if (overflows) args.x = memory.In(large);
        implementation.kernels().expert_ffn(implementation.stream(), args);
        memory.Finish();
        EXPECT_EQ(overflow[0], overflows ? 1 : 0);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
