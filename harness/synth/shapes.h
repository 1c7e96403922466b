// The models that `lockstep synth` can make up.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/config.h"

namespace lockstep::synth {

enum class Shape {
  kV41Flash,  // "v4.1-flash", the published sizes
  kV4Flash,   // "v4-flash"
  kTinyV41,   // "tiny-v41": every mechanism of V4.1 in a few megabytes
  kTinyV4,    // "tiny-v4"
};

// Throws InputError that begins with `flag` and lists the names.
Shape ParseShape(std::string_view name, std::string_view flag);

std::string_view NameOf(Shape shape);

struct ShapeOptions {
  int layers = 0;  // 0: as many as the model has
  // V4.1: where the search for Engram's bucket primes starts, about the rows of a table divided by its columns.
  // -1: the shape's default (full shape: kDefaultEngramBase, not the published 16,000,000, whose tables take
  // 190 GiB); 0: no Engram.
  std::int64_t engram_base = -1;
};

inline constexpr std::int64_t kDefaultEngramBase = 100'000;

// Fewer layers than the model has keep its plan in proportion: the two window layers first, then V4.1's ratio-2
// half with its three kv sources and its ratio-1 half with one; V4's alternating ratios. Throws InputError for
// a depth or base that is out of range. vocab_size and the Engram vocabulary are those of the published
// tokenizer, or 512 for the tiny shapes.
ModelConfig MakeConfig(Shape shape, const ShapeOptions& options);

// Fits the config to a tokenizer with that many ids, of which Engram tells `compressed` apart (ignored without
// Engram).
void SetVocabulary(int vocab_size, std::int32_t compressed, ModelConfig* config);

}  // namespace lockstep::synth
