// Writes a checkpoint of a published shape, or a tiny one, with random weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "harness/synth/shapes.h"

namespace lockstep::synth {

struct SynthOptions {
  Shape shape = Shape::kTinyV41;
  ShapeOptions shape_options;
  std::string bits = "2.9";       // MatrixPlan
  std::string codebook = "mul1";  // MatrixPlan
  double routing_skew = 0.5;      // share of picks that the more popular half of the experts gets
  std::uint64_t seed = 1;
  std::string tokenizer;  // tokenizer.json to copy, whose vocabulary the model takes; empty: none
  std::int64_t shard_bytes = std::int64_t{4} << 30;
};

// Throws InputError that begins with `name` unless the share is one a router can be made for.
void CheckRoutingSkew(double skew, const std::string& name);

// Makes directory `out`, which must not exist or be empty: config.json, safetensors (one file, or shards of
// about shard_bytes with an index) and tokenizer.json if one is given, else Engram's token map if there is an
// Engram. It appears under its name only when it is complete. Never holds more than about 100 MB. The same
// options give the same bytes on every machine. on_progress(bytes written, bytes in all) is called after each
// file. Throws InputError naming the flag or path.
void WriteCheckpoint(const SynthOptions& options, const std::string& out,
                     const std::function<void(std::int64_t, std::int64_t)>& on_progress);

}  // namespace lockstep::synth
