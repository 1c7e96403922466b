// BF16 matrices that are not EXL3 in the packs: compressor projections and the indexer's weights_proj.
#include "harness/gpu/timing_cases.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::timing {
namespace {

using kernels::LinearArgs;
using kernels::LinearSpec;

void TimeLinear(TimingRun& run, const char* what, std::int32_t out, std::int32_t in, std::int64_t rows, bool fp32_out) {
  LinearSpec spec;
  spec.kind = LinearSpec::Kind::kBF16;
  spec.out_features = out;
  spec.in_features = in;
  spec.bytes = 2 * std::int64_t{out} * in;
  const int sets = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{128} << 20) / spec.bytes, 2, 64));
  Mirror<std::uint16_t> weights(run.values.BF16s(static_cast<std::size_t>(sets) * static_cast<std::size_t>(out) * static_cast<std::size_t>(in), 0.02f));
  Mirror<std::uint16_t> x(run.values.BF16s(static_cast<std::size_t>(rows * in))), y(static_cast<std::size_t>(rows * out));
  Mirror<float> y_fp32(static_cast<std::size_t>(rows * out));
  LinearArgs a;
  a.spec = &spec;
  a.x_stride = in;
  a.rows = rows;
  a.y_stride = out;
  const double us = GraphMicroseconds(run.stream, sets, [&](int set) {
    LinearArgs d = a;
    d.blob = reinterpret_cast<const std::byte*>(weights.device() + static_cast<std::int64_t>(set) * out * in);
    d.x = x.device();
    d.y_bf16 = fp32_out ? nullptr : y.device();
    d.y_fp32 = fp32_out ? y_fp32.device() : nullptr;
    kernels::CudaLinear()(run.stream, d);
  });
  CheckCuda(cudaStreamSynchronize(run.stream.handle()), "linear");
  const std::vector<std::uint16_t> got = y.Download();
  const std::vector<float> got_fp32 = y_fp32.Download();
  bool same = true;
  for (std::int64_t t : SampledRows(rows)) {
    LinearArgs h = a;
    h.rows = 1;
    h.blob = reinterpret_cast<const std::byte*>(weights.host().data() + static_cast<std::int64_t>(sets - 1) * out * in);
    h.x = x.host().data() + t * in;
    h.y_bf16 = fp32_out ? nullptr : y.host().data() + t * out;
    h.y_fp32 = fp32_out ? y_fp32.host().data() + t * out : nullptr;
    run.cpu_kernels.linear(run.cpu, h);
    same = Same("linear", got, y.host(), static_cast<std::size_t>(t * out), static_cast<std::size_t>(out)) &&
           Same("linear", got_fp32, y_fp32.host(), static_cast<std::size_t>(t * out), static_cast<std::size_t>(out)) && same;
  }
  const double flop = 2.0 * out * in * static_cast<double>(rows), bytes = static_cast<double>(spec.bytes) + static_cast<double>(rows) * (in * 2 + out * 4);
  run.table.Line("linear bf16", std::string(what) + " " + std::to_string(out) + "x" + std::to_string(in) + " rows " + std::to_string(rows), us,
                 std::max(flop / run.ceilings.mma_flop_per_us, bytes / run.ceilings.bytes_per_us), same);
}

}  // namespace

void TimeDenseLinears(TimingRun& run) {
  for (std::int64_t rows : {1, 8, 512, 4096}) {
    TimeLinear(run, "v4 compressor", 1024, 4096, rows, true);
    TimeLinear(run, "v4 index weights", 64, 4096, rows, false);
    TimeLinear(run, "v4.1 compressor", 512, 5120, rows, true);
    TimeLinear(run, "v4.1 index weights", 32, 5120, rows, false);
  }
}

}  // namespace lockstep::timing
