#include "kernels/device/device_spec.h"

#include <algorithm>
#include <charconv>

#include "model/error.h"

namespace lockstep::kernels {
namespace {

[[noreturn]] void Fail(std::string_view text, const std::string& problem) {
  throw InputError("--device " + std::string(text) + ": " + problem + "; expected cpu[:N][,mem=64MiB][,isa=generic|avx2|avx512][,threads=N] or cuda:0[,1...]");
}

bool ParseNumber(std::string_view digits, long long* value) {
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
  return result.ec == std::errc() && result.ptr == digits.data() + digits.size() && !digits.empty();
}

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

void ParseOption(std::string_view text, std::string_view part, DeviceSpec* spec) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals), value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
  long long number = 0;
  if (key == "mem" && ParseBytes(value, &spec->memory_limit)) return;
  if (key == "isa" && spec->kind == DeviceSpec::Kind::kCpu && !value.empty()) {
    spec->isa = SelectIsa(value);
    return;
  }
  if (key == "threads" && spec->kind == DeviceSpec::Kind::kCpu && ParseNumber(value, &number) && number >= 1 && number <= 1024) {
    spec->threads = static_cast<int>(number);
    return;
  }
  Fail(text, "cannot read '" + std::string(part) + "'");
}

}  // namespace

bool ParseBytes(std::string_view text, std::size_t* bytes) {
  constexpr std::pair<std::string_view, std::size_t> kUnits[] = {{"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}, {"", 1}};
  for (const auto& [suffix, unit] : kUnits) {
    if (text.size() < suffix.size() || text.substr(text.size() - suffix.size()) != suffix) continue;
    long long count = 0;
    if (!ParseNumber(text.substr(0, text.size() - suffix.size()), &count) || count <= 0 || count > (1LL << 40)) return false;
    *bytes = static_cast<std::size_t>(count) * unit;
    return true;
  }
  return false;
}

DeviceSpec ParseDeviceSpec(std::string_view text) {
  DeviceSpec spec;
  spec.isa = BestIsa();
  const std::vector<std::string_view> parts = Split(text);
  const std::string_view head = parts.front(), kind = head.substr(0, head.find(':'));
  const std::string_view number_text = head.size() > kind.size() ? head.substr(kind.size() + 1) : std::string_view();
  long long number = 0;
  std::size_t next = 1;
  if (kind == "cpu") {
    long long count = 1;
    if (head.size() > kind.size() && (!ParseNumber(number_text, &count) || count < 1 || count > 64)) Fail(text, "the number of CPU devices must be 1 to 64");
    spec.indices.clear();
    for (int i = 0; i < count; ++i) spec.indices.push_back(i);
  } else if (kind == "cuda") {
    spec.kind = DeviceSpec::Kind::kCuda;
    if (head.size() > kind.size()) {
      spec.indices.clear();
      if (!ParseNumber(number_text, &number) || number < 0 || number > 1023) Fail(text, "cannot read the device number '" + std::string(number_text) + "'");
      spec.indices.push_back(static_cast<int>(number));
      for (; next < parts.size() && ParseNumber(parts[next], &number); ++next) {
        if (number < 0 || number > 1023 || std::find(spec.indices.begin(), spec.indices.end(), number) != spec.indices.end()) {
          Fail(text, "device number '" + std::string(parts[next]) + "' is out of range or named twice");
        }
        spec.indices.push_back(static_cast<int>(number));
      }
    }
  } else {
    Fail(text, "unknown device kind '" + std::string(kind) + "'");
  }
  for (; next < parts.size(); ++next) ParseOption(text, parts[next], &spec);
  return spec;
}

}  // namespace lockstep::kernels
