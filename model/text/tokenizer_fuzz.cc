// A tokenizer.json from a stranger: either refused, or whatever it says, texts come back byte for byte.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "harness/fuzz/fuzz_target.h"
#include "model/text/engram_map.h"
#include "model/text/stream_decoder.h"
#include "model/text/tokenizer.h"

namespace {

using lockstep::Tokenizer;

void CheckRoundTrip(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.Encode(text, parse_special);
    if (!parse_special) LOCKSTEP_CHECK(tokenizer.DecodeBytes(ids, false) == text);
    lockstep::StreamDecoder decoder(tokenizer, false);
    std::string streamed;
    for (const std::int32_t id : ids) {
      LOCKSTEP_CHECK(tokenizer.HasToken(id));
      streamed += decoder.Push(id);
    }
    LOCKSTEP_CHECK(streamed + decoder.Flush() == tokenizer.Decode(ids, false));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::AllowInputError([&] {
    const std::string_view json(reinterpret_cast<const char*>(data), size);
    const Tokenizer tokenizer = Tokenizer::FromJson(json, "tokenizer.json");
    const auto map = lockstep::BuildEngramTokenMap(tokenizer);
    LOCKSTEP_CHECK(map.classes >= 1 && map.classes <= tokenizer.vocab_size());
    CheckRoundTrip(tokenizer, "The river was wide <｜User｜> 12345 カ・你好\r\n\t x");
    CheckRoundTrip(tokenizer, json.substr(0, 300));
  });
  return 0;
}
