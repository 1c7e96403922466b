// One tool call: parameters in, a JSON object out, piece by piece.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "model/chat/event_writer.h"
#include "model/chat/parser_stats.h"
#include "model/text/utf8.h"

namespace lockstep {

class CallWriter {
 public:
  CallWriter(EventWriter* events, ParserStats* stats) : events_(events), stats_(stats) {}

  // A delivered call writes events; another one is only read.
  void Begin(int index, std::string id, std::string name);
  void BeginUndelivered();

  // Names and values may be any bytes. A string is written as it comes. Other values are held until they are
  // known to be JSON; what is none becomes a string. Of parameters with one name only the first is written.
  void BeginParameter(std::string_view name, bool is_string);
  void Value(std::string_view bytes);
  void EndParameter();

  // Text outside parameters: an object there stands for all arguments if there are no parameters.
  void Body(std::string_view bytes);

  void End();

 private:
  void WriteBody();
  void WriteJsonValue();

  EventWriter* events_;
  ParserStats* stats_;
  bool delivered_ = false;
  int index_ = 0;
  std::set<std::string> names_;
  std::string body_;

  bool writing_ = false;  // inside a parameter that is written
  bool is_string_ = true;
  std::string raw_;    // a value that is not a string
  Utf8Stream string_;  // a string's last bytes while they may be part of a character
};

}  // namespace lockstep
