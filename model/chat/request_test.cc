// Oracles: the OpenAI request format and spec page encoding.md sections 4 to 7; errors as issue text words
// them.
#include "model/chat/request.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

using Level = ReasoningEffort::Level;

// The error of a request whose messages are `messages`, with more fields.
std::string ErrorOf(const std::string& messages, const std::string& more = "",
                    const ChatParseOptions& options = {}) {
  try {
    ParseChatRequest("{\"messages\":" + messages + (more.empty() ? "" : "," + more) + "}", options);
  } catch (const RequestError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(error.param() + ": "));
    return error.what();
  }
  return "no error";
}

const std::string kUser = R"([{"role":"user","content":"hi"}])";

ChatRequest WithFields(const std::string& fields) {
  return ParseChatRequest("{\"messages\":" + kUser + "," + fields + "}");
}

TEST(ChatRequestTest, ErrorsNameMessageAndField) {
  EXPECT_EQ(ErrorOf("[]"), "messages: expected an array with at least one message, got an array");
  EXPECT_EQ(ErrorOf("\"x\""), "messages: expected an array, got \"x\"");
  EXPECT_EQ(ErrorOf(R"([{"role":"user","content":"a"},{"role":"function","content":"b"}])"),
            "messages[1].role: expected system, developer, user, assistant, tool or latest_reminder, got "
            "\"function\"");
  EXPECT_EQ(ErrorOf(R"([{"content":"b"}])"), "messages[0].role: expected a string, got nothing");
  EXPECT_EQ(ErrorOf("[7]"), "messages[0]: expected an object, got a number");
  EXPECT_EQ(ErrorOf(R"([{"role":"user","content":7}])"),
            "messages[0].content: expected a string or an array of content parts, got a number");
  EXPECT_EQ(ErrorOf(R"([{"role":"user"}])"),
            "messages[0].content: expected a string or an array of content parts, got nothing");
  EXPECT_EQ(ErrorOf(R"([{"role":"user","content":[{"type":"text","text":5}]}])"),
            "messages[0].content[0].text: expected a string, got a number");
  EXPECT_EQ(ErrorOf(R"([{"role":"assistant"}])"),
            "messages[0].content: expected content, tool_calls or reasoning_content in an assistant message, "
            "got nothing");
  EXPECT_EQ(ErrorOf(R"([{"role":"user","content":"x","task":"fly"}])"),
            "messages[0].task: expected action, query, authority, domain, title or read_url, got \"fly\"");
  EXPECT_EQ(ErrorOf(R"([{"role":"user","content":"x","prefix":true}])"),
            "messages[0].prefix: only an assistant message can be continued");
  EXPECT_EQ(ErrorOf(R"([{"role":"assistant","content":"x","prefix":true},{"role":"user","content":"y"}])"),
            "messages[0].prefix: only the last message can be continued");
  EXPECT_EQ(ErrorOf(kUser, R"("continue_final_message":true)"),
            "continue_final_message: expected an assistant message without tool_calls at the end");
}

TEST(ChatRequestTest, BodyMustBeAnObject) {
  EXPECT_THROW(ParseChatRequest("[]"), RequestError);
  EXPECT_THROW(ParseChatRequest(""), RequestError);
  EXPECT_THROW(ParseChatRequest("{}"), RequestError);
}

