// Runs the output parser over one output in many splits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/chat/output_parser.h"

namespace lockstep {

struct ParsedRun {
  CompletedOutput output;
  ParserStats stats;
  std::vector<OutputEvent> events;
};

// Ids of a text in the small tokenizer, spelled control tokens as their ids: by BPE, or one id a byte.
std::vector<std::int32_t> MergedIds(const std::string& text);
std::vector<std::int32_t> ByteIds(const std::string& text);

ParsedRun ParseIds(const std::vector<std::int32_t>& ids, OutputParserOptions options,
                   OutputEnd end = OutputEnd::kEndToken);
// Spelled control tokens count.
ParsedRun ParseText(const std::vector<std::string>& chunks, OutputParserOptions options,
                    OutputEnd end = OutputEnd::kEndToken);

// One line with everything that a client gets: "reasoning|content|name(arguments) name(arguments)|finish".
std::string Summary(const CompletedOutput& output);

// Parses `text` as merged ids, as one id a byte, as whole text, byte by byte and cut at every place; expects
// the same summary and anomalies each time and returns the first run.
ParsedRun ParseEverySplit(const std::string& text, const OutputParserOptions& options,
                          OutputEnd end = OutputEnd::kEndToken);

}  // namespace lockstep
