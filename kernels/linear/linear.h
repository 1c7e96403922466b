// y = W x for every storage form. Contract: docs/numerics.md sections 3 and 4; families H(profile), I and F by
// the form of W.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/device/stream.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear_layout.h"
#include "model/numerics_options.h"

namespace lockstep::kernels {

struct LinearArgs {
  const LinearSpec* spec = nullptr;  // host
  const std::byte* blob = nullptr;   // device, spec->bytes
  // More than one: matrices of one spec side by side, blobs in a list on the host that stays where it is. Matrix g takes
  // the g-th in_features elements of a row of x and gives the g-th out_features of a row of y.
  int groups = 1;
  const std::byte* const* blob_G = nullptr;
  const std::uint16_t* x = nullptr;  // bf16 [rows][x_stride]; rows 4-byte aligned if in_features is even
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::uint16_t* y_bf16 = nullptr;  // exactly one of y_bf16, y_fp32: [rows][y_stride]
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
  // Set to 1 on the device when an activation leaves the fp16 range of an mcg, 3inst or F16 linear; the engine
  // names the layer. May be null for other linears.
  std::int32_t* overflow = nullptr;
};

// The call of one of several matrices.
inline LinearArgs GroupOf(const LinearArgs& args, int g) {
  LinearArgs one = args;
  one.groups = 1;
  one.blob = args.blob_G[g];
  one.x += std::int64_t{g} * args.spec->in_features;
  if (one.y_bf16) one.y_bf16 += std::int64_t{g} * args.spec->out_features;
  if (one.y_fp32) one.y_fp32 += std::int64_t{g} * args.spec->out_features;
  return one;
}

// Linears that may share their work: the results are as if each ran alone, in any order, so none reads what another writes. With `norm`, which is in
// place and whose rows are the x of every linear, rms_norm comes first; what these rows hold after the call is then not said.
struct LinearSetArgs {
  const LinearArgs* linears = nullptr;  // host
  int count = 0;
  RmsNormArgs norm;  // without rows: none
};

// A set's list is the caller's again after the call; the specs and blobs that it names stay where they are.
template <>
struct KeptArgs<LinearSetArgs> {
  explicit KeptArgs(const LinearSetArgs& set) : linears(set.linears, set.linears + set.count), norm(set.norm) {}
  LinearSetArgs Get() const { return {linears.data(), static_cast<int>(linears.size()), norm}; }
  std::vector<LinearArgs> linears;
  RmsNormArgs norm;
};

// The CPU implementation. Its contract id is "linear/H(<profile>)+I+F", the same for every `isa`.
Kernel<LinearArgs> CpuLinear(Isa isa, Profile profile);
// Each linear of a set alone, with the same contract.
Kernel<LinearSetArgs> CpuLinearSet(Isa isa, Profile profile);

}  // namespace lockstep::kernels
