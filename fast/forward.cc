#include "fast/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::fast {

using kernels::AttentionRow;
using kernels::IndexRow;
using kernels::RowFormat;

Forward::Forward(Resources resources, std::int64_t max_rows, std::int64_t logit_rows)
    : r_(std::move(resources)),
      config_(r_.checkpoint.config),
      rule_(config_, r_.options.exact_tail),
      max_rows_(max_rows),
      logit_rows_(logit_rows),
      engram_(r_.checkpoint),
      lanes_(r_.backend, r_.experts, r_.options) {
  const std::int64_t context = r_.options.max_context > 0 ? r_.options.max_context : config_.max_position_embeddings;
  for (int d = 0; d < r_.backend.device_count(); ++d) {
    kernels::Device& on = r_.backend.device(d);
    const WorkspaceSizes sizes{max_rows, r_.options.attention_tile_rows, logit_rows, r_.kv.formats().window.row_bytes()};
    workspaces_.push_back(std::make_unique<Workspace>(on, config_, sizes));
    rope_.push_back(std::make_unique<RopeTables>(on, config_, context));
    PoisonWorkspace(d, max_rows);
  }
}

// --- the step --------------------------------------------------------------------------------------------------------

bool Forward::Run(std::span<Segment> segments, const std::function<bool()>& cancelled) {
  try {
    if (RunLayers(segments, cancelled)) {
      for (Segment& s : segments) s.state->Commit(s.ids, s.run_decoder ? s.end() : s.state->decoder_position);
      ++r_.stats.steps;
      return true;
    }
  } catch (...) {
    for (Segment& s : segments) s.state->Cancel();
    throw;
  }
  for (Segment& s : segments) s.state->Cancel();
  return false;
}

bool Forward::RunLayers(std::span<Segment> segments, const std::function<bool()>& cancelled) {
  Begin(segments);
  const int decoder = rule_.first_decoder_layer();
  for (int l = 0; l < decoder; ++l) {
    if (cancelled()) return false;
    RunLayer(l, segments, new_rows_, new_rows_, /*compress=*/true);
  }
  if (decoder < config_.num_layers) {
    // Every token leaves its compressed KV and index key at the last kv source; the rest of the decoder half runs where it is needed.
    if (cancelled()) return false;
    MoveToDeviceOf(decoder, new_rows_);
    const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(decoder)];
    if (w.engram) EngramReadOut(decoder, segments, new_rows_);
    EnterSite(w.hc_attn, w.attn_norm.data(), new_rows_);
    for (Segment& s : segments) AppendCompressed(decoder, s);
    for (Segment& s : segments) {
      if (s.run_decoder) {
        RestoreStash(s);
      } else {
        s.state->OpenStash();
      }
    }
  }
  for (int l = decoder; l < config_.num_layers; ++l) {
    if (cancelled()) return false;
    const auto rows_from = [&](auto position, Ranges* ranges) {
      RowsFrom(segments, [&](const Segment& s) { return s.run_decoder ? std::max(s.first_position, position(s)) : s.end(); }, ranges);
    };
    rows_from([&](const Segment& s) { return rule_.KvBegin(l, s.prompt_end, s.last_rows); }, &kv_rows_);
    rows_from([&](const Segment& s) { return rule_.OutBegin(l, s.prompt_end, s.last_rows); }, &out_rows_);
    if (!kv_rows_.empty()) RunLayer(l, segments, kv_rows_, out_rows_, /*compress=*/l != decoder);
  }
  Head(segments);
  CheckFlags();
  if (cancelled()) return false;
  // Not before: what the stash holds must survive a cancellation. The waiting segments' streams are still those at the last kv source.
  for (Segment& s : segments) {
    if (!s.run_decoder) StoreStash(s);
  }
  return true;
}

void Forward::Begin(std::span<Segment> segments) {
  for (int d = 0; d < r_.backend.device_count(); ++d) PoisonWorkspace(d, static_cast<std::int64_t>(positions_.size()));
  const std::int64_t rows = PlanSegments(config_, rule_, segments);
  LOCKSTEP_CHECK(rows <= max_rows_);
  positions_.assign(static_cast<std::size_t>(rows), 0);
  host_.ids.assign(static_cast<std::size_t>(rows), 0);
  std::int64_t end = 0;
  for (Segment& s : segments) {
    s.state->Reserve(s.end());
    end = std::max(end, s.end());
    for (std::int64_t p = s.first_position; p < s.end(); ++p) {
      const auto row = static_cast<std::size_t>(s.RowOf(p));
      positions_[row] = p;
      host_.ids[row] = p < s.begin() ? s.state->ids[static_cast<std::size_t>(p)] : s.ids[static_cast<std::size_t>(p - s.begin())];
    }
  }
  for (int d = r_.backend.device_count() - 1; d >= 0; --d) {
    device_index_ = d;
    rope_[static_cast<std::size_t>(d)]->Ensure(end);
    Upload(ws().ids, 0, host_.ids);
    Upload(ws().positions, 0, positions_);
    host_.overflow.assign(ws().overflow.size(), 0);
    Upload(ws().overflow, 0, host_.overflow);
  }
  device_index_ = r_.device_of.front();

  const std::int64_t width = std::int64_t{config_.hc_mult} * config_.hidden_size;
  host_.first_stream.assign(static_cast<std::size_t>(rows * config_.hc_mult), 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) host_.first_stream[static_cast<std::size_t>(i * config_.hc_mult)] = 1.0f;
  Upload(ws().pre_TS, 0, host_.first_stream);
  RowsFrom(segments, [](const Segment& s) { return s.begin(); }, &new_rows_);
  for (const RowRange& range : new_rows_) {
    kernels().embed(stream(), {ws().ids.data() + range.begin, range.rows(), r_.model.embed.data(), config_.hc_mult, config_.hidden_size,
                               ws().stream_TSE.data() + range.begin * width});
  }
  TraceRows(step::kEmbed, -1, ws().stream_TSE.data(), width, new_rows_);
}

