// Top-k in the total order of docs/numerics.md section 1: larger value first, equal values by smaller index.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "model/error.h"

namespace lockstep::reference {

enum class TieRule {
  kSmallestIndex,  // the contract
  kIntroselect,    // what PyTorch's CPU top-k leaves in front; only to compare with oracles full of exact ties (ADR 0004)
};

struct Selection {
  std::vector<std::int64_t> indices;  // ascending
  double margin = 0;                  // last value taken minus the best one left out; infinity if nothing was left out
};

// The first k of `values`; -infinity marks what cannot be chosen. Throws InputError naming `what` if a value is NaN.
template <typename Real>
Selection SelectTop(const std::vector<Real>& values, std::int64_t k, const std::string& what, TieRule ties = TieRule::kSmallestIndex) {
  std::vector<std::pair<Real, std::int64_t>> order;
  for (Real v : values) {
    if (std::isnan(v)) throw InputError(what + ": a score is NaN");
    order.emplace_back(v, static_cast<std::int64_t>(order.size()));
  }
  const auto taken = static_cast<std::ptrdiff_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(values.size())));
  if (ties == TieRule::kSmallestIndex) {
    const auto before = [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; };
    std::partial_sort(order.begin(), order.begin() + taken, order.end(), before);
  } else if (taken > 0) {
    const auto before = [](const auto& a, const auto& b) { return a.first > b.first; };
    if (taken * 64 <= static_cast<std::ptrdiff_t>(order.size())) {
      std::partial_sort(order.begin(), order.begin() + taken, order.end(), before);
    } else {
      std::nth_element(order.begin(), order.begin() + taken - 1, order.end(), before);
    }
  }
  constexpr Real kNone = -std::numeric_limits<Real>::infinity();
  Real last = std::numeric_limits<Real>::infinity(), best_left = kNone;
  Selection selection;
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(order.size()); ++i) {
    const auto& [value, index] = order[static_cast<std::size_t>(i)];
    if (i >= taken) {
      best_left = std::max(best_left, value);
    } else if (value != kNone) {
      last = std::min(last, value);
      selection.indices.push_back(index);
    }
  }
  selection.margin = best_left == kNone ? INFINITY : static_cast<double>(last) - static_cast<double>(best_left);
  std::sort(selection.indices.begin(), selection.indices.end());
  return selection;
}

}  // namespace lockstep::reference
