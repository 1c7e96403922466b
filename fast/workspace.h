// Activations of a step on one device. Sized once for the largest step, so that steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/backend.h"
#include "model/config.h"

namespace lockstep::fast {

struct WorkspaceSizes {
  std::int64_t rows = 0;       // of a step
  std::int64_t tile_rows = 0;  // whose queries exist together
  std::int64_t logit_rows = 0;
  std::int64_t window_row_bytes = 0;
};

struct Workspace {
  Workspace(kernels::Device& device, const ModelConfig& config, const WorkspaceSizes& sizes);

  template <typename T>
  using Array = kernels::DeviceArray<T>;

  // Per row of the step.
  Array<std::uint16_t> stream_TSE;
  Array<float> pre_TS, post_TS, mix_TSS, next_pre_TS;
  Array<std::uint16_t> x_TE, f_TE;  // input and output of a sublayer
  Array<std::uint16_t> kv_TD;
  Array<std::byte> window_rows;
  Array<std::int32_t> selected, candidates, candidate_count;
  Array<std::int32_t> experts_TK, pair_of_TK;
  Array<float> weights_TK;
  Array<std::uint16_t> query_latent, index_weight;
  // Compressors: projections of the rows, and the entries they complete.
  Array<float> compressor_kv, compressor_gate, index_compressor_kv, index_compressor_gate;
  Array<std::uint16_t> latent, index_key;
  // Query tile.
  Array<std::uint16_t> query, heads, groups, index_query;
  // Experts: one row a (token, expert) pair, ordered by expert; then those of the shared expert where it runs with them.
  Array<std::byte> pairs;  // what the host reads of the pairs, in one piece; PairArrays says where
  Array<std::uint16_t> pair_out, shared_out;
  Array<std::uint16_t> engram_kv;
  Array<float> logits;

  // NaN bytes in all activations of the first `rows` rows at least: between steps, and on devices that the step has left, none counts.
  void Poison(kernels::Device& device, std::int64_t rows);

 private:
  std::vector<std::span<std::byte>> activations_;
  std::int64_t least_rows_ = 0;  // of any array
};

}  // namespace lockstep::fast
