// The indexer at full shapes: V4's ratio-4 layers, V4.1's candidate source and its restricted sources.
#include "harness/gpu/timing_cases.h"
#include "kernels/index_select/index_select_cuda.h"

namespace lockstep::timing {
namespace {

using kernels::IndexRow;
using kernels::IndexSelectArgs;

constexpr int kCandidateBlock = 8, kCandidateBlocks = 2048;

enum class Kind { kPlain, kCandidateSource, kRestricted };

struct Case {
  int ratio;
  Kind kind;
  std::int64_t rows, context;
};

class IndexCase {
 public:
  IndexCase(TimingRun& run, const ModelShape& model, const Case& c, RowPool& keys)
      : run_(run), model_(model), c_(c), keys_(keys), sets_(c.rows <= 8 ? 8 : 2),
        q_(run.values.BF16s(static_cast<std::size_t>(c.rows * model.index_heads * kIndexDim))),
        weight_(run.values.BF16s(static_cast<std::size_t>(c.rows * model.index_heads))), selected_(static_cast<std::size_t>(c.rows * kTopK)),
        count_(static_cast<std::size_t>(c.rows)), blocks_(static_cast<std::size_t>(c.kind == Kind::kPlain ? 0 : c.rows * kCandidateBlocks)),
        block_count_(static_cast<std::size_t>(c.rows)) {
    if (c.kind == Kind::kRestricted) {
      for (std::int64_t t = 0; t < c.rows; ++t) KeepBlocks(t);
      blocks_.Upload();
      block_count_.Upload();
    }
    for (int set = 0; set < sets_; ++set) rows_.push_back(std::make_unique<Mirror<IndexRow>>(Rows(set, /*device=*/true)));
  }

  void TimeAndCheck() {
    const auto kernel = kernels::CudaIndexSelect();
    const double us = GraphMicroseconds(run_.stream, sets_, [&](int set) { kernel(run_.stream, Device(set)); });
    kernel(run_.stream, Device(0));
    CheckCuda(cudaStreamSynchronize(run_.stream.handle()), "index_select");
    const bool same = SameAsCpu();
    const char* kind = c_.kind == Kind::kPlain ? " all" : c_.kind == Kind::kCandidateSource ? " source" : " restricted";
    run_.table.Line("index_select", model_.name + std::string(kind) + "/" + std::to_string(c_.ratio) + " rows " + std::to_string(c_.rows) + " context " + Tokens(c_.context),
                    us, FloorMicroseconds(), same);
  }

 private:
  std::int64_t Visible(std::int64_t t) const { return (c_.context - c_.rows + t + 1) / c_.ratio; }
  std::int64_t Choosable(std::int64_t t) const {
    return c_.kind == Kind::kRestricted ? std::min<std::int64_t>(Visible(t), kCandidateBlock * kCandidateBlocks) : Visible(t);
  }

  void KeepBlocks(std::int64_t t) {
    const std::int64_t blocks = (Visible(t) + kCandidateBlock - 1) / kCandidateBlock, kept = std::min<std::int64_t>(blocks, kCandidateBlocks);
    block_count_.host()[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(kept);
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t begin = i * blocks / kept, end = (i + 1) * blocks / kept;
      blocks_.host()[static_cast<std::size_t>(t * kCandidateBlocks + i)] =
          static_cast<std::int32_t>(begin + static_cast<std::int64_t>(run_.values.Draw() % static_cast<std::uint64_t>(end - begin)));
    }
  }

  std::vector<IndexRow> Rows(int set, bool device) {
    std::vector<IndexRow> rows(static_cast<std::size_t>(c_.rows));
    for (std::int64_t t = 0; t < c_.rows; ++t) {
      rows[static_cast<std::size_t>(t)] = {keys_.Paged(device, keys_.FirstPage(set, c_.context / c_.ratio)), Visible(t)};
    }
    return rows;
  }

