// Files the command line reads and writes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cli {

// The whole file; pipes work too. Throws InputError naming the path.
std::string ReadFile(const std::string& path);

// Token ids of a JSON file, [1, 2, 3] or {"ids": [1, 2, 3]}. Throws InputError naming file and element; the
// list may be empty.
std::vector<std::int32_t> ReadIds(const std::string& path);

// Writes to a temporary name beside `path`, which Commit renames over it; without Commit nothing is left
// behind. A path that exists and is no regular file (a pipe, /dev/null) is written directly. All functions
// throw InputError naming the path.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(std::string_view bytes);
  // Little-endian.
  void WriteFloats(std::span<const float> values);
  void Commit();

 private:
  std::string path_;
  std::string written_path_;  // path_ if written directly
  std::FILE* file_ = nullptr;
};

}  // namespace lockstep::cli
