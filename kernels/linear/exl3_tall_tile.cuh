// Tall EXL3 tiles, of int16 codes: their code rows in groups, and what a block keeps of them in shared memory.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/linear/exl3_large_epilogue.cuh"

namespace lockstep::kernels {

inline constexpr int kMultiplyThreads = 256, kTallThreads = kMultiplyThreads + 128;  // a warp a strip of 16 columns, and a warpgroup that copies
inline constexpr std::size_t kMaxTallShared = 227 * 1024;

// kGroupCount groups of kCodes code rows, two of them a row.
template <int kCodes, int kGroupCount>
struct TallTile {
  static constexpr int kN = kCodes, kGroups = kGroupCount, kGroupRows = kN / 2, kRows = kGroupRows * kGroups;
  static constexpr int kSums = kN / 2, kResults = kSums / 2;  // of a group, in a thread
  static constexpr std::size_t kFold = std::size_t{kRows} * kExl3Columns * 4, kResult = std::size_t{kRows} * (ResultTile::kRow + 1) * 4;  // bytes
  static_assert(kGroups % 2 == 0 && 8 % kGroups == 0 && kResults % 4 == 0);
};

// Shared memory: a ring of units, which are the codes of a group for a 128-block, [2][kN][64] fp16, and the scales of its rows; a ring of the packed
// weights of eight strips for a 128-block; two folds of segments. The result of the epilogue and the corrections of its rows take their place.
template <int kB2, class Tile>
struct TallMemory {
  static constexpr std::size_t kCodes = Tile::kN * 256, kScales = Tile::kGroupRows * 4, kWeights = 1024 * kB2, kForBarriers = 256;
  static constexpr std::size_t kForUnits(int weight_stages) {
    return kMaxTallShared - kForBarriers - 2 * Tile::kFold - static_cast<std::size_t>(weight_stages) * kWeights;
  }
  static constexpr int kWeightStages = kForUnits(3) >= 4 * (kCodes + kScales) ? 3 : 2;
  static constexpr int kUnits = static_cast<int>(std::min<std::size_t>(8, kForUnits(kWeightStages) / (kCodes + kScales)));
  static constexpr std::size_t kScalesAt = kUnits * kCodes, kWeightsAt = kScalesAt + kUnits * kScales, kFoldsAt = kWeightsAt + kWeightStages * kWeights;
  static constexpr std::size_t kBarriersAt = std::max(kFoldsAt + 2 * Tile::kFold, Tile::kResult), kBytes = kBarriersAt + kForBarriers;
  static_assert(kUnits >= 3 && kBytes <= kMaxTallShared && 16 * (kUnits + kWeightStages) <= static_cast<int>(kForBarriers));
};

}  // namespace lockstep::kernels
