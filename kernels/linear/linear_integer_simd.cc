// Family I: mul1 linears with quantized activations (docs/numerics.md section 4). Compiled once per instruction
// set.
#include "kernels/contract/segments.h"
#include "kernels/contract/vec.h"
#include "kernels/linear/linear_simd.h"
#include "kernels/linear/linear_steps.h"
#include "kernels/linear/trellis.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kByteSumOffset = 510;

// sums[rows][16] of one 128-block of a strip.
using BlockSums = void (*)(const LinearWork& work, const std::uint8_t* tiles, std::int64_t block,
                           std::int16_t* panel, std::int32_t* sums);

template <int kBitsX2>
void PanelSums(const LinearWork& work, const std::uint8_t* tiles, std::int64_t block, std::int16_t* panel,
               std::int32_t* sums) {
  DecodeByteSums<kBitsX2>(tiles, panel);
  MultiplyByteSums(panel, work.in.codes + block * work.rows * kLinearBlock, work.rows, sums);
}

#if LOCKSTEP_ISA_LEVEL >= 1
template <int kBitsX2, int kRows>
void FusedInt16Sums(const LinearWork& work, const std::uint8_t* tiles, std::int64_t block, std::int16_t*,
                    std::int32_t* sums) {
  MultiplyTilesInt16<kBitsX2, kRows>(tiles, work.in.codes + block * kRows * kLinearBlock, sums);
}
#endif

#if LOCKSTEP_ISA_LEVEL == 2
template <int kBitsX2, int kRows>
void FusedInt8Sums(const LinearWork& work, const std::uint8_t* tiles, std::int64_t block, std::int16_t*,
                   std::int32_t* sums) {
  MultiplyTilesInt8<kBitsX2, kRows>(tiles, work.in.splat + block * kRows * kLinearBlock / 2, sums);
}
#endif

template <int kBitsX2>
BlockSums ChooseBlockSums([[maybe_unused]] const LinearWork& work) {
#if LOCKSTEP_ISA_LEVEL == 2
  if (work.rows == 1 && work.in.splat) return FusedInt8Sums<kBitsX2, 1>;
  if (work.rows == 2 && work.in.splat) return FusedInt8Sums<kBitsX2, 2>;
#endif
#if LOCKSTEP_ISA_LEVEL >= 1
  if (work.rows == 1) return FusedInt16Sums<kBitsX2, 1>;
#endif
  return PanelSums<kBitsX2>;
}

}  // namespace

void IntegerStrip(const LinearWork& work, std::int64_t strip, std::byte* scratch) {
  const LinearSpec& spec = *work.spec;
  const BlockSums block_sums =
      ForBits(spec.bits_x2, [&]<int kBitsX2>() { return ChooseBlockSums<kBitsX2>(work); });
  const std::int64_t rows = work.rows, blocks = spec.in_padded / kLinearBlock,
                     block_bytes = 8 * 16 * std::int64_t{spec.bits_x2};
  const auto* tiles =
      reinterpret_cast<const std::uint8_t*>(work.blob + spec.weight) + strip * blocks * block_bytes;

  auto* panel = reinterpret_cast<std::int16_t*>(scratch);
  auto* sums = reinterpret_cast<std::int32_t*>(panel + kLinearBlock * kStrip);
  float* y = reinterpret_cast<float*>(sums + rows * kStrip);  // [segments][rows][16]
  for (int s = 0; s < kSegments; ++s) {
    float* y_segment = y + s * rows * kStrip;
    for (std::int64_t r = 0; r < rows; ++r) Store(F32x16(0.0f), y_segment + r * kStrip);
    const SegmentRange range = SegmentOf(spec.in_padded, s);
    for (std::int64_t block = range.begin / kLinearBlock; block < range.end / kLinearBlock; ++block) {
      block_sums(work, tiles + block * block_bytes, block, panel, sums);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t index = block * rows + r;
        const I32x16 sum =
            LoadI32(sums + r * kStrip) - I32x16(work.in.code_sum[index]) * I32x16(kByteSumOffset);
        const F32x16 so_far = Load(y_segment + r * kStrip);
        Store(Fma(ToFloat(sum), F32x16(work.in.scale[index]), so_far), y_segment + r * kStrip);
      }
    }
  }
  const std::int64_t segment = rows * kStrip;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = y + r * kStrip;
    const F32x16 v =
        FoldSegments(Load(row), Load(row + segment), Load(row + 2 * segment), Load(row + 3 * segment));
    Store(v, work.v + r * work.v_stride + strip * kStrip);
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
