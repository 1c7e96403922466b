// Jobs that the device makes are the jobs that the host would have listed: the same bits, pairs that nobody has left alone, and weights
// of experts without pairs unread.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/expert_ffn/expert_ffn_cases.h"
#include "kernels/testing/implementations.h"

namespace lockstep::kernels {
namespace {

constexpr std::uint16_t kGuard = 0x7e5a;

ExpertForm Trellis(int bits_x2, Codebook codebook = Codebook::kMul1) {
  const LinearCase form = {.kind = LinearSpec::Kind::kExl3, .bits_x2 = bits_x2, .codebook = codebook};
  return {.gate = form, .up = form, .down = form};
}

// What the store of a layer's experts and the pair_groups kernel would give for the jobs of a problem, where `memory` is. Forms are listed
// last first, so that an expert's form is not its own number.
class DeviceJobs {
 public:
  DeviceJobs(const std::vector<ExpertJob>& jobs, CallMemory& memory) {
    for (std::size_t e = 0; e < jobs.size(); ++e) {
      const ExpertJob& job = jobs[e];
      blobs_.push_back(job.rows > 0 ? job.blob : nullptr);
      form_of_.push_back(static_cast<std::int32_t>(jobs.size() - 1 - e));
      forms_.insert(forms_.begin(), *job.spec);
      counts_.push_back(static_cast<std::int32_t>(job.rows));
      begins_.push_back(static_cast<std::int32_t>(job.begin));
      if (job.rows > 0) active_[static_cast<std::size_t>(num_active_[0]++)] = static_cast<std::int32_t>(e);
    }
    table_ = {static_cast<int>(jobs.size()), static_cast<int>(forms_.size()), memory.In(blobs_), memory.In(form_of_), memory.In(forms_), forms_.data()};
    groups_ = {memory.InOut(counts_), memory.InOut(begins_), memory.InOut(active_), memory.InOut(num_active_)};
  }
  DeviceJobs(const DeviceJobs&) = delete;
  DeviceJobs& operator=(const DeviceJobs&) = delete;

  void Put(std::int64_t pairs, std::int64_t tokens, ExpertFfnArgs* args) {
    args->jobs = nullptr;
    args->num_jobs = 0;
    args->table = &table_;
    args->groups = groups_;
    args->max_pairs = pairs;
    args->max_group = tokens;
  }

 private:
  std::vector<const std::byte*> blobs_;
  std::vector<std::int32_t> form_of_, counts_, begins_;
  std::vector<std::int32_t> active_ = std::vector<std::int32_t>(64, -1);
  std::vector<std::int32_t> num_active_ = {0};
  std::vector<ExpertSpec> forms_;
  ExpertTable table_;
  PairGroups groups_;
};

std::vector<std::uint16_t> Outputs(const Implementation& implementation, const ExpertCase& c, const ExpertProblem& problem, bool device_made) {
  std::vector<std::uint16_t> y(static_cast<std::size_t>(problem.pairs() * c.hidden), kGuard);
  std::vector<std::int32_t> overflow = {0};
  CallMemory memory(implementation);
  std::vector<ExpertJob> jobs;
  ExpertFfnArgs args = problem.Place(memory, jobs);
  DeviceJobs made(jobs, memory);
  if (device_made) made.Put(problem.pairs(), *std::max_element(c.rows.begin(), c.rows.end()), &args);
  args.y = memory.InOut(y);
  args.overflow = memory.InOut(overflow);
  implementation.kernels().expert_ffn(implementation.stream(), args);
  memory.Finish();
  EXPECT_EQ(overflow[0], 0);
  return y;
}

void CheckSameBits(const ExpertCase& c) {
  const ExpertProblem problem(c);
  for (const Implementation& implementation : Implementations(c.numerics.profile, 2)) {
    if (implementation.kernels().device_job_rows == 0) continue;
    EXPECT_EQ(Outputs(implementation, c, problem, true), Outputs(implementation, c, problem, false)) << implementation.name();
  }
}

TEST(DeviceMadeJobs, DecodeOfOneToken) {
  CheckSameBits({.experts = std::vector<ExpertForm>(6, Trellis(6)), .rows = {1, 0, 1, 1, 0, 1}, .tokens = 1, .hidden = 256, .features = 128});
}

TEST(DeviceMadeJobs, CodesOfBothWidths) {
  for (const std::int64_t tokens : {1, 8}) {
    CheckSameBits({.experts = {Trellis(6), Trellis(6), Trellis(10), Trellis(4), Trellis(10)},
                   .rows = {1, 0, 1, tokens, tokens},
                   .tokens = tokens,
                   .hidden = 256,
                   .features = 128});
  }
}

TEST(DeviceMadeJobs, MixedForms) {
  CheckSameBits({.experts = {Trellis(4), Trellis(6), Trellis(6, Codebook::kMcg), Trellis(5)},
                 .rows = {3, 0, 17, 40},
                 .tokens = 23,
                 .hidden = 160,
                 .features = 96});
}

TEST(DeviceMadeJobs, ManyRows) {
  CheckSameBits({.experts = {Trellis(6), Trellis(6), Trellis(4), Trellis(6)},
                 .rows = {130, 1, 70, 300},
                 .tokens = 90,
                 .hidden = 128,
                 .features = 128});
}

// More forms than travel as kernel parameters.
TEST(DeviceMadeJobs, ManyForms) {
  ExpertCase c = {.tokens = 2, .hidden = 128, .features = 128};
  for (int e = 0; e < 30; ++e) {
    c.experts.push_back(Trellis(2 + e % 7));
    c.rows.push_back(e % 3);
  }
  CheckSameBits(c);
}

TEST(DeviceMadeJobs, NoPairs) {
  CheckSameBits({.experts = {Trellis(6), Trellis(6)}, .rows = {0, 0}, .tokens = 1, .hidden = 128, .features = 128});
}

}  // namespace
}  // namespace lockstep::kernels
