// What the output parser saw besides its events; for usage numbers, logs and metrics.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep {

enum class ParserAnomaly {
  kUnclosedReasoning,   // a call began before </think>
  kStrayMarkup,         // tags or markers where none belong, left out
  kBareInvoke,          // a call outside a block
  kMissingCloser,       // a tag ended what the tags before it left open
  kInvalidJsonValue,    // a string="false" value was no JSON and became a string
  kDuplicateParameter,  // left out, the first one stands
  kMalformedArguments,  // an invoke's body was neither parameters nor a JSON object
  kUndeliveredCall,     // tools are off, the call has no name, or one call more than allowed
  kTruncatedCall,       // the output ended inside a call
  kTextAfterEnd,        // after the block of calls or the end token; left out, counted once
  kHiddenToken,         // a special token that no client should see
  kCount
};

// A short name for logs and metric labels ("duplicate_parameter").
std::string_view ParserAnomalyName(ParserAnomaly anomaly);

struct ParserStats {
  std::size_t tokens = 0;            // ids given, the end token included
  std::size_t reasoning_tokens = 0;  // of these, sampled inside the reasoning; </think> does not count
  std::array<std::size_t, static_cast<std::size_t>(ParserAnomaly::kCount)> anomalies{};

  void Count(ParserAnomaly anomaly) { ++anomalies[static_cast<std::size_t>(anomaly)]; }
  std::size_t Of(ParserAnomaly anomaly) const { return anomalies[static_cast<std::size_t>(anomaly)]; }
};

}  // namespace lockstep
