#include "kernels/index_select/top_k.h"

#include <algorithm>
#include <functional>

#include "kernels/contract/total_order.h"

namespace lockstep::kernels {

std::int32_t SelectBest(const float* scores, const std::int32_t* numbers, std::int64_t n, std::int64_t k, std::uint64_t* keys, std::int32_t* out) {
  if (contract::AnyNan(scores, n)) return -1;
  const std::int64_t taken = std::min(k, n);
  for (std::int64_t i = 0; i < n; ++i) keys[i] = contract::RankKey(scores[i], static_cast<std::uint32_t>(i));
  if (taken < n) std::nth_element(keys, keys + taken, keys + n, std::greater<>());
  for (std::int64_t i = 0; i < taken; ++i) {
    const auto index = static_cast<std::int32_t>(contract::IndexOfRankKey(keys[i]));
    out[i] = numbers ? numbers[index] : index;
  }
  std::sort(out, out + taken);
  return static_cast<std::int32_t>(taken);
}

}  // namespace lockstep::kernels
