#include "kernels/attention/attention_cpu.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/attention_rows.h"
#include "kernels/device/profile_kernel.h"
#include "kernels/elementwise/elementwise_cpu.h"

namespace lockstep::kernels {
namespace {

using AttendFunction = void (*)(const AttentionArgs&, Profile, std::int64_t, int, int, std::byte*);

// The inverse RoPE of the rows.
void TurnBack(Stream& stream, const Kernel<RopeArgs>& rope, const AttentionArgs& a) {
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < a.rows; ++t) positions.push_back(a.row_T[t].position);
  rope(stream, {a.out_THD, a.rows, a.heads, a.head_dim, a.rope_dim, a.rope_table, positions.data(), /*inverse=*/true});
}

// Work items: a token and a group of heads, so that a single decode row uses all threads.
template <Isa isa, AttendFunction attend, Profile profile>
void RunAttention(Stream& stream, const AttentionArgs& a) {
  const std::size_t bytes = generic::AttentionScratchBytes(a.head_dim);
  const std::int64_t groups = (a.heads + kAttentionHeadGroup - 1) / kAttentionHeadGroup;
  CpuStream& cpu = AsCpu(stream);
  cpu.ParallelFor(a.rows * groups, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    std::byte* scratch = cpu.Scratch(worker, bytes);
    for (std::int64_t item = begin; item < end; ++item) {
      const int first = static_cast<int>(item % groups) * kAttentionHeadGroup;
      attend(a, profile, item / groups, first, std::min(first + kAttentionHeadGroup, a.heads), scratch);
    }
  });
  if (a.rope_table) TurnBack(stream, CpuRope(isa), a);
}

template <Isa isa, AttendFunction attend>
struct For {
  template <Profile profile>
  struct Run {
    static void Call(Stream& stream, const AttentionArgs& a) { RunAttention<isa, attend, profile>(stream, a); }
  };
};

}  // namespace

Kernel<AttentionArgs> CpuAttention(Isa isa, Profile profile) {
  constexpr std::string_view kContracts[7] = LOCKSTEP_PROFILE_CONTRACTS("attention", "");
  const auto kernel_of = [&]<Isa of, AttendFunction attend>() { return ProfileKernel<AttentionArgs, For<of, attend>::template Run>(profile, kContracts); };
  if (isa == Isa::kAvx512) return kernel_of.operator()<Isa::kAvx512, &avx512::AttendRow>();
  if (isa == Isa::kAvx2) return kernel_of.operator()<Isa::kAvx2, &avx2::AttendRow>();
  return kernel_of.operator()<Isa::kGeneric, &generic::AttendRow>();
}

}  // namespace lockstep::kernels
