#include "cli/files.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include "model/error.h"
#include "model/json_text.h"

namespace lockstep::cli {
namespace {

[[noreturn]] void FailOn(const std::string& path, const std::string& action) {
  throw InputError(path + ": cannot " + action + ": " + std::strerror(errno));
}

}  // namespace

std::string ReadFile(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw InputError(path + ": is a directory, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) FailOn(path, "open");
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) FailOn(path, "read");
  return bytes;
}

std::vector<std::int32_t> ReadIds(const std::string& path) {
  const nlohmann::json root = ParseJson(ReadFile(path), path);
  const bool wrapped = root.is_object() && root.contains("ids");
  const nlohmann::json& list = wrapped ? root["ids"] : root;
  if (!list.is_array()) throw InputError(path + ": expected a list of token ids or {\"ids\": [...]}");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list) {
    constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
    // A number beyond int64 reads as unsigned or floating.
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > kMaxId) {
      throw InputError(path + ": ids[" + std::to_string(ids.size()) + "]: expected a token id, found " +
                       PrintableJson(id));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

OutputFile::OutputFile(const std::string& path) : path_(path), written_path_(path) {
  const auto status = std::filesystem::status(path);
  if (std::filesystem::is_directory(status)) throw InputError(path + ": is a directory, expected a file");
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    written_path_ += ".tmp." + std::to_string(getpid());
  }
  file_ = std::fopen(written_path_.c_str(), "wb");
  if (file_ == nullptr) FailOn(path_, "create");
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_path_ != path_) std::remove(written_path_.c_str());
}

void OutputFile::Write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) FailOn(path_, "write");
}

void OutputFile::WriteFloats(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  Write({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

void OutputFile::Commit() {
  const int closed = std::fclose(file_);
  file_ = nullptr;
  if (closed != 0) {
    const int error = errno;
    if (written_path_ != path_) std::remove(written_path_.c_str());
    errno = error;
    FailOn(path_, "write");
  }
  if (written_path_ != path_ && std::rename(written_path_.c_str(), path_.c_str()) != 0)
    FailOn(path_, "rename to");
}

}  // namespace lockstep::cli