TEST(ChatRequestTest, ToolResultsNeedACall) {
  const std::string call = R"({"role":"assistant","content":null,"tool_calls":[)"
                           R"({"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_EQ(
      ErrorOf(R"([{"role":"user","content":"x"},{"role":"tool","tool_call_id":"a","content":"r"}])"),
      "messages[1].role: a tool result without a call: the assistant message before it has no tool_calls");
  EXPECT_EQ(
      ErrorOf("[" + call + R"(,{"role":"tool","tool_call_id":"b","content":"r"}])"),
      "messages[1].tool_call_id: expected the id of a tool call of the assistant message before it, got \"b\"");
  EXPECT_EQ(
      ErrorOf(
          "[" + call +
          R"(,{"role":"tool","tool_call_id":"a","content":"r"},{"role":"tool","tool_call_id":"a","content":"r"}])"),
      "messages[2].tool_call_id: a second result for one tool call");
  EXPECT_EQ(
      ErrorOf("[" + call +
              R"(,{"role":"assistant","content":"z"},{"role":"tool","tool_call_id":"a","content":"r"}])"),
      "messages[2].role: a tool result without a call: the assistant message before it has no tool_calls");
  // Accepted: a text between call and result, a call without a result, ids missing on one side.
  EXPECT_EQ(ErrorOf("[" + call +
                    R"(,{"role":"user","content":"w"},{"role":"tool","tool_call_id":"a","content":"r"}])"),
            "no error");
  EXPECT_EQ(ErrorOf("[" + call + R"(,{"role":"user","content":"never mind"}])"), "no error");
  EXPECT_EQ(ErrorOf("[" + call + R"(,{"role":"tool","content":"r"}])"), "no error");
  EXPECT_EQ(ErrorOf("[" + call + R"(,{"role":"tool","content":"r"},{"role":"tool","content":"r"}])"),
            "messages[2].tool_call_id: a second result for one tool call");
}

TEST(ChatRequestTest, ArgumentsAreNormalisedOrRefused) {
  const auto with = [](const std::string& arguments) {
    return R"([{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":)" +
           arguments + "}}]}]";
  };
  const auto read = [&](const std::string& arguments) {
    return SpacedJson(ParseChatRequest(std::string("{\"messages\":") + with(arguments) + "}")
                          .messages[1]
                          .tool_calls[0]
                          .arguments);
  };
  EXPECT_EQ(read(R"("{\"b\":1.0,\"a\":2}")"), R"({"b": 1.0, "a": 2})");
  EXPECT_EQ(read(R"({"b":1.0,"a":2})"), R"({"b": 1.0, "a": 2})") << "an object as itself";
  EXPECT_EQ(read(R"("\"{\\\"b\\\":1}\"")"), R"({"b": 1})") << "encoded twice";
  for (const char* empty : {R"("")", R"(" ")", "null", R"("null")", R"("{}")", "{}"})
    EXPECT_EQ(read(empty), "{}") << empty;
  EXPECT_EQ(ErrorOf(with("\"[1]\"")),
            "messages[1].tool_calls[0].function.arguments: expected a JSON object, as text or as itself, got "
            "\"[1]\"");
  EXPECT_EQ(ErrorOf(with(R"("{\"a\": tru")")),
            "messages[1].tool_calls[0].function.arguments.a: expected a JSON value (byte 6)");
  EXPECT_EQ(ErrorOf(with("5")).substr(0, 45), "messages[1].tool_calls[0].function.arguments:");
}

TEST(ChatRequestTest, ToolCallsAreChecked) {
  const auto with = [](const std::string& calls) {
    return R"([{"role":"assistant","content":"","tool_calls":)" + calls + "}]";
  };
  EXPECT_EQ(ErrorOf(with(R"([{"id":"a","function":{"name":"f"}},{"id":"a","function":{"name":"f"}}])")),
            "messages[0].tool_calls[1].id: expected an id of its own for each call, got \"a\"");
  EXPECT_EQ(ErrorOf(with(R"([{"id":"a","function":{"name":"a\"b"}}])")).substr(0, 45),
            "messages[0].tool_calls[0].function.name: expe");
  EXPECT_EQ(ErrorOf(with(R"([{"id":"a","type":"custom","function":{"name":"f"}}])")),
            "messages[0].tool_calls[0].type: expected \"function\", got \"custom\"");
  EXPECT_EQ(ErrorOf(with("[]")), "no error");
}

TEST(ChatRequestTest, ContentPartsAreJoined) {
  const ChatRequest request = ParseChatRequest(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"input_text","text":"c"},{"type":"audio"}]}]})");
  EXPECT_EQ(request.messages[0].content, "a\n\nb\n\nc\n\n[Unsupported audio]");
}

TEST(ChatRequestTest, ImagesAreRefusedOrLeftOut) {
  const std::string image =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}])";
  EXPECT_EQ(ErrorOf(image), "messages[0].content[1]: images are not supported, expected text parts only");
  const ChatRequest request = ParseChatRequest("{\"messages\":" + image + "}", {.omit_images = true});
  EXPECT_EQ(request.messages[0].content, "a\n\n[image omitted]");
}

