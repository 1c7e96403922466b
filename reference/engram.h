// Engram (V4.1): hashed n-gram table rows and their gated read-out. docs/numerics.md section 6.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/checkpoint.h"
#include "model/text/engram_hash.h"
#include "reference/linear.h"

namespace lockstep::reference {

template <typename A>
class Engram {
 public:
  using Real = typename A::Real;

  // One Engram layer; `index` is its place in config.engram.layer_ids.
  Engram(const Checkpoint& checkpoint, int layer, int index, LinearEngine<A>& linears);

  // Adds the read-out to the streams X_TSE [T, S*E] in place. recent_T[t]: compressed ids of token t and the ones before it, newest
  // first, at most max_ngram_size. pad: compressed id before the first token.
  void Apply(const std::vector<std::vector<std::int32_t>>& recent_T, std::int32_t pad, Matrix<Real>& stream_TSE);

 private:
  // The token's table rows, widened and concatenated.
  void ReadRows(const std::vector<std::int32_t>& recent, std::int32_t pad, Real* e) const;

  const ModelConfig& config_;
  const EngramWeights& weights_;
  LinearEngine<A>& linears_;
  EngramHash hash_;
  std::vector<Real> qk_SE_;  // q_weight * k_weight
};

}  // namespace lockstep::reference
