// In which form each matrix of a synthetic checkpoint is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/exl3_layout.h"

namespace lockstep::synth {

enum class MatrixRole {
  kAttention,  // projections, compressors, index queries
  kIndexKey,   // V4.1's indexer.wk
  kRoutedExpert,
  kSharedExpert,
  kHead,
  kEngram,
};

struct Exl3Form {
  Codebook codebook = Codebook::kMul1;
  int bits_x2 = 0;
};

// What --bits and --codebook say.
class MatrixPlan {
 public:
  // bits: "native" (the published FP8, FP4 and BF16); "2.9" (the layout of the published 2.9-bit pack of
  // V4.1-Flash); "mixed" (every matrix draws its own rate, half-integer ones with mul1 only); or a rate from 1
  // to 8, or 1.5, 2.5, 3.5, which routed experts get, shared experts one, attention two and the head three bits
  // more. codebook: "mul1", "mcg", "3inst", or "mixed" (every matrix draws its own). Throws InputError naming
  // the flag.
  MatrixPlan(std::string_view bits, std::string_view codebook, int layers, std::uint64_t seed);

  bool native() const { return kind_ == Kind::kNative; }
  const std::string& bits_name() const { return bits_name_; }

  // The form of the matrix of that name, not native. `layer` -1: outside the layers.
  Exl3Form FormOf(MatrixRole role, int layer, const std::string& name) const;

 private:
  enum class Kind { kNative, kUniform, kPack29, kMixed };

  int Pack29Bits(MatrixRole role, int layer) const;
  int UniformBitsX2(MatrixRole role) const;

  Kind kind_ = Kind::kNative;
  std::string bits_name_;
  int bits_x2_ = 0;                   // kUniform
  std::optional<Codebook> codebook_;  // empty: mixed
  int layers_;
  std::uint64_t seed_;
};

}  // namespace lockstep::synth
