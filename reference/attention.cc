#include "reference/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "model/error.h"
#include "reference/finite.h"
#include "reference/quantize.h"
#include "reference/selection.h"
#include "reference/softmax_attention.h"

namespace lockstep::reference {
namespace {

constexpr std::int64_t kIndexQuantBlock = 32;

}  // namespace

// Small parameters of a layer, widened once.
template <typename A>
struct Attention<A>::LayerParameters {
  std::vector<float> q_norm, kv_norm, sink;
  std::vector<float> compressor_norm, compressor_ape;
  std::vector<float> index_norm, index_ape;  // V4: of the index compressor; V4.1: index_norm is k_norm
};

template <typename A>
Attention<A>::~Attention() = default;

template <typename A>
Attention<A>::Attention(const Checkpoint& checkpoint, const Options& options, LinearEngine<A>& linears)
    : config_(checkpoint.config),
      weights_(checkpoint.weights),
      options_(options),
      linears_(linears),
      window_rope_(config_.rope_theta, YarnConfig{}, config_.rope_head_dim),
      compressed_rope_(config_.compress_rope_theta, config_.yarn, config_.rope_head_dim) {
  for (const LayerWeights& layer : weights_.layers) {
    LayerParameters p;
    p.q_norm = ReadParameters(layer.q_norm);
    p.kv_norm = ReadParameters(layer.kv_norm);
    p.sink = ReadParameters(layer.attn_sink);
    if (layer.compressor) {
      p.compressor_norm = ReadParameters(layer.compressor->norm);
      if (!layer.compressor->ape.empty()) p.compressor_ape = ReadParameters(layer.compressor->ape);
    }
    if (layer.indexer.compressor) {
      p.index_norm = ReadParameters(layer.indexer.compressor->norm);
      p.index_ape = ReadParameters(layer.indexer.compressor->ape);
    } else if (!layer.indexer.k_norm.empty()) {
      p.index_norm = ReadParameters(layer.indexer.k_norm);
    }
    parameters_.push_back(std::move(p));
  }
}

template <typename A>
void Attention<A>::Report(std::string_view step, int layer, std::int64_t position, const Real* values, std::int64_t n) const {
  RequireFinite(step, layer, position, values, n);
  TraceStep(options_.trace, step, layer, position, values, n);
}

template <typename A>
Matrix<typename A::Real> Attention<A>::Apply(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state, Selected& selected) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const LayerParameters& p = parameters_[static_cast<std::size_t>(layer)];
  const std::int64_t head_dim = config_.head_dim, heads = config_.num_heads;

  Matrix<Real> qr_TQ = linears_.Apply(w.wq_a, x_TE);
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    RmsNorm<A>(qr_TQ.row(t).data(), p.q_norm, config_.rms_norm_eps, qr_TQ.row(t).data());
    Report(step::kQueryLatent, layer, state.position + t, qr_TQ.row(t).data(), qr_TQ.cols());
  }
  Matrix<Real> q_THD = linears_.Apply(w.wq_b, qr_TQ);
  const std::vector<float> ones(static_cast<std::size_t>(head_dim), 1.0f);
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      Real* q = q_THD.row(t).data() + h * head_dim;
      if (!config_.is_v41()) RmsNorm<A>(q, ones, config_.rms_norm_eps, q);
      ApplyRope<A>(RopeOf(layer), state.position + t, RopeDirection::kForward, q, head_dim);
    }
    Report(step::kQuery, layer, state.position + t, q_THD.row(t).data(), q_THD.cols());
  }

  AppendWindow(layer, x_TE, state);
  if (config_.IsKvSource(layer)) AppendCompressed(layer, x_TE, state);
  if (config_.IsIndexSource(layer)) SelectEntries(layer, x_TE, qr_TQ, state, selected);

  LayerState<Real>& own = state.layers[static_cast<std::size_t>(layer)];
  const int source = config_.KvSourceOf(layer);
  const LayerState<Real>* source_state = source < 0 ? nullptr : &state.layers[static_cast<std::size_t>(source)];
  Matrix<Real> heads_THD(x_TE.rows(), heads * head_dim);
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    const std::int64_t position = state.position + t;
    std::vector<std::int64_t> entries;
    if (source >= 0 && config_.IndexSourceOf(layer) >= 0) {
      entries = selected.entries_T[static_cast<std::size_t>(t)];
    } else if (source >= 0) {
      for (std::int64_t j = 0; j < (position + 1) / config_.ratio(layer); ++j) entries.push_back(j);
    }
    AttendToken(layer, position, q_THD.row(t).data(), own, source_state, entries, heads_THD.row(t).data());
    Report(step::kAttnHeads, layer, position, heads_THD.row(t).data(), heads_THD.cols());
  }
  own.window.DropBefore(state.position + x_TE.rows() - (config_.sliding_window - 1));

  const std::int64_t group_width = heads * head_dim / config_.o_groups;
  Matrix<Real> y_TGR(x_TE.rows(), std::int64_t{config_.o_groups} * config_.o_lora_rank);
  for (int g = 0; g < config_.o_groups; ++g) {
    y_TGR.middleCols(g * config_.o_lora_rank, config_.o_lora_rank) =
        linears_.Apply(w.wo_a[static_cast<std::size_t>(g)], heads_THD.middleCols(g * group_width, group_width), LinearOutput::kBf16,
                       /*quantize_input=*/false);
  }
  Matrix<Real> out_TE = linears_.Apply(w.wo_b, y_TGR);
  for (Eigen::Index t = 0; t < out_TE.rows(); ++t) Report(step::kAttnOut, layer, state.position + t, out_TE.row(t).data(), out_TE.cols());
  return out_TE;
}

