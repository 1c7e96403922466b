// The core of attention: the bits of docs/numerics.md section 6, and the distance of contract from truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/contract/exact_math.h"
#include "model/float_formats.h"
#include "reference/softmax_attention.h"
#include "reference/testing/error_bounds.h"
#include "reference/testing/page_arithmetic.h"
#include "reference/testing/same_bits.h"
#include "reference/testing/test_inputs.h"

namespace lockstep::reference {
namespace {

constexpr std::int64_t kHeads = 3;

// Keys of one token; a slot without a key has an empty vector. Whole blocks of 64.
struct Scene {
  std::int64_t head_dim = 0;
  std::vector<std::vector<float>> slots;
  std::vector<float> q_HD, sink_H;

  template <typename Real>
  std::vector<Real> Attend(Profile profile) const {
    std::vector<std::vector<Real>> rows;
    for (const auto& slot : slots) rows.emplace_back(slot.begin(), slot.end());
    KeyList<Real> keys;
    for (const auto& row : rows) keys.rows.push_back(row.empty() ? nullptr : row.data());
    const std::vector<Real> q(q_HD.begin(), q_HD.end());
    std::vector<Real> out(q.size());
    AttendHeads(profile, keys, q.data(), sink_H, head_dim, out.data());
    return out;
  }
};

// `filled[i]` of the slots of block i hold a key, the first ones or the last ones.
struct Block {
  int filled;
  bool last;
};

Scene DrawScene(std::int64_t head_dim, const std::vector<Block>& blocks, Random& random) {
  const auto draw = [&](std::int64_t n, double size) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(RoundToBF16(static_cast<float>(size * random.Normal())));
    return x;
  };
  Scene scene;
  scene.head_dim = head_dim;
  double size = 1.0;  // growing, so that later blocks raise the running maximum
  for (const Block& block : blocks) {
    for (int s = 0; s < 64; ++s) {
      const bool has_key = block.last ? s >= 64 - block.filled : s < block.filled;
      scene.slots.push_back(has_key ? draw(head_dim, size) : std::vector<float>{});
    }
    size += 0.5;
  }
  scene.q_HD = draw(kHeads * head_dim, 2.0);  // scores with a deviation of 2: some weights stand out
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const auto begin = scene.q_HD.begin() + h * head_dim;
    double top = -INFINITY;
    for (const auto& slot : scene.slots) {
      if (!slot.empty()) top = std::max(top, ExactDot({begin, begin + head_dim}, slot));
    }
    scene.sink_H.push_back(
        static_cast<float>(top / std::sqrt(static_cast<double>(head_dim)) - random.Uniform()));
  }
  return scene;
}

const std::vector<std::vector<Block>> kScenes = {
    {{1, false}},                                         // the first token
    {{54, true}, {31, false}},                            // a window across two blocks
    {{64, false}, {64, false}, {3, false}},               // window and three selected entries
    {{20, true}, {44, false}, {64, false}, {64, false}},  // window and two blocks of entries
};

// --- the page ------------------------------------------------------------------------------------------------

enum class Spoil { kNothing, kLoseLargestWeights, kNoRescale, kNoSink };

float FoldAll(std::vector<float> x) {
  for (std::size_t stride = x.size() / 2; stride >= 1; stride /= 2) {
    for (std::size_t i = 0; i < stride; ++i) x[i] += x[i + stride];
  }
  return x[0];
}

