// A chat request from a stranger: either refused, or every dialect renders it, the segments cover the text, and
// control tokens stand only where the renderer put them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "harness/fuzz/fuzz_target.h"
#include "model/chat/encoder.h"
#include "model/chat/json.h"
#include "model/text/utf8.h"

namespace {

using namespace lockstep;

void CheckJson(std::string_view text) {
  const Json value = ReadJson(text);
  const std::string written = SpacedJson(value);
  LOCKSTEP_CHECK(FindInvalidUtf8(written) == std::string_view::npos);
  LOCKSTEP_CHECK(SpacedJson(ReadJson(written)) == written);
}

void CheckPrompt(const Prompt& prompt) {
  std::size_t at = 0;
  bool text_before = false;
  for (const PromptSegment& segment : prompt.segments()) {
    LOCKSTEP_CHECK(segment.begin == at && segment.end > at);
    LOCKSTEP_CHECK(segment.control || !text_before);
    text_before = !segment.control;
    at = segment.end;
  }
  LOCKSTEP_CHECK(at == prompt.text().size());
  LOCKSTEP_CHECK(FindInvalidUtf8(prompt.text()) == std::string_view::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  AllowInputError([&] { CheckJson(text); });
  AllowInputError([&] {
    const ChatRequest request = ParseChatRequest(text);
    for (const ChatDialect dialect : kAllChatDialects) {
      AllowInputError([&] { CheckPrompt(RenderChat(request, dialect)); });
    }
  });
  return 0;
}
