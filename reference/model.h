// The whole forward pass of both models, top to bottom. docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/checkpoint.h"
#include "reference/attention.h"
#include "reference/engram.h"
#include "reference/linear.h"
#include "reference/moe.h"
#include "reference/ops.h"
#include "reference/options.h"
#include "reference/state.h"

namespace lockstep::reference {

template <typename A>
class Model {
 public:
  using Real = typename A::Real;

  // `checkpoint` must outlive the model.
  Model(const Checkpoint& checkpoint, const Options& options);

  SequenceState<Real> NewState() const;

  // Processes ids[T] at positions state.position.. and returns the logits of the last `last_rows` of them, [last_rows, V].
  Matrix<Real> Forward(SequenceState<Real>& state, std::span<const std::int32_t> ids, std::int64_t last_rows);

 private:
  struct Layer {
    std::vector<float> attn_norm, ffn_norm, gate_XE, gate_bias_X;
    HcParameters hc_attn, hc_ffn;
    std::unique_ptr<Engram<A>> engram;
  };
  using Pre = std::vector<std::vector<Real>>;  // [T][S]

  Matrix<Real> Embed(const SequenceState<Real>& state, std::span<const std::int32_t> ids) const;
  std::vector<std::vector<std::int32_t>> RecentIds(SequenceState<Real>& state, std::span<const std::int32_t> ids) const;
  // Mix, collapse with `pre_in` (V4: the site's own pre) and norm. Returns the sublayer's input [T, E] and the coefficients.
  Matrix<Real> EnterSite(const HcParameters& site, const std::vector<float>& norm, const Pre& pre_in, const Matrix<Real>& stream_TSE,
                         std::vector<HcCoefficients<Real>>* coefficients) const;
  void LeaveSite(const Matrix<Real>& f_TE, const std::vector<HcCoefficients<Real>>& coefficients, Matrix<Real>& stream_TSE) const;
  Matrix<Real> FeedForward(int layer, std::span<const std::int32_t> ids, std::int64_t position, const Matrix<Real>& x_TE);
  Matrix<Real> Head(const Matrix<Real>& stream_TSE, const Pre& pre, std::int64_t position, std::int64_t last_rows);
  // Check that every row is finite and hand them to the trace, if there is one.
  void ReportRows(std::string_view step, int layer, std::int64_t position, const Matrix<Real>& rows) const;
  void ReportCoefficients(std::string_view step, int layer, std::int64_t position, const std::vector<HcCoefficients<Real>>& rows) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Options options_;
  LinearEngine<A> linears_;
  Attention<A> attention_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  HcParameters hc_head_;
  std::vector<std::int32_t> engram_token_map_;  // token id to compressed id; empty without Engram
};

}  // namespace lockstep::reference
