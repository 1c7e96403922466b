#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/error.h"
#include "model/json_text.h"
#include "model/safetensors_header.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// Owns a file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // False if the kernel reports a write error only now.
  bool Close() {
    const int fd = Release();
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok()) throw InputError(path + ": cannot open: " + std::strerror(errno));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw InputError(path + ": cannot stat: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw InputError(path + ": expected a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) throw InputError(path + ": cannot map: " + std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
  fd_ = fd.Release();
  // ReadAt knows what it wants; this is only a hint, and the map keeps its own read-ahead.
  (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
}

MappedFile::~MappedFile() {
  if (bytes_.data() != nullptr) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::ReadAt(std::size_t offset, std::span<std::byte> out) const {
  LOCKSTEP_CHECK(offset <= bytes_.size() && out.size() <= bytes_.size() - offset);
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw InputError(path_ + ": cannot read: " + std::strerror(errno));
    if (got == 0) throw InputError(path_ + ": the file has shrunk since it was opened");
    offset += static_cast<std::size_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

namespace {

// Bytes of a tensor with that dtype and shape. Throws InputError if a dimension or the product leaves the
// 63-bit range.
std::uint64_t ByteSize(const HeaderEntry& entry, DType dtype, const std::string& where) {
  std::int64_t size = static_cast<std::int64_t>(SizeOf(dtype));
  bool overflow = false;
  for (const std::uint64_t d : entry.shape) {
    overflow |= d > INT64_MAX || __builtin_mul_overflow(size, static_cast<std::int64_t>(d), &size);
  }
  if (overflow) throw InputError(where + "shape: the number of bytes exceeds 2^63");
  return static_cast<std::uint64_t>(size);
}

TensorView MakeView(HeaderEntry&& entry, std::span<const std::byte> data, const std::string& file) {
  const std::string where = file + ": tensor '" + Printable(entry.name) + "': ";
  TensorView view;
  if (!ParseDType(entry.dtype, &view.dtype))
    throw InputError(where + "unknown dtype '" + Printable(entry.dtype) + "'");
  const std::uint64_t size = ByteSize(entry, view.dtype, where);
  const std::string offsets =
      "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end || entry.end > data.size()) {
    throw InputError(where + offsets + " outside the file's " + std::to_string(data.size()) + " bytes of data");
  }
  if (entry.end - entry.begin != size) {
    throw InputError(where + offsets + " do not match the " + std::to_string(size) +
                     " bytes of its dtype and shape");
  }
  view.name = std::move(entry.name);
  view.file = file;
  view.shape.assign(entry.shape.begin(), entry.shape.end());
  view.data = data.subspan(entry.begin, size);
  return view;
}

void ExpectNoOverlap(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    if (!tensor.data.empty()) order.push_back(&tensor);
  }
  const auto begins_before = [](const TensorView* a, const TensorView* b) {
    return a->data.data() < b->data.data();
  };
  std::sort(order.begin(), order.end(), begins_before);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorView& previous = *order[i - 1];
    if (previous.data.data() + previous.data.size() <= order[i]->data.data()) continue;
    throw InputError(previous.file + ": tensor '" + Printable(order[i]->name) +
                     "': data_offsets overlap tensor '" + Printable(previous.name) + "'");
  }
}

// Where each tensor of an index should lie: name -> path of the shard.
std::map<std::string, std::string> ReadIndex(const std::string& dir, const std::string& path) {
  const MappedFile file(path);
  const json index = ParseJson(TextOf(file.bytes()), path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw InputError(path + ": expected an object 'weight_map' from tensor names to file names");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string where = path + ": weight_map: tensor '" + Printable(name) + "': ";
    if (!shard.is_string()) throw InputError(where + "expected a file name, found " + PrintableJson(shard));
    const fs::path relative(shard.get<std::string>());
    const bool escapes = std::find(relative.begin(), relative.end(), "..") != relative.end();
    if (relative.empty() || relative.is_absolute() || escapes) {
      throw InputError(where + "expected a file inside the model directory, found " + PrintableJson(shard));
    }
    shard_of[name] = dir + "/" + relative.string();
  }
  if (shard_of.empty()) throw InputError(path + ": weight_map: expected at least one tensor");
  return shard_of;
}

std::set<std::string> ListSafetensors(const std::string& dir) {
  std::set<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") paths.insert(it->path().string());
  }
  if (error) throw InputError(dir + ": cannot list the directory: " + error.message());
  return paths;
}

