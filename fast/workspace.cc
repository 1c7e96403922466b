#include "fast/workspace.h"

#include <algorithm>
#include <type_traits>

#include "fast/pair_arrays.h"
#include "fast/poison.h"

namespace lockstep::fast {

Workspace::Workspace(kernels::Device& device, const ModelConfig& c, const WorkspaceSizes& sizes) {
  const std::int64_t rows = sizes.rows, tile = sizes.tile_rows, streams = c.hc_mult, hidden = c.hidden_size;
  const std::int64_t head_width = std::int64_t{c.num_heads} * c.head_dim;
  const auto make = [&](auto& array, std::int64_t count, std::string_view what) {
    array = std::remove_reference_t<decltype(array)>(device, static_cast<std::size_t>(count), what);
    using Element = std::remove_reference_t<decltype(*array.data())>;
    if constexpr (std::is_floating_point_v<Element> || sizeof(Element) < sizeof(std::int32_t)) {
      activations_.push_back(std::as_writable_bytes(std::span(array.data(), array.size())));
    }
  };
  least_rows_ = std::min({rows, tile, sizes.logit_rows});
  make(stream_TSE, rows * streams * hidden, "residual streams");
  make(pre_TS, rows * streams, "hyper-connections");
  make(next_pre_TS, rows * streams, "hyper-connections");
  make(post_TS, rows * streams, "hyper-connections");
  make(mix_TSS, rows * streams * streams, "hyper-connections");
  make(x_TE, rows * hidden, "activations");
  make(f_TE, rows * hidden, "activations");
  make(kv_TD, rows * c.head_dim, "window KV");
  make(window_rows, rows * sizes.window_row_bytes, "window KV");
  make(experts_TK, rows * c.num_experts_per_tok, "router");
  make(pair_of_TK, rows * c.num_experts_per_tok, "router");
  make(weights_TK, rows * c.num_experts_per_tok, "router");
  make(query_latent, rows * c.q_lora_rank, "queries");
  make(query, tile * head_width, "queries");
  make(heads, tile * head_width, "attention output");
  make(groups, tile * c.o_groups * c.o_lora_rank, "attention output");
  make(pairs, static_cast<std::int64_t>(PairArrays::Bytes(c.n_routed_experts, rows, c.num_experts_per_tok)), "expert pairs");
  make(pair_out, rows * (c.num_experts_per_tok + 1) * hidden, "expert rows");
  make(shared_out, rows * hidden, "expert rows");
  make(logits, sizes.logit_rows * c.vocab_size, "logits");

  const bool compressed = std::any_of(c.compress_ratios.begin(), c.compress_ratios.end(), [](int ratio) { return ratio > 0; });
  if (compressed) {
    const std::int64_t widest = std::max(c.head_dim, c.index_head_dim);
    make(selected, rows * c.index_topk, "selection");
    make(compressor_kv, rows * 2 * widest, "compressor");
    make(compressor_gate, rows * 2 * widest, "compressor");
    make(index_compressor_kv, rows * 2 * c.index_head_dim, "compressor");
    make(index_compressor_gate, rows * 2 * c.index_head_dim, "compressor");
    make(latent, rows * widest, "compressor");
    make(index_key, rows * c.index_head_dim, "compressor");
    make(index_query, tile * c.index_n_heads * c.index_head_dim, "index queries");
    make(index_weight, rows * c.index_n_heads, "index queries");
  }
  if (c.candidate_source_layer_id >= 0) {
    make(candidates, rows * c.candidate_topk_blocks, "candidate blocks");
    make(candidate_count, rows, "candidate blocks");
  }
  if (!c.engram.layer_ids.empty()) {
    make(engram_kv, rows * (streams + 1) * hidden, "engram rows");
  }
}

void Workspace::Poison(kernels::Device& device, std::int64_t rows) {
  // Arrays of a query tile have the fewest rows, so this share of them covers `rows` of every array.
  const auto share = [&](std::size_t bytes) { return std::min(bytes, bytes / static_cast<std::size_t>(least_rows_) * static_cast<std::size_t>(rows)); };
  for (const std::span<std::byte> activation : activations_) FillWithNaN(device, activation.data(), share(activation.size()));
}

}  // namespace lockstep::fast
