#include "harness/bench/work.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "fast/kv_state.h"
#include "fast/step.h"

namespace lockstep::bench {
namespace {

// Adds up what passes through a model's matrices and KV state.
class Counter {
 public:
  explicit Counter(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), config_(checkpoint.config), formats_(fast::MakeStateFormats(config_, NumericsOptions())) {}

  // The weights of a matrix, read and decoded `times` times.
  void ReadMatrix(const LinearWeight& w, double times) {
    const double weights = static_cast<double>(w.out_features) * static_cast<double>(w.in_features);
    work_.bytes += times * weights * w.BitsPerWeight() / 8;
    if (w.kind != LinearWeight::Kind::kExl3) return;
    (w.exl3.codebook == Codebook::kMul1 ? work_.mul1_weights : work_.mcg_weights) += times * weights;
  }

  void Multiply(const LinearWeight& w, double rows) {
    work_.flops += 2 * rows * static_cast<double>(w.out_features) * static_cast<double>(w.in_features);
  }

  // A matrix that is read once and applied to `rows` rows.
  void Linear(const LinearWeight& w, double rows) {
    if (rows <= 0) return;
    ReadMatrix(w, 1);
    Multiply(w, rows);
  }

  void Expert(const ExpertWeights& expert, double times_read, double rows) {
    for (const LinearWeight* w : {&expert.w1, &expert.w2, &expert.w3}) {
      ReadMatrix(*w, times_read);
      Multiply(*w, rows);
    }
  }

  // Everything of a layer but attention itself and index scores. `kv_rows` rows leave compressed KV, `rows` rows run through the layer.
  void LayerMatrices(int layer, double kv_rows, double rows) {
    const LayerWeights& w = checkpoint_.weights.layers[static_cast<std::size_t>(layer)];
    for (const LinearWeight* linear : {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_b}) Linear(*linear, rows);
    for (const LinearWeight& group : w.wo_a) Linear(group, rows);
    for (const auto* compressor : {&w.compressor, &w.indexer.compressor}) {
      if (!*compressor) continue;
      Linear((*compressor)->wkv, kv_rows);
      if ((*compressor)->wgate) Linear(*(*compressor)->wgate, kv_rows);
    }
    if (w.indexer.wk) Linear(*w.indexer.wk, kv_rows);
    for (const auto* linear : {&w.indexer.wq_b, &w.indexer.weights_proj}) {
      if (*linear) Linear(**linear, rows);
    }
    if (w.engram) Linear(w.engram->wkv, rows);
    Experts(w, rows);
  }

  // Attention and index scores of `rows` queries that see `visible` positions on average, KV read once by `readers` sequences.
  void Attention(int layer, double rows, double visible, double readers) {
    const double window = std::min<double>(visible, config_.sliding_window);
    const double width = static_cast<double>(config_.num_heads) * config_.head_dim;
    double entries = 0;
    if (config_.KvSourceOf(layer) >= 0) {
      entries = visible / config_.ratio(layer);
      if (config_.IsIndexSource(layer)) {
        const double scored = Scored(layer, entries);
        work_.flops += 2.0 * rows * scored * config_.index_n_heads * config_.index_head_dim;
        work_.bytes += readers * scored * static_cast<double>(formats_.index_key.row_bytes());
      }
      if (config_.IndexSourceOf(layer) >= 0) entries = std::min<double>(entries, config_.index_topk);
    }
    work_.flops += 4 * rows * width * (window + entries);
    work_.bytes += readers * (window * static_cast<double>(formats_.window.row_bytes()) + entries * static_cast<double>(formats_.compressed.row_bytes()));
  }

  void Head(double rows) { Linear(checkpoint_.weights.head, rows); }

  const Work& work() const { return work_; }

 private:
  void Experts(const LayerWeights& w, double rows) {
    if (rows <= 0) return;
    const double experts = config_.n_routed_experts, share = config_.num_experts_per_tok / experts;
    const double used = experts * (1 - std::pow(1 - share, rows));
    const double each = rows * share;
    for (const ExpertWeights& expert : w.experts) Expert(expert, used / experts, each);
    Expert(w.shared_expert, 1, rows);
  }

  // Entries that an index source scores: later ones of V4.1 only those in candidate blocks.
  double Scored(int layer, double entries) const {
    const bool restricted = config_.candidate_source_layer_id >= 0 && layer > config_.candidate_source_layer_id;
    if (!restricted) return entries;
    return std::min(entries, static_cast<double>(config_.candidate_topk_blocks) * config_.candidate_block_size);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  fast::StateFormats formats_;
  Work work_;
};

}  // namespace

Work DecodeWork(const Checkpoint& checkpoint, std::int64_t context, std::int64_t batch) {
  Counter counter(checkpoint);
  const auto rows = static_cast<double>(batch);
  for (int l = 0; l < checkpoint.config.num_layers; ++l) {
    counter.LayerMatrices(l, rows, rows);
    counter.Attention(l, rows, static_cast<double>(context), rows);
  }
  counter.Head(rows);
  return counter.work();
}

Work PromptWork(const Checkpoint& checkpoint, std::int64_t prefix, std::int64_t tokens) {
  Counter counter(checkpoint);
  const ModelConfig& config = checkpoint.config;
  const fast::TailRule rule(config, /*exact_tail=*/true);
  const std::int64_t end = prefix + tokens;
  for (int l = 0; l < config.num_layers; ++l) {
    const std::int64_t begin = std::max(prefix, rule.OutBegin(l, end, 1));
    const auto rows = static_cast<double>(end - begin);
    counter.LayerMatrices(l, static_cast<double>(tokens), rows);
    counter.Attention(l, rows, 0.5 * static_cast<double>(begin + end), 1);
  }
  counter.Head(1);
  return counter.work();
}

Limit LimitOf(const Work& work, double streamed_bytes, const Rates& rates) {
  const auto time = [](double amount, double rate) { return rate > 0 ? amount / rate : 0.0; };
  Limit limit;
  for (const Limit& candidate : {Limit{time(work.bytes, rates.read_bytes), "memory"},
                                 Limit{time(work.mul1_weights, rates.mul1_weights) + time(work.mcg_weights, rates.mcg_weights), "trellis decoding"},
                                 Limit{time(work.flops, rates.mma_flops), "matrix operations"},
                                 Limit{time(streamed_bytes, rates.copy_in_bytes), "streaming experts"}}) {
    if (candidate.seconds > limit.seconds) limit = candidate;
  }
  return limit;
}

}  // namespace lockstep::bench