TEST(ChatRequestTest, DeveloperMeansSystem) {
  const char* body = R"({"messages":[{"role":"developer","content":"d"}]})";
  EXPECT_EQ(ParseChatRequest(body).messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(ParseChatRequest(body, {.developer_is_user_turn = true}).messages[0].role, ChatRole::kDeveloper);
}

TEST(ChatRequestTest, SystemTextIsCleaned) {
  const auto content = [](const std::string& text) {
    const ChatRequest request = ParseChatRequest(R"({"messages":[{"role":"system","content":")" + text +
                                                 R"("},{"role":"user","content":"u"}]})");
    return request.messages.size() == 2 ? request.messages[0].content : "left out";
  };
  EXPECT_EQ(content("x-anthropic-billing-header: cch=0aaa9;\\n\\n You are X"), "You are X");
  EXPECT_EQ(content("x-anthropic-billing-header: cch=0aaa9; You are X"), "You are X");
  EXPECT_EQ(content("x-anthropic-billing-header: cch=0aaa9;"), "left out");
  EXPECT_EQ(content(""), "left out");
  EXPECT_EQ(content("keep x-anthropic-billing-header\\n"), "keep x-anthropic-billing-header\n");
}

TEST(ChatRequestTest, ReasoningHasTwoNames) {
  const ChatRequest request = ParseChatRequest(
      R"({"messages":[{"role":"assistant","content":"","reasoning":"r"},{"role":"assistant","content":"","reasoning":"r","reasoning_content":"c"},{"role":"assistant","content":"","reasoning_content":null}]})");
  EXPECT_EQ(request.messages[0].reasoning, "r");
  EXPECT_EQ(request.messages[1].reasoning, "c");
  EXPECT_EQ(request.messages[2].reasoning, std::nullopt);
}

struct ThinkingCase {
  const char* fields;
  bool on;
  Level level;
};

TEST(ChatRequestTest, ThinkingFieldsHaveAnOrder) {
  const ThinkingCase cases[] = {
      {R"("x":1)", true, Level::kHigh},
      {R"("thinking":{"type":"disabled"},"reasoning_effort":"max")", false, Level::kMax},
      {R"("thinking":{"type":"enabled","budget_tokens":9},"reasoning_effort":"none")", true, Level::kHigh},
      {R"("thinking":{"type":"adaptive"},"output_config":{"effort":"low"})", true, Level::kLow},
      {R"("reasoning_effort":"none")", false, Level::kHigh},
      {R"("reasoning_effort":"off")", false, Level::kHigh},
      {R"("reasoning_effort":"false")", false, Level::kHigh},
      {R"("reasoning_effort":"disabled")", false, Level::kHigh},
      {R"("reasoning_effort":false)", false, Level::kHigh},
      {R"("reasoning_effort":"minimal")", true, Level::kLow},
      {R"("reasoning_effort":"medium")", true, Level::kHigh},
      {R"("reasoning_effort":"xhigh")", true, Level::kXhigh},
      {R"("reasoning_effort":"ultra")", true, Level::kMax},
      {R"("reasoning_effort":"auto")", true, Level::kHigh},
      {R"("reasoning_effort":"default","enable_thinking":false)", false, Level::kHigh},
      {R"("reasoning_effort":null,"reasoning":{"effort":"max"})", true, Level::kMax},
      {R"("reasoning_effort":"high","enable_thinking":false)", true, Level::kHigh},
      {R"("chat_template_kwargs":{"enable_thinking":false})", false, Level::kHigh},
      {R"("chat_template_kwargs":{"thinking":true,"reasoning_effort":"max"})", true, Level::kMax},
      {R"("chat_template_kwargs":{"thinking_mode":"chat"})", false, Level::kHigh},
      {R"("enable_thinking":false)", false, Level::kHigh},
  };
  for (const ThinkingCase& item : cases) {
    const ChatRequest request = WithFields(item.fields);
    EXPECT_EQ(request.thinking, item.on) << item.fields;
    EXPECT_EQ(request.effort.level, item.level) << item.fields;
  }
  const ChatRequest number = WithFields(R"("reasoning_effort":42)");
  EXPECT_EQ(number.effort.level, Level::kNumber);
  EXPECT_EQ(number.effort.number, 42);
}

