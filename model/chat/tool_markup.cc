#include "model/chat/tool_markup.h"

#include <string>

#include "model/chat/control_tokens.h"

namespace lockstep {
namespace {

// Writes tags of one dialect.
class Markup {
 public:
  Markup(ChatDialect dialect, Prompt* prompt) : tags_(TagsOf(dialect)), prompt_(prompt) {}

  const DsmlTags& tags() const { return tags_; }

  Markup& Text(std::string_view text) {
    prompt_->Text(text);
    return *this;
  }
  // "<｜DSML｜TAG"
  Markup& Open(std::string_view tag) { return Tag("<", tag); }
  // "</｜DSML｜TAG"
  Markup& Close(std::string_view tag) { return Tag("</", tag); }
  Markup& Control(std::string_view token) {
    prompt_->Control(token);
    return *this;
  }

 private:
  Markup& Tag(std::string_view bracket, std::string_view tag) {
    prompt_->Text(bracket);
    prompt_->Control(kDsmlText);
    prompt_->Text(tag);
    return *this;
  }

  DsmlTags tags_;
  Prompt* prompt_;
};

void AppendCallExample(Markup* out) {
  const DsmlTags& tags = out->tags();
  out->Open(tags.block).Text(">\n");
  out->Open(tags.invoke).Text(" name=\"$TOOL_NAME\">\n");
  out->Open(tags.parameter).Text(" name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
  out->Close(tags.parameter).Text(">\n...\n").Close(tags.invoke).Text(">\n");
  out->Open(tags.invoke).Text(" name=\"$TOOL_NAME2\">\n...\n").Close(tags.invoke).Text(">\n");
  out->Close(tags.block).Text(">\n\n");
}

void AppendThinkingRules(Markup* out) {
  out->Text("If thinking_mode is enabled (triggered by ").Control(kThinkText);
  out->Text("), you MUST output your complete reasoning inside ")
      .Control(kThinkText)
      .Text("...")
      .Control(kThinkEndText);
  out->Text(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ")
      .Control(kThinkEndText);
  out->Text(" with tool calls or final response.\n\n");
}

// The three keys that the model was shown, in this order; the schema as the client wrote it.
std::string ToolSchemaLine(const ChatTool& tool) {
  std::string line = "{\"name\": ";
  AppendJsonString(tool.name, &line);
  line += ", \"description\": ";
  AppendJsonString(tool.description, &line);
  line += ", \"parameters\": ";
  AppendSpacedJson(tool.parameters, &line);
  line += "}\n";
  return line;
}

void AppendParameter(const JsonMember& parameter, Markup* out) {
  const bool is_string = parameter.value.is_string();
  out->Open(out->tags().parameter).Text(" name=\"").Text(parameter.key);
  out->Text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  out->Text(is_string ? parameter.value.text : SpacedJson(parameter.value));
  out->Close(out->tags().parameter).Text(">\n");
}

}  // namespace

void AppendToolSection(std::span<const ChatTool> tools, ChatDialect dialect, Prompt* prompt) {
  Markup out(dialect, prompt);
  out.Text(
      "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools "
      "by writing a "
      "\"");
  out.Open(out.tags().block).Text(">\" block like the following:\n\n");
  AppendCallExample(&out);
  out.Text(
      "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
      "booleans, "
      "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n");
  AppendThinkingRules(&out);
  out.Text("### Available Tool Schemas\n\n");
  for (const ChatTool& tool : tools) out.Text(ToolSchemaLine(tool));
  out.Text(
      "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n");
}

void AppendToolCalls(std::span<const ChatToolCall> calls, ChatDialect dialect, Prompt* prompt) {
  AppendToolBlockOpener(dialect, prompt);
  Markup out(dialect, prompt);
  for (const ChatToolCall& call : calls) {
    out.Open(out.tags().invoke).Text(" name=\"").Text(call.name).Text("\">\n");
    for (const JsonMember& parameter : call.arguments.members) AppendParameter(parameter, &out);
    // V4.1 has an empty line where the parameters would be.
    if (call.arguments.members.empty() && IsV41(dialect)) out.Text("\n");
    out.Close(out.tags().invoke).Text(">\n");
  }
  out.Close(out.tags().block).Text(">");
}

void AppendToolBlockOpener(ChatDialect dialect, Prompt* prompt) {
  Markup out(dialect, prompt);
  out.Text("\n\n").Open(out.tags().block).Text(">\n");
}

}  // namespace lockstep
