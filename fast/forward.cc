#include "fast/forward.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "model/error.h"

namespace lockstep::fast {
namespace {

// Enough for a batch of answers, and for the drafts that a step verifies.
constexpr std::int64_t kMaxCapturedRows = 16;

// A bound of the positions that a step sees which few steps change: the next quarter of a power of two.
std::int64_t PositionBound(std::int64_t end) {
  constexpr std::int64_t kSmallest = 1024;
  const auto step = std::max<std::int64_t>(kSmallest, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end))) / 4);
  return (end + step - 1) / step * step;
}

bool AnyNotFinite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (const float value : values) bad |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return bad != 0;
}

void CheckFinite(bool finite) {
  if (!finite) throw InputError("head: a logit is not finite; the weights or activations overflow");
}

// Rows whose attention runs together: few on the CPU, enough on a device that each of its processors has one and linears decode their weights for many.
std::int64_t TileRows(const EngineOptions& options, std::int64_t max_rows) {
  const std::int64_t usual = options.device.kind == kernels::DeviceSpec::Kind::kCuda ? 1024 : 64;
  return std::min(options.attention_tile_rows > 0 ? options.attention_tile_rows : usual, max_rows);
}

}  // namespace

Forward::Forward(Resources resources, std::int64_t max_rows, std::int64_t logit_rows)
    : r_(std::move(resources)),
      config_(r_.checkpoint.config),
      rule_(config_, r_.options.exact_tail),
      max_rows_(max_rows),
      tile_rows_(TileRows(r_.options, max_rows)),
      logit_rows_(logit_rows),
      record_(r_.backend, r_.checkpoint, rule_, r_.kv, r_.device_of, max_rows),
      graphs_(r_.backend),
      lanes_(r_.backend, r_.experts, r_.options) {
  const std::int64_t context = r_.options.max_context > 0 ? r_.options.max_context : config_.max_position_embeddings;
  for (int d = 0; d < r_.backend.device_count(); ++d) {
    kernels::Device& on = r_.backend.device(d);
    const WorkspaceSizes sizes{max_rows, tile_rows_, logit_rows, r_.kv.formats().window.row_bytes()};
    workspaces_.push_back(std::make_unique<Workspace>(on, config_, sizes));
    window_rows_D_.push_back(workspaces_.back()->window_rows.data());
    rope_.push_back(std::make_unique<RopeTables>(on, config_, context));
    PoisonWorkspace(d, max_rows);
  }
  host_logits_ = {r_.backend, static_cast<std::size_t>(logit_rows * config_.vocab_size), "logits"};
  host_pairs_ = {r_.backend, PairArrays::Bytes(config_.n_routed_experts, max_rows, config_.num_experts_per_tok), "expert pairs"};
}

// --- the step --------------------------------------------------------------------------------------------------------

bool Forward::Run(std::span<Segment> segments, const std::function<bool()>& cancelled) {
  bool done = false;
  try {
    done = RunOnce(segments, cancelled);
  } catch (...) {
    Abandon(segments);
    throw;
  }
  if (!done) {
    Abandon(segments);
    return false;
  }
  for (Segment& s : segments) s.state->Commit(s.ids, s.run_decoder ? s.end() : s.state->decoder_position);
  ++r_.stats.steps;
  return true;
}

void Forward::Abandon(std::span<Segment> segments) {
  graphs_.Abandon();
  record_.DropAhead();
  for (Segment& s : segments) s.state->Cancel();
}

// A step that turns out not to be capturable starts again: what it has written so far is not visible.
bool Forward::RunOnce(std::span<Segment> segments, const std::function<bool()>& cancelled) {
  try {
    return RunLayers(segments, cancelled);
  } catch (const kernels::NotCapturable&) {
    graphs_.Refuse();
    return RunLayers(segments, cancelled);
  }
}

