// Pooling of token groups into compressed latents. Contract: docs/numerics.md section 6, Compressor; family F.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"

namespace lockstep::kernels {

// One run of consecutive tokens of one sequence. Entries position/ratio .. (position+rows)/ratio - 1 complete in it.
struct CompressorArgs {
  const float* kv = nullptr;    // fp32 [rows][channels]; channels = width, or 2*width when groups overlap
  const float* gate = nullptr;  // fp32 [rows][channels], before ape
  std::int64_t rows = 0;
  std::int64_t position = 0;  // of the first row
  int ratio = 0;
  bool overlap = false;
  std::int64_t width = 0;
  const float* ape = nullptr;  // fp32 [ratio][channels] or null
  // Earlier rows of the open group (overlap: and of the group before): position p at slot p % history_slots, kv row then gate row
  // (with ape). Read for positions before `position`; not written (see StoreHistoryArgs).
  const float* history = nullptr;  // [history_slots][2][channels]
  std::int64_t history_slots = 0;
  std::uint16_t* latent = nullptr;  // bf16 [entries][width], before the norm
};

// Writes the last min(rows, history_slots) rows of a step into a history ring.
struct StoreHistoryArgs {
  const float* kv = nullptr;
  const float* gate = nullptr;
  std::int64_t rows = 0;
  std::int64_t position = 0;
  int ratio = 0;
  std::int64_t channels = 0;
  const float* ape = nullptr;
  float* history = nullptr;
  std::int64_t history_slots = 0;
};

}  // namespace lockstep::kernels
