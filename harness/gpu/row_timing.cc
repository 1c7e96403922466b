// Operations on whole rows at full shapes: hyper-connections, norms, RoPE, router, embedding, combine, packing, compressor, Engram gate.
#include "harness/gpu/timing_cases.h"
#include "kernels/compressor/compressor_cuda.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/kv_rows/kv_rows_cuda.h"
#include "kernels/router/router_cuda.h"

namespace lockstep::timing {
namespace {

using namespace kernels;

std::string Shape(const ModelShape& model, std::int64_t rows, const std::string& more = "") { return std::string(model.name) + " rows " + std::to_string(rows) + more; }

// Rows of an input, as many sets as the L2 does not hold.
int Sets(std::int64_t bytes) { return static_cast<int>(std::clamp<std::int64_t>((std::int64_t{128} << 20) / bytes, 2, 64)); }

struct RowTimer {
  TimingRun& run;
  const ModelShape& model;
  std::int64_t rows;

  std::size_t T(std::int64_t n) const { return static_cast<std::size_t>(rows * n); }

  void HcMix() {
    const std::int64_t width = kStreams * model.hidden, outputs = 2 * kStreams + kStreams * kStreams, pairs = kStreams * kStreams;
    const int sets = Sets(outputs * width * 4 + rows * width * 2);
    Mirror<std::uint16_t> u(run.values.BF16s(static_cast<std::size_t>(sets) * T(width)));
    Mirror<float> fn(run.values.Floats(static_cast<std::size_t>(sets * outputs * width), 0.01f)), base(run.values.Floats(static_cast<std::size_t>(outputs))), scale(run.values.Floats(3));
    Mirror<float> pre(T(kStreams)), post(T(kStreams)), mix(T(pairs));
    HcMixArgs a;
    a.rows = rows;
    a.streams = kStreams;
    a.hidden = model.hidden;
    a.rms_eps = a.hc_eps = 1e-6f;
    a.sinkhorn_iters = 20;
    const auto device = [&](int set) {
      HcMixArgs d = a;
      d.stream_TSE = u.device() + static_cast<std::int64_t>(set) * rows * width;
      d.fn = fn.device() + set * outputs * width;
      d.base = base.device(), d.scale = scale.device();
      d.pre_TS = pre.device(), d.post_TS = post.device(), d.mix_TSS = mix.device();
      return d;
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaHcMix()(run.stream, device(set)); });
    CudaHcMix()(run.stream, device(0));
    CheckCuda(cudaStreamSynchronize(run.stream.handle()), "hc_mix");
    const auto got_pre = pre.Download(), got_post = post.Download(), got_mix = mix.Download();
    bool same = true;
    for (std::int64_t t : SampledRows(rows)) {
      HcMixArgs h = a;
      h.rows = 1;
      h.stream_TSE = u.host().data() + t * width;
      h.fn = fn.host().data(), h.base = base.host().data(), h.scale = scale.host().data();
      h.pre_TS = pre.host().data() + t * kStreams, h.post_TS = post.host().data() + t * kStreams, h.mix_TSS = mix.host().data() + t * pairs;
      run.cpu_kernels.hc_mix(run.cpu, h);
      const auto at = static_cast<std::size_t>(t);
      same = Same("pre", got_pre, pre.host(), at * kStreams, kStreams) && Same("post", got_post, post.host(), at * kStreams, kStreams) &&
             Same("mix", got_mix, mix.host(), at * pairs, pairs) && same;
    }
    const double bytes = static_cast<double>(outputs * width * 4 + rows * width * 2), fma = static_cast<double>(rows * (outputs + 1) * width);
    run.table.Line("hc_mix", Shape(model, rows), us, std::max(bytes / run.ceilings.bytes_per_us, fma / run.ceilings.fma_per_us), same);
  }

