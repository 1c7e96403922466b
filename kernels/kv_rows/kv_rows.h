// Packed, lossless rows of the KV state, and the pages they lie in. Contract: the quantizers of docs/numerics.md section 5.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/elementwise/elementwise.h"

namespace lockstep::kernels {

// How one row of `width` channels is stored.
struct RowFormat {
  enum class Kind : std::int32_t {
    kBf16,          // bf16 [width]: the quantizers are off
    kFp8,           // E4M3 codes [quantized], E8M0 scales [ceil(quantized/block)], bf16 [width - quantized]
    kFp4E4M3,       // FP4 codes [ceil(width/2)] low nibble first, E4M3 scales [ceil(width/block)]
    kFp4E8M0,       // FP4 codes, E8M0 scales
    kHadamardFp4,   // kFp4E8M0 of the row after butterfly * 1/sqrt(width), bf16 (V4 index keys)
  };
  Kind kind = Kind::kBf16;
  std::int32_t width = 0;
  std::int32_t quantized = 0;  // channels that are quantized, from the front (kFp8)
  std::int32_t block = 0;

  std::int64_t row_bytes() const;  // padded to a multiple of 4
};

// Rows of one sequence in pages of 2^page_shift rows: row i is at pages[i >> page_shift] + (i & mask) * row_bytes.
struct PagedRows {
  std::byte* const* pages = nullptr;  // device array of page addresses
  std::int32_t page_shift = 0;
  std::int32_t row_bytes = 0;

  std::byte* Row(std::int64_t i) const {
    return pages[i >> page_shift] + (i & ((std::int64_t{1} << page_shift) - 1)) * row_bytes;
  }
};

// Window rows of one sequence and layer: committed rows in a ring of `ring_rows` (position p at slot p % ring_rows), rows of the running
// step in `step_rows` from position `step_begin` on.
struct WindowRows {
  const std::byte* ring = nullptr;
  std::int64_t ring_rows = 0;
  const std::byte* step_rows = nullptr;
  std::int64_t step_begin = 0;
  std::int64_t row_bytes = 0;

  const std::byte* Row(std::int64_t position) const {
    return position >= step_begin ? step_rows + (position - step_begin) * row_bytes : ring + position % ring_rows * row_bytes;
  }
};

// Packs row i (bf16, after norm and RoPE) to flat + i * row_bytes and to to_T[i]; either may be null.
struct PackRowsArgs {
  RowFormat format;
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::byte* flat = nullptr;
  std::byte* const* to_T = nullptr;  // device [rows]: where the row goes; null: nowhere
};

// rms_norm (if it has rows), rope and pack_rows of rows that lie one after the other: norm.y is rope.x, which has one head, and pack.x.
struct NormRopePackArgs {
  RmsNormArgs norm;
  RopeArgs rope;
  PackRowsArgs pack;
};

// Widens rows src.Row(first + i), or flat + i * row_bytes if `flat` is set, to bf16 [rows][width]: what attention reads.
struct UnpackRowsArgs {
  RowFormat format;
  PagedRows src;
  std::int64_t first = 0;
  const std::byte* flat = nullptr;
  std::int64_t rows = 0;
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
};

}  // namespace lockstep::kernels