// Rows of every segment from a position on, neighbours merged.
template <typename FirstPosition>
void Forward::RowsFrom(std::span<Segment> segments, FirstPosition begin, Ranges* ranges) {
  ranges->clear();
  for (const Segment& s : segments) {
    const RowRange range{s.RowOf(std::min(begin(s), s.end())), s.RowOf(s.end())};
    if (range.rows() == 0) continue;
    if (!ranges->empty() && ranges->back().end == range.begin) {
      ranges->back().end = range.end;
    } else {
      ranges->push_back(range);
    }
  }
}

// Position of a segment's first row in `ranges`, its end if it has none there.
std::int64_t Forward::FirstPositionIn(const Ranges& ranges, const Segment& segment) {
  std::int64_t first = segment.end();
  for (const RowRange& range : ranges) {
    const std::int64_t begin = std::max(range.begin, segment.first_row), end = std::min(range.end, segment.RowOf(segment.end()));
    if (begin < end) first = std::min(first, segment.first_position + begin - segment.first_row);
  }
  return first;
}

// Streams and deferred coefficients follow the layers from device to device.
void Forward::MoveToDeviceOf(int layer, const Ranges& rows) {
  layer_ = layer;
  const int to = r_.device_of[static_cast<std::size_t>(layer)];
  if (to == device_index_) return;
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size;
  kernels::Device& target = r_.backend.device(to);
  Workspace& target_ws = *workspaces_[static_cast<std::size_t>(to)];
  for (const RowRange& range : rows) {
    Download(ws().stream_TSE.data() + range.begin * width, range.rows() * width, &host_.stream_rows);
    Download(ws().pre_TS.data() + range.begin * streams, range.rows() * streams, &host_.pre_rows);
    target.CopyIn(target.compute(), reinterpret_cast<std::byte*>(target_ws.stream_TSE.data() + range.begin * width),
                  reinterpret_cast<const std::byte*>(host_.stream_rows.data()), host_.stream_rows.size() * sizeof(std::uint16_t));
    target.CopyIn(target.compute(), reinterpret_cast<std::byte*>(target_ws.pre_TS.data() + range.begin * streams),
                  reinterpret_cast<const std::byte*>(host_.pre_rows.data()), host_.pre_rows.size() * sizeof(float));
    target.Synchronize(target.compute());
  }
  PoisonWorkspace(device_index_, static_cast<std::int64_t>(positions_.size()));
  device_index_ = to;
}

// For tests: what a step or a device has left behind must not be read.
void Forward::PoisonWorkspace(int device, std::int64_t rows) {
  if (r_.options.poison) workspaces_[static_cast<std::size_t>(device)]->Poison(r_.backend.device(device), rows);
}

// --- a layer ---------------------------------------------------------------------------------------------------------

void Forward::RunLayer(int layer, std::span<Segment> segments, const Ranges& kv_rows, const Ranges& out_rows, bool compress) {
  MoveToDeviceOf(layer, kv_rows);
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  const bool front_done = !compress && config_.IsKvSource(layer);
  if (w.engram && !front_done) EngramReadOut(layer, segments, kv_rows);

  EnterSite(w.hc_attn, w.attn_norm.data(), kv_rows);
  TraceCoefficients(step::kHcAttn, layer, out_rows);
  TraceRows(step::kAttnIn, layer, ws().x_TE.data(), config_.hidden_size, kv_rows);
  AppendWindow(layer, segments, kv_rows);
  if (compress && config_.IsKvSource(layer)) {
    for (Segment& s : segments) AppendCompressed(layer, s);
  }
  DescribeRows(layer, segments);
  for (const RowRange& range : out_rows) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += r_.options.attention_tile_rows) {
      AttendTile(layer, {begin, std::min(begin + r_.options.attention_tile_rows, range.end)});
    }
  }
  StoreWindows(layer, segments);
  TraceRows(step::kAttnOut, layer, ws().f_TE.data(), config_.hidden_size, out_rows);
  LeaveSite(out_rows);
  TraceRows(step::kAttnStream, layer, ws().stream_TSE.data(), std::int64_t{config_.hc_mult} * config_.hidden_size, out_rows);

  EnterSite(w.hc_ffn, w.ffn_norm.data(), out_rows);
  TraceCoefficients(step::kHcFfn, layer, out_rows);
  TraceRows(step::kFfnIn, layer, ws().x_TE.data(), config_.hidden_size, out_rows);
  FeedForward(layer, out_rows);
  TraceRows(step::kFfnOut, layer, ws().f_TE.data(), config_.hidden_size, out_rows);
  LeaveSite(out_rows);
  TraceRows(step::kFfnStream, layer, ws().stream_TSE.data(), std::int64_t{config_.hc_mult} * config_.hidden_size, out_rows);
  for (const RowRange& range : out_rows) r_.stats.token_layers += range.rows();
}

