// Attention of a layer: window KV, compressed KV and index keys, selection, heads and output projection.
#include <algorithm>

#include "fast/forward.h"

namespace lockstep::fast {

void Forward::AppendWindow(int layer) {
  const DeviceLayer& w = weights(layer);
  const LayerRecord& record = record_.layer(layer);
  const std::int64_t dim = config_.head_dim;
  for (const RowRange& range : record.kv_rows) {
    std::uint16_t* kv = ws().kv_TD.data() + range.begin * dim;
    Linear(w.wkv, ws().x_TE.data() + range.begin * config_.hidden_size, config_.hidden_size, range.rows(), kv, dim);
    Norm(kv, range.rows(), dim, w.kv_norm.data(), kv);
    Rope(layer, kv, range.rows(), 1, config_.head_dim, here().positions.device + range.begin, false);
    // To the step's rows, and already into the ring: its slots do not hold what this step reads.
    kernels::PackRowsArgs pack;
    pack.format = r_.kv.formats().window;
    pack.x = kv;
    pack.x_stride = dim;
    pack.rows = range.rows();
    pack.flat = ws().window_rows.data() + range.begin * pack.format.row_bytes();
    pack.to_T = record.window_to.device + range.begin;
    kernels().pack_rows(stream(), pack);
    TraceWindow(layer, range, pack.flat);
  }
}

// Latents of the step's entries, normalized.
void Forward::PoolGroups(const DeviceCompressor& compressor, std::int64_t width, int ratio, std::int64_t entries, std::int64_t history_slots,
                         const StepArray<kernels::PoolEntry>& pool, const StepArray<float*>& history_to, std::uint16_t* latent) {
  const std::int64_t hidden = config_.hidden_size, channels = compressor.wkv.spec.out_features;
  std::int64_t done = 0;
  for (const RowRange& range : record_.new_rows()) {
    const std::uint16_t* x = ws().x_TE.data() + range.begin * hidden;
    if (!compressor.wgate) {  // ratio 1: a row is an entry
      Linear(compressor.wkv, x, hidden, range.rows(), latent + done * width, width);
      done += range.rows();
      continue;
    }
    float *kv = ws().compressor_kv.data() + range.begin * channels, *gate = ws().compressor_gate.data() + range.begin * channels;
    Linear(compressor.wkv, x, hidden, range.rows(), nullptr, channels, kv);
    Linear(*compressor.wgate, x, hidden, range.rows(), nullptr, channels, gate);
  }
  if (compressor.wgate) {
    kernels::CompressorArgs compress;
    compress.kv = ws().compressor_kv.data();
    compress.gate = ws().compressor_gate.data();
    compress.entry_N = pool.device;
    compress.entries = entries;
    compress.ratio = ratio;
    compress.overlap = compressor.overlap;
    compress.width = width;
    compress.ape = compressor.ape.data();
    compress.history_slots = history_slots;
    compress.latent = latent;
    kernels().compress(stream(), compress);
    kernels().store_history(stream(), {compress.kv, compress.gate, rows(), here().positions.device, history_to.device, ratio, channels, compress.ape});
  }
  Norm(latent, entries, width, compressor.norm.data(), latent);
}

void Forward::AppendCompressed(int layer, std::span<Segment> segments) {
  const DeviceLayer& w = weights(layer);
  const LayerRecord& record = record_.layer(layer);
  const LayerKv& kv = segments.front().state->layer(layer);  // all sequences' are alike
  const int ratio = config_.ratio(layer);
  if (w.index_compressor) {
    PoolGroups(*w.index_compressor, config_.index_head_dim, ratio, record.entries, kv.index_history->slots(), record.index_pool,
               record.index_history_to, ws().index_key.data());
    AppendIndexKeys(layer);
  }
  PoolGroups(*w.compressor, config_.head_dim, ratio, record.entries, kv.history ? kv.history->slots() : 0, record.pool, record.history_to,
             ws().latent.data());
  if (record.entries == 0) return;
  if (w.index_wk) {
    Linear(*w.index_wk, ws().latent.data(), config_.head_dim, record.entries, ws().index_key.data(), config_.index_head_dim);
    Norm(ws().index_key.data(), record.entries, config_.index_head_dim, w.index_k_norm.data(), ws().index_key.data());
    AppendIndexKeys(layer);
  }
  if (record.index_key_to.size > 0) TraceEntries(step::kIndexKey, layer, segments, r_.kv.formats().index_key);
  const kernels::RowFormat& format = r_.kv.formats().compressed;
  PackEntries(layer, ws().latent.data(), config_.head_dim, format, record.compressed_to.device);
  TraceEntries(step::kCompressed, layer, segments, format);
}

void Forward::AppendIndexKeys(int layer) {
  PackEntries(layer, ws().index_key.data(), config_.index_head_dim, r_.kv.formats().index_key, record_.layer(layer).index_key_to.device);
}

void Forward::PackEntries(int layer, std::uint16_t* x, int width, const kernels::RowFormat& format, std::byte* const* to) {
  const LayerRecord& record = record_.layer(layer);
  if (record.entries == 0) return;
  Rope(layer, x, record.entries, 1, width, record.entry_position.device, false);
  kernels::PackRowsArgs pack;
  pack.format = format;
  pack.x = x;
  pack.x_stride = width;
  pack.rows = record.entries;
  pack.to_T = to;
  kernels().pack_rows(stream(), pack);
}

void Forward::AttendTile(int layer, RowRange tile) {
  const DeviceLayer& w = weights(layer);
  const std::int64_t tile_rows = tile.rows(), hidden = config_.hidden_size, head_width = std::int64_t{config_.num_heads} * config_.head_dim;
  const std::uint16_t* x = ws().x_TE.data() + tile.begin * hidden;
  const std::int64_t* positions = here().positions.device + tile.begin;

  Linear(w.wq_a, x, hidden, tile_rows, ws().query_latent.data(), config_.q_lora_rank);
  Norm(ws().query_latent.data(), tile_rows, config_.q_lora_rank, w.q_norm.data(), ws().query_latent.data());
  Linear(w.wq_b, ws().query_latent.data(), config_.q_lora_rank, tile_rows, ws().query.data(), head_width);
  if (!config_.is_v41()) Norm(ws().query.data(), tile_rows * config_.num_heads, config_.head_dim, nullptr, ws().query.data());
  Rope(layer, ws().query.data(), tile_rows, config_.num_heads, config_.head_dim, positions, false);
  TraceRange(step::kQueryLatent, layer, ws().query_latent.data(), config_.q_lora_rank, tile);
  TraceRange(step::kQuery, layer, ws().query.data(), head_width, tile);
  if (config_.IsIndexSource(layer)) SelectEntries(layer, tile);

  const int index_source = config_.IndexSourceOf(layer);
  kernels::AttentionArgs attention;
  attention.row_T = record_.layer(layer).attention.device + tile.begin;
  attention.rows = tile_rows;
  attention.q_THD = ws().query.data();
  attention.heads = config_.num_heads;
  attention.head_dim = config_.head_dim;
  attention.window = config_.sliding_window;
  attention.window_format = r_.kv.formats().window;
  attention.compressed_format = r_.kv.formats().compressed;
  attention.all_visible = config_.KvSourceOf(layer) >= 0 && index_source < 0;
  if (attention.all_visible) attention.max_visible = position_bound_ / config_.ratio(layer);
  if (index_source >= 0) {
    attention.selected_TK = ws().selected.data() + tile.begin * config_.index_topk;
    attention.count_T = record_.layer(index_source).selected_count.device + tile.begin;
    attention.top_k = config_.index_topk;
  }
  attention.sink_H = w.sink.data();
  attention.out_THD = ws().heads.data();
  kernels().attention(stream(), attention);
  Rope(layer, ws().heads.data(), tile_rows, config_.num_heads, config_.head_dim, positions, true);
  TraceRange(step::kAttnHeads, layer, ws().heads.data(), head_width, tile);

  const std::int64_t groups_width = std::int64_t{config_.o_lora_rank} * config_.o_groups;
  ProjectGroups(w, tile_rows);
  Linear(w.wo_b, ws().groups.data(), groups_width, tile_rows, ws().f_TE.data() + tile.begin * hidden, hidden);
}

// Heads to the low-rank outputs of the groups.
void Forward::ProjectGroups(const DeviceLayer& w, std::int64_t tile_rows) {
  const std::int64_t head_width = std::int64_t{config_.num_heads} * config_.head_dim, group_in = head_width / config_.o_groups;
  const std::int64_t group_out = config_.o_lora_rank, groups_width = group_out * config_.o_groups;
  if (w.wo_a_blobs.empty()) {
    for (int g = 0; g < config_.o_groups; ++g) {
      Linear(w.wo_a[static_cast<std::size_t>(g)], ws().heads.data() + g * group_in, head_width, tile_rows, ws().groups.data() + g * group_out, groups_width);
    }
    return;
  }
  kernels::LinearArgs all;
  all.spec = &w.wo_a.front().spec;
  all.groups = config_.o_groups;
  all.blob_G = w.wo_a_blobs.data();
  all.x = ws().heads.data();
  all.x_stride = head_width;
  all.rows = tile_rows;
  all.y_bf16 = ws().groups.data();
  all.y_stride = groups_width;
  all.overflow = here().overflow.device + layer_;
  kernels().linear(stream(), all);
}

void Forward::SelectEntries(int layer, RowRange tile) {
  const DeviceLayer& w = weights(layer);
  const LayerRecord& record = record_.layer(layer);
  const std::int64_t tile_rows = tile.rows(), width = std::int64_t{config_.index_n_heads} * config_.index_head_dim;
  Linear(*w.index_wq_b, ws().query_latent.data(), config_.q_lora_rank, tile_rows, ws().index_query.data(), width);
  Rope(layer, ws().index_query.data(), tile_rows, config_.index_n_heads, config_.index_head_dim, here().positions.device + tile.begin, false);
  Linear(*w.index_weights, ws().x_TE.data() + tile.begin * config_.hidden_size, config_.hidden_size, tile_rows, ws().index_weight.data(),
         config_.index_n_heads);
  kernels::IndexSelectArgs args;
  args.row_T = record.index.device + tile.begin;
  args.rows = tile_rows;
  args.max_visible = position_bound_ / config_.ratio(layer);
  args.q_THI = ws().index_query.data();
  args.weight_TH = ws().index_weight.data();
  args.heads = config_.index_n_heads;
  args.dim = config_.index_head_dim;
  args.key_format = r_.kv.formats().index_key;
  args.top_k = config_.index_topk;
  args.selected_TK = ws().selected.data() + tile.begin * config_.index_topk;
  args.count_T = record.selected_count.device + tile.begin;
  if (config_.candidate_source_layer_id >= 0 && layer >= config_.candidate_source_layer_id) {
    std::int32_t* blocks = ws().candidates.data() + tile.begin * config_.candidate_topk_blocks;
    std::int32_t* counts = ws().candidate_count.data() + tile.begin;
    args.candidate_block = config_.candidate_block_size;
    args.candidate_top_blocks = config_.candidate_topk_blocks;
    const bool source = layer == config_.candidate_source_layer_id;
    args.candidates_out = source ? blocks : nullptr;
    args.candidate_count_out = source ? counts : nullptr;
    args.candidates_in = source ? nullptr : blocks;
    args.candidate_count_in = source ? nullptr : counts;
  }
  kernels::DeviceArray<float> scores;
  if (r_.options.trace) KeepScores(layer, tile, &args, &scores);
  kernels().index_select(stream(), args);
  if (r_.options.trace) TraceSelection(layer, tile, args);
}

}  // namespace lockstep::fast