void ExpectDirectory(const std::string& dir) {
  std::error_code error;
  const fs::file_status status = fs::status(dir, error);
  if (status.type() == fs::file_type::not_found) throw InputError(dir + ": no such model directory");
  if (error) throw InputError(dir + ": cannot read the model directory: " + error.message());
  if (status.type() != fs::file_type::directory) throw InputError(dir + ": expected a model directory");
}

}  // namespace

std::vector<TensorView> ParseSafetensors(std::span<const std::byte> image, const std::string& file) {
  std::uint64_t header_size = 0;
  if (image.size() < sizeof(header_size)) {
    throw InputError(file + ": expected a safetensors file, found " + std::to_string(image.size()) + " bytes");
  }
  for (std::size_t i = 0; i < sizeof(header_size); ++i) {
    header_size |= std::to_integer<std::uint64_t>(image[i]) << (8 * i);
  }
  const std::span<const std::byte> rest = image.subspan(sizeof(header_size));
  if (header_size > rest.size()) {
    throw InputError(file + ": header length " + std::to_string(header_size) + " exceeds the " +
                     std::to_string(rest.size()) + " bytes that follow it");
  }
  const std::span<const std::byte> data = rest.subspan(header_size);
  std::vector<TensorView> tensors;
  for (HeaderEntry& entry : ParseSafetensorsHeader(TextOf(rest.first(header_size)), file)) {
    tensors.push_back(MakeView(std::move(entry), data, file));
  }
  ExpectNoOverlap(tensors);
  return tensors;
}

SafetensorsSet SafetensorsSet::OpenDirectory(const std::string& dir) {
  ExpectDirectory(dir);
  const std::string index_path = dir + "/" + std::string(kIndexName);
  std::map<std::string, std::string> shard_of;
  std::set<std::string> paths;
  std::error_code error;
  // A dangling link named like the index is a broken index, not a missing one: hence no following.
  if (fs::symlink_status(index_path, error).type() != fs::file_type::not_found) {
    shard_of = ReadIndex(dir, index_path);
    for (const auto& [name, path] : shard_of) paths.insert(path);
  } else {
    paths = ListSafetensors(dir);
    if (paths.empty()) throw InputError(dir + ": no " + std::string(kIndexName) + " and no *.safetensors file");
  }

  SafetensorsSet set;
  for (const std::string& path : paths) {
    set.files_.push_back(std::make_shared<MappedFile>(path));
    for (TensorView& tensor : ParseSafetensors(set.files_.back()->bytes(), path)) {
      const auto [it, inserted] = set.tensors_.emplace(tensor.name, tensor);
      if (!inserted) {
        throw InputError(path + ": tensor '" + Printable(tensor.name) + "' is also in " + it->second.file);
      }
    }
  }
  for (const auto& [name, path] : shard_of) {
    const TensorView* tensor = set.Find(name);
    if (tensor == nullptr || tensor->file != path) {
      throw InputError(index_path + ": tensor '" + Printable(name) + "' is not in " + path);
    }
  }
  return set;
}

SafetensorsSet SafetensorsSet::OfTensors(std::vector<TensorView> tensors) {
  SafetensorsSet set;
  for (TensorView& tensor : tensors) {
    std::string name = tensor.name;
    LOCKSTEP_CHECK(set.tensors_.emplace(std::move(name), std::move(tensor)).second);
  }
  return set;
}

