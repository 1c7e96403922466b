#include "model/dtype.h"

#include <array>

#include "model/error.h"

namespace lockstep {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeInfo, 10> kDTypes = {{
    {DType::kBF16, "BF16", 2},
    {DType::kF16, "F16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kI16, "I16", 2},
    {DType::kI32, "I32", 4},
    {DType::kI64, "I64", 8},
}};

const DTypeInfo& InfoOf(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info;
  }
  LOCKSTEP_CHECK(false);
}

}  // namespace

std::size_t SizeOf(DType dtype) { return InfoOf(dtype).size; }

std::string_view NameOf(DType dtype) { return InfoOf(dtype).name; }

bool ParseDType(std::string_view name, DType* dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name != name) continue;
    *dtype = info.dtype;
    return true;
  }
  return false;
}

}  // namespace lockstep
