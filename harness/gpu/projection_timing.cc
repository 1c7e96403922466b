// EXL3 projections of many rows at V4-Flash's shapes, as prefill calls them: tiles of 1,024 rows, or all 4,096 of a chunk.
#include <memory>

#include "harness/gpu/exl3_spec.h"
#include "harness/gpu/timing_cases.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::timing {
namespace {

using kernels::LinearArgs;
using kernels::LinearSpec;

// The blob of a random matrix: any bits are states, scales have magnitudes near those of real packs.
std::vector<std::uint32_t> RandomBlob(TimingRun& run, const LinearSpec& spec) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(spec.bytes) / 4);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(run.values.Draw());
  const auto scales = [&](std::int64_t at, std::int32_t count, float magnitude) {
    for (std::int64_t i = at / 4; i < at / 4 + count; ++i) {
      const float value = (words[static_cast<std::size_t>(i)] & 1u) ? magnitude : -magnitude;
      std::memcpy(&words[static_cast<std::size_t>(i)], &value, 4);
    }
  };
  scales(spec.input_scale, spec.in_padded, 0.02f);
  scales(spec.output_scale, spec.out_padded, 1.0f);
  return words;
}

void TimeProjection(TimingRun& run, Codebook codebook, int bits_x2, int groups, std::int32_t in, std::int32_t out, std::int64_t rows) {
  const std::string shape = std::string(NameOf(codebook)) + " " + std::to_string(bits_x2) + " " + (groups > 1 ? std::to_string(groups) + " x " : "") +
                            std::to_string(in) + "->" + std::to_string(out) + " rows " + std::to_string(rows);
  if (shape.find(run.filter) == std::string::npos) return;
  const LinearSpec spec = Exl3Spec(codebook, bits_x2, in, out);
  const int sets = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{64} << 20) / (groups * spec.bytes), 1, 8));
  Mirror<std::uint32_t> blob(RandomBlob(run, spec));  // every group's; a set has copies of its own
  std::vector<std::unique_ptr<Mirror<std::uint32_t>>> copies;
  std::vector<std::vector<const std::byte*>> blobs(static_cast<std::size_t>(sets));
  for (auto& set : blobs) {
    for (int g = 0; g < groups; ++g) {
      copies.push_back(std::make_unique<Mirror<std::uint32_t>>(blob.host()));
      set.push_back(reinterpret_cast<const std::byte*>(copies.back()->device()));
    }
  }
  const std::int64_t x_stride = std::int64_t{groups} * in, y_stride = std::int64_t{groups} * out;
  Mirror<std::uint16_t> x(run.values.BF16s(static_cast<std::size_t>(rows * x_stride))), y(static_cast<std::size_t>(rows * y_stride));
  Mirror<std::int32_t> overflow(std::vector<std::int32_t>(1, 0));
  LinearArgs a;
  a.spec = &spec;
  a.groups = groups;
  a.x_stride = x_stride;
  a.rows = rows;
  a.y_stride = y_stride;
  const kernels::Kernel<LinearArgs> linear = kernels::CudaLinear();
  const auto call = [&](int set) {
    LinearArgs d = a;
    d.blob = blobs[static_cast<std::size_t>(set)][0];
    d.blob_G = groups > 1 ? blobs[static_cast<std::size_t>(set)].data() : nullptr;
    d.x = x.device();
    d.y_bf16 = y.device();
    d.overflow = overflow.device();
    linear(run.stream, d);
  };
  // As prefill runs it, a call at a time: lists of many tiles are uploaded, which a graph would not take.
  const double us = EventMicroseconds(run.stream, [&] {
    for (int set = 0; set < sets; ++set) call(set);
  }) / sets;
  const std::vector<std::uint16_t> got = y.Download();
  bool same = true;
  for (std::int64_t t : SampledRows(rows)) {
    std::vector<const std::byte*> host_blobs(static_cast<std::size_t>(groups), reinterpret_cast<const std::byte*>(blob.host().data()));
    LinearArgs h = a;
    h.rows = 1;
    h.blob = host_blobs[0];
    h.blob_G = host_blobs.data();
    h.x = x.host().data() + t * x_stride;
    h.y_bf16 = y.host().data() + t * y_stride;
    h.overflow = overflow.host().data();
    run.cpu_kernels.linear(run.cpu, h);
    same = Same("projection", got, y.host(), static_cast<std::size_t>(t * y_stride), static_cast<std::size_t>(y_stride)) && same;
  }
  const double flop = 2.0 * static_cast<double>(groups) * in * out * static_cast<double>(rows);
  char rate[32];
  std::snprintf(rate, sizeof rate, "  %5.0f T", flop / us * 1e-6);
  run.table.Line("linear", shape + rate, us, flop / run.ceilings.mma_flop_per_us, same);
}

}  // namespace

void TimeProjections(TimingRun& run) {
  const Codebook mul1 = Codebook::kMul1;
  TimeProjection(run, mul1, 10, 1, 1024, 32768, 1024);  // five bits: int16
  TimeProjection(run, mul1, 10, 8, 4096, 1024, 1024);
  TimeProjection(run, mul1, 10, 1, 8192, 4096, 1024);
  TimeProjection(run, mul1, 10, 1, 1024, 8192, 1024);
  TimeProjection(run, mul1, 10, 1, 4096, 512, 4096);
  TimeProjection(run, mul1, 10, 1, 4096, 2048, 4096);
  TimeProjection(run, mul1, 10, 1, 2048, 4096, 4096);
  TimeProjection(run, mul1, 5, 1, 1024, 32768, 1024);
  TimeProjection(run, mul1, 5, 1, 4096, 2048, 4096);
  TimeProjection(run, Codebook::kMcg, 6, 1, 4096, 2048, 4096);
  TimeProjection(run, Codebook::kMcg, 6, 1, 1024, 32768, 1024);
}

}  // namespace lockstep::timing