  IndexSelectArgs Common() const {
    IndexSelectArgs a;
    a.rows = c_.rows;
    a.max_visible = Visible(c_.rows - 1);
    a.heads = model_.index_heads;
    a.dim = kIndexDim;
    a.key_format = model_.index_key;
    a.top_k = kTopK;
    if (c_.kind != Kind::kPlain) a.candidate_block = kCandidateBlock, a.candidate_top_blocks = kCandidateBlocks;
    return a;
  }
  void SetCandidates(IndexSelectArgs* a, std::int32_t* blocks, std::int32_t* counts) const {
    if (c_.kind == Kind::kCandidateSource) a->candidates_out = blocks, a->candidate_count_out = counts;
    if (c_.kind == Kind::kRestricted) a->candidates_in = blocks, a->candidate_count_in = counts;
  }
  IndexSelectArgs Device(int set) {
    IndexSelectArgs a = Common();
    a.row_T = rows_[static_cast<std::size_t>(set)]->device();
    a.q_THI = q_.device();
    a.weight_TH = weight_.device();
    a.selected_TK = selected_.device();
    a.count_T = count_.device();
    SetCandidates(&a, blocks_.device(), block_count_.device());
    return a;
  }

  bool SameAsCpu() {
    const std::vector<std::int32_t> selected = selected_.Download(), count = count_.Download(), blocks = blocks_.Download(), block_count = block_count_.Download();
    const std::vector<IndexRow> host_rows = Rows(0, /*device=*/false);
    bool same = true;
    for (std::int64_t t : SampledRows(c_.rows)) {
      IndexSelectArgs a = Common();
      a.row_T = host_rows.data() + t;
      a.rows = 1;
      a.max_visible = Visible(t);
      a.q_THI = q_.host().data() + t * model_.index_heads * kIndexDim;
      a.weight_TH = weight_.host().data() + t * model_.index_heads;
      a.selected_TK = selected_.host().data() + t * kTopK;
      a.count_T = count_.host().data() + t;
      SetCandidates(&a, blocks_.host().data() + t * kCandidateBlocks, block_count_.host().data() + t);
      run_.cpu_kernels.index_select(run_.cpu, a);
      same = Same("index count", count, count_.host(), static_cast<std::size_t>(t), 1) &&
             Same("index selection", selected, selected_.host(), static_cast<std::size_t>(t * kTopK), static_cast<std::size_t>(*a.count_T)) && same;
      if (c_.kind != Kind::kCandidateSource) continue;
      same = Same("block count", block_count, block_count_.host(), static_cast<std::size_t>(t), 1) &&
             Same("blocks", blocks, blocks_.host(), static_cast<std::size_t>(t * kCandidateBlocks), static_cast<std::size_t>(*a.candidate_count_out)) && same;
    }
    return same;
  }

  // Products through the tensor cores; the keys once through memory.
  double FloorMicroseconds() const {
    double pairs = 0;
    for (std::int64_t t = 0; t < c_.rows; ++t) pairs += static_cast<double>(Choosable(t));
    return std::max(pairs * model_.index_heads * kIndexDim * 2 / run_.ceilings.mma_flop_per_us,
                    static_cast<double>(Choosable(c_.rows - 1) * keys_.row_bytes()) / run_.ceilings.bytes_per_us);
  }

  TimingRun& run_;
  const ModelShape& model_;
  Case c_;
  RowPool& keys_;
  int sets_;
  Mirror<std::uint16_t> q_, weight_;
  Mirror<std::int32_t> selected_, count_, blocks_, block_count_;
  std::vector<std::unique_ptr<Mirror<IndexRow>>> rows_;
};

}  // namespace

void TimeIndexSelect(TimingRun& run) {
  const ModelShape v4 = V4Flash(), v41 = V41Flash();
  RowPool v4_keys(v4.index_key, 262144, run.values), v41_keys(v41.index_key, 1048576, run.values);
  for (std::int64_t context : {4096, 32768, 131072, 512000}) {
    for (std::int64_t rows : {1, 8, 512, 4096}) {
      if (rows > 8 && context != 32768 && !(rows == 512 && context == 512000)) continue;
      IndexCase(run, v4, {4, Kind::kPlain, rows, context}, v4_keys).TimeAndCheck();
      IndexCase(run, v41, {2, Kind::kPlain, rows, context}, v41_keys).TimeAndCheck();
      if (rows == 4096) continue;
      IndexCase(run, v41, {1, Kind::kCandidateSource, rows, context}, v41_keys).TimeAndCheck();
      IndexCase(run, v41, {1, Kind::kRestricted, rows, context}, v41_keys).TimeAndCheck();
    }
  }
}

}  // namespace lockstep::timing
