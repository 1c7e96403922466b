// Window attention, compressed KV (CSA, HCA, CSA2), the indexer and grouped output. docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "model/checkpoint.h"
#include "reference/linear.h"
#include "reference/ops.h"
#include "reference/options.h"
#include "reference/state.h"

namespace lockstep::reference {

// Index selections of the tokens of one forward pass, handed from an index source to the layers after it.
struct Selected {
  std::vector<std::vector<std::int64_t>> entries_T;           // [T] ascending entry numbers
  std::vector<std::vector<std::int64_t>> candidate_blocks_T;  // [T] blocks kept by the candidate source; empty before it ran
  std::int64_t stored_entries = 0;                            // at the source when the pass ends
};

template <typename A>
class Attention {
 public:
  using Real = typename A::Real;

  Attention(const Checkpoint& checkpoint, const Options& options, LinearEngine<A>& linears);

  // One layer on the rows x_TE = attn_norm(collapse(X)) at positions state.position + t. Appends to the layer's state. Returns [T, E].
  Matrix<Real> Apply(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state, Selected& selected);

 private:
  struct LayerParameters;
  using Row = std::vector<Real>;

  void AppendWindow(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state);
  void AppendCompressed(int layer, const Matrix<Real>& x_TE, SequenceState<Real>& state);
  // Pools every group that the rows complete into a normalized latent each, [n, width]; first_entry: number of the first.
  Matrix<Real> Compress(int layer, const CompressorWeights& weights, const std::vector<float>& norm, const std::vector<float>& ape,
                        std::int64_t width, const Matrix<Real>& x_TE, std::int64_t position, CompressorState<Real>& state,
                        std::int64_t* first_entry);
  void AppendIndexKeys(int layer, const Matrix<Real>& key_NI, std::int64_t first_entry, LayerState<Real>& state);
  void SelectEntries(int layer, const Matrix<Real>& x_TE, const Matrix<Real>& qr_TQ, SequenceState<Real>& state, Selected& selected);
  std::vector<Real> IndexScores(const Real* query_HI, const Real* weight_H, const LayerState<Real>& keys, std::int64_t visible) const;
  void SelectForToken(int layer, std::int64_t position, std::size_t t, std::vector<Real> scores, Selected& selected);
  void QuantizeIndexVector(Real* x, Real* scales) const;
  // Rows of all heads of one token: out[H*D].
  void AttendToken(int layer, std::int64_t position, const Real* q_HD, const LayerState<Real>& window, const LayerState<Real>* source,
                   const std::vector<std::int64_t>& entries, Real* out_HD) const;

  const RopeTable& RopeOf(int layer) const { return config_.ratio(layer) > 0 ? compressed_rope_ : window_rope_; }
  // Checks that the values are finite and hands them to the trace, if there is one.
  void Report(std::string_view step, int layer, std::int64_t position, const Real* values, std::int64_t n) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Options options_;
  LinearEngine<A>& linears_;
  RopeTable window_rope_, compressed_rope_;
  std::vector<LayerParameters> parameters_;

 public:
  ~Attention();
};

// Reports `values` as fp32 to the trace, if there is one.
template <typename Real>
void TraceStep(StepTrace* trace, std::string_view step, int layer, std::int64_t position, const Real* values, std::int64_t n) {
  if (trace) trace->OnStep(step, layer, position, std::vector<float>(values, values + n));
}

}  // namespace lockstep::reference
