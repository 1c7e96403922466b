#include "model/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "model/error.h"
#include "model/json_text.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Walks the header's events. A tree would hide repeated names and lose the order, and the fixed structure
// bounds the depth.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::vector<HeaderEntry> TakeEntries() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        return Go(State::kTensors);
      case State::kEntry:
        return Go(State::kFields);
      case State::kMetadata:
        return Go(State::kMetadataFields);
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::kTensors:
        return StartEntry(name);
      case State::kFields:
        return StartField(name);
      default:  // kMetadataFields; the parser reports keys in objects only
        return Go(State::kMetadataValue);
    }
  }

  bool end_object() override {
    if (state_ == State::kTensors) return Go(State::kEnd);
    if (state_ == State::kFields) FinishEntry();
    return Go(State::kTensors);
  }

  bool start_array(std::size_t) override {
    return state_ == State::kList ? Go(State::kListItems) : Unexpected("an array");
  }

  bool end_array() override { return Go(State::kFields); }

  bool string(string_t& value) override {
    if (state_ == State::kMetadataValue) return Go(State::kMetadataFields);
    if (state_ != State::kDType) return Unexpected("a string");
    entries_.back().dtype = value;
    return Go(State::kFields);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kListItems) return Unexpected("a number");
    list_->push_back(value);
    return true;
  }

  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fraction or a number beyond 2^64");
  }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool null() override { return Unexpected("null"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(std::size_t byte, const std::string&, const json::exception&) override {
    throw InputError(file_ + ": safetensors header: malformed JSON at byte " + std::to_string(byte));
  }

 private:
  enum class State {
    kStart,
    kTensors,
    kEntry,
    kFields,
    kDType,
    kList,
    kListItems,
    kMetadata,
    kMetadataFields,
    kMetadataValue,
    kEnd
  };

  bool Go(State state) {
    state_ = state;
    return true;
  }

  [[noreturn]] void Fail(const std::string& what) const {
    std::string where = file_ + ": safetensors header: ";
    if (!entries_.empty()) where += "tensor '" + Printable(entries_.back().name) + "': ";
    throw InputError(where + what);
  }

  [[noreturn]] bool Unexpected(const std::string& found) const {
    switch (state_) {
      case State::kStart:
        Fail("expected an object, found " + found);
      case State::kEntry:
        Fail("expected an object with dtype, shape and data_offsets, found " + found);
      case State::kDType:
        Fail("dtype: expected a string, found " + found);
      case State::kList:
      case State::kListItems:
        Fail(field_ + ": expected a list of non-negative integers, found " + found);
      default:
        throw InputError(file_ + ": safetensors header: __metadata__: expected an object of strings, found " +
                         found);
    }
  }

  bool StartEntry(const std::string& name) {
    if (!names_.insert(name).second) {
      throw InputError(file_ + ": safetensors header: tensor '" + Printable(name) + "' appears twice");
    }
    if (name == "__metadata__") return Go(State::kMetadata);
    entries_.push_back({.name = name});
    fields_.clear();
    return Go(State::kEntry);
  }

  bool StartField(const std::string& name) {
    field_ = name;
    if (!fields_.insert(name).second) Fail("field '" + Printable(name) + "' appears twice");
    if (name == "dtype") return Go(State::kDType);
    if (name != "shape" && name != "data_offsets") Fail("unknown field '" + Printable(name) + "'");
    list_ = name == "shape" ? &entries_.back().shape : &offsets_;
    list_->clear();
    return Go(State::kList);
  }

  void FinishEntry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) Fail(std::string("field '") + field + "' is missing");
    }
    if (offsets_.size() != 2)
      Fail("data_offsets: expected two integers, found " + std::to_string(offsets_.size()));
    entries_.back().begin = offsets_[0];
    entries_.back().end = offsets_[1];
  }

  const std::string& file_;
  State state_ = State::kStart;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;  // seen in the open entry
  std::string field_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t>* list_ = nullptr;
};

}  // namespace

std::vector<HeaderEntry> ParseSafetensorsHeader(std::string_view text, const std::string& file) {
  // The parser would take a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw InputError(file + ": safetensors header: malformed JSON: NUL at byte " + std::to_string(nul));
  }
  HeaderReader reader(file);
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.TakeEntries();
}

}  // namespace lockstep
