// Data of the tokenizer's tests and benchmarks: the small tokenizer of golden/, and the real ones that
// ci/fetch_test_data.sh fetches.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/text/tokenizer.h"

namespace lockstep {

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

inline std::string SmallTokenizerPath() {
  return std::string(LOCKSTEP_SOURCE_DIR) + "/golden/tokenizer-small/tokenizer.json";
}

// What the `tokenizers` library says of it.
inline const nlohmann::json& SmallTokenizerCases() {
  static const auto cases =
      nlohmann::json::parse(ReadText(std::string(LOCKSTEP_SOURCE_DIR) + "/golden/tokenizer-small/cases.json"));
  return cases;
}

inline const Tokenizer& SmallTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::FromFile(SmallTokenizerPath(), {.use_cache = false});
  return tokenizer;
}

// Path of the tokenizer.json of "v4" or "v41" in $LOCKSTEP_TESTDATA, else in build/testdata; nullopt if it has
// not been fetched.
inline std::optional<std::string> RealTokenizerPath(const std::string& name) {
  const char* dir = std::getenv("LOCKSTEP_TESTDATA");
  const std::string root = dir != nullptr ? dir : std::string(LOCKSTEP_SOURCE_DIR) + "/build/testdata";
  std::string path = root + "/tokenizers/" + name + "/tokenizer.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

// An empty directory, gone when this goes.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep_test.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
