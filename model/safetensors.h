// Reading safetensors: one file, or the sharded files of a model directory. Memory-mapped; headers are
// bounds-checked. Format: u64 LE header length, JSON header {name: {dtype, shape, data_offsets:[begin,end]}},
// then the data.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensor_view.h"

namespace lockstep {

// A read-only memory map of a whole file. Follows ordinary symbolic links. Throws InputError naming the path
// when the file is missing, not regular, unreadable, or reached through a symlink loop.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Copies bytes [offset, offset + out.size()) by reading, not through the map: a page fault reads around
  // itself, which for small pieces scattered over a large file costs many times the pieces. Throws InputError
  // if the file has shrunk or cannot be read.
  void ReadAt(std::size_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::span<const std::byte> bytes_;
};

// Parses one safetensors image already in memory; `file` is only for messages. Views point into `image`.
// Tensors in header order. Throws InputError naming file and tensor for: header longer than the file, malformed
// JSON, a name twice, unknown dtype, shape product overflow, offsets out of range, overlapping, or not matching
// shape and dtype.
std::vector<TensorView> ParseSafetensors(std::span<const std::byte> image, const std::string& file);

// All tensors of a model directory.
class SafetensorsSet {
 public:
  // `dir` holds model.safetensors.index.json and its shards, or else one or more *.safetensors files. Throws
  // InputError for a missing shard, a tensor the index names that its shard lacks, or one name in two files.
  static SafetensorsSet OpenDirectory(const std::string& dir);
  // Tensors of distinct names that lie in no file: in memory that outlives the set and its copies, or random.
  static SafetensorsSet OfTensors(std::vector<TensorView> tensors);

  // nullptr if there is no such tensor.
  const TensorView* Find(std::string_view name) const;
  // The bytes of one of the tensors, of files by MappedFile::ReadAt.
  std::vector<std::byte> Read(const TensorView& tensor) const;
  // All tensors, by name.
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  std::size_t total_bytes() const;

 private:
  std::vector<std::shared_ptr<MappedFile>> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// Describes one tensor to write. `fill` is called once with a buffer of exactly the tensor's bytes (at most
// `kWriteChunk` bytes at a time, with the byte offset of the chunk), so a tensor larger than memory can be
// written.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::function<void(std::int64_t offset, std::span<std::byte> chunk)> fill;
};

inline constexpr std::int64_t kWriteChunk = std::int64_t{64} << 20;

// Writes one safetensors file to a temporary name in the same directory and renames it over `path`. Names are
// distinct. Tensors whose size is a multiple of 8 bytes come first, in the given order and 8-byte aligned; the
// others follow, aligned to their element size. Throws InputError naming `path` when it cannot be written, and
// lets an exception of `fill` through; both leave `path` as it was.
void WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors);

}  // namespace lockstep