std::vector<float> PageHead(Profile profile, const Scene& scene, std::int64_t h, Spoil spoil) {
  const auto dim = static_cast<std::size_t>(scene.head_dim);
  const page::Floats q = page::Floats(scene.q_HD).subspan(static_cast<std::size_t>(h) * dim, dim);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(scene.head_dim)));
  float running_max = -INFINITY, den = 0.0f;
  std::vector<float> o(dim, 0.0f);
  for (std::size_t begin = 0; begin < scene.slots.size(); begin += 64) {
    std::vector<float> score(64, -INFINITY), w(64, 0.0f), w_bf16(64, 0.0f);
    for (std::size_t s = 0; s < 64; ++s) {
      if (scene.slots[begin + s].empty()) continue;
      score[s] = page::DotH(profile, q, scene.slots[begin + s], OperandFormat::kBf16) * scale;
    }
    const float new_max = std::max(running_max, *std::max_element(score.begin(), score.end()));
    float a = begin == 0 ? 0.0f : contract::Exp(running_max - new_max);
    if (spoil == Spoil::kNoRescale && begin > 0) a = 1.0f;
    for (std::size_t s = 0; s < 64; ++s)
      w[s] = scene.slots[begin + s].empty() ? 0.0f : contract::Exp(score[s] - new_max);
    if (spoil == Spoil::kLoseLargestWeights) *std::max_element(w.begin(), w.end()) = 0;
    for (std::size_t s = 0; s < 64; ++s) w_bf16[s] = RoundToBF16(w[s]);
    den = std::fma(den, a, FoldAll(w));
    for (std::size_t d = 0; d < dim; ++d) {
      std::vector<float> v(64, 0.0f);
      for (std::size_t s = 0; s < 64; ++s)
        v[s] = scene.slots[begin + s].empty() ? 0.0f : scene.slots[begin + s][d];
      o[d] = o[d] * a;
      if (profile == Profile::kFma) {
        for (std::size_t s = 0; s < 64; ++s) o[d] = std::fma(w_bf16[s], v[s], o[d]);
      } else {
        o[d] = page::Chain(profile, o[d], w_bf16, v, OperandFormat::kBf16);
      }
    }
    running_max = new_max;
  }
  if (spoil != Spoil::kNoSink)
    den = den + contract::Exp(scene.sink_H[static_cast<std::size_t>(h)] - running_max);
  for (float& value : o) value = RoundToBF16(value / den);
  return o;
}

std::vector<float> PageAttend(Profile profile, const Scene& scene, Spoil spoil = Spoil::kNothing) {
  std::vector<float> out;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const std::vector<float> head = PageHead(profile, scene, h, spoil);
    out.insert(out.end(), head.begin(), head.end());
  }
  return out;
}

// --- the bound -----------------------------------------------------------------------------------------------

// A score is off by at most `score`, so a weight by the factor e^score; each of the B + 1 exponentials it
// passes through (its own and the rescales) has an argument rounded once, at most u R off for scores that span
// R, and a relative error of one ulp. Numerators add the rounding of the weight to bf16, the chain over all 64
// B slots and B products; the denominator its folds and fmas. With numerator error e_N and relative denominator
// error d the quotient is off by (e_N/den + |o| d)/(1 - d); two roundings follow.
std::vector<double> Bound(Profile profile, const Scene& scene, const std::vector<double>& truth) {
  const auto dim = static_cast<std::size_t>(scene.head_dim);
  const double blocks = static_cast<double>(scene.slots.size() / 64);
  std::vector<double> bound;
  for (std::size_t h = 0; h < kHeads; ++h) {
    const std::vector<float> q(scene.q_HD.begin() + static_cast<std::ptrdiff_t>(h * dim),
                               scene.q_HD.begin() + static_cast<std::ptrdiff_t>((h + 1) * dim));
    std::vector<double> score(scene.slots.size(), -INFINITY);
    double score_error = 0, top = -INFINITY, low = scene.sink_H[h];
    for (std::size_t s = 0; s < score.size(); ++s) {
      if (scene.slots[s].empty()) continue;
      const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
      score[s] = ExactDot(q, scene.slots[s]) * scale;
      score_error = std::max(score_error, ChainBound(profile, scene.head_dim) * AbsoluteDot(q, scene.slots[s]) *
                                                  scale * (1 + Gamma(2)) +
                                              Gamma(2) * std::fabs(score[s]));
      top = std::max(top, score[s]);
      low = std::min(low, score[s]);
    }
    const double range = std::max(top, static_cast<double>(scene.sink_H[h])) - low + 2 * score_error;
    const double factor =
        std::exp(score_error + (blocks + 1) * kUnitFp32 * range) * std::pow(1 + 0x1p-23, blocks + 1);
    const double den_error = factor * (1 + Gamma(7 + 2 * blocks)) - 1;
    const double chain = profile == Profile::kFma
                             ? Gamma(65 * blocks)
                             : ChainBound(profile, static_cast<std::int64_t>(64 * blocks)) + Gamma(blocks);
    const double num_error = factor * (1 + kUnitBf16) * (1 + chain) - 1;
    double den = std::exp(scene.sink_H[h] - top);
    for (const double s : score) den += std::exp(s - top);
    for (std::size_t d = 0; d < dim; ++d) {
      double size = 0;
      for (std::size_t s = 0; s < score.size(); ++s) {
        if (!scene.slots[s].empty()) size += std::exp(score[s] - top) * std::fabs(scene.slots[s][d]);
      }
      const double o = std::fabs(truth[h * dim + d]);
      const double quotient = (num_error * size / den + o * den_error) / (1 - den_error);
      bound.push_back(quotient + (kUnitBf16 + Gamma(2)) * (o + quotient));
    }
  }
  return bound;
}