bool Forward::RunLayers(std::span<Segment> segments, const std::function<bool()>& cancelled) {
  Begin(segments);
  Embed();
  const int decoder = rule_.first_decoder_layer();
  for (int l = 0; l < config_.num_layers; ++l) {
    if (l == decoder) {
      if (cancelled()) return false;
      FrontOfDecoder(segments);
    }
    if (cancelled()) return false;
    if (!record_.layer(l).kv_rows.empty()) RunLayer(l, segments, /*compress=*/l != decoder);
  }
  Head(segments);
  if (cancelled()) return false;
  // Not before: what the stash holds must survive a cancellation. The waiting segments' streams are still those at the last kv source.
  for (Segment& s : segments) {
    if (!s.run_decoder) StoreStash(s);
  }
  return true;
}

void Forward::Begin(std::span<Segment> segments) {
  for (int d = 0; d < r_.backend.device_count(); ++d) PoisonWorkspace(d, rows());
  const std::int64_t step_rows = PlanSegments(config_, rule_, segments);
  LOCKSTEP_CHECK(step_rows <= max_rows_);
  std::int64_t end = 0;
  for (Segment& s : segments) {
    s.state->Reserve(s.end());
    s.logits.clear();
    end = std::max(end, s.end());
  }
  for (std::unique_ptr<RopeTables>& tables : rope_) tables->Ensure(end);
  ListLogitRows(segments);
  const bool fixed = HasFixedShape(segments, step_rows);
  r_.stats.described_ahead += record_.Describe(segments, step_rows, fixed, draws_, window_rows_D_) ? 1 : 0;
  position_bound_ = fixed ? PositionBound(end) : end;
  shape_.rows = step_rows;
  shape_.position_bound = position_bound_;
  graphs_.Begin(fixed ? &shape_ : nullptr, r_.experts.generation());
  device_index_ = r_.device_of.front();
  for (int d = 0; d < r_.backend.device_count(); ++d) {
    if (d != device_index_) record_.Upload(d);
  }
  leaving_ = nullptr;  // a step before that threw may have left these five
  shared_TE_ = nullptr;
  linear_set_.clear();
  inputs_ = {};
  mix_later_ = {};
}

// Rows whose logits are wanted, and what is drawn from them: the largest, which does no harm, where nothing is. shape_.logit_rows has them as ranges.
void Forward::ListLogitRows(std::span<Segment> segments) {
  logit_row_list_.clear();
  draws_.clear();
  shape_.logit_rows.clear();
  for (Segment& s : segments) {
    if (!s.run_decoder) continue;
    const std::int64_t first = std::max(s.first_position, s.prompt_end - s.last_rows);
    if (first < s.end()) shape_.logit_rows.push_back({s.RowOf(first), s.RowOf(s.end())});
    for (std::int64_t p = first; p < s.end(); ++p) logit_row_list_.push_back({&s, p});
  }
  shape_.draws = std::ranges::any_of(logit_row_list_, [](const LogitRow& row) { return row.segment->draw; });
  if (!shape_.draws) return;
  for (const LogitRow& row : logit_row_list_) draws_.push_back(row.segment->draw ? *row.segment->draw : kernels::SamplingRow());
}

// Whether all that the step's launches depend on is its rows: few of them, and every layer runs for all.
bool Forward::HasFixedShape(std::span<const Segment> segments, std::int64_t step_rows) const {
  if (!r_.options.UsesGraphs() || r_.options.trace || step_rows > std::min(kMaxCapturedRows, logit_rows_)) return false;
  return std::ranges::all_of(segments, [&](const Segment& s) {
    const bool whole = s.run_decoder && s.first_position == s.begin();
    return whole && rule_.OutBegin(config_.num_layers - 1, s.prompt_end, s.last_rows) <= s.begin();
  });
}

// Row t of the streams is the token's embedding, and the first site reads it as it is (V4.1: with the coefficients of a site before it).
void Forward::Embed() {
  Enqueue([&] {
    record_.Upload(device_index_);
    const std::int64_t width = std::int64_t{config_.hc_mult} * config_.hidden_size;
    if (config_.is_v41()) {
      device().CopyWithin(stream(), ws().pre_TS.bytes(), reinterpret_cast<const std::byte*>(here().first_pre.device),
                          static_cast<std::size_t>(rows() * config_.hc_mult) * sizeof(float));
    }
    for (const RowRange& range : record_.new_rows()) {
      kernels().embed(stream(), {here().ids.device + range.begin, range.rows(), r_.model.embed.data(), config_.hc_mult, config_.hidden_size,
                                 ws().stream_TSE.data() + range.begin * width});
    }
    TraceRows(step::kEmbed, -1, ws().stream_TSE.data(), width, record_.new_rows());
  });
}

