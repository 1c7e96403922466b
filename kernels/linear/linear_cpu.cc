// A linear on the threads of a CpuStream.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>

#include "kernels/device/profile_kernel.h"
#include "kernels/elementwise/elementwise_cpu.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_steps.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBlocksPerPiece = 4;

void SetFlag(std::int32_t* flag) {
  if (flag) std::atomic_ref<std::int32_t>(*flag).store(1, std::memory_order_relaxed);
}

// Rows [first, first + work.rows) of args.
void RunRows(CpuStream& stream, const LinearSteps& steps, const LinearArgs& args, std::int64_t first,
             LinearWork work) {
  const LinearSpec& spec = *args.spec;
  PlaceLinearWork(&work, stream.SharedScratch(PlaceLinearWork(&work, nullptr)));

  // By reference: a std::function of the lambda itself would allocate.
  const std::int64_t in_blocks = PrepareBlocks(spec);
  const auto prepare = [&](std::int64_t begin, std::int64_t end, int) {
    while (begin < end) {  // pieces may begin in one row and end in the next
      const std::int64_t row = begin / in_blocks, block = begin % in_blocks;
      const std::int64_t count = std::min(in_blocks - block, end - begin);
      const std::uint16_t* x = args.x + (first + row) * args.x_stride;
      if (!steps.prepare(work, x, row, block, block + count)) SetFlag(args.overflow);
      begin += count;
    }
  };
  stream.ParallelFor(work.rows * in_blocks, kBlocksPerPiece, std::cref(prepare));

  const std::size_t scratch_bytes = StripScratchBytes(work);
  const auto multiply = [&](std::int64_t begin, std::int64_t end, int worker) {
    std::byte* scratch = stream.Scratch(worker, scratch_bytes);
    for (std::int64_t strip = begin; strip < end; ++strip) steps.strip(work, strip, scratch);
  };
  stream.ParallelFor(Strips(spec), StripGrain(Strips(spec), stream.threads()), std::cref(multiply));

  const std::int64_t out_blocks = FinishBlocks(spec);
  const auto finish = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / out_blocks, y = (first + row) * args.y_stride;
      steps.finish(work, row, i % out_blocks, args.y_bf16 ? args.y_bf16 + y : nullptr,
                   args.y_fp32 ? args.y_fp32 + y : nullptr);
    }
  };
  stream.ParallelFor(work.rows * out_blocks, kBlocksPerPiece, std::cref(finish));
}

template <Isa isa, Profile profile>
void RunAll(Stream& stream, const LinearArgs& args) {
  static const LinearSteps steps = LinearStepsFor(isa);
  for (std::int64_t first = 0; first < args.rows; first += kMaxLinearRows) {
    const std::int64_t rows = std::min(kMaxLinearRows, args.rows - first);
    RunRows(AsCpu(stream), steps, args, first,
            {.spec = args.spec, .blob = args.blob, .profile = profile, .rows = rows});
  }
}

template <Isa isa>
struct For {
  template <Profile profile>
  struct Run {
    static void Call(Stream& stream, const LinearArgs& args) {
      if (args.groups == 1) return RunAll<isa, profile>(stream, args);
      for (int g = 0; g < args.groups; ++g) RunAll<isa, profile>(stream, GroupOf(args, g));
    }
  };
  template <Profile profile>
  struct RunSet {
    static void Call(Stream& stream, const LinearSetArgs& set) {
      if (set.norm.rows > 0) CpuRmsNorm(isa)(stream, set.norm);
      for (int i = 0; i < set.count; ++i) Run<profile>::Call(stream, set.linears[i]);
    }
  };
};

constexpr std::string_view kContracts[7] = LOCKSTEP_PROFILE_CONTRACTS("linear", "+I+F");

}  // namespace

Kernel<LinearArgs> CpuLinear(Isa isa, Profile profile) {
  if (isa == Isa::kAvx512) return ProfileKernel<LinearArgs, For<Isa::kAvx512>::template Run>(profile, kContracts);
  if (isa == Isa::kAvx2) return ProfileKernel<LinearArgs, For<Isa::kAvx2>::template Run>(profile, kContracts);
  return ProfileKernel<LinearArgs, For<Isa::kGeneric>::template Run>(profile, kContracts);
}

Kernel<LinearSetArgs> CpuLinearSet(Isa isa, Profile profile) {
  if (isa == Isa::kAvx512) return ProfileKernel<LinearSetArgs, For<Isa::kAvx512>::template RunSet>(profile, kContracts);
  if (isa == Isa::kAvx2) return ProfileKernel<LinearSetArgs, For<Isa::kAvx2>::template RunSet>(profile, kContracts);
  return ProfileKernel<LinearSetArgs, For<Isa::kGeneric>::template RunSet>(profile, kContracts);
}

}  // namespace lockstep::kernels