template <typename A>
void Attention<A>::AppendWindow(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  LayerState<Real>& own = state.layers[static_cast<std::size_t>(layer)];
  own.window.width = config_.head_dim;
  Matrix<Real> kv_TD = linears_.Apply(w.wkv, x_TE);
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    Real* kv = kv_TD.row(t).data();
    RmsNorm<A>(kv, parameters_[static_cast<std::size_t>(layer)].kv_norm, config_.rms_norm_eps, kv);
    ApplyRope<A>(RopeOf(layer), state.position + t, RopeDirection::kForward, kv, config_.head_dim);
    if (options_.numerics.fake_quant && config_.is_v41()) FakeQuant8(kv, config_.head_dim, 32);
    if (options_.numerics.fake_quant && !config_.is_v41()) FakeQuant8(kv, config_.head_dim - config_.rope_head_dim, 64);
    own.window.Append(kv);
    Report(step::kKv, layer, state.position + t, kv, config_.head_dim);
  }
}

// --- compressed KV ---------------------------------------------------------------------------------------------------

template <typename A>
Matrix<typename A::Real> Attention<A>::Compress(int layer, const CompressorWeights& weights, const std::vector<float>& norm,
                                                const std::vector<float>& ape, std::int64_t width, const Matrix<Real>& x_TE,
                                                std::int64_t position, CompressorState<Real>& state, std::int64_t* first_entry) {
  const std::int64_t ratio = config_.ratio(layer), tokens = x_TE.rows();
  *first_entry = position / ratio;
  Matrix<Real> latent_NW((position + tokens) / ratio - *first_entry, width);
  if (!weights.wgate) {
    latent_NW = linears_.Apply(weights.wkv, x_TE);
  } else {
    const bool overlap = weights.wkv.out_features == 2 * width;
    const Matrix<Real> kv = linears_.Apply(weights.wkv, x_TE, LinearOutput::kFp32);
    Matrix<Real> gate = linears_.Apply(*weights.wgate, x_TE, LinearOutput::kFp32);
    state.kv.width = state.gate.width = kv.cols();
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t c = 0; !ape.empty() && c < gate.cols(); ++c) {
        gate(t, c) = gate(t, c) + ape[static_cast<std::size_t>((position + t) % ratio * gate.cols() + c)];
      }
      state.kv.Append(kv.row(t).data());
      state.gate.Append(gate.row(t).data());
    }
    for (std::int64_t n = 0; n < latent_NW.rows(); ++n) {
      const std::int64_t begin = (*first_entry + n) * ratio;
      const std::int64_t before = overlap && begin > 0 ? ratio : 0;
      for (std::int64_t c = 0; c < width; ++c) {
        // Rows of the group before use their first half of the channels, own rows the last half.
        const auto channel = [&](std::int64_t row) { return c + (overlap && row >= begin ? width : 0); };
        Real top = -std::numeric_limits<Real>::infinity();
        for (std::int64_t r = begin - before; r < begin + ratio; ++r) top = std::max(top, state.gate.Row(r)[channel(r)]);
        Real denominator = 0, numerator = 0;
        for (std::int64_t r = begin - before; r < begin + ratio; ++r) {
          const Real e = A::Exp(state.gate.Row(r)[channel(r)] - top);
          const bool first = r == begin - before;
          denominator = first ? e : denominator + e;
          numerator = first ? e * state.kv.Row(r)[channel(r)] : A::Fma(e, state.kv.Row(r)[channel(r)], numerator);
        }
        latent_NW(n, c) = A::Bf16(numerator / denominator);
      }
    }
    const std::int64_t open = ((position + tokens) / ratio - (overlap ? 1 : 0)) * ratio;
    state.kv.DropBefore(open);
    state.gate.DropBefore(open);
  }
  for (Eigen::Index n = 0; n < latent_NW.rows(); ++n) RmsNorm<A>(latent_NW.row(n).data(), norm, config_.rms_norm_eps, latent_NW.row(n).data());
  return latent_NW;
}

