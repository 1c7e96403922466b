// Recorded results of the small models in golden/: greedy tokens, their margins, and a digest of the logits of
// every position.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/engine.h"

namespace lockstep::golden {

inline constexpr std::int64_t kGeneratedTokens = 32;

struct GoldenRun {
  std::vector<std::int32_t> ids;  // generated after the prompt; an end-of-sequence token does not stop it
  std::vector<float> margins;     // of each generated token: largest logit minus the second
  std::vector<std::string>
      digests;  // hexadecimal XXH3-64 of the row of fp32 logits, of all positions but the last token's

  bool operator==(const GoldenRun&) const = default;
};

// Processes the prompt `chunk` tokens at a time and generates kGeneratedTokens greedily. Bits do not depend on
// `chunk`.
GoldenRun RunGreedy(Engine& engine, std::span<const std::int32_t> prompt, std::int64_t chunk);

// One line that says where `actual` first differs from `expected`; empty if nowhere.
std::string Difference(const GoldenRun& expected, const GoldenRun& actual);

// DIR/prompts/tiny.json.
std::vector<std::int32_t> LoadPrompt(const std::string& dir);

// The recorded run of a model and profile: DIR/tokens/MODEL.json and DIR/digests/MODEL.json. Throws InputError
// naming the file if it lacks the profile or was made by another version of the numerics contract.
GoldenRun LoadRun(const std::string& dir, const std::string& model, const std::string& profile);

// Writes it there, beside the runs of other profiles.
void SaveRun(const std::string& dir, const std::string& model, const std::string& profile,
             const GoldenRun& run);

}  // namespace lockstep::golden
