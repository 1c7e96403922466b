#include "reference/testing/checkpoint_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "model/error.h"
#include "model/float_formats.h"
#include "model/safetensors.h"
#include "reference/testing/oracle_files.h"

namespace lockstep::reference {
namespace {

template <typename T>
void Fill(std::span<std::byte> bytes, T value) {
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T))
    std::memcpy(bytes.data() + i, &value, sizeof(T));
}

void Replace(const std::string& path, const std::string& content) {
  std::filesystem::remove(path);  // the copy may be read-only
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace

void CopyCheckpoint(const std::string& from, const std::string& to,
                    const std::map<std::string, TensorEdit>& edits,
                    const std::function<void(nlohmann::json&)>& edit_config) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  const std::string path = to + "/model.safetensors";
  std::string image = ReadFileBytes(path);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(image));
  const std::vector<TensorView> views = ParseSafetensors(bytes, path);
  for (const auto& [name, edit] : edits) {
    const auto view =
        std::find_if(views.begin(), views.end(), [&](const TensorView& v) { return v.name == name; });
    LOCKSTEP_CHECK(view != views.end());
    edit(*view, bytes.subspan(static_cast<std::size_t>(view->data.data() - bytes.data()), view->data.size()));
  }
  Replace(path, image);
  if (!edit_config) return;
  nlohmann::json config = nlohmann::json::parse(ReadFileBytes(to + "/config.json"));
  edit_config(config);
  Replace(to + "/config.json", config.dump(1));
}

TensorEdit AddToFirst(float delta) {
  return [delta](const TensorView& view, std::span<std::byte> bytes) {
    LOCKSTEP_CHECK(view.dtype == DType::kF32);
    const float changed = view.At<float>(0) + delta;
    std::memcpy(bytes.data(), &changed, sizeof changed);
  };
}

TensorEdit FillWith(float value) {
  return [value](const TensorView& view, std::span<std::byte> bytes) {
    switch (view.dtype) {
      case DType::kF32:
        return Fill(bytes, value);
      case DType::kBF16:
        return Fill(bytes, FloatToBF16(value));
      case DType::kF16:
        return Fill(bytes, FloatToF16(value));
      case DType::kF8E4M3:
        return Fill(bytes, std::uint8_t{0x7f});
      default:
        LOCKSTEP_CHECK(false && "not a floating-point tensor");
    }
  };
}

}  // namespace lockstep::reference
