// Attention at full shapes: decode and prefill, selected and all visible rows, every context.
#include "harness/gpu/timing_cases.h"
#include "kernels/attention/attention_cuda.h"

namespace lockstep::timing {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionRow;

struct Case {
  int ratio;  // 0: window only
  bool all_visible;
  std::int64_t rows, context;
};

class AttentionCase {
 public:
  AttentionCase(TimingRun& run, const ModelShape& model, const Case& c, RowPool& window, RowPool& compressed)
      : run_(run), model_(model), c_(c), window_(window), compressed_(compressed), sets_(c.rows <= 8 ? 16 : 2),
        q_(run.values.BF16s(static_cast<std::size_t>(c.rows * kHeads * kHeadDim))), sink_(run.values.Floats(kHeads)),
        out_(static_cast<std::size_t>(c.rows * kHeads * kHeadDim)), selected_(static_cast<std::size_t>(c.rows * kTopK)),
        count_(static_cast<std::size_t>(c.rows)) {
    for (std::int64_t t = 0; t < c.rows; ++t) Select(t);
    selected_.Upload();
    count_.Upload();
    for (int set = 0; set < sets_; ++set) {
      rows_.push_back(std::make_unique<Mirror<AttentionRow>>(Rows(set, /*device=*/true)));
    }
  }

  void TimeAndCheck() {
    const auto kernel = kernels::CudaAttention();
    const double us = GraphMicroseconds(run_.stream, sets_, [&](int set) { kernel(run_.stream, Device(set)); });
    kernel(run_.stream, Device(0));
    CheckCuda(cudaStreamSynchronize(run_.stream.handle()), "attention");
    const std::vector<std::uint16_t> device = out_.Download();
    bool same = true;
    for (std::int64_t t : SampledRows(c_.rows)) {
      AttentionArgs host = Host(t);
      run_.cpu_kernels.attention(run_.cpu, host);
      same = Same("attention", device, out_.host(), static_cast<std::size_t>(t * kHeads * kHeadDim), kHeads * kHeadDim) && same;
    }
    const std::string kind = c_.ratio == 0 ? " window" : c_.all_visible ? " all/" + std::to_string(c_.ratio) : " top512/" + std::to_string(c_.ratio);
    run_.table.Line("attention", model_.name + kind + " rows " + std::to_string(c_.rows) + " context " + Tokens(c_.context), us, FloorMicroseconds(), same);
  }

 private:
  std::int64_t Position(std::int64_t t) const { return c_.context - c_.rows + t; }
  std::int64_t Visible(std::int64_t t) const { return c_.ratio == 0 ? 0 : (Position(t) + 1) / c_.ratio; }
  std::int64_t Taken(std::int64_t t) const { return c_.all_visible ? Visible(t) : std::min<std::int64_t>(Visible(t), kTopK); }

  void Select(std::int64_t t) {
    const std::int64_t visible = Visible(t), count = Taken(t);
    count_.host()[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(count);
    if (c_.all_visible) return;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = i * visible / count, end = (i + 1) * visible / count;
      selected_.host()[static_cast<std::size_t>(t * kTopK + i)] =
          static_cast<std::int32_t>(begin + static_cast<std::int64_t>(run_.values.Draw() % static_cast<std::uint64_t>(end - begin)));
    }
  }

  std::vector<AttentionRow> Rows(int set, bool device) {
    std::vector<AttentionRow> rows(static_cast<std::size_t>(c_.rows));
    const std::int64_t ring = 2 * kWindow, step_page = window_.FirstPage(set, ring + c_.rows) + ring / 64;
    for (std::int64_t t = 0; t < c_.rows; ++t) {
      AttentionRow& row = rows[static_cast<std::size_t>(t)];
      row.window = {window_.Flat(device, step_page - ring / 64), ring, window_.Flat(device, step_page), c_.context - c_.rows, window_.row_bytes()};
      row.position = Position(t);
      row.visible = Visible(t);
      if (c_.ratio > 0) row.compressed = compressed_.Paged(device, compressed_.FirstPage(set, c_.context / c_.ratio));
    }
    return rows;
  }

