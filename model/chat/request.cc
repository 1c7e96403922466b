#include "model/chat/request.h"

#include <algorithm>
#include <utility>

#include "model/chat/json_field.h"
#include "model/chat/request_messages.h"
#include "model/chat/request_thinking.h"

namespace lockstep {
namespace {

// A named choice leaves only that tool, so that the model cannot even see another.
void ChooseNamedTool(const JsonField& name, ChatRequest* request) {
  const std::string& wanted = name.AsString();
  const auto tool = std::find_if(request->tools.begin(), request->tools.end(),
                                 [&](const ChatTool& t) { return t.name == wanted; });
  if (tool == request->tools.end()) name.FailExpected("the name of a declared tool");
  request->tools = {ChatTool(*tool)};
  request->tool_choice = ToolChoice::kRequired;
}

void ReadToolChoice(const JsonField& field, ChatRequest* request) {
  if (!field.present() || request->tools.empty()) return;
  const bool named = field.value().is_object();
  const JsonField word = named ? field["type"] : field;
  const std::string& name = word.AsString();
  if (named && name == "function") return ChooseNamedTool(field["function"]["name"], request);
  if (name == "none") {
    request->tool_choice = ToolChoice::kNone;
  } else if (name == "required") {
    request->tool_choice = ToolChoice::kRequired;
  } else if (name != "auto") {
    word.FailExpected("none, auto, required or a function of the tools");
  }
}

ResponseFormat ReadResponseFormat(const JsonField& field) {
  if (!field.present()) return {};
  field.AsObject();
  const JsonField type = field["type"];
  const std::string& name = type.AsString();
  // The schema stands in json_schema (OpenAI) or beside the type (llama.cpp).
  const JsonField nested = field["json_schema"]["schema"];
  const JsonField schema = nested.present() ? nested : field["schema"];
  if (name == "text" || name == "regex" || name == "grammar") return {};
  if (name != "json_object" && name != "json_schema") type.FailExpected("text, json_object or json_schema");
  if (schema.present()) return {.kind = ResponseFormat::Kind::kJsonSchema, .schema = schema.AsObject()};
  if (name == "json_schema") nested.FailExpected("an object");
  return {.kind = ResponseFormat::Kind::kJsonObject};
}

void ReadContinuation(const JsonField& body, ChatRequest* request) {
  request->add_generation_prompt = body["add_generation_prompt"].BoolOr(true);
  if (!body["continue_final_message"].BoolOr(false)) return;
  if (request->messages.empty() || request->messages.back().role != ChatRole::kAssistant ||
      !request->messages.back().tool_calls.empty()) {
    body["continue_final_message"].Fail("expected an assistant message without tool_calls at the end");
  }
  request->messages.back().prefix = true;
}

}  // namespace

ChatRequest ParseChatRequest(std::string_view body, const ChatParseOptions& options) {
  return ParseChatRequest(ReadJson(body), options);
}

ChatRequest ParseChatRequest(const Json& body, const ChatParseOptions& options) {
  if (!body.is_object()) {
    throw RequestError("request body", "expected a JSON object, got " + std::string(JsonKindName(body.kind)));
  }
  const JsonField root(&body, "");
  ChatRequest request;
  request.messages = ReadMessages(root["messages"], options);
  request.tools = ReadTools(root["tools"]);
  ReadToolChoice(root["tool_choice"], &request);
  request.parallel_tool_calls = root["parallel_tool_calls"].BoolOr(true);
  const ThinkingChoice thinking = ReadThinking(root);
  request.thinking = thinking.on;
  request.effort = thinking.effort;
  request.response_format = ReadResponseFormat(root["response_format"]);
  ReadContinuation(root, &request);
  return request;
}

}  // namespace lockstep
