#include "kernels/contract/mma_oracle.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "model/error.h"

namespace lockstep {
namespace {

class ByteReader {
 public:
  explicit ByteReader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw InputError(path + ": expected the tensor core oracle, cannot open it");
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  bool AtEnd() const { return position_ == bytes_.size(); }

  template <class T>
  std::vector<T> Read(std::size_t count) {
    std::vector<T> values(count);
    LOCKSTEP_CHECK(position_ + count * sizeof(T) <= bytes_.size());
    std::memcpy(values.data(), bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
    return values;
  }

 private:
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

std::vector<MmaRecord> ReadRecords(const std::string& name, bool has_c) {
  ByteReader reader(std::string(LOCKSTEP_SOURCE_DIR) + "/golden/oracles/mma/" + name);
  std::vector<MmaRecord> records;
  while (!reader.AtEnd()) {
    const std::vector<std::int32_t> header = reader.Read<std::int32_t>(6);
    MmaRecord record;
    record.kind = header[0];
    record.distribution = header[1];
    record.m = header[2];
    record.n = header[3];
    record.k = header[4];
    record.block = header[5];
    record.is_bf16 = record.kind % 2 == 1;
    const auto m = static_cast<std::size_t>(record.m);
    const auto n = static_cast<std::size_t>(record.n);
    const auto k = static_cast<std::size_t>(record.k);
    record.a = reader.Read<std::uint16_t>(m * k);
    record.b = reader.Read<std::uint16_t>(n * k);
    record.c = has_c ? reader.Read<float>(m * n) : std::vector<float>(m * n, 0.0f);
    record.d = reader.Read<float>(m * n);
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

std::vector<contract::MmaOperand> MmaRecord::Operands(const std::vector<std::uint16_t>& matrix, int row) const {
  std::vector<contract::MmaOperand> operands;
  for (int i = 0; i < k; ++i) {
    const std::uint16_t bits =
        matrix[static_cast<std::size_t>(row) * static_cast<std::size_t>(k) + static_cast<std::size_t>(i)];
    operands.push_back(is_bf16 ? contract::MmaOperandOfBF16(bits) : contract::MmaOperandOfF16(bits));
  }
  return operands;
}

std::vector<MmaRecord> ReadMmaOracle() { return ReadRecords("sm90.bin", false); }

std::vector<MmaRecord> ReadMmaEdgeOracle() { return ReadRecords("sm90_edges.bin", true); }

}  // namespace lockstep
