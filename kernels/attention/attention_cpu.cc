#include "kernels/attention/attention_cpu.h"

#include <algorithm>

#include "kernels/attention/attention_rows.h"
#include "kernels/device/cpu_rows.h"
#include "kernels/device/profile_kernel.h"
#include "kernels/elementwise/elementwise_rows.h"

namespace lockstep::kernels {
namespace {

using AttendFunction = void (*)(const AttentionArgs&, Profile, std::int64_t, int, int, std::byte*);

// Turns heads [first, last) of row t back.
template <RowsFunction<RopeArgs> rope>
void TurnBack(const AttentionArgs& a, std::int64_t t, int first, int last) {
  rope({a.out_THD + (t * a.heads + first) * a.head_dim, 1, last - first, a.head_dim, a.rope_dim, a.rope_table, &a.row_T[t].position, /*inverse=*/true}, 0, 1);
}

// Work items: a token and a group of heads, so that a single decode row uses all threads.
template <AttendFunction attend, RowsFunction<RopeArgs> rope, Profile profile>
void RunAttention(Stream& stream, const AttentionArgs& a) {
  const std::size_t bytes = generic::AttentionScratchBytes(a.head_dim);
  const std::int64_t groups = (a.heads + kAttentionHeadGroup - 1) / kAttentionHeadGroup;
  CpuStream& cpu = AsCpu(stream);
  cpu.ParallelFor(a.rows * groups, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    std::byte* scratch = cpu.Scratch(worker, bytes);
    for (std::int64_t item = begin; item < end; ++item) {
      const int first = static_cast<int>(item % groups) * kAttentionHeadGroup, last = std::min(first + kAttentionHeadGroup, a.heads);
      attend(a, profile, item / groups, first, last, scratch);
      if (a.rope_table) TurnBack<rope>(a, item / groups, first, last);
    }
  });
}

template <AttendFunction attend, RowsFunction<RopeArgs> rope>
struct For {
  template <Profile profile>
  struct Run {
    static void Call(Stream& stream, const AttentionArgs& a) { RunAttention<attend, rope, profile>(stream, a); }
  };
};

}  // namespace

Kernel<AttentionArgs> CpuAttention(Isa isa, Profile profile) {
  constexpr std::string_view kContracts[7] = LOCKSTEP_PROFILE_CONTRACTS("attention", "");
  const auto kernel_of = [&]<AttendFunction attend, RowsFunction<RopeArgs> rope>() { return ProfileKernel<AttentionArgs, For<attend, rope>::template Run>(profile, kContracts); };
  if (isa == Isa::kAvx512) return kernel_of.operator()<&avx512::AttendRow, &avx512::RopeRows>();
  if (isa == Isa::kAvx2) return kernel_of.operator()<&avx2::AttendRow, &avx2::RopeRows>();
  return kernel_of.operator()<&generic::AttendRow, &generic::RopeRows>();
}

}  // namespace lockstep::kernels
