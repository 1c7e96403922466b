// Attention of a layer: window KV, compressed KV and index keys, selection, heads and output projection.
#include <algorithm>
#include <utility>

#include "fast/forward.h"

namespace lockstep::fast {

// All that a layer's attention projects from its input: window KV, query latents, index weights and, with `compress`, what the compressors pool.
void Forward::ProjectInput(int layer, bool compress) {
  const DeviceLayer& w = weights(layer);
  const std::int64_t hidden = config_.hidden_size, rank = config_.q_lora_rank;
  for (const RowRange& range : record_.layer(layer).kv_rows) {
    AddLinear(w.wkv, ws().x_TE.data() + range.begin * hidden, hidden, range.rows(), ws().kv_TD.data() + range.begin * config_.head_dim, config_.head_dim);
  }
  for (const RowRange& range : record_.layer(layer).out_rows) {
    const std::uint16_t* x = ws().x_TE.data() + range.begin * hidden;
    AddLinear(w.wq_a, x, hidden, range.rows(), ws().query_latent.data() + range.begin * rank, rank);
    if (!config_.IsIndexSource(layer)) continue;
    AddLinear(*w.index_weights, x, hidden, range.rows(), ws().index_weight.data() + range.begin * config_.index_n_heads, config_.index_n_heads);
  }
  if (compress) AddCompressorLinears(layer);
  RunLinears();
}

void Forward::AddCompressorLinears(int layer) {
  if (weights(layer).index_compressor) AddPoolingLinears(IndexKeyPooling(layer));
  AddPoolingLinears(EntryPooling(layer));
}

void Forward::AddPoolingLinears(const Pooling& pooling) {
  const DeviceCompressor& compressor = pooling.compressor;
  const std::int64_t hidden = config_.hidden_size, channels = compressor.wkv.spec.out_features;
  std::int64_t done = 0;
  for (const RowRange& range : record_.new_rows()) {
    const std::uint16_t* x = ws().x_TE.data() + range.begin * hidden;
    if (!compressor.wgate) {  // ratio 1: a row is an entry
      AddLinear(compressor.wkv, x, hidden, range.rows(), pooling.latent + done * pooling.width, pooling.width);
      done += range.rows();
      continue;
    }
    AddLinear(compressor.wkv, x, hidden, range.rows(), nullptr, channels, pooling.kv + range.begin * channels);
    AddLinear(*compressor.wgate, x, hidden, range.rows(), nullptr, channels, pooling.gate + range.begin * channels);
  }
}

Forward::Pooling Forward::EntryPooling(int layer) {
  const LayerRecord& record = record_.layer(layer);
  return {*weights(layer).compressor, config_.head_dim,  ws().compressor_kv.data(), ws().compressor_gate.data(),
          ws().latent.data(),         record.pool,       record.history_to};
}

Forward::Pooling Forward::IndexKeyPooling(int layer) {
  const LayerRecord& record = record_.layer(layer);
  return {*weights(layer).index_compressor, config_.index_head_dim, ws().index_compressor_kv.data(), ws().index_compressor_gate.data(),
          ws().index_key.data(),            record.index_pool,      record.index_history_to};
}

// Window rows, and to their places in the rings: those do not hold what this step reads.
void Forward::AppendWindow(int layer) {
  const DeviceLayer& w = weights(layer);
  const LayerRecord& record = record_.layer(layer);
  const std::int64_t dim = config_.head_dim;
  for (const RowRange& range : record.kv_rows) {
    if (inputs_.window.pack.rows > 0) RunInputs();
    std::uint16_t* kv = ws().kv_TD.data() + range.begin * dim;
    kernels::NormRopePackArgs& row = inputs_.window;
    row.norm = NormArgs(kv, range.rows(), dim, w.kv_norm.data(), kv);
    row.rope = TurnArgs(layer, kv, range.rows(), 1, config_.head_dim, here().positions.device + range.begin);
    row.pack.format = r_.kv.formats().window;
    row.pack.x = kv;
    row.pack.x_stride = dim;
    row.pack.rows = range.rows();
    row.pack.flat = ws().window_rows.data() + range.begin * row.pack.format.row_bytes();
    row.pack.to_T = record.window_to.device + range.begin;
    if (!r_.options.trace) continue;
    const std::byte* packed = row.pack.flat;
    RunInputs();
    TraceWindow(layer, range, packed);
  }
}

// A compressor's share of the step, from projections that are done: latents of its entries, before their norm, and what later steps pool.
kernels::PooledRowsArgs Forward::PoolArgs(int layer, const Pooling& pooling, const DoubleRing* history) {
  const DeviceCompressor& compressor = pooling.compressor;
  kernels::PooledRowsArgs pooled;
  if (!compressor.wgate) return pooled;
  kernels::CompressorArgs& compress = pooled.compress;
  compress.kv = pooling.kv;
  compress.gate = pooling.gate;
  compress.entry_N = pooling.pool.device;
  compress.entries = record_.layer(layer).entries;
  compress.ratio = config_.ratio(layer);
  compress.overlap = compressor.overlap;
  compress.width = pooling.width;
  compress.ape = compressor.ape.data();
  compress.history_slots = history ? history->slots() : 0;
  compress.latent = pooling.latent;
  pooled.history = {compress.kv,    compress.gate, rows(), here().positions.device, pooling.history_to.device,
                    compress.ratio, compressor.wkv.spec.out_features, compress.ape};
  return pooled;
}

void Forward::AppendCompressed(int layer, std::span<Segment> segments) {
  const DeviceLayer& w = weights(layer);
  const LayerRecord& record = record_.layer(layer);
  const LayerKv& kv = segments.front().state->layer(layer);  // all sequences' are alike
  const StateFormats& formats = r_.kv.formats();
  kernels::PooledRowsArgs &entries = inputs_.pooled[0], &keys = inputs_.pooled[1];
  entries = PoolArgs(layer, EntryPooling(layer), kv.history.get());
  if (w.index_compressor) keys = PoolArgs(layer, IndexKeyPooling(layer), kv.index_history.get());
  if (record.entries == 0) return;
  entries.pack = PackArgs(layer, ws().latent.data(), config_.head_dim, w.compressor->norm.data(), formats.compressed, record.compressed_to.device);
  if (w.index_wk) ProjectIndexKeys(layer, &entries);
  const float* key_norm = w.index_compressor ? w.index_compressor->norm.data() : w.index_wk ? w.index_k_norm.data() : nullptr;
  if (key_norm) keys.pack = PackArgs(layer, ws().index_key.data(), config_.index_head_dim, key_norm, formats.index_key, record.index_key_to.device);
  if (!r_.options.trace) return;
  RunInputs();
  if (record.index_key_to.size > 0) TraceEntries(step::kIndexKey, layer, segments, formats.index_key);
  TraceEntries(step::kCompressed, layer, segments, formats.compressed);
}

// Index keys that are projected from the entries' latents: those are pooled and normed first.
void Forward::ProjectIndexKeys(int layer, kernels::PooledRowsArgs* entries) {
  const DeviceLayer& w = weights(layer);
  kernels().compress(stream(), entries->compress);
  kernels().rms_norm(stream(), entries->pack.norm);
  entries->compress = {};
  entries->pack.norm = {};
  Linear(*w.index_wk, ws().latent.data(), config_.head_dim, record_.layer(layer).entries, ws().index_key.data(), config_.index_head_dim);
}

// Norm, rotation, quantization and place of the entries that the step completes: rows x of `width` channels.
kernels::NormRopePackArgs Forward::PackArgs(int layer, std::uint16_t* x, int width, const float* norm, const kernels::RowFormat& format,
                                            std::byte* const* to) {
  const LayerRecord& record = record_.layer(layer);
  kernels::NormRopePackArgs row;
  row.norm = NormArgs(x, record.entries, width, norm, x);
  row.rope = TurnArgs(layer, x, record.entries, 1, width, record.entry_position.device);
  row.pack.format = format;
  row.pack.x = x;
  row.pack.x_stride = width;
  row.pack.rows = record.entries;
  row.pack.to_T = to;
  return row;
}

void Forward::RunInputs() {
  inputs_.mix = std::exchange(mix_later_, {});
  if (!inputs_.empty()) kernels().attention_inputs(stream(), inputs_);
  inputs_ = {};
}

// Queries, index queries among them, from query latents before their norm, and whatever else of the inputs is left to make.
void Forward::MakeQueries(int layer, RowRange tile) {
  const DeviceLayer& w = weights(layer);
  const std::int64_t tile_rows = tile.rows(), rank = config_.q_lora_rank, head_width = std::int64_t{config_.num_heads} * config_.head_dim;
  std::uint16_t* latent = ws().query_latent.data() + tile.begin * rank;
  kernels::RmsNormArgs norm = NormArgs(latent, tile_rows, rank, w.q_norm.data(), latent);
  if (r_.options.trace) kernels().rms_norm(stream(), std::exchange(norm, {}));
  TraceRange(step::kQueryLatent, layer, latent, rank, tile);
  AddLinear(w.wq_b, latent, rank, tile_rows, ws().query.data(), head_width);
  if (config_.IsIndexSource(layer)) {
    const std::int64_t index_width = std::int64_t{config_.index_n_heads} * config_.index_head_dim;
    AddLinear(*w.index_wq_b, latent, rank, tile_rows, ws().index_query.data(), index_width);
  }
  RunLinears(norm);
  std::uint16_t* query = ws().query.data();
  const std::int64_t* positions = here().positions.device + tile.begin;
  if (!config_.is_v41()) inputs_.query.norm = NormArgs(query, tile_rows * config_.num_heads, config_.head_dim, nullptr, query);
  inputs_.query.rope = TurnArgs(layer, query, tile_rows, config_.num_heads, config_.head_dim, positions);
  if (config_.IsIndexSource(layer)) {
    inputs_.index_query = TurnArgs(layer, ws().index_query.data(), tile_rows, config_.index_n_heads, config_.index_head_dim, positions);
  }
  RunInputs();
  TraceRange(step::kQuery, layer, ws().query.data(), head_width, tile);
}

void Forward::AttendTile(int layer, RowRange tile) {
  const DeviceLayer& w = weights(layer);
  const std::int64_t tile_rows = tile.rows(), hidden = config_.hidden_size, head_width = std::int64_t{config_.num_heads} * config_.head_dim;
  MakeQueries(layer, tile);
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
  attention.rope_table = RopeTable(layer);
  attention.rope_dim = config_.rope_head_dim;
  attention.out_THD = ws().heads.data();
  kernels().attention(stream(), attention);
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
  const LayerRecord& record = record_.layer(layer);
  const std::int64_t tile_rows = tile.rows();
  kernels::IndexSelectArgs args;
  args.row_T = record.index.device + tile.begin;
  args.rows = tile_rows;
  args.max_visible = position_bound_ / config_.ratio(layer);
  args.q_THI = ws().index_query.data();
  args.weight_TH = ws().index_weight.data() + tile.begin * config_.index_n_heads;
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