  void HcCollapseNorm() {
    const std::int64_t width = kStreams * model.hidden, n = model.hidden;
    const int sets = Sets(rows * width * 2);
    Mirror<std::uint16_t> u(run.values.BF16s(static_cast<std::size_t>(sets) * T(width))), x(T(n));
    Mirror<float> pre(run.values.Floats(T(kStreams))), weight(run.values.Floats(static_cast<std::size_t>(n)));
    HcCollapseNormArgs a;
    a.rows = rows, a.streams = kStreams, a.hidden = n, a.eps = 1e-6f;
    const auto device = [&](int set) {
      HcCollapseNormArgs d = a;
      d.stream_TSE = u.device() + static_cast<std::int64_t>(set) * rows * width;
      d.pre_TS = pre.device(), d.norm_weight = weight.device(), d.x_TE = x.device();
      return d;
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaHcCollapseNorm()(run.stream, device(set)); });
    CudaHcCollapseNorm()(run.stream, device(0));
    const bool same = Check("hc_collapse_norm", x, n, [&](std::int64_t t) {
      HcCollapseNormArgs h = a;
      h.rows = 1;
      h.stream_TSE = u.host().data() + t * width, h.pre_TS = pre.host().data() + t * kStreams;
      h.norm_weight = weight.host().data(), h.x_TE = x.host().data() + t * n;
      run.cpu_kernels.hc_collapse_norm(run.cpu, h);
    });
    Line("hc_collapse_norm", us, static_cast<double>(rows * (width + n) * 2), same);
  }