void Forward::EngramReadOut(int layer, std::span<Segment> segments, const Ranges& rows) {
  const int index = config_.EngramIndexOf(layer);
  const DeviceEngram& w = *r_.model.layers[static_cast<std::size_t>(layer)].engram;
  const std::int64_t in = std::int64_t{config_.engram.columns()} * config_.engram.head_dim;
  const std::int64_t out = std::int64_t{config_.hc_mult + 1} * config_.hidden_size, width = std::int64_t{config_.hc_mult} * config_.hidden_size;
  host_.table_rows.resize(static_cast<std::size_t>(in));
  for (Segment& s : segments) {
    const auto id_at = [&s](std::int64_t p) {
      return p < s.begin() ? s.state->ids[static_cast<std::size_t>(p)] : s.ids[static_cast<std::size_t>(p - s.begin())];
    };
    for (std::int64_t p = FirstPositionIn(rows, s); p < s.end(); ++p) {
      host_.recent_ids.clear();
      for (std::int64_t q = p; q >= 0 && q > p - config_.engram.max_ngram_size; --q) host_.recent_ids.push_back(id_at(q));
      engram_.Gather(index, host_.recent_ids, host_.table_rows.data());
      Upload(ws().engram_rows, s.RowOf(p) * in, host_.table_rows);
    }
  }
  for (const RowRange& range : rows) {
    Linear(w.wkv, ws().engram_rows.data() + range.begin * in, in, range.rows(), ws().engram_kv.data() + range.begin * out, out);
    kernels().engram_gate(stream(), {ws().engram_kv.data() + range.begin * out, w.qk.data(), range.rows(), config_.hc_mult, config_.hidden_size,
                                     static_cast<float>(config_.rms_norm_eps), ws().stream_TSE.data() + range.begin * width});
  }
  TraceRows(step::kEngram, layer, ws().stream_TSE.data(), width, rows);
}

// Mix, collapse (V4.1: with the coefficients of the site before) and norm: streams to x.
void Forward::EnterSite(const DeviceHc& site, const float* norm, const Ranges& rows) {
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size;
  for (const RowRange& range : rows) {
    const std::uint16_t* stream_rows = ws().stream_TSE.data() + range.begin * width;
    kernels::HcMixArgs mix;
    mix.stream_TSE = stream_rows;
    mix.rows = range.rows();
    mix.streams = config_.hc_mult;
    mix.hidden = config_.hidden_size;
    mix.fn = site.fn.data();
    mix.base = site.base.data();
    mix.scale = site.scale.data();
    mix.rms_eps = static_cast<float>(config_.rms_norm_eps);
    mix.hc_eps = static_cast<float>(config_.hc_eps);
    mix.sinkhorn_iters = config_.hc_sinkhorn_iters;
    mix.pre_TS = ws().next_pre_TS.data() + range.begin * streams;
    mix.post_TS = ws().post_TS.data() + range.begin * streams;
    mix.mix_TSS = ws().mix_TSS.data() + range.begin * streams * streams;
    kernels().hc_mix(stream(), mix);
    const float* pre = (config_.is_v41() ? ws().pre_TS : ws().next_pre_TS).data() + range.begin * streams;
    kernels().hc_collapse_norm(stream(), {stream_rows, pre, range.rows(), config_.hc_mult, config_.hidden_size, norm,
                                          static_cast<float>(config_.rms_norm_eps), ws().x_TE.data() + range.begin * config_.hidden_size});
  }
}

// f into the streams; the site's pre becomes the one that the next site collapses with.
void Forward::LeaveSite(const Ranges& rows) {
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size;
  for (const RowRange& range : rows) {
    kernels().hc_expand(stream(), {ws().f_TE.data() + range.begin * config_.hidden_size, ws().post_TS.data() + range.begin * streams,
                                   ws().mix_TSS.data() + range.begin * streams * streams, range.rows(), config_.hc_mult, config_.hidden_size,
                                   ws().stream_TSE.data() + range.begin * width});
  }
  std::swap(ws().pre_TS, ws().next_pre_TS);
}

// --- attention -------------------------------------------------------------------------------------------------------

void Forward::AppendWindow(int layer, std::span<Segment> segments, const Ranges& rows) {
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  const std::int64_t dim = config_.head_dim;
  const RowFormat& format = r_.kv.formats().window;
  kv_begin_.clear();
  for (const Segment& s : segments) kv_begin_.push_back(FirstPositionIn(rows, s));
  for (const RowRange& range : rows) {
    std::uint16_t* kv = ws().kv_TD.data() + range.begin * dim;
    Linear(w.wkv, ws().x_TE.data() + range.begin * config_.hidden_size, config_.hidden_size, range.rows(), kv, dim);
    Norm(kv, range.rows(), dim, w.kv_norm.data(), kv);
    Rope(layer, kv, range.rows(), 1, config_.head_dim, ws().positions.data() + range.begin, false);
    kernels::PackRowsArgs pack;
    pack.format = format;
    pack.x = kv;
    pack.x_stride = dim;
    pack.rows = range.rows();
    pack.flat = ws().window_rows.data() + range.begin * format.row_bytes();
    kernels().pack_rows(stream(), pack);
    if (r_.options.trace) {
      kernels::UnpackRowsArgs unpack;
      unpack.format = format;
      unpack.flat = pack.flat;
      unpack.rows = range.rows();
      TracePacked(step::kKv, layer, unpack, {positions_.begin() + range.begin, positions_.begin() + range.end});
    }
  }
}

