#include "reference/model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/error.h"
#include "model/text/engram_map.h"
#include "reference/finite.h"

namespace lockstep::reference {

template <typename A>
Model<A>::Model(const Checkpoint& checkpoint, const Options& options)
    : checkpoint_(checkpoint),
      config_(checkpoint.config),
      options_(options),
      linears_(options, config_.weight_block_size),
      attention_(checkpoint, options, linears_),
      final_norm_(ReadParameters(checkpoint.weights.norm)) {
  if (checkpoint.weights.hc_head) hc_head_ = LoadHc(*checkpoint.weights.hc_head);
  engram_token_map_ = checkpoint.engram_token_map;
  if (!config_.engram.layer_ids.empty() && engram_token_map_.empty()) engram_token_map_ = LoadEngramTokenMap(checkpoint.dir, config_);
  for (int l = 0; l < config_.num_layers; ++l) {
    const LayerWeights& w = checkpoint.weights.layers[static_cast<std::size_t>(l)];
    Layer layer;
    layer.attn_norm = ReadParameters(w.attn_norm);
    layer.ffn_norm = ReadParameters(w.ffn_norm);
    layer.gate_XE = ReadParameters(w.gate_weight);
    if (!w.gate_bias.empty()) layer.gate_bias_X = ReadParameters(w.gate_bias);
    layer.hc_attn = LoadHc(w.hc_attn);
    layer.hc_ffn = LoadHc(w.hc_ffn);
    if (config_.HasEngram(l)) layer.engram = std::make_unique<Engram<A>>(checkpoint, l, config_.EngramIndexOf(l), linears_);
    layers_.push_back(std::move(layer));
  }
}

template <typename A>
SequenceState<typename A::Real> Model<A>::NewState() const {
  SequenceState<Real> state;
  state.layers.resize(layers_.size());
  return state;
}

template <typename A>
Matrix<typename A::Real> Model<A>::Forward(SequenceState<Real>& state, std::span<const std::int32_t> ids, std::int64_t last_rows) {
  const std::int64_t position = state.position;
  Matrix<Real> stream_TSE = Embed(state, ids);
  const std::vector<std::vector<std::int32_t>> recent_T = RecentIds(state, ids);
  const std::int32_t pad = engram_token_map_.empty() ? 0 : engram_token_map_[static_cast<std::size_t>(config_.engram.pad_id)];

  // V4.1 collapses each site with the coefficients of the site before; the first one reads stream 0.
  std::vector<Real> first_stream(static_cast<std::size_t>(config_.hc_mult), Real{0});
  first_stream[0] = 1;
  Pre pre(ids.size(), first_stream);

  Selected selected;
  std::vector<HcCoefficients<Real>> coefficients;
  const auto keep_pre = [&] {
    for (std::size_t t = 0; t < pre.size(); ++t) pre[t] = coefficients[t].pre;
  };
  for (int l = 0; l < config_.num_layers; ++l) {
    Layer& layer = layers_[static_cast<std::size_t>(l)];
    if (layer.engram) {
      layer.engram->Apply(recent_T, pad, stream_TSE);
      ReportRows(step::kEngram, l, position, stream_TSE);
    }
    const Matrix<Real> attn_in_TE = EnterSite(layer.hc_attn, layer.attn_norm, pre, stream_TSE, &coefficients);
    ReportCoefficients(step::kHcAttn, l, position, coefficients);
    ReportRows(step::kAttnIn, l, position, attn_in_TE);
    LeaveSite(attention_.Apply(l, attn_in_TE, state, selected), coefficients, stream_TSE);
    ReportRows(step::kAttnStream, l, position, stream_TSE);
    keep_pre();

    const Matrix<Real> ffn_in_TE = EnterSite(layer.hc_ffn, layer.ffn_norm, pre, stream_TSE, &coefficients);
    ReportCoefficients(step::kHcFfn, l, position, coefficients);
    ReportRows(step::kFfnIn, l, position, ffn_in_TE);
    LeaveSite(FeedForward(l, ids, position, ffn_in_TE), coefficients, stream_TSE);
    ReportRows(step::kFfnStream, l, position, stream_TSE);
    keep_pre();
  }
  state.position += static_cast<std::int64_t>(ids.size());
  return Head(stream_TSE, pre, position, last_rows);
}

template <typename A>
Matrix<typename A::Real> Model<A>::Embed(const SequenceState<Real>& state, std::span<const std::int32_t> ids) const {
  const std::int64_t width = config_.hidden_size;
  const TensorView& embed = checkpoint_.weights.embed;
  Matrix<Real> stream_TSE(static_cast<Eigen::Index>(ids.size()), config_.hc_mult * width);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::int64_t d = 0; d < width; ++d) {
      const Real value = A::Bf16(embed.Float(ids[t] * width + d));
      if (!std::isfinite(value)) {
        throw InputError(embed.file + ": tensor " + embed.name + " holds a value that is not finite in row " + std::to_string(ids[t]));
      }
      for (int s = 0; s < config_.hc_mult; ++s) stream_TSE(static_cast<Eigen::Index>(t), s * width + d) = value;
    }
  }
  ReportRows(step::kEmbed, -1, state.position, stream_TSE);
  return stream_TSE;
}