  void HcExpand() {
    const std::int64_t width = kStreams * model.hidden, n = model.hidden, pairs = kStreams * kStreams;
    const int sets = Sets(rows * width * 2);
    Mirror<std::uint16_t> u(run.values.BF16s(static_cast<std::size_t>(sets) * T(width))), f(run.values.BF16s(T(n)));
    Mirror<float> post(run.values.Floats(T(kStreams))), mix(run.values.Floats(T(pairs), 0.1f));
    HcExpandArgs a;
    a.rows = rows, a.streams = kStreams, a.hidden = n;
    const auto device = [&](int set) {
      HcExpandArgs d = a;
      d.stream_TSE = u.device() + static_cast<std::int64_t>(set) * rows * width;
      d.f_TE = f.device(), d.post_TS = post.device(), d.mix_TSS = mix.device();
      return d;
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaHcExpand()(run.stream, device(set)); });
    u.Upload();
    CudaHcExpand()(run.stream, device(0));
    const bool same = Check("hc_expand", u, width, [&](std::int64_t t) {
      HcExpandArgs h = a;
      h.rows = 1;
      h.stream_TSE = u.host().data() + t * width, h.f_TE = f.host().data() + t * n;
      h.post_TS = post.host().data() + t * kStreams, h.mix_TSS = mix.host().data() + t * pairs;
      run.cpu_kernels.hc_expand(run.cpu, h);
    });
    Line("hc_expand", us, static_cast<double>(rows * (2 * width + n) * 2), same);
  }

  // With `picks`, the site's f is their sum.
  void HcSite(int picks) {
    const std::int64_t width = kStreams * model.hidden, n = model.hidden, outputs = 2 * kStreams + kStreams * kStreams, pairs = kStreams * kStreams;
    const int sets = Sets(outputs * width * 4 + rows * width * 2);
    Mirror<std::uint16_t> u(run.values.BF16s(static_cast<std::size_t>(sets) * T(width))), f(run.values.BF16s(T(n))), x(T(n));
    Mirror<float> fn(run.values.Floats(static_cast<std::size_t>(sets * outputs * width), 0.01f)), base(run.values.Floats(static_cast<std::size_t>(outputs))), scale(run.values.Floats(3));
    Mirror<float> weight(run.values.Floats(static_cast<std::size_t>(n))), pre(T(kStreams)), post(run.values.Floats(T(kStreams))), mix(run.values.Floats(T(pairs), 0.1f));
    Mirror<std::uint16_t> experts(run.values.BF16s(T((picks + 1) * n)));
    Mirror<std::int32_t> pair_of(T(std::max(picks, 1)));
    for (std::size_t i = 0; i < pair_of.host().size(); ++i) pair_of.host()[i] = static_cast<std::int32_t>(pair_of.host().size() - 1 - i);
    pair_of.Upload();
    const auto args = [&](int set, bool device, std::int64_t t) {
      const std::int64_t many = device ? rows : 1;
      const auto of = [&](auto& mirror, std::int64_t at) { return device ? mirror.device() : mirror.host().data() + t * at; };
      auto* stream = of(u, width) + static_cast<std::int64_t>(set) * rows * width;
      HcSiteArgs a;
      a.leave = {of(f, n), of(post, kStreams), of(mix, pairs), many, kStreams, n, stream};
      a.mix = {stream, many, kStreams, n, (device ? fn.device() : fn.host().data()) + set * outputs * width, of(base, 0), of(scale, 0), 1e-6f, 1e-6f, 20, false, of(pre, kStreams), of(post, kStreams), of(mix, pairs)};
      const auto* expert_rows = device ? experts.device() : experts.host().data();
      if (picks > 0) a.sum = {expert_rows, of(pair_of, picks), picks, expert_rows + (rows * picks + t) * n, many, n, of(f, n)};
      a.collapse = {stream, of(pre, kStreams), many, kStreams, n, of(weight, 0), 1e-6f, of(x, n)};
      return a;
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaHcSite()(run.stream, args(set, true, 0)); });
    u.Upload(), post.Upload(), mix.Upload();
    CudaHcSite()(run.stream, args(0, true, 0));
    const bool same = Check("hc_site", x, n, [&](std::int64_t t) { run.cpu_kernels.hc_site(run.cpu, args(0, false, t)); });
    Line("hc_site", us, static_cast<double>(outputs * width * 4 + rows * (2 * width + (2 + picks) * n) * 2), same, picks > 0 ? " sum of " + std::to_string(picks) : "");
  }

  void RmsNorm(std::int64_t per_row, std::int64_t n) {
    const std::int64_t all = rows * per_row;
    const int sets = Sets(all * n * 2);
    Mirror<std::uint16_t> x(run.values.BF16s(static_cast<std::size_t>(sets * all * n))), y(static_cast<std::size_t>(all * n));
    Mirror<float> weight(run.values.Floats(static_cast<std::size_t>(n)));
    const auto device = [&](int set) { return RmsNormArgs{x.device() + set * all * n, n, all, n, weight.device(), 1e-6f, y.device(), n}; };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaRmsNorm()(run.stream, device(set)); });
    CudaRmsNorm()(run.stream, device(0));
    const bool same = Check("rms_norm", y, per_row * n, [&](std::int64_t t) {
      run.cpu_kernels.rms_norm(run.cpu, {x.host().data() + t * per_row * n, n, per_row, n, weight.host().data(), 1e-6f, y.host().data() + t * per_row * n, n});
    });
    Line("rms_norm", us, static_cast<double>(2 * all * n * 2), same, " n " + std::to_string(n) + " x" + std::to_string(per_row));
  }

  void Rope(int heads, int width) {
    const std::int64_t n = static_cast<std::int64_t>(heads) * width, positions = 65536;
    const int sets = Sets(rows * n * 2);
    Mirror<std::uint16_t> x(run.values.BF16s(static_cast<std::size_t>(sets) * T(n)));
    Mirror<float> table(run.values.Floats(static_cast<std::size_t>(positions * kRopeDim)));
    Mirror<std::int64_t> at(T(1));
    for (std::int64_t t = 0; t < rows; ++t) at.host()[static_cast<std::size_t>(t)] = positions - rows + t;
    at.Upload();
    const auto device = [&](int set) {
      return RopeArgs{x.device() + static_cast<std::int64_t>(set) * rows * n, rows, heads, width, kRopeDim, table.device(), at.device(), false};
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaRope()(run.stream, device(set)); });
    x.Upload();
    CudaRope()(run.stream, device(0));
    const bool same = Check("rope", x, n, [&](std::int64_t t) {
      run.cpu_kernels.rope(run.cpu, {x.host().data() + t * n, 1, heads, width, kRopeDim, table.host().data(), at.host().data() + t, false});
    });
    Line("rope", us, static_cast<double>(rows * heads * kRopeDim * 4), same, " heads " + std::to_string(heads) + "x" + std::to_string(width));
  }

  // Query heads, normed and turned.
  void NormRope() {
    const std::int64_t n = kHeads * std::int64_t{kHeadDim}, positions = 65536;
    const int sets = Sets(rows * n * 2);
    Mirror<std::uint16_t> x(run.values.BF16s(static_cast<std::size_t>(sets) * T(n)));
    Mirror<float> table(run.values.Floats(static_cast<std::size_t>(positions * kRopeDim)));
    Mirror<std::int64_t> at(T(1));
    for (std::int64_t t = 0; t < rows; ++t) at.host()[static_cast<std::size_t>(t)] = positions - rows + t;
    at.Upload();
    const auto args = [&](std::uint16_t* rows_at, std::int64_t many, const float* angles, const std::int64_t* position) {
      return NormRopeArgs{{rows_at, kHeadDim, many * kHeads, kHeadDim, nullptr, 1e-6f, rows_at, kHeadDim}, {rows_at, many, kHeads, kHeadDim, kRopeDim, angles, position, false}};
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaNormRope()(run.stream, args(x.device() + static_cast<std::int64_t>(set) * rows * n, rows, table.device(), at.device())); });
    x.Upload();
    CudaNormRope()(run.stream, args(x.device(), rows, table.device(), at.device()));
    const bool same = Check("norm_rope", x, n, [&](std::int64_t t) { run.cpu_kernels.norm_rope(run.cpu, args(x.host().data() + t * n, 1, table.host().data(), at.host().data() + t)); });
    Line("norm_rope", us, static_cast<double>(2 * rows * n * 2), same);
  }

  // A window row from the projection to its packed form.
  void NormRopePack(const RowFormat& format) {
    const std::int64_t n = format.width, row_bytes = format.row_bytes(), positions = 65536;
    Mirror<std::uint16_t> x(run.values.BF16s(T(n)));
    Mirror<float> table(run.values.Floats(static_cast<std::size_t>(positions * kRopeDim))), weight(run.values.Floats(static_cast<std::size_t>(n)));
    Mirror<std::int64_t> at(T(1));
    Mirror<std::byte> out(T(row_bytes));
    for (std::int64_t t = 0; t < rows; ++t) at.host()[static_cast<std::size_t>(t)] = positions - rows + t;
    at.Upload(), out.Upload();
    const auto args = [&](bool device, std::int64_t t) {
      const std::int64_t many = device ? rows : 1;
      const auto of = [device](auto& mirror, std::int64_t from) { return device ? mirror.device() : mirror.host().data() + from; };
      std::uint16_t* rows_at = of(x, t * n);
      NormRopePackArgs a;
      a.norm = {rows_at, n, many, n, of(weight, 0), 1e-6f, rows_at, n};
      a.rope = {rows_at, many, 1, format.width, kRopeDim, of(table, 0), of(at, t), false};
      a.pack.format = format, a.pack.x = rows_at, a.pack.x_stride = n, a.pack.rows = many, a.pack.flat = of(out, t * row_bytes);
      return a;
    };
    const double us = GraphMicroseconds(run.stream, 8, [&](int) { CudaNormRopePack()(run.stream, args(true, 0)); });
    x.Upload();
    CudaNormRopePack()(run.stream, args(true, 0));
    const bool same = Check("norm_rope_pack", out, row_bytes, [&](std::int64_t t) { run.cpu_kernels.norm_rope_pack(run.cpu, args(false, t)); });
    Line("norm_rope_pack", us, static_cast<double>(rows * (n * 4 + row_bytes)), same);
  }

  void Router() {
    const std::int64_t n = model.hidden, experts = model.experts;
    const int sets = Sets(experts * n * 4), top_k = 6;
    Mirror<std::uint16_t> x(run.values.BF16s(T(n)));
    Mirror<float> gate(run.values.Floats(static_cast<std::size_t>(sets * experts * n), 0.02f)), bias(run.values.Floats(static_cast<std::size_t>(experts), 0.1f));
    Mirror<std::int32_t> chosen(T(top_k));
    Mirror<float> weights(T(top_k));
    RouterArgs a;
    a.rows = rows, a.hidden = n, a.experts = model.experts, a.top_k = top_k, a.epsilon = 1e-20f, a.scaling = 1.5f;
    const auto device = [&](int set) {
      RouterArgs d = a;
      d.x_TE = x.device(), d.gate_XE = gate.device() + set * experts * n, d.bias_X = bias.device();
      d.experts_TK = chosen.device(), d.weights_TK = weights.device();
      return d;
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaRouter()(run.stream, device(set)); });
    CudaRouter()(run.stream, device(0));
    CheckCuda(cudaStreamSynchronize(run.stream.handle()), "router");
    const auto got_weights = weights.Download();
    bool same = Check("router", chosen, top_k, [&](std::int64_t t) {
      RouterArgs h = a;
      h.rows = 1;
      h.x_TE = x.host().data() + t * n, h.gate_XE = gate.host().data(), h.bias_X = bias.host().data();
      h.experts_TK = chosen.host().data() + t * top_k, h.weights_TK = weights.host().data() + t * top_k;
      run.cpu_kernels.router(run.cpu, h);
    });
    for (std::int64_t t : SampledRows(rows)) same = Same("router weights", got_weights, weights.host(), static_cast<std::size_t>(t * top_k), top_k) && same;
    const double bytes = static_cast<double>(experts * n * 4 + rows * n * 2), fma = static_cast<double>(rows * experts * n);
    run.table.Line("router", Shape(model, rows), us, std::max(bytes / run.ceilings.bytes_per_us, fma / run.ceilings.fma_per_us), same);
  }

  // The choice and its pairs.
  void Route() {
    const std::int64_t n = model.hidden, experts = model.experts;
    const int sets = Sets(experts * n * 4), top_k = 6;
    const std::size_t groups = static_cast<std::size_t>(experts) + 1, pairs = T(top_k + 1);
    Mirror<std::uint16_t> x(run.values.BF16s(T(n)));
    Mirror<float> gate(run.values.Floats(static_cast<std::size_t>(sets * experts * n), 0.02f)), bias(run.values.Floats(static_cast<std::size_t>(experts), 0.1f));
    Mirror<std::int32_t> chosen(T(top_k)), count(groups), begin(groups), active(groups), number(1), token(pairs), pair_of(T(top_k)), nan(1);
    Mirror<float> weights(T(top_k)), weight(pairs);
    const auto args = [&](bool device, int set) {
      const auto of = [device](auto& mirror) { return device ? mirror.device() : mirror.host().data(); };
      RouteArgs a;
      a.router = {.x_TE = of(x), .rows = rows, .hidden = n, .gate_XE = of(gate) + set * experts * n, .experts = model.experts, .bias_X = of(bias), .top_k = top_k, .epsilon = 1e-20f, .scaling = 1.5f, .experts_TK = of(chosen), .weights_TK = of(weights)};
      a.groups = {of(chosen), of(weights), rows, top_k, model.experts, true, {of(count), of(begin), of(active), of(number)}, of(token), of(weight), of(pair_of), of(nan)};
      return a;
    };
    nan.Upload(), active.Upload();
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaRoute()(run.stream, args(true, set)); });
    active.Upload();
    CudaRoute()(run.stream, args(true, 0));
    CheckCuda(cudaStreamSynchronize(run.stream.handle()), "route");
    bool same = true;
    if (rows <= 8) {
      run.cpu_kernels.route(run.cpu, args(false, 0));
      same = Same("route", count.Download(), count.host(), 0, groups) && Same("route", active.Download(), active.host(), 0, groups) &&
             Same("route", token.Download(), token.host(), 0, pairs) && Same("route", weight.Download(), weight.host(), 0, pairs);
    }
    const double bytes = static_cast<double>(experts * n * 4 + rows * n * 2), fma = static_cast<double>(rows * experts * n);
    run.table.Line("route", Shape(model, rows), us, std::max(bytes / run.ceilings.bytes_per_us, fma / run.ceilings.fma_per_us), same);
  }

  void Embed() {
    const std::int64_t n = model.hidden, vocab = 32768;
    Mirror<std::uint16_t> table(run.values.BF16s(static_cast<std::size_t>(vocab * n))), out(T(kStreams * n));
    Mirror<std::int32_t> ids(T(1));
    for (auto& id : ids.host()) id = static_cast<std::int32_t>(run.values.Draw() % vocab);
    ids.Upload();
    const double us = GraphMicroseconds(run.stream, 8, [&](int) { CudaEmbed()(run.stream, {ids.device(), rows, table.device(), kStreams, n, out.device()}); });
    const bool same = Check("embed", out, kStreams * n, [&](std::int64_t t) {
      run.cpu_kernels.embed(run.cpu, {ids.host().data() + t, 1, table.host().data(), kStreams, n, out.host().data() + t * kStreams * n});
    });
    Line("embed", us, static_cast<double>(rows * (kStreams + 1) * n * 2), same);
  }

  void Combine() {
    const std::int64_t n = model.hidden;
    const int top_k = 6;
    Mirror<std::uint16_t> experts(run.values.BF16s(T(top_k * n))), shared(run.values.BF16s(T(n))), out(T(n));
    Mirror<std::int32_t> pair_of(T(top_k));
    for (std::size_t i = 0; i < pair_of.host().size(); ++i) pair_of.host()[i] = static_cast<std::int32_t>((i * 7919) % pair_of.host().size());
    pair_of.Upload();
    const double us = GraphMicroseconds(run.stream, 8, [&](int) {
      CudaCombine()(run.stream, {experts.device(), pair_of.device(), top_k, shared.device(), rows, n, out.device()});
    });
    const bool same = Check("combine", out, n, [&](std::int64_t t) {
      run.cpu_kernels.combine(run.cpu, {experts.host().data(), pair_of.host().data() + t * top_k, top_k, shared.host().data() + t * n, 1, n, out.host().data() + t * n});
    });
    Line("combine", us, static_cast<double>(rows * (top_k + 2) * n * 2), same);
  }

  void Pack(const RowFormat& format, const char* what) {
    const std::int64_t n = format.width, row_bytes = format.row_bytes();
    Mirror<std::uint16_t> x(run.values.BF16s(T(n)));
    Mirror<std::byte> out(T(row_bytes));
    out.Upload();  // bytes between rows are not written
    PackRowsArgs a;
    a.format = format, a.x_stride = n, a.rows = rows;
    const double us = GraphMicroseconds(run.stream, 8, [&](int) {
      PackRowsArgs d = a;
      d.x = x.device(), d.flat = out.device();
      CudaPackRows()(run.stream, d);
    });
    const bool same = Check("pack_rows", out, row_bytes, [&](std::int64_t t) {
      PackRowsArgs h = a;
      h.rows = 1;
      h.x = x.host().data() + t * n, h.flat = out.host().data() + t * row_bytes;
      run.cpu_kernels.pack_rows(run.cpu, h);
    });
    Line("pack_rows", us, static_cast<double>(rows * (n * 2 + row_bytes)), same, what);
  }

  // Every entry that the rows complete; the history lies before them.
  void Compress(int ratio, bool overlap, std::int64_t width) {
    const std::int64_t channels = overlap ? 2 * width : width, slots = 2 * ratio, position = 65536 - rows % ratio, entries = std::max<std::int64_t>(rows / ratio, 1);
    Mirror<float> kv(run.values.Floats(T(channels))), gate(run.values.Floats(T(channels))), ape(run.values.Floats(static_cast<std::size_t>(ratio * channels)));
    Mirror<float> history(run.values.Floats(static_cast<std::size_t>(slots * 2 * channels)));
    Mirror<std::uint16_t> latent(static_cast<std::size_t>(entries * width));
    Mirror<PoolEntry> list(static_cast<std::size_t>(entries));
    const auto fill = [&](const float* at) {
      for (std::int64_t i = 0; i < entries; ++i) list.host()[static_cast<std::size_t>(i)] = {(position / ratio + i) * ratio, position, 0, at};
    };
    fill(history.device());
    list.Upload();
    fill(history.host().data());
    CompressorArgs a;
    a.entries = entries, a.ratio = ratio, a.overlap = overlap, a.width = width, a.history_slots = slots;
    const auto args = [&](bool device) {
      CompressorArgs c = a;
      c.kv = device ? kv.device() : kv.host().data(), c.gate = device ? gate.device() : gate.host().data();
      c.ape = device ? ape.device() : ape.host().data(), c.entry_N = device ? list.device() : list.host().data();
      c.latent = device ? latent.device() : latent.host().data();
      return c;
    };
    const double us = GraphMicroseconds(run.stream, 8, [&](int) { CudaCompress()(run.stream, args(true)); });
    run.cpu_kernels.compress(run.cpu, args(false));
    const bool same = Same("compress", latent.Download(), latent.host(), 0, static_cast<std::size_t>(entries * width));
    Line("compress", us, static_cast<double>(rows * channels * 8 + entries * width * 2), same, " /" + std::to_string(ratio) + " width " + std::to_string(width));
  }

  void EngramGate() {
    const std::int64_t n = model.hidden, width = kStreams * n;
    const int sets = Sets(rows * width * 4);
    Mirror<std::uint16_t> u(run.values.BF16s(static_cast<std::size_t>(sets) * T(width))), kv(run.values.BF16s(T(width + n)));
    Mirror<float> qk(run.values.Floats(static_cast<std::size_t>(width)));
    const auto device = [&](int set) {
      return EngramGateArgs{kv.device(), qk.device(), rows, kStreams, n, 1e-20f, u.device() + static_cast<std::int64_t>(set) * rows * width};
    };
    const double us = GraphMicroseconds(run.stream, sets, [&](int set) { CudaEngramGate()(run.stream, device(set)); });
    u.Upload();
    CudaEngramGate()(run.stream, device(0));
    const bool same = Check("engram_gate", u, width, [&](std::int64_t t) {
      run.cpu_kernels.engram_gate(run.cpu, {kv.host().data() + t * (width + n), qk.host().data(), 1, kStreams, n, 1e-20f, u.host().data() + t * width});
    });
    Line("engram_gate", us, static_cast<double>(rows * (3 * width + n) * 2), same);
  }

  // Whether the sampled rows, `width` elements each, have the bits that `compute_row` leaves in the host copy.
  template <class T, class ComputeRow>
  bool Check(const char* op, Mirror<T>& out, std::int64_t width, const ComputeRow& compute_row) {
    CheckCuda(cudaStreamSynchronize(run.stream.handle()), op);
    const std::vector<T> device = out.Download();
    bool same = true;
    for (std::int64_t t : SampledRows(rows)) {
      compute_row(t);
      same = Same(op, device, out.host(), static_cast<std::size_t>(t * width), static_cast<std::size_t>(width)) && same;
    }
    return same;
  }

  void Line(const char* op, double us, double bytes, bool same, const std::string& more = "") {
    run.table.Line(op, Shape(model, rows, more), us, bytes / run.ceilings.bytes_per_us, same);
  }
};

}  // namespace