// Latents of the groups that a segment completes, normalized, in ws().latent.
void Forward::PoolGroups(int layer, const DeviceCompressor& compressor, std::int64_t width, DoubleRing* history, Segment& segment) {
  const std::int64_t rows = static_cast<std::int64_t>(segment.ids.size()), hidden = config_.hidden_size;
  const int ratio = config_.ratio(layer);
  const std::int64_t entries = segment.end() / ratio - segment.begin() / ratio;
  const std::uint16_t* x = ws().x_TE.data() + segment.RowOf(segment.begin()) * hidden;
  if (!compressor.wgate) {
    Linear(compressor.wkv, x, hidden, rows, ws().latent.data(), width);
  } else {
    const std::int64_t channels = compressor.wkv.spec.out_features;
    Linear(compressor.wkv, x, hidden, rows, nullptr, channels, ws().compressor_kv.data());
    Linear(*compressor.wgate, x, hidden, rows, nullptr, channels, ws().compressor_gate.data());
    kernels::CompressorArgs pool;
    pool.kv = ws().compressor_kv.data();
    pool.gate = ws().compressor_gate.data();
    pool.rows = rows;
    pool.position = segment.begin();
    pool.ratio = ratio;
    pool.overlap = compressor.overlap;
    pool.width = width;
    pool.ape = compressor.ape.data();
    pool.history = reinterpret_cast<const float*>(history->current());
    pool.history_slots = history->slots();
    pool.latent = ws().latent.data();
    kernels().compress(stream(), pool);
    const std::int64_t needed = compressor.overlap ? 2 * ratio - 1 : ratio - 1;
    std::byte* target = history->BeginWrite(rows, history->slots() - needed);
    kernels().store_history(stream(), {pool.kv, pool.gate, rows, pool.position, ratio, channels, pool.ape, reinterpret_cast<float*>(target), history->slots()});
  }
  Norm(ws().latent.data(), entries, width, compressor.norm.data(), ws().latent.data());
}

void Forward::AppendCompressed(int layer, Segment& segment) {
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  LayerKv& kv = segment.state->layer(layer);
  const int ratio = config_.ratio(layer);
  const std::int64_t first = segment.begin() / ratio, entries = segment.end() / ratio - first;
  host_.entry_positions.clear();
  for (std::int64_t j = first; j < first + entries; ++j) host_.entry_positions.push_back(j * ratio);
  Upload(ws().entry_positions, 0, host_.entry_positions);

  if (w.index_compressor) {
    PoolGroups(layer, *w.index_compressor, config_.index_head_dim, kv.index_history.get(), segment);
    std::swap(ws().latent, ws().index_key);
    AppendIndexKeys(layer, segment, first, entries);
    std::swap(ws().latent, ws().index_key);
  }
  PoolGroups(layer, *w.compressor, config_.head_dim, kv.history.get(), segment);
  if (entries == 0) return;
  if (w.index_wk) {
    Linear(*w.index_wk, ws().latent.data(), config_.head_dim, entries, ws().index_key.data(), config_.index_head_dim);
    Norm(ws().index_key.data(), entries, config_.index_head_dim, w.index_k_norm.data(), ws().index_key.data());
    AppendIndexKeys(layer, segment, first, entries);
  }
  Rope(layer, ws().latent.data(), entries, 1, config_.head_dim, ws().entry_positions.data(), false);
  kernels::PackRowsArgs pack;
  pack.format = r_.kv.formats().compressed;
  pack.x = ws().latent.data();
  pack.x_stride = config_.head_dim;
  pack.rows = entries;
  pack.dst = kv.compressed->View();
  pack.first = first;
  kernels().pack_rows(stream(), pack);
  if (r_.options.trace) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t j = first; j < first + entries; ++j) numbers.push_back(j);
    kernels::UnpackRowsArgs unpack{pack.format, pack.dst, first, nullptr, entries, nullptr, 0};
    TracePacked(step::kCompressed, layer, unpack, numbers);
  }
}

// Rotates, quantizes and stores the keys in ws().index_key.
void Forward::AppendIndexKeys(int layer, Segment& segment, std::int64_t first_entry, std::int64_t entries) {
  if (entries == 0) return;
  Rope(layer, ws().index_key.data(), entries, 1, config_.index_head_dim, ws().entry_positions.data(), false);
  kernels::PackRowsArgs pack;
  pack.format = r_.kv.formats().index_key;
  pack.x = ws().index_key.data();
  pack.x_stride = config_.index_head_dim;
  pack.rows = entries;
  pack.dst = segment.state->layer(layer).index_keys->View();
  pack.first = first_entry;
  kernels().pack_rows(stream(), pack);
  if (r_.options.trace) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t j = first_entry; j < first_entry + entries; ++j) numbers.push_back(j);
    kernels::UnpackRowsArgs unpack{pack.format, pack.dst, first_entry, nullptr, entries, nullptr, 0};
    TracePacked(step::kIndexKey, layer, unpack, numbers);
  }
}

// Where each row of the step finds its sequence's window, compressed rows and index keys.
void Forward::DescribeRows(int layer, std::span<Segment> segments) {
  const RowFormat& format = r_.kv.formats().window;
  const int source = config_.KvSourceOf(layer);
  host_.attention_rows.assign(positions_.size(), {});
  host_.index_rows.assign(positions_.size(), {});
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    const LayerKv& kv = s.state->layer(layer);
    for (std::int64_t p = s.first_position; p < s.end(); ++p) {
      const auto row = static_cast<std::size_t>(s.RowOf(p));
      AttentionRow& a = host_.attention_rows[row];
      a.window = {kv.window->current(), kv.window->slots(), ws().window_rows.data() + s.RowOf(kv_begin_[i]) * format.row_bytes(), kv_begin_[i],
                  format.row_bytes()};
      a.position = p;
      if (source < 0) continue;
      const LayerKv& source_kv = s.state->layer(source);
      a.compressed = source_kv.compressed->View();
      a.visible = (p + 1) / config_.ratio(layer);
      if (source_kv.index_keys) host_.index_rows[row] = {source_kv.index_keys->View(), a.visible};
    }
  }
  Upload(ws().attention_rows, 0, host_.attention_rows);
  if (config_.IsIndexSource(layer)) Upload(ws().index_rows, 0, host_.index_rows);
}

