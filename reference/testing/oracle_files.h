// Where the oracles lie and how their files are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace lockstep::reference {

// golden/oracles/NAME of this source tree.
std::string OraclePath(const std::string& name);

// ../shared/oracles/NAME: data that a clone of the project need not have.
std::string OptionalOraclePath(const std::string& name);

// A whole file as little-endian elements of T. Throws InputError naming the file if it cannot be read.
std::string ReadFileBytes(const std::string& path);
template <typename T>
std::vector<T> ReadFileAs(const std::string& path) {
  const std::string bytes = ReadFileBytes(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::copy_n(bytes.data(), values.size() * sizeof(T), reinterpret_cast<char*>(values.data()));
  return values;
}

// The token ids of DIR/ids.json, a JSON list.
std::vector<std::int32_t> ReadIds(const std::string& dir);

std::shared_ptr<const Checkpoint> OpenShared(const std::string& dir);

// Reads a file of consecutive records.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path) : bytes_(ReadFileBytes(path)) {}

  bool AtEnd() const { return position_ == bytes_.size(); }
  template <typename T>
  std::vector<T> Read(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    const std::size_t size = values.size() * sizeof(T);
    Require(size);
    std::copy_n(bytes_.data() + position_, size, reinterpret_cast<char*>(values.data()));
    position_ += size;
    return values;
  }
  std::int32_t ReadInt() { return Read<std::int32_t>(1)[0]; }

 private:
  void Require(std::size_t size) const;

  std::string bytes_;
  std::size_t position_ = 0;
};

}  // namespace lockstep::reference