  AttentionArgs Common() const {
    AttentionArgs a;
    a.rows = c_.rows;
    a.heads = kHeads;
    a.head_dim = kHeadDim;
    a.window = kWindow;
    a.window_format = model_.window;
    a.compressed_format = model_.compressed;
    a.all_visible = c_.ratio > 0 && c_.all_visible;
    if (a.all_visible) a.max_visible = Visible(c_.rows - 1);
    return a;
  }
  AttentionArgs Device(int set) {
    AttentionArgs a = Common();
    a.row_T = rows_[static_cast<std::size_t>(set)]->device();
    a.q_THD = q_.device();
    a.sink_H = sink_.device();
    a.out_THD = out_.device();
    if (c_.ratio > 0 && !c_.all_visible) a.selected_TK = selected_.device(), a.count_T = count_.device(), a.top_k = kTopK;
    return a;
  }
  // Row t of set 0, result in out_.host().
  AttentionArgs Host(std::int64_t t) {
    if (host_rows_.empty()) host_rows_ = Rows(0, /*device=*/false);
    AttentionArgs a = Common();
    a.row_T = host_rows_.data() + t;
    a.rows = 1;
    a.q_THD = q_.host().data() + t * kHeads * kHeadDim;
    a.sink_H = sink_.host().data();
    a.out_THD = out_.host().data() + t * kHeads * kHeadDim;
    if (c_.ratio > 0 && !c_.all_visible) {
      a.selected_TK = selected_.host().data() + t * kTopK;
      a.count_T = count_.host().data() + t;
      a.top_k = kTopK;
    }
    return a;
  }

  // Keys and values of every list once a row through the tensor cores; queries, results and (few rows) packed rows once through memory.
  double FloorMicroseconds() const {
    double keys = 0;
    for (std::int64_t t = 0; t < c_.rows; ++t) keys += static_cast<double>(std::min<std::int64_t>(kWindow, Position(t) + 1) + Taken(t));
    const double flop = keys * kHeads * kHeadDim * 4, once = static_cast<double>(c_.rows) * kHeads * kHeadDim * 4;
    const double unique = std::min(keys, static_cast<double>(c_.ratio > 0 ? c_.context / c_.ratio : 0) + static_cast<double>(kWindow + c_.rows));
    return std::max(flop / run_.ceilings.mma_flop_per_us, (once + unique * static_cast<double>(window_.row_bytes())) / run_.ceilings.bytes_per_us);
  }

  TimingRun& run_;
  const ModelShape& model_;
  Case c_;
  RowPool &window_, &compressed_;
  int sets_;
  Mirror<std::uint16_t> q_;
  Mirror<float> sink_;
  Mirror<std::uint16_t> out_;
  Mirror<std::int32_t> selected_, count_;
  std::vector<std::unique_ptr<Mirror<AttentionRow>>> rows_;
  std::vector<AttentionRow> host_rows_;
};

}  // namespace

void TimeAttention(TimingRun& run) {
  for (const ModelShape& model : {V4Flash(), V41Flash()}) {
    const bool v4 = model.hidden == 4096;
    RowPool window(model.window, 16384, run.values), compressed(model.compressed, v4 ? 131072 : 262144, run.values);
    for (std::int64_t context : {4096, 32768, 131072, 512000}) {
      for (std::int64_t rows : {1, 8, 512, 4096}) {
        if (rows > 8 && context != 32768) continue;
        AttentionCase(run, model, {v4 ? 4 : 2, false, rows, context}, window, compressed).TimeAndCheck();
        if (v4) AttentionCase(run, model, {128, true, rows, context}, window, compressed).TimeAndCheck();
        if (context == 32768) AttentionCase(run, model, {0, false, rows, context}, window, compressed).TimeAndCheck();
      }
    }
  }
}

}  // namespace lockstep::timing