int Violations(const std::vector<float>& got, const std::vector<double>& truth,
               const std::vector<double>& bound) {
  int violations = 0;
  for (std::size_t i = 0; i < got.size(); ++i) violations += std::fabs(got[i] - truth[i]) > bound[i];
  return violations;
}

// --- tests ---------------------------------------------------------------------------------------------------

class AttendHeadsTest : public testing::TestWithParam<Profile> {};

TEST_P(AttendHeadsTest, HasTheBitsOfThePage) {
  Random random(51);
  for (const std::int64_t head_dim : {32, 96}) {
    for (const std::vector<Block>& blocks : kScenes) {
      const Scene scene = DrawScene(head_dim, blocks, random);
      ASSERT_TRUE(SameBits(scene.Attend<float>(GetParam()), PageAttend(GetParam(), scene)))
          << blocks.size() << " blocks";
    }
  }
}

TEST_P(AttendHeadsTest, TruthWithinBoundAndASpoiledOneIsNot) {
  Random random(52);
  for (const std::vector<Block>& blocks : kScenes) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Scene scene = DrawScene(64, blocks, random);
      const std::vector<double> truth = scene.Attend<double>(GetParam());
      const std::vector<double> bound = Bound(GetParam(), scene, truth);
      ASSERT_EQ(Violations(scene.Attend<float>(GetParam()), truth, bound), 0) << blocks.size() << " blocks";
      ASSERT_GT(Violations(PageAttend(GetParam(), scene, Spoil::kNoSink), truth, bound), 0);
      ASSERT_GT(Violations(PageAttend(GetParam(), scene, Spoil::kLoseLargestWeights), truth, bound), 0);
      if (blocks.size() > 2) {
        ASSERT_GT(Violations(PageAttend(GetParam(), scene, Spoil::kNoRescale), truth, bound), 0);
      }
    }
  }
}

// Equal scores and small integer values: weights are powers of two's worth of equal terms, so everything is
// exact.
TEST_P(AttendHeadsTest, LatticeIsExact) {
  Random random(53);
  Scene scene;
  scene.head_dim = 64;
  for (int s = 0; s < 128; ++s) {
    std::vector<float> key(64, 0.0f);
    for (float& value : key) value = static_cast<float>(random.Integer(-8, 8));
    scene.slots.push_back(key);
  }
  scene.q_HD.assign(kHeads * 64, 0.0f);  // every score is 0, every weight 1
  scene.sink_H.assign(kHeads, -INFINITY);
  const std::vector<float> got = scene.Attend<float>(GetParam());
  for (std::size_t d = 0; d < 64; ++d) {
    float sum = 0;
    for (const auto& key : scene.slots) sum += key[d];
    EXPECT_EQ(got[d], RoundToBF16(sum / 128.0f));
  }
}

INSTANTIATE_TEST_SUITE_P(Profiles, AttendHeadsTest,
                         testing::Values(Profile::kSm90, Profile::kSm90K8, Profile::kSm80, Profile::kSm75,
                                         Profile::kSm70, Profile::kSm70Jit, Profile::kFma),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

}  // namespace
}  // namespace lockstep::reference
