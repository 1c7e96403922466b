// Grouped experts: for each (token, expert) pair y = w2 bf16(weight * silu(min(w1 x, L)) * clamp(w3 x, -L, L)).
// Contract: docs/numerics.md section 6, Expert; the linears' families.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/pair_groups/pair_groups.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// One expert and the pairs it serves: pair p of `begin .. begin + rows` reads x row token[p], and writes y row
// p.
struct ExpertJob {
  const ExpertSpec* spec = nullptr;  // host
  const std::byte* blob = nullptr;   // device
  std::int64_t begin = 0;
  std::int64_t rows = 0;
};

// The experts of a layer whose weights all lie in device memory. Bits per weight may differ from expert to
// expert: `forms` are the different specs among them.
struct ExpertTable {
  int experts = 0;
  int num_forms = 0;
  const std::byte* const* blob_X = nullptr;  // device [experts]; may change between steps
  const std::int32_t* form_X = nullptr;      // device [experts]: index of the expert's spec in forms
  const ExpertSpec* forms = nullptr;         // device [num_forms]
  const ExpertSpec* host_forms = nullptr;    // host, the same: what the launches of each form need to know
};

// Where the jobs come from: the host's list, or, with `table` set, the device: expert e serves the pairs that
// `groups` gives it. Then the host knows only bounds, and everything a launch needs beyond them is read on the
// device: at most max_pairs pairs, in at most min(max_pairs, experts) groups (groups.active_X names them, a tile
// of n rows needs at most max_pairs / n + min(max_pairs, experts) tiles); a form's launch skips the experts of
// other forms. What runs past the last group stops without a trace. No allocation and no copy may depend on more
// than the arguments, so that the call can be part of a captured graph. The CUDA kernels take such jobs only for experts whose matrices are all
// EXL3, and are meant for few rows an expert: they decode a weight once for eight.
struct ExpertFfnArgs {
  const ExpertJob* jobs = nullptr;  // host, [num_jobs]
  std::int64_t num_jobs = 0;
  const ExpertTable* table = nullptr;  // host; outlives every graph that the call is captured in
  PairGroups groups;
  std::int64_t max_pairs = 0;
  std::int64_t max_group = 0;  // no expert has more pairs: the tokens of the step
  // Pairs of the table's last expert, the shared one, if there are any: the last of all, pair max_pairs - shared_rows + t is row t with weight 1. Then
  // its group needs not be there yet.
  std::int64_t shared_rows = 0;
  const std::uint16_t* x = nullptr;     // bf16 [tokens][hidden]
  const std::int32_t* token = nullptr;  // device [pairs]: x row of a pair; null: row p (the shared expert)
  const float* weight = nullptr;        // device [pairs]: routing weight; null: none (the shared expert)
  float limit = 0.0f;                   // L; 0: no clamp
  std::int64_t hidden = 0;
  std::uint16_t* y = nullptr;        // bf16 [pairs][hidden]
  std::int32_t* overflow = nullptr;  // as in LinearArgs
};

// Keeps the host's jobs as well.
template <>
struct KeptArgs<ExpertFfnArgs> {
  explicit KeptArgs(const ExpertFfnArgs& a) : args(a), jobs(a.jobs, a.jobs + a.num_jobs) {}
  ExpertFfnArgs Get() const {
    ExpertFfnArgs kept = args;
    kept.jobs = jobs.data();
    return kept;
  }
  ExpertFfnArgs args;
  std::vector<ExpertJob> jobs;
};

// The CPU implementation. Its contract id is "expert_ffn/H(<profile>)+I+F", the same for every `isa`.
Kernel<ExpertFfnArgs> CpuExpertFfn(Isa isa, Profile profile);

}  // namespace lockstep::kernels
