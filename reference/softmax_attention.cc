#include "reference/softmax_attention.h"

#include <algorithm>
#include <cmath>

#include "model/error.h"

namespace lockstep::reference {
namespace {

// One block of 64 keys in the forms the products need.
struct BlockRows {
  std::vector<bool> filled;
  HRows keys;          // [64][D]
  HRows values_by_dim;  // [D][64]; profile fma reads the keys instead
};

BlockRows LoadBlock(Profile profile, const float* const* rows, std::int64_t head_dim) {
  BlockRows block;
  std::vector<float> keys(static_cast<std::size_t>(kAttentionBlock * head_dim), 0.0f), transposed(keys.size(), 0.0f);
  for (std::int64_t s = 0; s < kAttentionBlock; ++s) {
    block.filled.push_back(rows[s] != nullptr);
    for (std::int64_t d = 0; rows[s] && d < head_dim; ++d) {
      keys[static_cast<std::size_t>(s * head_dim + d)] = rows[s][d];
      transposed[static_cast<std::size_t>(d * kAttentionBlock + s)] = rows[s][d];
    }
  }
  block.keys = MakeHRows(profile, std::move(keys), OperandFormat::kBf16);
  block.values_by_dim = MakeHRows(profile, std::move(transposed), OperandFormat::kBf16);
  return block;
}

struct Running {
  float max = -INFINITY;
  float denominator = 0.0f;
  std::vector<float> out;
};

void AttendBlock(Profile profile, const BlockRows& block, const HRows& q, std::int64_t q_begin, std::int64_t head_dim, float scale, Running& run) {
  float score[kAttentionBlock];
  float top = run.max;
  for (std::int64_t s = 0; s < kAttentionBlock; ++s) {
    if (!block.filled[static_cast<std::size_t>(s)]) continue;
    score[s] = ChainH(profile, q, q_begin, block.keys, s * head_dim, head_dim) * scale;
    top = std::max(top, score[s]);
    if (!std::isfinite(score[s])) throw InputError("attention: a score is not finite; queries or keys overflow");
  }
  const float rescale = run.max == -INFINITY ? 0.0f : Contract::Exp(run.max - top);
  float weight[kAttentionBlock], folded[kAttentionBlock];
  for (std::int64_t s = 0; s < kAttentionBlock; ++s) {
    folded[s] = block.filled[static_cast<std::size_t>(s)] ? Contract::Exp(score[s] - top) : 0.0f;
    weight[s] = RoundToBF16(folded[s]);
  }
  run.denominator = std::fma(run.denominator, rescale, Fold(folded, kAttentionBlock));
  run.max = top;
  const Operands w = profile == Profile::kFma ? Operands{} : MakeOperands(weight, kAttentionBlock, OperandFormat::kBf16);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    float& out = run.out[static_cast<std::size_t>(d)];
    out = out * rescale;
    if (profile == Profile::kFma) {
      const float* values = block.values_by_dim.values.data() + d * kAttentionBlock;
      for (std::int64_t s = 0; s < kAttentionBlock; ++s) out = std::fma(weight[s], values[s], out);
    } else {
      out = MmaChain(profile, out, w, 0, block.values_by_dim.operands, d * kAttentionBlock, kAttentionBlock);
    }
  }
}

}  // namespace

void AttendHeads(Profile profile, const KeyList<float>& keys, const float* q_HD, const std::vector<float>& sink_H, std::int64_t head_dim,
                 float* out_HD) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const auto heads = static_cast<std::int64_t>(sink_H.size());
  const HRows q = MakeHRows(profile, {q_HD, q_HD + heads * head_dim}, OperandFormat::kBf16);
  std::vector<Running> running(sink_H.size());
  for (Running& run : running) run.out.assign(static_cast<std::size_t>(head_dim), 0.0f);
  for (std::size_t begin = 0; begin < keys.rows.size(); begin += kAttentionBlock) {
    const BlockRows block = LoadBlock(profile, keys.rows.data() + begin, head_dim);
    for (std::int64_t h = 0; h < heads; ++h) {
      AttendBlock(profile, block, q, h * head_dim, head_dim, scale, running[static_cast<std::size_t>(h)]);
    }
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    const Running& run = running[static_cast<std::size_t>(h)];
    const float denominator = run.denominator + Contract::Exp(sink_H[static_cast<std::size_t>(h)] - run.max);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      out_HD[h * head_dim + d] = RoundToBF16(run.out[static_cast<std::size_t>(d)] / denominator);
    }
  }
}

void AttendHeads(Profile, const KeyList<double>& keys, const double* q_HD, const std::vector<float>& sink_H, std::int64_t head_dim,
                 double* out_HD) {
  using Vector = Eigen::Map<const Eigen::VectorXd>;
  for (std::size_t h = 0; h < sink_H.size(); ++h) {
    const auto begin = static_cast<std::int64_t>(h) * head_dim;
    std::vector<double> score;
    double top = sink_H[h];
    for (const double* row : keys.rows) {
      score.push_back(row ? Vector(q_HD + begin, head_dim).dot(Vector(row, head_dim)) / std::sqrt(static_cast<double>(head_dim)) : -INFINITY);
      top = std::max(top, score.back());
    }
    double denominator = std::exp(sink_H[h] - top);
    Eigen::VectorXd out = Eigen::VectorXd::Zero(head_dim);
    for (std::size_t i = 0; i < score.size(); ++i) {
      if (!keys.rows[i]) continue;
      const double w = std::exp(score[i] - top);
      denominator += w;
      out += w * Vector(keys.rows[i], head_dim);
    }
    Eigen::Map<Eigen::VectorXd>(out_HD + begin, head_dim) = out / denominator;
  }
}

}  // namespace lockstep::reference