// Every token leaves its compressed KV and index key at the last kv source; the rest of the decoder half runs where it is needed.
void Forward::FrontOfDecoder(std::span<Segment> segments) {
  const int decoder = rule_.first_decoder_layer();
  const Ranges& new_rows = record_.new_rows();
  MoveToDeviceOf(decoder, new_rows);
  Enqueue([&] {
    const DeviceLayer& w = weights(decoder);
    if (w.engram) EngramReadOut(decoder, new_rows);
    EnterSite(w.hc_attn, w.attn_norm.data(), new_rows);
    AddCompressorLinears(decoder);
    RunLinears();
    AppendCompressed(decoder, segments);
    RunInputs();
  });
  for (Segment& s : segments) {
    if (s.run_decoder) {
      RestoreStash(s);
    } else {
      s.state->OpenStash();
    }
  }
}

// Streams and deferred coefficients follow the layers from device to device.
void Forward::MoveToDeviceOf(int layer, const Ranges& moved) {
  layer_ = layer;
  const int to = r_.device_of[static_cast<std::size_t>(layer)];
  if (to == device_index_) return;
  Enqueue([&] { FinishLeaving(); });
  graphs_.Flush();
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size;
  kernels::Device& target = r_.backend.device(to);
  Workspace& target_ws = *workspaces_[static_cast<std::size_t>(to)];
  for (const RowRange& range : moved) {
    Download(ws().stream_TSE.data() + range.begin * width, range.rows() * width, &stream_rows_);
    Download(ws().pre_TS.data() + range.begin * streams, range.rows() * streams, &pre_rows_);
    target.CopyIn(target.compute(), reinterpret_cast<std::byte*>(target_ws.stream_TSE.data() + range.begin * width),
                  reinterpret_cast<const std::byte*>(stream_rows_.data()), stream_rows_.size() * sizeof(std::uint16_t));
    target.CopyIn(target.compute(), reinterpret_cast<std::byte*>(target_ws.pre_TS.data() + range.begin * streams),
                  reinterpret_cast<const std::byte*>(pre_rows_.data()), pre_rows_.size() * sizeof(float));
    target.Synchronize(target.compute());
  }
  PoisonWorkspace(device_index_, rows());
  device_index_ = to;
}

// For tests: what a step or a device has left behind must not be read.
void Forward::PoisonWorkspace(int device, std::int64_t row_count) {
  if (r_.options.poison) workspaces_[static_cast<std::size_t>(device)]->Poison(r_.backend.device(device), row_count);
}

// --- a layer ---------------------------------------------------------------------------------------------------------

void Forward::RunLayer(int layer, std::span<Segment> segments, bool compress) {
  const Ranges &kv_rows = record_.layer(layer).kv_rows, &out_rows = record_.layer(layer).out_rows;
  MoveToDeviceOf(layer, kv_rows);
  const DeviceLayer& w = weights(layer);
  const std::int64_t hidden = config_.hidden_size, width = std::int64_t{config_.hc_mult} * hidden;
  Enqueue([&] {
    const bool front_done = !compress && config_.IsKvSource(layer);
    if (w.engram && !front_done) EngramReadOut(layer, kv_rows);
    EnterSite(w.hc_attn, w.attn_norm.data(), kv_rows);
    TraceCoefficients(step::kHcAttn, layer, out_rows);
    TraceRows(step::kAttnIn, layer, ws().x_TE.data(), hidden, kv_rows);
    const bool appends_entries = compress && config_.IsKvSource(layer);
    ProjectInput(layer, appends_entries);
    AppendWindow(layer);
    if (appends_entries) AppendCompressed(layer, segments);
    for (const RowRange& range : out_rows) {
      for (std::int64_t begin = range.begin; begin < range.end; begin += tile_rows_) {
        AttendTile(layer, {begin, std::min(begin + tile_rows_, range.end)});
      }
    }
    RunInputs();  // without rows that leave the layer nobody has
    TraceRows(step::kAttnOut, layer, ws().f_TE.data(), hidden, out_rows);
    LeaveSite(out_rows);
    TraceRows(step::kAttnStream, layer, ws().stream_TSE.data(), width, out_rows);

    EnterSite(w.hc_ffn, w.ffn_norm.data(), out_rows);
    TraceCoefficients(step::kHcFfn, layer, out_rows);
    TraceRows(step::kFfnIn, layer, ws().x_TE.data(), hidden, out_rows);
  });
  FeedForward(layer, out_rows);
  Enqueue([&] {
    TraceRows(step::kFfnOut, layer, ws().f_TE.data(), hidden, out_rows);
    LeaveSite(out_rows);
    TraceRows(step::kFfnStream, layer, ws().stream_TSE.data(), width, out_rows);
  });
  for (const RowRange& range : out_rows) r_.stats.token_layers += range.rows();
}

