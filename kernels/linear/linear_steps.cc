#include "kernels/linear/linear_steps.h"

#include <algorithm>

#include "kernels/linear/linear_simd.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::int64_t kSplatRows = 2;  // up to here the integer kernel takes splat codes

bool IsIntegerLinear(const LinearSpec& spec) {
  return spec.kind == LinearSpec::Kind::kExl3 && spec.act_limit > 0;
}
bool IsFloatLinear(const LinearSpec& spec) { return spec.kind == LinearSpec::Kind::kF32; }

// Hands out arrays one after the other.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void Place(std::int64_t count, T** array) {
    *array = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace

std::size_t PlaceLinearWork(LinearWork* work, std::byte* memory) {
  const LinearSpec& spec = *work->spec;
  const std::int64_t rows = work->rows, blocks = PrepareBlocks(spec), padded = blocks * kLinearBlock;
  Arena arena(memory);
  PreparedRows& in = work->in;
  in = {};
  if (IsIntegerLinear(spec)) {
    arena.Place(blocks * rows * kLinearBlock, &in.codes);
    if (spec.act_limit == 127 && rows <= kSplatRows) arena.Place(blocks * rows * kLinearBlock / 2, &in.splat);
    arena.Place(blocks * rows, &in.code_sum);
    arena.Place(blocks * rows, &in.scale);
  } else {
    arena.Place(rows * padded, &in.values);
    if (work->profile != Profile::kFma && !IsFloatLinear(spec)) arena.Place(rows * padded / 2, &in.exponents);
    if (spec.activation_block > 0) arena.Place(rows * padded / spec.activation_block, &in.scale);
  }
  work->v_stride = Strips(spec) * kStrip;
  arena.Place(rows * work->v_stride, &work->v);
  return arena.used();
}

std::size_t StripScratchBytes(const LinearWork& work) {
  // A panel of 128 x 16 values and its exponents; a row's accumulators are at most 16 vectors for its chain, 4
  // for the segments and one for a block's sum.
  constexpr std::int64_t kPanel = kLinearBlock * kStrip * 4 + kLinearBlock / 2 * kStrip * 4;
  constexpr std::int64_t kRow = (16 + 4 + 1) * kStrip * 4;
  return static_cast<std::size_t>(kPanel + kRow * std::min(work.rows, kMaxLinearRows));
}

void LinearSteps::strip(const LinearWork& work, std::int64_t index, std::byte* scratch) const {
  const LinearSpec& spec = *work.spec;
  (IsIntegerLinear(spec) ? integer_strip
   : IsFloatLinear(spec) ? float_strip
                         : panel_strip)(work, index, scratch);
}

LinearSteps LinearStepsFor(Isa isa) {
  return {.prepare = ForIsa(isa, generic::PrepareInputs, avx2::PrepareInputs, avx512::PrepareInputs),
          .integer_strip = ForIsa(isa, generic::IntegerStrip, avx2::IntegerStrip, avx512::IntegerStrip),
          .panel_strip = ForIsa(isa, generic::PanelStrip, avx2::PanelStrip, avx512::PanelStrip),
          .float_strip = ForIsa(isa, generic::FloatStrip, avx2::FloatStrip, avx512::FloatStrip),
          .finish = ForIsa(isa, generic::FinishOutputs, avx2::FinishOutputs, avx512::FinishOutputs)};
}

}  // namespace lockstep::kernels