template <typename A>
void Attention<A>::AppendCompressed(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const LayerParameters& p = parameters_[static_cast<std::size_t>(layer)];
  LayerState<Real>& own = state.layers[static_cast<std::size_t>(layer)];
  std::int64_t first_entry = 0;
  Matrix<Real> latent_ND = Compress(layer, *w.compressor, p.compressor_norm, p.compressor_ape, config_.head_dim, x_TE, state.position,
                                    own.compressor, &first_entry);
  if (w.indexer.wk && latent_ND.rows() > 0) {
    Matrix<Real> key_NI = linears_.Apply(*w.indexer.wk, latent_ND);
    for (Eigen::Index n = 0; n < key_NI.rows(); ++n) RmsNorm<A>(key_NI.row(n).data(), p.index_norm, config_.rms_norm_eps, key_NI.row(n).data());
    AppendIndexKeys(layer, key_NI, first_entry, own);
  }
  if (w.indexer.compressor) {
    std::int64_t first_key = 0;
    const Matrix<Real> key_NI = Compress(layer, *w.indexer.compressor, p.index_norm, p.index_ape, config_.index_head_dim, x_TE,
                                         state.position, own.index_compressor, &first_key);
    AppendIndexKeys(layer, key_NI, first_key, own);
  }
  own.compressed.width = config_.head_dim;
  for (Eigen::Index n = 0; n < latent_ND.rows(); ++n) {
    Real* row = latent_ND.row(n).data();
    ApplyRope<A>(RopeOf(layer), (first_entry + n) * config_.ratio(layer), RopeDirection::kForward, row, config_.head_dim);
    if (options_.numerics.fake_quant && config_.is_v41()) FakeQuant4(row, config_.head_dim, 16, Fp4Scale::kE4M3);
    if (options_.numerics.fake_quant && !config_.is_v41()) FakeQuant8(row, config_.head_dim - config_.rope_head_dim, 64);
    own.compressed.Append(row);
    Report(step::kCompressed, layer, first_entry + n, row, config_.head_dim);
  }
}

// --- indexer ---------------------------------------------------------------------------------------------------------

template <typename A>
void Attention<A>::QuantizeIndexVector(Real* x, Real* scales) const {
  const std::int64_t n = config_.index_head_dim;
  if (!config_.is_v41()) {
    Butterfly(x, n);
    const Real scale = A::kTruth ? static_cast<Real>(1.0 / std::sqrt(static_cast<double>(n)))
                                 : static_cast<Real>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))));
    for (std::int64_t i = 0; i < n; ++i) x[i] = A::Bf16(x[i] * scale);
  }
  for (std::int64_t i = 0; i < n; i += kIndexQuantBlock) {
    scales[i / kIndexQuantBlock] = ActQuant4Block(x + i, std::min(kIndexQuantBlock, n - i), Fp4Scale::kE8M0, x + i);
  }
}

template <typename A>
void Attention<A>::AppendIndexKeys(int layer, const Matrix<Real>& key_NI, std::int64_t first_entry, LayerState<Real>& state) {
  state.index_keys.width = config_.index_head_dim;
  state.index_scales.width = (config_.index_head_dim + kIndexQuantBlock - 1) / kIndexQuantBlock;
  Row scales(static_cast<std::size_t>(state.index_scales.width));
  for (Eigen::Index n = 0; n < key_NI.rows(); ++n) {
    Row key(key_NI.row(n).data(), key_NI.row(n).data() + config_.index_head_dim);
    ApplyRope<A>(RopeOf(layer), (first_entry + n) * config_.ratio(layer), RopeDirection::kForward, key.data(), config_.index_head_dim);
    RequireFinite(step::kIndexKey, layer, first_entry + n, key.data(), config_.index_head_dim);
    if (options_.numerics.fake_quant) {
      QuantizeIndexVector(key.data(), scales.data());
      state.index_scales.Append(scales.data());
    }
    state.index_keys.Append(key.data());
    if (!options_.trace) continue;
    for (std::size_t i = 0; options_.numerics.fake_quant && i < key.size(); ++i) key[i] *= scales[i / kIndexQuantBlock];
    Report(step::kIndexKey, layer, first_entry + n, key.data(), config_.index_head_dim);
  }
}