void Forward::EngramReadOut(int layer, const Ranges& ranges) {
  FinishLeaving();
  const DeviceEngram& w = *weights(layer).engram;
  const std::int64_t in = std::int64_t{config_.engram.columns()} * config_.engram.head_dim;
  const std::int64_t out = std::int64_t{config_.hc_mult + 1} * config_.hidden_size, width = std::int64_t{config_.hc_mult} * config_.hidden_size;
  for (const RowRange& range : ranges) {
    Linear(w.wkv, record_.layer(layer).engram.device + range.begin * in, in, range.rows(), ws().engram_kv.data() + range.begin * out, out);
    kernels().engram_gate(stream(), {ws().engram_kv.data() + range.begin * out, w.qk.data(), range.rows(), config_.hc_mult, config_.hidden_size,
                                     static_cast<float>(config_.rms_norm_eps), ws().stream_TSE.data() + range.begin * width});
  }
  TraceRows(step::kEngram, layer, ws().stream_TSE.data(), width, ranges);
}

kernels::HcExpandArgs Forward::LeaveArgs(RowRange range) {
  const std::int64_t streams = config_.hc_mult, hidden = config_.hidden_size;
  return {ws().f_TE.data() + range.begin * hidden, ws().post_TS.data() + range.begin * streams, ws().mix_TSS.data() + range.begin * streams * streams,
          range.rows(), config_.hc_mult, hidden, ws().stream_TSE.data() + range.begin * streams * hidden};
}

kernels::HcMixArgs Forward::MixArgs(const DeviceHc& site, RowRange range) {
  const std::int64_t streams = config_.hc_mult;
  kernels::HcMixArgs mix;
  mix.stream_TSE = ws().stream_TSE.data() + range.begin * streams * config_.hidden_size;
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
  return mix;
}

// What the site before has left, mix, collapse (V4.1: with the coefficients of the site before) and norm: streams to x. The mixing matrix, which only the
// end of the site needs, is left half done to the next call that has room for it.
void Forward::EnterSite(const DeviceHc& site, const float* norm, const Ranges& ranges) {
  const bool leaves = leaving_ && *leaving_ == ranges, mixes_later = !r_.options.trace && ranges.size() == 1;
  if (!leaves) FinishLeaving();
  for (const RowRange& range : ranges) {
    kernels::HcSiteArgs args;
    if (leaves) args.leave = LeaveArgs(range);
    if (leaves && shared_TE_) args.sum = SumArgs(range);
    args.mix = MixArgs(site, range);
    if (mixes_later) mix_later_ = {args.mix.mix_TSS, range.rows(), config_.hc_mult, std::exchange(args.mix.sinkhorn_iters, 0), args.mix.hc_eps};
    const float* pre = config_.is_v41() ? ws().pre_TS.data() + range.begin * config_.hc_mult : args.mix.pre_TS;
    args.collapse = {args.mix.stream_TSE, pre, range.rows(), config_.hc_mult, config_.hidden_size, norm, args.mix.rms_eps,
                     ws().x_TE.data() + range.begin * config_.hidden_size};
    kernels().hc_site(stream(), args);
  }
  leaving_ = nullptr;
  shared_TE_ = nullptr;
}