void Forward::AttendTile(int layer, RowRange tile) {
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  const std::int64_t rows = tile.rows(), hidden = config_.hidden_size, head_width = std::int64_t{config_.num_heads} * config_.head_dim;
  const std::uint16_t* x = ws().x_TE.data() + tile.begin * hidden;
  const std::int64_t* positions = ws().positions.data() + tile.begin;

  Linear(w.wq_a, x, hidden, rows, ws().query_latent.data(), config_.q_lora_rank);
  Norm(ws().query_latent.data(), rows, config_.q_lora_rank, w.q_norm.data(), ws().query_latent.data());
  Linear(w.wq_b, ws().query_latent.data(), config_.q_lora_rank, rows, ws().query.data(), head_width);
  if (!config_.is_v41()) Norm(ws().query.data(), rows * config_.num_heads, config_.head_dim, nullptr, ws().query.data());
  Rope(layer, ws().query.data(), rows, config_.num_heads, config_.head_dim, positions, false);
  TraceRange(step::kQueryLatent, layer, ws().query_latent.data(), config_.q_lora_rank, tile);
  TraceRange(step::kQuery, layer, ws().query.data(), head_width, tile);
  if (config_.IsIndexSource(layer)) SelectEntries(layer, tile);

  kernels::AttentionArgs attention;
  attention.row_T = ws().attention_rows.data() + tile.begin;
  attention.rows = rows;
  attention.q_THD = ws().query.data();
  attention.heads = config_.num_heads;
  attention.head_dim = config_.head_dim;
  attention.window = config_.sliding_window;
  attention.window_format = r_.kv.formats().window;
  attention.compressed_format = r_.kv.formats().compressed;
  attention.all_visible = config_.KvSourceOf(layer) >= 0 && config_.IndexSourceOf(layer) < 0;
  if (config_.IndexSourceOf(layer) >= 0) {
    attention.selected_TK = ws().selected.data() + tile.begin * config_.index_topk;
    attention.count_T = ws().selected_count.data() + tile.begin;
    attention.top_k = config_.index_topk;
  }
  attention.sink_H = w.sink.data();
  attention.out_THD = ws().heads.data();
  kernels().attention(stream(), attention);
  Rope(layer, ws().heads.data(), rows, config_.num_heads, config_.head_dim, positions, true);
  TraceRange(step::kAttnHeads, layer, ws().heads.data(), head_width, tile);

  const std::int64_t group_in = head_width / config_.o_groups, group_out = config_.o_lora_rank, groups_width = group_out * config_.o_groups;
  for (int g = 0; g < config_.o_groups; ++g) {
    Linear(w.wo_a[static_cast<std::size_t>(g)], ws().heads.data() + g * group_in, head_width, rows, ws().groups.data() + g * group_out, groups_width);
  }
  Linear(w.wo_b, ws().groups.data(), groups_width, rows, ws().f_TE.data() + tile.begin * hidden, hidden);
}

void Forward::SelectEntries(int layer, RowRange tile) {
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  const std::int64_t rows = tile.rows(), width = std::int64_t{config_.index_n_heads} * config_.index_head_dim;
  Linear(*w.index_wq_b, ws().query_latent.data(), config_.q_lora_rank, rows, ws().index_query.data(), width);
  Rope(layer, ws().index_query.data(), rows, config_.index_n_heads, config_.index_head_dim, ws().positions.data() + tile.begin, false);
  Linear(*w.index_weights, ws().x_TE.data() + tile.begin * config_.hidden_size, config_.hidden_size, rows, ws().index_weight.data(),
         config_.index_n_heads);
  kernels::IndexSelectArgs args;
  args.row_T = ws().index_rows.data() + tile.begin;
  args.rows = rows;
  for (std::int64_t row = tile.begin; row < tile.end; ++row) {
    args.max_visible = std::max(args.max_visible, (positions_[static_cast<std::size_t>(row)] + 1) / config_.ratio(layer));
  }
  args.q_THI = ws().index_query.data();
  args.weight_TH = ws().index_weight.data();
  args.heads = config_.index_n_heads;
  args.dim = config_.index_head_dim;
  args.key_format = r_.kv.formats().index_key;
  args.top_k = config_.index_topk;
  args.selected_TK = ws().selected.data() + tile.begin * config_.index_topk;
  args.count_T = ws().selected_count.data() + tile.begin;
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
  if (r_.options.trace) KeepScores(tile, &args, &scores);
  kernels().index_select(stream(), args);
  Download(args.count_T, rows, &host_.counts);
  for (std::int64_t t = 0; t < rows; ++t) {
    if (host_.counts[static_cast<std::size_t>(t)] < 0) {
      throw InputError("index scores of layer " + std::to_string(layer) + ", position " +
                       std::to_string(positions_[static_cast<std::size_t>(tile.begin + t)]) + ": a score is NaN");
    }
  }
  if (r_.options.trace) TraceSelection(layer, tile, args);
}

// The step's last window rows into the ring, where later steps find them.
void Forward::StoreWindows(int layer, std::span<Segment> segments) {
  const std::int64_t row_bytes = r_.kv.formats().window.row_bytes();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    Segment& s = segments[i];
    const std::int64_t rows = s.end() - kv_begin_[i];
    if (rows == 0) continue;
    DoubleRing& ring = *s.state->layer(layer).window;
    // Where the decoder half lags behind, what it has not seen yet comes back from the stash after a cancellation: only the rows before
    // that must survive.
    const std::int64_t survive = layer < rule_.first_decoder_layer() ? s.begin() : s.state->decoder_position;
    std::byte* target = ring.BeginWrite(s.end() - survive, r_.kv.sizes().window_in_place);
    for (std::int64_t p = std::max(kv_begin_[i], s.end() - ring.slots()); p < s.end();) {
      const std::int64_t slot = p % ring.slots(), run = std::min(s.end() - p, ring.slots() - slot);
      device().CopyWithin(stream(), target + slot * row_bytes, ws().window_rows.data() + s.RowOf(p) * row_bytes,
                          static_cast<std::size_t>(run * row_bytes));
      p += run;
    }
  }
}

