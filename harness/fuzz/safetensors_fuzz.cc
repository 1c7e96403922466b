// A safetensors image from a stranger: either refused, or every tensor lies inside the data, apart from all
// others, with the bytes that its dtype and shape need.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/fuzz/fuzz_target.h"
#include "model/safetensors.h"

namespace {

using lockstep::TensorView;

void CheckTensors(const std::vector<TensorView>& tensors, std::span<const std::byte> image) {
  std::set<std::string> names;
  std::vector<std::span<const std::byte>> extents;
  for (const TensorView& tensor : tensors) {
    LOCKSTEP_CHECK(names.insert(tensor.name).second);
    LOCKSTEP_CHECK(tensor.data.size() ==
                   static_cast<std::size_t>(tensor.elements()) * lockstep::SizeOf(tensor.dtype));
    LOCKSTEP_CHECK(tensor.data.data() >= image.data());
    LOCKSTEP_CHECK(tensor.data.data() + tensor.data.size() <= image.data() + image.size());
    if (!tensor.data.empty()) extents.push_back(tensor.data);
  }
  std::sort(extents.begin(), extents.end(), [](auto a, auto b) { return a.data() < b.data(); });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    LOCKSTEP_CHECK(extents[i - 1].data() + extents[i - 1].size() <= extents[i].data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> image = std::as_bytes(std::span(data, size));
  lockstep::AllowInputError([&] { CheckTensors(lockstep::ParseSafetensors(image, "image"), image); });
  return 0;
}
