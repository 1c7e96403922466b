// A linear on the CPU in three steps, each of which threads may share: prepare (inputs of a row, 128 at a
// time), strip (16 outputs of all rows), finish (outputs of a row, 128 at a time). Every instruction set has
// its own build of the steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contract/cpu_isa.h"
#include "kernels/linear/linear_layout.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

inline constexpr std::int64_t kLinearBlock = 128;   // inputs or outputs of one call of prepare or finish
inline constexpr std::int64_t kStrip = 16;          // outputs of one call of strip
inline constexpr std::int64_t kMaxLinearRows = 64;  // of one LinearWork

// Activations in the form that the matrix is multiplied with. Which arrays exist depends on the matrix.
struct PreparedRows {
  // Family I. A 128-block's codes are in tile order: 16 inputs of a tile as (0,1) (8,9) (2,3) (10,11) (4,5)
  // (12,13) (6,7) (14,15).
  std::int16_t* codes = nullptr;  // [blocks][rows][128]
  std::int32_t* splat =
      nullptr;  // [blocks][rows][64], pairs of int8 codes as bytes (a,a,b,b); only for few rows
  std::int32_t* code_sum = nullptr;  // [blocks][rows]
  // Families H and F. Inputs are padded with zeros to whole blocks.
  float* values = nullptr;  // [rows][padded]
  std::int32_t* exponents =
      nullptr;  // [rows][padded/2], mma_emulate.h's pairs; not for profile fma and family F
  // Family I: [blocks][rows]; FP8 and FP4: [rows][activation blocks].
  float* scale = nullptr;
};

struct LinearWork {
  const LinearSpec* spec = nullptr;
  const std::byte* blob = nullptr;
  Profile profile = Profile::kFma;
  std::int64_t rows = 0;
  PreparedRows in;
  float* v = nullptr;  // [rows][v_stride] products, before the output transform
  std::int64_t v_stride = 0;
};

// Places the arrays of `work` (spec, blob, profile and rows are set) at `memory`, 64-byte aligned, and returns
// the bytes they take. With memory null only counts.
std::size_t PlaceLinearWork(LinearWork* work, std::byte* memory);

// Bytes of a strip's scratch, 64-byte aligned.
std::size_t StripScratchBytes(const LinearWork& work);

struct LinearSteps {
  // Inputs of blocks [begin, end) of x[in_features], bf16, as row `row`. False if a value left the fp16 range
  // (it becomes 0).
  bool (*prepare)(const LinearWork& work, const std::uint16_t* x, std::int64_t row, std::int64_t begin,
                  std::int64_t end);
  // v of outputs 16*strip .. 16*strip+15 for every row; all inputs must be prepared. By the family of the
  // matrix: I, H, F.
  void (*integer_strip)(const LinearWork& work, std::int64_t strip, std::byte* scratch);
  void (*panel_strip)(const LinearWork& work, std::int64_t strip, std::byte* scratch);
  void (*float_strip)(const LinearWork& work, std::int64_t strip, std::byte* scratch);
  // Outputs [128*block, 128*block+128) of row `row`, those below out_features, to y_bf16 or y_fp32 (the row's
  // start; the other is null).
  void (*finish)(const LinearWork& work, std::int64_t row, std::int64_t block, std::uint16_t* y_bf16,
                 float* y_fp32);

  void strip(const LinearWork& work, std::int64_t index, std::byte* scratch) const;
};

LinearSteps LinearStepsFor(Isa isa);

inline std::int64_t PrepareBlocks(const LinearSpec& spec) {
  return (spec.packed_in() + kLinearBlock - 1) / kLinearBlock;
}
inline std::int64_t Strips(const LinearSpec& spec) { return (spec.packed_out() + kStrip - 1) / kStrip; }
inline std::int64_t FinishBlocks(const LinearSpec& spec) {
  return (spec.out_features + kLinearBlock - 1) / kLinearBlock;
}

// Strips of a ParallelFor piece: enough pieces to even out the threads, few enough to keep them from queueing
// for the next.
inline std::int64_t StripGrain(std::int64_t strips, int threads) {
  const std::int64_t even = strips / (16 * std::int64_t{threads});
  return even < 1 ? 1 : even > 8 ? 8 : even;
}

}  // namespace lockstep::kernels