// Scores of the first `visible` keys: sum over heads of relu(q . k) * w.
template <typename A>
std::vector<typename A::Real> Attention<A>::IndexScores(const Real* query_HI, const Real* weight_H, const LayerState<Real>& keys,
                                                        std::int64_t visible) const {
  const std::int64_t dim = config_.index_head_dim, heads = config_.index_n_heads;
  const std::int64_t blocks = (dim + kIndexQuantBlock - 1) / kIndexQuantBlock;
  Row query(query_HI, query_HI + heads * dim);
  Row query_scale(static_cast<std::size_t>(heads * blocks));
  if (options_.numerics.fake_quant) {
    for (std::int64_t h = 0; h < heads; ++h) QuantizeIndexVector(query.data() + h * dim, query_scale.data() + h * blocks);
  }
  const auto dot = [&](std::int64_t h, std::int64_t j) -> Real {
    const Real* q = query.data() + h * dim;
    const Real* k = keys.index_keys.Row(j);
    if (!options_.numerics.fake_quant) {
      if constexpr (A::kTruth) return A::Dot(q, k, dim);
      else return DotH(options_.numerics.profile, q, k, dim);
    }
    Real d = 0;
    for (std::int64_t b = 0; b < blocks; ++b) {
      Real sum = 0;  // exact: multiples of 1/4 below 1152
      for (std::int64_t i = b * kIndexQuantBlock; i < std::min(dim, (b + 1) * kIndexQuantBlock); ++i) sum += q[i] * k[i];
      d = A::Fma(sum, query_scale[static_cast<std::size_t>(h * blocks + b)] * keys.index_scales.Row(j)[b], d);
    }
    return d;
  };
  const auto padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(heads)));
  std::vector<Real> scores;
  for (std::int64_t j = 0; j < visible; ++j) {
    Row part(static_cast<std::size_t>(padded), Real{0});
    for (std::int64_t h = 0; h < heads; ++h) {
      const Real d = dot(h, j);
      part[static_cast<std::size_t>(h)] = (d > 0 ? d : Real{0}) * weight_H[h];
    }
    scores.push_back(Fold(part.data(), padded));
  }
  return scores;
}

template <typename A>
void Attention<A>::SelectEntries(int layer, const Matrix<Real>& x_TE, const Matrix<Real>& qr_TQ, SequenceState<Real>& state, Selected& selected) {
  const LayerIndexWeights& w = weights_.layers[static_cast<std::size_t>(layer)].indexer;
  const std::int64_t dim = config_.index_head_dim, heads = config_.index_n_heads, ratio = config_.ratio(layer);
  Matrix<Real> query_THI = linears_.Apply(*w.wq_b, qr_TQ);
  Matrix<Real> weight_TH = linears_.Apply(*w.weights_proj, x_TE);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim * heads));
  weight_TH *= A::kTruth ? static_cast<Real>(scale) : static_cast<Real>(static_cast<float>(scale));

  int key_layer = config_.KvSourceOf(layer);
  const bool group_open = (state.position + 1) % ratio != 0;
  if (options_.numerics.stale_index_keys && x_TE.rows() == 1 && state.position > 0 && ratio > 1 && group_open && config_.is_v41()) {
    key_layer = config_.kv_source_layer_ids.back();
  }
  selected.entries_T.assign(static_cast<std::size_t>(x_TE.rows()), {});
  selected.stored_entries = (state.position + x_TE.rows()) / ratio;
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    const std::int64_t position = state.position + t;
    for (std::int64_t h = 0; h < heads; ++h) {
      ApplyRope<A>(RopeOf(layer), position, RopeDirection::kForward, query_THI.row(t).data() + h * dim, dim);
    }
    RequireFinite("index query", layer, position, query_THI.row(t).data(), heads * dim);
    std::vector<Real> scores = IndexScores(query_THI.row(t).data(), weight_TH.row(t).data(),
                                           state.layers[static_cast<std::size_t>(key_layer)], (position + 1) / ratio);
    Report(step::kIndexScore, layer, position, scores.data(), static_cast<std::int64_t>(scores.size()));
    SelectForToken(layer, position, static_cast<std::size_t>(t), std::move(scores), selected);
  }
}