// --- tail stash ------------------------------------------------------------------------------------------------------

void Forward::CopyStash(Segment& segment, std::int64_t begin, std::int64_t end, bool store) {
  TailStash& stash = segment.state->OpenStash();
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size;
  const auto copy = [&](auto* stash_data, auto* rows_data, std::int64_t row_width, std::int64_t p, std::int64_t run) {
    auto* in_stash = stash_data + p % stash.rows * row_width;
    auto* in_rows = rows_data + segment.RowOf(p) * row_width;
    device().CopyWithin(stream(), reinterpret_cast<std::byte*>(store ? in_stash : in_rows),
                        reinterpret_cast<const std::byte*>(store ? in_rows : in_stash), static_cast<std::size_t>(run * row_width) * sizeof(*in_rows));
  };
  for (std::int64_t p = begin; p < end;) {
    const std::int64_t run = std::min(end - p, stash.rows - p % stash.rows);
    copy(stash.stream.data(), ws().stream_TSE.data(), width, p, run);
    copy(stash.pre.data(), ws().pre_TS.data(), streams, p, run);
    p += run;
  }
}

void Forward::StoreStash(Segment& segment) {
  const std::int64_t rows = r_.kv.sizes().stash_rows;
  CopyStash(segment, std::max(segment.begin(), segment.end() - rows), segment.end(), /*store=*/true);
}

void Forward::RestoreStash(Segment& segment) {
  if (segment.first_position < segment.begin()) CopyStash(segment, segment.first_position, segment.begin(), /*store=*/false);
}

// --- feed-forward ----------------------------------------------------------------------------------------------------

void Forward::FeedForward(int layer, const Ranges& rows) {
  const DeviceLayer& w = r_.model.layers[static_cast<std::size_t>(layer)];
  const std::int64_t hidden = config_.hidden_size;
  const int top_k = config_.num_experts_per_tok;
  for (const RowRange& range : rows) {
    kernels::RouterArgs router;
    router.x_TE = ws().x_TE.data() + range.begin * hidden;
    router.rows = range.rows();
    router.hidden = hidden;
    router.gate_XE = w.gate.data();
    router.experts = config_.n_routed_experts;
    router.bias_X = w.gate_bias.data();
    router.tid2eid = w.tid2eid.data();
    router.ids = ws().ids.data() + range.begin;
    router.top_k = top_k;
    router.normalize = config_.norm_topk_prob && (!config_.is_v41() || top_k > 1);
    router.epsilon = config_.is_v41() ? 1e-20f : 0.0f;
    router.scaling = static_cast<float>(config_.routed_scaling_factor);
    router.experts_TK = ws().experts_TK.data() + range.begin * top_k;
    router.weights_TK = ws().weights_TK.data() + range.begin * top_k;
    kernels().router(stream(), router);
  }
  RunExperts(layer, rows);
  for (const RowRange& range : rows) {
    kernels::ExpertJob job{&w.shared_expert.spec, w.shared_expert.blob.data(), 0, range.rows()};
    kernels::ExpertFfnArgs shared;
    shared.jobs = &job;
    shared.num_jobs = 1;
    shared.x = ws().x_TE.data() + range.begin * hidden;
    shared.limit = static_cast<float>(config_.swiglu_limit);
    shared.hidden = hidden;
    shared.y = ws().shared_out.data() + range.begin * hidden;
    shared.overflow = ws().overflow.data() + layer;
    kernels().expert_ffn(stream(), shared);
    kernels().combine(stream(), {ws().pair_out.data(), ws().pair_of_TK.data() + range.begin * top_k, top_k, shared.y, range.rows(), hidden,
                                 ws().f_TE.data() + range.begin * hidden});
  }
}

// The routed experts of a layer: counts, plan, then each lane. Experts without a pick are not touched.
void Forward::RunExperts(int layer, const Ranges& rows) {
  const int top_k = config_.num_experts_per_tok;
  const std::int64_t all_rows = static_cast<std::int64_t>(positions_.size());
  Download(ws().experts_TK.data(), all_rows * top_k, &host_.experts_TK);
  Download(ws().weights_TK.data(), all_rows * top_k, &host_.weights_TK);
  GroupPairs(layer, rows);
  Upload(ws().pair_token, 0, batch_.pair_token);
  Upload(ws().pair_weight, 0, batch_.pair_weight);
  Upload(ws().pair_of_TK, 0, host_.pair_of_TK);
  TraceRouting(layer, rows);

  batch_.layer = layer;
  batch_.args.x = ws().x_TE.data();
  batch_.args.token = ws().pair_token.data();
  batch_.args.weight = ws().pair_weight.data();
  batch_.args.limit = static_cast<float>(config_.swiglu_limit);
  batch_.args.hidden = config_.hidden_size;
  batch_.args.y = ws().pair_out.data();
  batch_.args.overflow = ws().overflow.data() + layer;
  lanes_.Run(device(), batch_);
}

