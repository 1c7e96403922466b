// Grouped experts: for each (token, expert) pair y = w2 bf16(weight * silu(min(w1 x, L)) * clamp(w3 x, -L, L)).
// Contract: docs/numerics.md section 6, Expert; the linears' families.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"
#include "kernels/linear/linear_layout.h"
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

struct ExpertFfnArgs {
  const ExpertJob* jobs = nullptr;  // host, [num_jobs]
  std::int64_t num_jobs = 0;
  const std::uint16_t* x = nullptr;     // bf16 [tokens][hidden]
  const std::int32_t* token = nullptr;  // device [pairs]: x row of a pair; null: row p (the shared expert)
  const float* weight = nullptr;        // device [pairs]: routing weight; null: none (the shared expert)
  float limit = 0.0f;                   // L; 0: no clamp
  std::int64_t hidden = 0;
  std::uint16_t* y = nullptr;        // bf16 [pairs][hidden]
  std::int32_t* overflow = nullptr;  // as in LinearArgs
};

// The CPU implementation. Its contract id is "expert_ffn/H(<profile>)+I+F", the same for every `isa`.
Kernel<ExpertFfnArgs> CpuExpertFfn(Isa isa, Profile profile);

}  // namespace lockstep::kernels
