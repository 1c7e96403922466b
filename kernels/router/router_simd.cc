// Compiled once per instruction set.
#include "kernels/contract/exact_math_vec.h"
#include "kernels/contract/fold.h"
#include "kernels/contract/total_order.h"
#include "kernels/router/router_rows.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 64;

// The top_k best of score + bias into chosen[], best first. False if a score is NaN.
bool Choose(const RouterArgs& a, const float* score, std::int32_t* chosen) {
  float choice[kMaxExperts];
  for (int e = 0; e < a.experts; ++e) choice[e] = a.bias_X ? Add(score[e], a.bias_X[e]) : score[e];
  if (AnyNan(choice, a.experts)) return false;
  for (int i = 0; i < a.top_k; ++i) {
    int best = -1;
    for (int e = 0; e < a.experts; ++e) {
      bool taken = false;
      for (int k = 0; k < i; ++k) taken = taken || chosen[k] == e;
      if (!taken && (best < 0 || Precedes(choice[e], e, choice[best], best))) best = e;
    }
    chosen[i] = best;
  }
  return true;
}

void SortAscending(std::int32_t* values, int n) {
  for (int i = 1; i < n; ++i) {
    const std::int32_t value = values[i];
    int k = i;
    for (; k > 0 && values[k - 1] > value; --k) values[k] = values[k - 1];
    values[k] = value;
  }
}

void RouteRow(const RouterArgs& a, std::int64_t t) {
  const std::uint16_t* x = a.x_TE + t * a.hidden;
  std::int32_t* chosen = a.experts_TK + t * a.top_k;
  float* weights = a.weights_TK + t * a.top_k;
  float score[kMaxExperts];
  for (int e = 0; e < a.experts; ++e) score[e] = SqrtSoftplus(DotF(F32Elements{a.gate_XE + e * a.hidden}, BF16Elements{x}, a.hidden));
  bool valid = !AnyNan(score, a.experts);
  if (a.tid2eid) {
    for (int i = 0; i < a.top_k; ++i) {
      chosen[i] = static_cast<std::int32_t>(a.tid2eid[static_cast<std::int64_t>(a.ids[t]) * a.top_k + i]);
    }
  } else {
    valid = Choose(a, score, chosen) && valid;
  }
  if (!valid) {
    for (int i = 0; i < a.top_k; ++i) chosen[i] = -1;
    return;
  }
  SortAscending(chosen, a.top_k);
  float sum = score[chosen[0]];
  for (int i = 1; i < a.top_k; ++i) sum = Add(sum, score[chosen[i]]);
  if (a.epsilon != 0.0f) sum = Add(sum, a.epsilon);
  for (int i = 0; i < a.top_k; ++i) {
    const float s = score[chosen[i]];
    weights[i] = Mul(a.normalize ? Div(s, sum) : s, a.scaling);
  }
}

}  // namespace

void RouterRows(const RouterArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) RouteRow(a, t);
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