// Pairs in order of expert, then of row: counts and begins of every expert, and for each token where its pairs are.
void Forward::GroupPairs(int layer, const Ranges& rows) {
  const int top_k = config_.num_experts_per_tok;
  batch_.count_X.assign(static_cast<std::size_t>(config_.n_routed_experts), 0);
  for (const RowRange& range : rows) {
    for (std::int64_t i = range.begin * top_k; i < range.end * top_k; ++i) {
      const std::int32_t expert = host_.experts_TK[static_cast<std::size_t>(i)];
      if (expert < 0) throw InputError("router of layer " + std::to_string(layer) + ": a score is NaN");
      ++batch_.count_X[static_cast<std::size_t>(expert)];
    }
  }
  batch_.begin_X.assign(batch_.count_X.size(), 0);
  for (std::size_t e = 1; e < batch_.count_X.size(); ++e) batch_.begin_X[e] = batch_.begin_X[e - 1] + batch_.count_X[e - 1];
  const auto pairs = static_cast<std::size_t>(batch_.begin_X.back() + batch_.count_X.back());
  batch_.pair_token.resize(pairs);
  batch_.pair_weight.resize(pairs);
  host_.pair_of_TK.assign(host_.experts_TK.size(), 0);
  host_.next_X = batch_.begin_X;
  for (const RowRange& range : rows) {
    for (std::int64_t i = range.begin * top_k; i < range.end * top_k; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto pair = static_cast<std::size_t>(host_.next_X[static_cast<std::size_t>(host_.experts_TK[at])]++);
      batch_.pair_token[pair] = static_cast<std::int32_t>(i / top_k);
      batch_.pair_weight[pair] = host_.weights_TK[at];
      host_.pair_of_TK[at] = static_cast<std::int32_t>(pair);
    }
  }
}

// --- head ------------------------------------------------------------------------------------------------------------

void Forward::Head(std::span<Segment> segments) {
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size, hidden = config_.hidden_size, vocab = config_.vocab_size;
  layer_ = config_.num_layers;
  for (Segment& s : segments) {
    s.logits.clear();
    if (!s.run_decoder) continue;
    const std::int64_t first = std::max(s.first_position, s.prompt_end - s.last_rows);
    for (std::int64_t p = first; p < s.end(); p += logit_rows_) {
      const std::int64_t rows = std::min(logit_rows_, s.end() - p), row = s.RowOf(p);
      const float* pre = ws().pre_TS.data() + row * streams;
      if (r_.model.hc_head) {
        kernels::HcMixArgs mix;
        mix.stream_TSE = ws().stream_TSE.data() + row * width;
        mix.rows = rows;
        mix.streams = config_.hc_mult;
        mix.hidden = hidden;
        mix.fn = r_.model.hc_head->fn.data();
        mix.base = r_.model.hc_head->base.data();
        mix.scale = r_.model.hc_head->scale.data();
        mix.rms_eps = static_cast<float>(config_.rms_norm_eps);
        mix.hc_eps = static_cast<float>(config_.hc_eps);
        mix.read_out = true;
        mix.pre_TS = ws().next_pre_TS.data() + row * streams;
        kernels().hc_mix(stream(), mix);
        pre = mix.pre_TS;
      }
      std::uint16_t* x = ws().x_TE.data() + row * hidden;
      kernels().hc_collapse_norm(stream(), {ws().stream_TSE.data() + row * width, pre, rows, config_.hc_mult, hidden, r_.model.norm.data(),
                                            static_cast<float>(config_.rms_norm_eps), x});
      TraceRange(step::kFinal, -1, x, hidden, {row, row + rows});
      Linear(r_.model.head, x, hidden, rows, nullptr, vocab, ws().logits.data());
      Download(ws().logits.data(), rows * vocab, &host_.logits);
      s.logits.insert(s.logits.end(), host_.logits.begin(), host_.logits.end());
      for (std::int64_t i = 0; r_.options.trace && i < rows; ++i) {
        r_.options.trace->OnStep(step::kLogits, -1, p + i, std::span(host_.logits).subspan(static_cast<std::size_t>(i * vocab), static_cast<std::size_t>(vocab)));
      }
    }
    for (float value : s.logits) {
      if (!std::isfinite(value)) throw InputError("head: a logit is not finite; the weights or activations overflow");
    }
  }
}

void Forward::CheckFlags() {
  for (int d = 0; d < r_.backend.device_count(); ++d) {
    kernels::Device& on = r_.backend.device(d);
    const Workspace& workspace = *workspaces_[static_cast<std::size_t>(d)];
    std::vector<std::int32_t>& flags = host_.overflow;
    flags.resize(workspace.overflow.size());
    on.CopyOut(on.compute(), reinterpret_cast<std::byte*>(flags.data()), workspace.overflow.bytes(), flags.size() * sizeof(std::int32_t));
    on.Synchronize(on.compute());
    for (std::size_t l = 0; l < flags.size(); ++l) {
      if (flags[l] == 0) continue;
      const std::string where = l + 1 == flags.size() ? "head" : "layer " + std::to_string(l);
      throw InputError(where + ": an activation is beyond the fp16 range that its EXL3 or F16 weights need");
    }
  }
}

// --- calls -----------------------------------------------------------------------------------------------------------

void Forward::Linear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t rows, std::uint16_t* y,
                     std::int64_t y_stride, float* y_fp32) {
  if (rows == 0) return;
  kernels::LinearArgs args;
  args.spec = &linear.spec;
  args.blob = linear.blob.data();
  args.x = x;
  args.x_stride = x_stride;
  args.rows = rows;
  args.y_bf16 = y;
  args.y_fp32 = y_fp32;
  args.y_stride = y_stride;
  args.overflow = ws().overflow.data() + layer_;
  kernels().linear(stream(), args);
}

void Forward::Norm(const std::uint16_t* x, std::int64_t rows, std::int64_t n, const float* weight, std::uint16_t* y) {
  if (rows == 0) return;
  kernels().rms_norm(stream(), {x, n, rows, n, weight, static_cast<float>(config_.rms_norm_eps), y, n});
}

