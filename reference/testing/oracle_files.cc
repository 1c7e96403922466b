#include "reference/testing/oracle_files.h"

#include <nlohmann/json.hpp>

#include "model/error.h"

namespace lockstep::reference {

std::string OraclePath(const std::string& name) {
  return std::string(LOCKSTEP_SOURCE_DIR) + "/golden/oracles/" + name;
}

std::string OptionalOraclePath(const std::string& name) {
  return std::string(LOCKSTEP_SOURCE_DIR) + "/../shared/oracles/" + name;
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::int32_t> ReadIds(const std::string& dir) {
  return nlohmann::json::parse(ReadFileBytes(dir + "/ids.json")).get<std::vector<std::int32_t>>();
}

std::shared_ptr<const Checkpoint> OpenShared(const std::string& dir) {
  return std::make_shared<const Checkpoint>(OpenCheckpoint(dir));
}

void RecordReader::Require(std::size_t size) const { LOCKSTEP_CHECK(position_ + size <= bytes_.size()); }

}  // namespace lockstep::reference
