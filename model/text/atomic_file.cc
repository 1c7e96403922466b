#include "model/text/atomic_file.h"

#include <fstream>
#include <random>
#include <string>

namespace lockstep {

namespace fs = std::filesystem;

bool WriteFileAtomically(const fs::path& path, std::span<const std::byte> bytes) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path temporary = path.string() + ".tmp" + std::to_string(std::random_device{}());
  std::ofstream out(temporary, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (out) {
    fs::rename(temporary, path, error);
    if (!error) return true;
  }
  fs::remove(temporary, error);
  return false;
}

}  // namespace lockstep