void Forward::Rope(int layer, std::uint16_t* x, std::int64_t rows, int heads, int width, const std::int64_t* positions, bool inverse) {
  if (rows == 0) return;
  const float* table = rope_[static_cast<std::size_t>(device_index_)]->For(config_.ratio(layer));
  kernels().rope(stream(), {x, rows, heads, width, config_.rope_head_dim, table, positions, inverse});
}

template <typename T>
void Forward::Upload(kernels::DeviceArray<T>& array, std::int64_t begin, const std::vector<T>& values) {
  if (values.empty()) return;
  device().CopyIn(stream(), reinterpret_cast<std::byte*>(array.data() + begin), reinterpret_cast<const std::byte*>(values.data()),
                  values.size() * sizeof(T));
  device().Synchronize(stream());
}

template <typename T>
void Forward::Download(const T* data, std::int64_t count, std::vector<T>* values) {
  values->resize(static_cast<std::size_t>(count));
  device().CopyOut(stream(), reinterpret_cast<std::byte*>(values->data()), reinterpret_cast<const std::byte*>(data), values->size() * sizeof(T));
  device().Synchronize(stream());
}

// --- dumps -----------------------------------------------------------------------------------------------------------

void Forward::TraceRows(std::string_view step, int layer, const std::uint16_t* rows, std::int64_t width, const Ranges& ranges) {
  for (const RowRange& range : ranges) TraceRange(step, layer, rows + range.begin * width, width, range);
}

void Forward::TraceRange(std::string_view step, int layer, const std::uint16_t* first, std::int64_t width, RowRange range) {
  if (!r_.options.trace) return;
  std::vector<std::uint16_t> bits;
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    Download(first + (row - range.begin) * width, width, &bits);
    TraceBits(step, layer, positions_[static_cast<std::size_t>(row)], bits);
  }
}

void Forward::TraceBits(std::string_view step, int layer, std::int64_t position, std::span<const std::uint16_t> bits) {
  std::vector<float> values;
  for (std::uint16_t b : bits) values.push_back(BF16ToFloat(b));
  r_.options.trace->OnStep(step, layer, position, values);
}

// Room for the scores that a dump wants. Those of restricted sources are not in order, and not dumped.
void Forward::KeepScores(RowRange tile, kernels::IndexSelectArgs* args, kernels::DeviceArray<float>* scores) {
  if (args->candidates_in) return;
  for (std::int64_t row = tile.begin; row < tile.end; ++row) {
    args->scores_stride = std::max(args->scores_stride, host_.index_rows[static_cast<std::size_t>(row)].visible);
  }
  *scores = {device(), static_cast<std::size_t>(tile.rows() * args->scores_stride), "dump"};
  args->scores_out = scores->data();
}

void Forward::TraceSelection(int layer, RowRange tile, const kernels::IndexSelectArgs& args) {
  std::vector<float> scores;
  std::vector<std::int32_t> chosen;
  for (std::int64_t t = 0; t < tile.rows(); ++t) {
    const auto row = static_cast<std::size_t>(tile.begin + t);
    if (args.scores_out) {
      Download(args.scores_out + t * args.scores_stride, host_.index_rows[row].visible, &scores);
      r_.options.trace->OnStep(step::kIndexScore, layer, positions_[row], scores);
    }
    Download(args.selected_TK + t * args.top_k, host_.counts[static_cast<std::size_t>(t)], &chosen);
    r_.options.trace->OnStep(step::kSelected, layer, positions_[row], std::vector<float>(chosen.begin(), chosen.end()));
  }
}

void Forward::TraceCoefficients(std::string_view step, int layer, const Ranges& ranges) {
  if (!r_.options.trace) return;
  const std::int64_t streams = config_.hc_mult;
  for (const RowRange& range : ranges) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::vector<float> values, part;
      Download(ws().next_pre_TS.data() + row * streams, streams, &values);
      Download(ws().post_TS.data() + row * streams, streams, &part);
      values.insert(values.end(), part.begin(), part.end());
      Download(ws().mix_TSS.data() + row * streams * streams, streams * streams, &part);
      values.insert(values.end(), part.begin(), part.end());
      r_.options.trace->OnStep(step, layer, positions_[static_cast<std::size_t>(row)], values);
    }
  }
}

void Forward::TraceRouting(int layer, const Ranges& rows) {
  if (!r_.options.trace) return;
  const int top_k = config_.num_experts_per_tok;
  for (const RowRange& range : rows) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::vector<float> values(host_.experts_TK.begin() + row * top_k, host_.experts_TK.begin() + (row + 1) * top_k);
      values.insert(values.end(), host_.weights_TK.begin() + row * top_k, host_.weights_TK.begin() + (row + 1) * top_k);
      r_.options.trace->OnStep(step::kRouter, layer, positions_[static_cast<std::size_t>(row)], values);
    }
  }
}

void Forward::TracePacked(std::string_view step, int layer, const kernels::UnpackRowsArgs& rows, const std::vector<std::int64_t>& positions) {
  const std::int64_t width = rows.format.width;
  kernels::DeviceArray<std::uint16_t> unpacked(device(), static_cast<std::size_t>(rows.rows * width), "dump");
  kernels::UnpackRowsArgs args = rows;
  args.y = unpacked.data();
  args.y_stride = width;
  kernels().unpack_rows(stream(), args);
  TraceUnpacked(step, layer, unpacked.data(), width, positions);
}

void Forward::TraceUnpacked(std::string_view step, int layer, const std::uint16_t* rows, std::int64_t width, const std::vector<std::int64_t>& positions) {
  std::vector<std::uint16_t> bits;
  Download(rows, static_cast<std::int64_t>(positions.size()) * width, &bits);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    TraceBits(step, layer, positions[i], std::span(bits).subspan(i * static_cast<std::size_t>(width), static_cast<std::size_t>(width)));
  }
}

}  // namespace lockstep::fast
