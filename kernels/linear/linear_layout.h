// How a matrix lies in device memory: one contiguous blob, the same bytes for GPU and CPU lane, so that a cold
// expert is one aligned copy and either side can compute from it. EXL3 trellis tiles keep their bytes as
// stored; tiles are reordered so that the tiles of one 16-column strip are contiguous in k.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/checkpoint.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

// The shape of a linear and where its parts lie in its blob. Plain data: it is copied to devices as it is.
struct LinearSpec {
  enum class Kind : std::int32_t { kBF16, kF16, kF32, kFp8Block, kFp4Row, kExl3 };
  Kind kind = Kind::kBF16;
  std::int32_t out_features = 0, in_features = 0;
  std::int32_t block = 0;  // kFp8Block: tile edge; kFp4Row: 32
  std::int32_t activation_block =
      0;  // kFp8Block, kFp4Row: inputs that share a scale; 0: the input is not quantized
  // kExl3
  Codebook codebook = Codebook::kMul1;
  std::int32_t bits_x2 = 0;
  std::int32_t in_padded = 0, out_padded = 0;
  std::int32_t act_limit = 0;  // mul1: 127 or 32512 (family I); 0: family H
  std::int32_t has_bias = 0;

  // Byte offsets from the start of the blob, each a multiple of 256, ascending in this order. A part that the
  // kind lacks has no bytes. Bytes between parts are 0. A reader may touch up to 256 bytes past the weights of
  // kExl3: they are inside the blob.
  std::int64_t weight = 0;  // dense: [out][in]; FP8: codes [out][in]; FP4: [out][in/2], low nibble first;
                            // EXL3: tiles [out_padded/16][in_padded/16][8*bits_x2 u16]
  std::int64_t scale =
      0;  // E8M0 bytes. FP8: [ceil(out/block)][ceil(in/block)], of this matrix's rows; FP4: [out][in/32]
  std::int64_t input_scale = 0;   // EXL3 suh, fp32 [in_padded]
  std::int64_t output_scale = 0;  // EXL3 svh, fp32 [out_padded]
  std::int64_t bias = 0;          // EXL3, fp32 [out_padded], 0 past the stored ones
  std::int64_t bytes = 0;         // of all parts, a multiple of 256

  bool operator==(const LinearSpec&) const = default;
  std::int64_t packed_in() const { return kind == Kind::kExl3 ? in_padded : in_features; }
  std::int64_t packed_out() const { return kind == Kind::kExl3 ? out_padded : out_features; }
  std::int64_t tile_bytes() const { return 16 * std::int64_t{bits_x2}; }
};

// `activation_block`: config.weight_block_size. `quantize_input` false: an FP8 or FP4 weight is dequantised to
// BF16 (wo_a). With fake_quant off FP8 and FP4 inputs stay unquantized. Throws InputError for scale blocks that
// are not 16, 32, 64 or 128.
LinearSpec MakeLinearSpec(const LinearWeight& weight, const NumericsOptions& numerics, int activation_block,
                          bool quantize_input = true);

// Writes the blob of `weight` to dst, which lies where spec's offsets count from. Padding bytes become 0.
// Throws InputError naming file, tensor, row and column if a weight is not finite.
void PackLinear(const LinearWeight& weight, const LinearSpec& spec, std::byte* dst);

// The three matrices of an expert in one blob: gate (w1), up (w3), down (w2). Each part's offsets count from
// the expert's start; its `bytes` are its own.
struct ExpertSpec {
  LinearSpec gate, up, down;
  std::int64_t bytes = 0;

  bool operator==(const ExpertSpec&) const = default;
};
ExpertSpec MakeExpertSpec(const ExpertWeights& weights, const NumericsOptions& numerics, int activation_block);
void PackExpert(const ExpertWeights& weights, const ExpertSpec& spec, std::byte* dst);

}  // namespace lockstep::kernels