const TensorView* SafetensorsSet::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::byte> SafetensorsSet::Read(const TensorView& tensor) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  for (const std::shared_ptr<MappedFile>& file : files_) {
    const std::byte* begin = file->bytes().data();
    if (tensor.data.data() < begin || tensor.data.data() >= begin + file->bytes().size()) continue;
    file->ReadAt(static_cast<std::size_t>(tensor.data.data() - begin), bytes);
    return bytes;
  }
  tensor.Read(0, bytes);
  return bytes;
}

std::size_t SafetensorsSet::total_bytes() const {
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<std::size_t>(tensor.bytes());
  return total;
}

namespace {

std::int64_t ByteSize(const TensorToWrite& tensor) {
  std::int64_t size = static_cast<std::int64_t>(SizeOf(tensor.dtype));
  for (const std::int64_t d : tensor.shape) {
    LOCKSTEP_CHECK(d >= 0);
    LOCKSTEP_CHECK(!__builtin_mul_overflow(size, d, &size));
  }
  return size;
}

// The format allows no holes, so alignment comes from the order: multiples of 8 bytes first, then by falling
// element size.
std::vector<const TensorToWrite*> FileOrder(std::span<const TensorToWrite> tensors) {
  std::vector<const TensorToWrite*> order;
  order.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  const auto rank = [](const TensorToWrite* tensor) {
    return ByteSize(*tensor) % 8 == 0 ? 0 : 8 - static_cast<int>(SizeOf(tensor->dtype));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const TensorToWrite* a, const TensorToWrite* b) { return rank(a) < rank(b); });
  return order;
}

std::string HeaderText(std::span<const TensorToWrite* const> order) {
  std::string text = "{";
  std::int64_t offset = 0;
  for (const TensorToWrite* tensor : order) {
    const std::int64_t end = offset + ByteSize(*tensor);
    const json entry = {
        {"dtype", NameOf(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}};
    if (text.size() > 1) text += ",";
    text.append(json(tensor->name).dump()).append(":").append(entry.dump());
    offset = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

// A file that appears under its final name only when it is complete.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path)
      : path_(path),
        temporary_(TemporaryName(path)),
        fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!fd_.ok()) Fail("cannot create");
  }
  ~AtomicFile() {
    if (!committed_) ::unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) Fail("cannot write");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void Commit() {
    if (::fsync(fd_.get()) != 0 || !fd_.Close()) Fail("cannot write");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) Fail("cannot rename the finished file to this name");
    committed_ = true;
  }

 private:
  static std::string TemporaryName(const std::string& path) {
    static std::atomic<int> counter{0};
    return path + ".tmp" + std::to_string(::getpid()) + "." + std::to_string(counter++);
  }
  [[noreturn]] void Fail(const char* what) const {
    throw InputError(path_ + ": " + what + ": " + std::strerror(errno));
  }

  std::string path_;
  std::string temporary_;
  FileDescriptor fd_;
  bool committed_ = false;
};

void ExpectDistinctNames(std::span<const TensorToWrite> tensors) {
  std::set<std::string_view> names;
  for (const TensorToWrite& tensor : tensors) LOCKSTEP_CHECK(names.insert(tensor.name).second);
}

}  // namespace

void WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  ExpectDistinctNames(tensors);
  const std::vector<const TensorToWrite*> order = FileOrder(tensors);
  const std::string header = HeaderText(order);
  AtomicFile file(path);
  const std::uint64_t header_size = header.size();
  file.Write(std::as_bytes(std::span(&header_size, 1)));
  file.Write(std::as_bytes(std::span(header)));
  std::vector<std::byte> chunk;
  for (const TensorToWrite* tensor : order) {
    const std::int64_t size = ByteSize(*tensor);
    for (std::int64_t offset = 0; offset < size; offset += kWriteChunk) {
      chunk.resize(static_cast<std::size_t>(std::min(kWriteChunk, size - offset)));
      tensor->fill(offset, chunk);
      file.Write(chunk);
    }
  }
  file.Commit();
}

}  // namespace lockstep