// f into the streams, by the next site where nobody looks before; the site's pre becomes the one that the next site collapses with. Two sites a layer:
// the arrays are back in their places at its end.
void Forward::LeaveSite(const Ranges& ranges) {
  leaving_ = &ranges;
  if (r_.options.trace) FinishLeaving();
  std::swap(ws().pre_TS, ws().next_pre_TS);
}

void Forward::FinishLeaving() {
  if (!leaving_) return;
  if (shared_TE_) SumExperts(*leaving_);
  for (const RowRange& range : *leaving_) kernels().hc_expand(stream(), LeaveArgs(range));
  leaving_ = nullptr;
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
  const std::int64_t stash_rows = r_.kv.sizes().stash_rows;
  CopyStash(segment, std::max(segment.begin(), segment.end() - stash_rows), segment.end(), /*store=*/true);
}

void Forward::RestoreStash(Segment& segment) {
  if (segment.first_position < segment.begin()) CopyStash(segment, segment.first_position, segment.begin(), /*store=*/false);
}

// --- head ------------------------------------------------------------------------------------------------------------

// Logits of the rows that were asked for, as many at a time as there is room for, what is drawn from them, and the end of the step.
void Forward::Head(std::span<Segment> segments) {
  layer_ = config_.num_layers;
  const std::size_t wanted = logit_row_list_.size(), room = static_cast<std::size_t>(logit_rows_);
  for (std::size_t begin = 0; begin < wanted || begin == 0; begin += room) {
    const std::size_t end = std::min(begin + room, wanted);
    const auto count = static_cast<std::int64_t>(end - begin);
    Enqueue([&] {
      FinishLeaving();
      for (std::size_t i = begin, run = begin; i < end; i = run) {
        while (run < end && logit_row_list_[run].row() - logit_row_list_[i].row() == static_cast<std::int64_t>(run - i)) ++run;
        HeadRows({logit_row_list_[i].row(), logit_row_list_[run - 1].row() + 1}, ws().logits.data() + static_cast<std::int64_t>(i - begin) * config_.vocab_size);
      }
      if (shape_.draws) kernels().sample(stream(), {ws().logits.data(), count, config_.vocab_size, here().draws.device + begin, here().drawn.device + begin});
      if (end == wanted) record_.DownloadResults(device_index_);
    });
    if (end == wanted) EndStep();
    else graphs_.Flush();
    if (std::ranges::any_of(segments, [](const Segment& s) { return !s.draw; })) CopyOut(ws().logits.data(), count * config_.vocab_size, host_logits_.data());
    if (end == wanted) DescribeNext(segments);
    for (int d = 0; d < r_.backend.device_count(); ++d) r_.backend.device(d).Synchronize(r_.backend.device(d).compute());
    if (end == wanted) record_.CheckResults();
    DeliverRows(begin, end);
  }
  DeliverDraws();
}

// All of the step is enqueued but the results of the devices that it has left.
void Forward::EndStep() {
  r_.stats.graph_steps += graphs_.End() ? 1 : 0;
  for (int d = 0; d < r_.backend.device_count(); ++d) {
    if (d != device_index_) record_.DownloadResults(d);
  }
}

// While the devices work: what they read in the step after this one, if every sequence goes on by one token. The device would wait for it.
void Forward::DescribeNext(std::span<const Segment> segments) {
  next_.resize(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    const bool decodes = s.ids.size() == 1 && s.end() == s.prompt_end && s.state->decoder_position == s.begin();
    if (!decodes || !s.state->in_place() || !s.state->Holds(s.end() + 1)) return;
    Segment& next = next_[i];
    next.state = s.state;
    next.ids = s.ids;
    next.prompt_end = s.prompt_end + 1;
    next.last_rows = s.last_rows;
    next.ahead = 1;
  }
  const std::int64_t next_rows = PlanSegments(config_, rule_, next_);
  if (!HasFixedShape(next_, next_rows)) return;
  record_.DescribeAhead(next_, next_rows, draws_.size(), window_rows_D_);
  for (const Segment& s : segments) LOCKSTEP_CHECK(s.state->in_place());
}