// For each token its own compressed id and those before it, newest first; updates the state's history.
template <typename A>
std::vector<std::vector<std::int32_t>> Model<A>::RecentIds(SequenceState<Real>& state, std::span<const std::int32_t> ids) const {
  std::vector<std::vector<std::int32_t>> recent_T;
  if (engram_token_map_.empty()) return recent_T;
  for (std::int32_t id : ids) {
    std::vector<std::int32_t> recent = {engram_token_map_[static_cast<std::size_t>(id)]};
    recent.insert(recent.end(), state.recent_ids.begin(), state.recent_ids.end());
    state.recent_ids = recent;
    if (state.recent_ids.size() >= static_cast<std::size_t>(config_.engram.max_ngram_size)) state.recent_ids.pop_back();
    recent_T.push_back(std::move(recent));
  }
  return recent_T;
}

template <typename A>
Matrix<typename A::Real> Model<A>::EnterSite(const HcParameters& site, const std::vector<float>& norm, const Pre& pre_in,
                                             const Matrix<Real>& stream_TSE, std::vector<HcCoefficients<Real>>* coefficients) const {
  coefficients->clear();
  Matrix<Real> x_TE(stream_TSE.rows(), config_.hidden_size);
  for (Eigen::Index t = 0; t < x_TE.rows(); ++t) {
    coefficients->push_back(HcMix<A>(config_, site, stream_TSE.row(t).data()));
    const std::vector<Real>& pre = config_.is_v41() ? pre_in[static_cast<std::size_t>(t)] : coefficients->back().pre;
    HcCollapse<A>(config_, stream_TSE.row(t).data(), pre, x_TE.row(t).data());
    RmsNorm<A>(x_TE.row(t).data(), norm, config_.rms_norm_eps, x_TE.row(t).data());
  }
  return x_TE;
}

template <typename A>
void Model<A>::LeaveSite(const Matrix<Real>& f_TE, const std::vector<HcCoefficients<Real>>& coefficients, Matrix<Real>& stream_TSE) const {
  for (Eigen::Index t = 0; t < f_TE.rows(); ++t) {
    HcExpand<A>(config_, f_TE.row(t).data(), coefficients[static_cast<std::size_t>(t)], stream_TSE.row(t).data());
  }
}

template <typename A>
Matrix<typename A::Real> Model<A>::FeedForward(int layer, std::span<const std::int32_t> ids, std::int64_t position, const Matrix<Real>& x_TE) {
  const LayerWeights& w = checkpoint_.weights.layers[static_cast<std::size_t>(layer)];
  const Layer& p = layers_[static_cast<std::size_t>(layer)];
  std::vector<Routing<Real>> routing;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    routing.push_back(Route<A>(config_, w, p.gate_XE, p.gate_bias_X, ids[t], x_TE.row(static_cast<Eigen::Index>(t)).data(), layer));
    if (!options_.trace) continue;
    const std::int64_t token_position = position + static_cast<std::int64_t>(t);
    std::vector<Real> values(routing.back().experts.begin(), routing.back().experts.end());
    values.insert(values.end(), routing.back().weights.begin(), routing.back().weights.end());
    TraceStep(options_.trace, step::kRouter, layer, token_position, values.data(), static_cast<std::int64_t>(values.size()));
    if (w.tid2eid.empty()) options_.trace->OnDecision("router", layer, token_position, routing.back().margin);
  }
  Matrix<Real> out_TE = ApplyExperts(config_, w, linears_, x_TE, routing);
  ReportRows(step::kFfnOut, layer, position, out_TE);
  return out_TE;
}

template <typename A>
Matrix<typename A::Real> Model<A>::Head(const Matrix<Real>& stream_TSE, const Pre& pre, std::int64_t position, std::int64_t last_rows) {
  const std::int64_t skipped = stream_TSE.rows() - last_rows;
  Matrix<Real> x_TE(last_rows, config_.hidden_size);
  for (Eigen::Index r = 0; r < last_rows; ++r) {
    const Real* stream = stream_TSE.row(skipped + r).data();
    const std::vector<Real> read_out = config_.is_v41() ? pre[static_cast<std::size_t>(skipped + r)] : HcReadOut<A>(config_, hc_head_, stream);
    HcCollapse<A>(config_, stream, read_out, x_TE.row(r).data());
    RmsNorm<A>(x_TE.row(r).data(), final_norm_, config_.rms_norm_eps, x_TE.row(r).data());
  }
  ReportRows(step::kFinal, -1, position + skipped, x_TE);
  Matrix<Real> logits_TV = linears_.Apply(checkpoint_.weights.head, x_TE, LinearOutput::kFp32);
  ReportRows(step::kLogits, -1, position + skipped, logits_TV);
  return logits_TV;
}

template <typename A>
void Model<A>::ReportRows(std::string_view step, int layer, std::int64_t position, const Matrix<Real>& rows) const {
  for (Eigen::Index t = 0; t < rows.rows(); ++t) {
    RequireFinite(step, layer, position + t, rows.row(t).data(), rows.cols());
    TraceStep(options_.trace, step, layer, position + t, rows.row(t).data(), rows.cols());
  }
}

template <typename A>
void Model<A>::ReportCoefficients(std::string_view step, int layer, std::int64_t position, const std::vector<HcCoefficients<Real>>& rows) const {
  for (std::size_t t = 0; t < rows.size(); ++t) {
    std::vector<Real> values = rows[t].pre;
    values.insert(values.end(), rows[t].post.begin(), rows[t].post.end());
    values.insert(values.end(), rows[t].mix.begin(), rows[t].mix.end());
    RequireFinite(step, layer, position + static_cast<std::int64_t>(t), values.data(), static_cast<std::int64_t>(values.size()));
    TraceStep(options_.trace, step, layer, position + static_cast<std::int64_t>(t), values.data(), static_cast<std::int64_t>(values.size()));
  }
}

template class Model<Truth>;
template class Model<Contract>;

}  // namespace lockstep::reference