TEST(ChatRequestTest, UnknownEffortNamesTheField) {
  EXPECT_EQ(ErrorOf(kUser, R"("reasoning_effort":"huge")"),
            "reasoning_effort: expected none, minimal, low, medium, high, xhigh, max, ultra, auto or a number "
            "from 1 to "
            "100, got \"huge\"");
  for (const char* value : {"0", "101", "-1", "1.5", "[]", "1e1"}) {
    EXPECT_NE(ErrorOf(kUser, std::string("\"reasoning_effort\":") + value), "no error") << value;
  }
  EXPECT_EQ(ErrorOf(kUser, R"("thinking":{"type":"on"})"),
            "thinking.type: expected enabled, disabled, adaptive or auto, got \"on\"");
  EXPECT_EQ(ErrorOf(kUser, R"("chat_template_kwargs":{"thinking":"yes"})"),
            "chat_template_kwargs.thinking: expected a boolean, got \"yes\"");
}

TEST(ChatRequestTest, ToolsAndChoice) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","description":null,"parameters":{"z":1,"a":2}}}])";
  ChatRequest request = WithFields(tools);
  ASSERT_EQ(request.tools.size(), 2u);
  EXPECT_EQ(request.tools[0].description, "");
  EXPECT_EQ(SpacedJson(request.tools[0].parameters), "{}");
  EXPECT_EQ(SpacedJson(request.tools[1].parameters), R"({"z": 1, "a": 2})");
  EXPECT_TRUE(request.ToolsActive());
  EXPECT_FALSE(WithFields(tools + R"(,"tool_choice":"none")").ToolsActive());
  EXPECT_EQ(WithFields(tools + R"(,"tool_choice":"required")").tool_choice, ToolChoice::kRequired);
  request = WithFields(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})");
  ASSERT_EQ(request.tools.size(), 1u);
  EXPECT_EQ(request.tools[0].name, "g");
  EXPECT_EQ(request.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(ErrorOf(kUser, tools + R"(,"tool_choice":{"type":"function","function":{"name":"h"}})"),
            "tool_choice.function.name: expected the name of a declared tool, got \"h\"");
  EXPECT_EQ(ErrorOf(kUser, tools + R"(,"tool_choice":"always")"),
            "tool_choice: expected none, auto, required or a function of the tools, got \"always\"");
  EXPECT_EQ(ErrorOf(kUser, R"("tools":[{"type":"web_search"}])"),
            "tools[0].type: expected \"function\", got \"web_search\"");
  EXPECT_EQ(ErrorOf(kUser, R"("tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}])"),
            "tools[1].function.name: expected a name of its own for each tool, got \"f\"");
  EXPECT_EQ(ErrorOf(kUser, R"("tools":[{"function":{"name":"f","parameters":[]}}])"),
            "tools[0].function.parameters: expected an object, got an array");
}

TEST(ChatRequestTest, ResponseFormats) {
  using Kind = ResponseFormat::Kind;
  EXPECT_EQ(WithFields(R"("response_format":null)").response_format.kind, Kind::kText);
  EXPECT_EQ(WithFields(R"("response_format":{"type":"text"})").response_format.kind, Kind::kText);
  EXPECT_EQ(WithFields(R"("response_format":{"type":"json_object"})").response_format.kind, Kind::kJsonObject);
  for (const char* fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"b":1,"a":2}}})",
        R"("response_format":{"type":"json_schema","schema":{"b":1,"a":2}})",
        R"("response_format":{"type":"json_object","schema":{"b":1,"a":2}})"}) {
    const ResponseFormat format = WithFields(fields).response_format;
    EXPECT_EQ(format.kind, Kind::kJsonSchema) << fields;
    EXPECT_EQ(SpacedJson(format.schema), R"({"b": 1, "a": 2})") << fields;
  }
  EXPECT_EQ(ErrorOf(kUser, R"("response_format":{"type":"xml"})"),
            "response_format.type: expected text, json_object or json_schema, got \"xml\"");
  EXPECT_EQ(ErrorOf(kUser, R"("response_format":{"type":"json_schema"})"),
            "response_format.json_schema.schema: expected an object, got nothing");
}

}  // namespace
}  // namespace lockstep