void Forward::HeadRows(RowRange range, float* logits) {
  const std::int64_t streams = config_.hc_mult, width = streams * config_.hidden_size, hidden = config_.hidden_size;
  const float* pre = ws().pre_TS.data() + range.begin * streams;
  if (r_.model.hc_head) {
    kernels::HcMixArgs mix = MixArgs(*r_.model.hc_head, range);
    mix.read_out = true;
    kernels().hc_mix(stream(), mix);
    pre = mix.pre_TS;
  }
  std::uint16_t* x = ws().x_TE.data() + range.begin * hidden;
  kernels().hc_collapse_norm(stream(), {ws().stream_TSE.data() + range.begin * width, pre, range.rows(), config_.hc_mult, hidden,
                                        r_.model.norm.data(), static_cast<float>(config_.rms_norm_eps), x});
  TraceRange(step::kFinal, -1, x, hidden, range);
  Linear(r_.model.head, x, hidden, range.rows(), nullptr, config_.vocab_size, logits);
}

// Rows [begin, end) of the wanted ones are on the host.
void Forward::DeliverRows(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const LogitRow& wanted = logit_row_list_[i];
    if (wanted.segment->draw) continue;
    const auto vocab = static_cast<std::size_t>(config_.vocab_size);
    const std::span<const float> row(host_logits_.data() + (i - begin) * vocab, vocab);
    CheckFinite(!AnyNotFinite(row));
    wanted.segment->logits.insert(wanted.segment->logits.end(), row.begin(), row.end());
    if (r_.options.trace) r_.options.trace->OnStep(step::kLogits, -1, wanted.position, row);
  }
}

void Forward::DeliverDraws() {
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    Segment& segment = *logit_row_list_[i].segment;
    if (!segment.draw) continue;
    segment.drawn = here().drawn.host[i];
    CheckFinite(segment.drawn >= 0);
  }
}

// --- calls -----------------------------------------------------------------------------------------------------------

kernels::LinearArgs Forward::LinearArgsOf(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t row_count, std::uint16_t* y,
                                          std::int64_t y_stride, float* y_fp32) {
  kernels::LinearArgs args;
  args.spec = &linear.spec;
  args.blob = linear.blob.data();
  args.x = x;
  args.x_stride = x_stride;
  args.rows = row_count;
  args.y_bf16 = y;
  args.y_fp32 = y_fp32;
  args.y_stride = y_stride;
  args.overflow = here().overflow.device + layer_;
  return args;
}

void Forward::Linear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t row_count, std::uint16_t* y,
                     std::int64_t y_stride, float* y_fp32) {
  if (row_count > 0) kernels().linear(stream(), LinearArgsOf(linear, x, x_stride, row_count, y, y_stride, y_fp32));
}

void Forward::AddLinear(const DeviceLinear& linear, const std::uint16_t* x, std::int64_t x_stride, std::int64_t row_count, std::uint16_t* y,
                        std::int64_t y_stride, float* y_fp32) {
  if (row_count > 0) linear_set_.push_back(LinearArgsOf(linear, x, x_stride, row_count, y, y_stride, y_fp32));
}

void Forward::RunLinears(const kernels::RmsNormArgs& norm) {
  if (!linear_set_.empty()) kernels().linear_set(stream(), {linear_set_.data(), static_cast<int>(linear_set_.size()), norm});
  linear_set_.clear();
}

kernels::RmsNormArgs Forward::NormArgs(const std::uint16_t* x, std::int64_t row_count, std::int64_t n, const float* weight, std::uint16_t* y) const {
  return {x, n, row_count, n, weight, static_cast<float>(config_.rms_norm_eps), y, n};
}

kernels::RopeArgs Forward::TurnArgs(int layer, std::uint16_t* x, std::int64_t row_count, int heads, int width, const std::int64_t* positions) const {
  return {x, row_count, heads, width, config_.rope_head_dim, RopeTable(layer), positions, /*inverse=*/false};
}

const float* Forward::RopeTable(int layer) const { return rope_[static_cast<std::size_t>(device_index_)]->For(config_.ratio(layer)); }

}  // namespace lockstep::fast
