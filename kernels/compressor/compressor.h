// Pooling of token groups into compressed latents. Contract: docs/numerics.md section 6, Compressor; family F.
#pragma once

#include <cstdint>

#include "kernels/device/stream.h"

namespace lockstep::kernels {

// A compressed entry: the tokens it pools and where their projections are. Those of a step lie in the step's rows, those of
// earlier steps in the sequence's history.
struct PoolEntry {
  std::int64_t own = -1;           // position of the entry's first token; -1: no entry, its latent becomes 0
  std::int64_t position = 0;       // of the first row that the sequence has in the step
  std::int64_t row = 0;            // that row
  const float* history = nullptr;  // [history_slots][2][channels]: position p at slot p % history_slots, kv row then gate row (with ape).
                                   // Read for positions before `position`: those of the open group, and with overlap of the group before
};

// Entries of any sequences of a step. With overlap an entry pools the group before its own as well.
struct CompressorArgs {
  const float* kv = nullptr;    // fp32 [rows of the step][channels]; channels = width, or 2*width when groups overlap
  const float* gate = nullptr;  // fp32 [rows of the step][channels], before ape
  const PoolEntry* entry_N = nullptr;  // device [entries]
  std::int64_t entries = 0;
  int ratio = 0;
  bool overlap = false;
  std::int64_t width = 0;
  const float* ape = nullptr;  // fp32 [ratio][channels] or null
  std::int64_t history_slots = 0;
  std::uint16_t* latent = nullptr;  // bf16 [entries][width], before the norm
};

// Rows of a step that later steps will pool, into their sequences' histories.
struct StoreHistoryArgs {
  const float* kv = nullptr;    // fp32 [rows][channels]
  const float* gate = nullptr;  // fp32 [rows][channels], before ape
  std::int64_t rows = 0;
  const std::int64_t* position_T = nullptr;  // device [rows]
  float* const* slot_T = nullptr;            // device [rows]: the row's slot in a history; null: it is not kept
  int ratio = 0;
  std::int64_t channels = 0;
  const float* ape = nullptr;
};

}  // namespace lockstep::kernels