void TimeRowOperations(TimingRun& run) {
  for (const ModelShape& model : {V4Flash(), V41Flash()}) {
    const bool v4 = model.hidden == 4096;
    for (std::int64_t rows : {1, 8, 512, 4096}) {
      RowTimer timer{run, model, rows};
      const auto named = [&](const char* op) { return run.filter.empty() || std::string(op).find(run.filter) != std::string::npos; };
      if (named("hc_mix")) timer.HcMix();
      if (named("hc_collapse_norm")) timer.HcCollapseNorm();
      if (named("hc_expand")) timer.HcExpand();
      if (named("hc_site")) {
        timer.HcSite(0);
        timer.HcSite(6);
      }
      if (named("rms_norm")) {
        timer.RmsNorm(1, model.q_lora);
        if (v4) timer.RmsNorm(kHeads, kHeadDim);
      }
      if (named("norm_rope")) {
        timer.NormRope();
        timer.NormRopePack(model.window);
      }
      if (named("rope")) {
        timer.Rope(kHeads, kHeadDim);
        timer.Rope(1, kHeadDim);
      }
      if (named("router")) timer.Router();
      if (named("route")) timer.Route();
      if (named("embed")) timer.Embed();
      if (named("combine")) timer.Combine();
      if (named("pack_rows")) {
        timer.Pack(model.window, " window");
        timer.Pack(model.compressed, " compressed");
        timer.Pack(model.index_key, " index key");
      }
      if (named("compress")) {
        timer.Compress(v4 ? 4 : 2, v4, kHeadDim);
        if (v4) timer.Compress(128, false, kHeadDim);
      }
      if (named("engram_gate") && !v4) timer.EngramGate();
    }
  }
}

}  // namespace lockstep::timing