namespace {

// Blocks that the candidate source keeps: best by their largest score, the newest always among them.
template <typename Real>
Selection SelectCandidateBlocks(const ModelConfig& config, const std::vector<Real>& scores, const std::string& what) {
  std::vector<Real> block_score;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const std::size_t block = j / static_cast<std::size_t>(config.candidate_block_size);
    if (block == block_score.size()) block_score.push_back(scores[j]);
    block_score[block] = std::max(block_score[block], scores[j]);
  }
  if (!block_score.empty()) block_score.back() = std::numeric_limits<Real>::infinity();
  return SelectTop(block_score, config.candidate_topk_blocks, what);
}

// Marks the entries outside `blocks` (ascending) as not to be chosen.
template <typename Real>
void KeepBlocks(const std::vector<std::int64_t>& blocks, std::int64_t block_size, std::vector<Real>& scores) {
  for (std::size_t j = 0; j < scores.size(); ++j) {
    if (!std::binary_search(blocks.begin(), blocks.end(), static_cast<std::int64_t>(j) / block_size)) {
      scores[j] = -std::numeric_limits<Real>::infinity();
    }
  }
}

}  // namespace

template <typename A>
void Attention<A>::SelectForToken(int layer, std::int64_t position, std::size_t t, std::vector<Real> scores, Selected& selected) {
  const std::string what = "index scores of layer " + std::to_string(layer) + ", position " + std::to_string(position);
  if (layer == config_.candidate_source_layer_id) {
    const Selection blocks = SelectCandidateBlocks(config_, scores, what);
    selected.candidate_blocks_T.resize(selected.entries_T.size());
    selected.candidate_blocks_T[t] = blocks.indices;
    if (options_.trace) options_.trace->OnDecision("candidates", layer, position, blocks.margin);
  } else if (!selected.candidate_blocks_T.empty()) {
    KeepBlocks(selected.candidate_blocks_T[t], config_.candidate_block_size, scores);
  }
  TieRule ties = TieRule::kSmallestIndex;
  if (A::kTruth && !options_.numerics.fake_quant) {
    ties = TieRule::kIntroselect;
    scores.resize(static_cast<std::size_t>(selected.stored_entries), -std::numeric_limits<Real>::infinity());
    for (Real& score : scores) score = static_cast<float>(score);
  }
  Selection top = SelectTop(scores, config_.index_topk, what, ties);
  if (options_.trace) {
    const Row entries(top.indices.begin(), top.indices.end());
    Report(step::kSelected, layer, position, entries.data(), static_cast<std::int64_t>(entries.size()));
    options_.trace->OnDecision("index", layer, position, top.margin);
  }
  selected.entries_T[t] = std::move(top.indices);
}

// --- core ------------------------------------------------------------------------------------------------------------

template <typename A>
void Attention<A>::AttendToken(int layer, std::int64_t position, const Real* q_HD, const LayerState<Real>& window,
                               const LayerState<Real>* source, const std::vector<std::int64_t>& entries, Real* out_HD) const {
  KeyList<Real> keys;
  const std::int64_t first = std::max<std::int64_t>(0, position - config_.sliding_window + 1);
  for (std::int64_t slot = first / kAttentionBlock * kAttentionBlock; slot < (position / kAttentionBlock + 1) * kAttentionBlock; ++slot) {
    keys.rows.push_back(slot >= first && slot <= position ? window.window.Row(slot) : nullptr);
  }
  for (std::int64_t entry : entries) keys.rows.push_back(source->compressed.Row(entry));
  while (keys.rows.size() % kAttentionBlock != 0) keys.rows.push_back(nullptr);
  try {
    AttendHeads(options_.numerics.profile, keys, q_HD, parameters_[static_cast<std::size_t>(layer)].sink, config_.head_dim, out_HD);
  } catch (const InputError& error) {
    throw InputError("layer " + std::to_string(layer) + ", position " + std::to_string(position) + ": " + error.what());
  }
  for (std::int64_t h = 0; h < config_.num_heads; ++h) {
    ApplyRope<A>(RopeOf(layer), position, RopeDirection::kInverse, out_HD + h * config_.head_dim, config_.head_dim);
  }
}

template class Attention<Truth>;
template class Attention<Contract>;

}  // namespace lockstep::reference
