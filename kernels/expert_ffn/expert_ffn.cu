// Experts on the device: gate and up of all jobs in one call, the clamped SwiGLU as the input of down, down of all jobs.
#include <algorithm>
#include <vector>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/expert_ffn/expert_ffn_cuda.h"
#include "kernels/linear/linear_cuda.h"
#include "kernels/linear/swiglu.cuh"

namespace lockstep::kernels {
namespace {

enum Slot { kGateUpSlot = 6 };

// gate[i] = bf16([weight[i / width] *] silu(min(gate, L)) * clamp(up, -L, L)), for down matrices that do not do it themselves.
__global__ void SwigluKernel(std::uint16_t* gate, const std::uint16_t* up, std::int64_t count, std::int64_t width, const float* weight, float limit) {
  const std::int64_t at = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (at >= count) return;
  gate[at] = Swiglu(BF16Value(gate[at]), BF16Value(up[at]), weight ? weight[at / width] : 1.0f, limit);
}

// What a call's buffers need to know of its jobs.
struct Jobs {
  std::int64_t rows = 0;   // highest pair + 1
  std::int64_t width = 0;  // features between gate and down
  bool all_exl3 = true, all_down_exl3 = true;
};

Jobs Describe(const ExpertFfnArgs& a) {
  Jobs jobs;
  const auto add = [&](const ExpertSpec& spec) {
    jobs.width = spec.gate.out_features;
    const auto exl3 = [](const LinearSpec& s) { return s.kind == LinearSpec::Kind::kExl3; };
    jobs.all_down_exl3 = jobs.all_down_exl3 && exl3(spec.down);
    jobs.all_exl3 = jobs.all_exl3 && exl3(spec.gate) && exl3(spec.up) && exl3(spec.down);
  };
  if (a.table) {
    jobs.rows = a.max_pairs;
    for (int f = 0; f < a.table->num_forms; ++f) add(a.table->host_forms[f]);
    return jobs;
  }
  for (std::int64_t j = 0; j < a.num_jobs; ++j) {
    if (a.jobs[j].rows == 0) continue;
    add(*a.jobs[j].spec);
    jobs.rows = std::max(jobs.rows, a.jobs[j].begin + a.jobs[j].rows);
  }
  return jobs;
}

// The jobs' matrices `of`, a part each.
GroupedLinear Group(const ExpertFfnArgs& a, const std::vector<const LinearSpec ExpertSpec::*>& of) {
  GroupedLinear g;
  g.overflow = a.overflow;
  if (a.table) {
    g.table = a.table;
    g.part_of = of;
    g.groups = a.groups;
    g.max_pairs = a.max_pairs;
    g.max_group = std::min(a.max_pairs, a.max_group);
    g.shared_rows = a.shared_rows;
    return g;
  }
  for (std::int64_t j = 0; j < a.num_jobs; ++j) {
    const ExpertJob& job = a.jobs[j];
    for (const auto part : of) {
      g.specs.push_back(&(job.spec->*part));
      g.blobs.push_back(job.blob);
    }
    if (job.rows > 0) g.runs.push_back({static_cast<std::int32_t>(j), job.begin, job.rows});
  }
  return g;
}

void RunExpertFfn(Stream& s, const ExpertFfnArgs& a) {
  CudaStream& stream = AsCuda(s);
  const Jobs jobs = Describe(a);
  if (jobs.rows == 0) return;
  GroupedLinear whole = Group(a, {&ExpertSpec::gate, &ExpertSpec::up, &ExpertSpec::down});
  whole.part = {{a.x, a.hidden}, {a.x, a.hidden}, {nullptr, 0, a.y, nullptr, a.hidden}};
  whole.x_index = a.token;
  whole.weight = a.weight;
  whole.limit = a.limit;
  if (RunExl3Experts(stream, whole)) return;
  const std::int64_t values = jobs.rows * jobs.width;
  auto* gate = reinterpret_cast<std::uint16_t*>(stream.Scratch(kGateUpSlot, static_cast<std::size_t>(2 * values) * sizeof(std::uint16_t)));
  GroupedLinear gate_up = Group(a, {&ExpertSpec::gate, &ExpertSpec::up});
  gate_up.x_index = a.token;
  gate_up.part = {{a.x, a.hidden, gate, nullptr, jobs.width}, {a.x, a.hidden, gate + values, nullptr, jobs.width}};
  GroupedLinear down = Group(a, {&ExpertSpec::down});
  down.part = {{gate, jobs.width, a.y, nullptr, a.hidden}};
  if (jobs.all_down_exl3) {
    down.up = gate + values;
    down.weight = a.weight;
    down.limit = a.limit;
  }
  if (jobs.all_exl3) return RunExl3GateUpDown(stream, gate_up, down);
  RunGroupedLinear(stream, gate_up);
  if (!jobs.all_down_exl3) {
    SwigluKernel<<<Blocks(values, 256), 256, 0, stream.handle()>>>(gate, gate + values, values, jobs.width, a.weight, a.limit);
    CheckLaunch("swiglu");
  }
  RunGroupedLinear(stream, down);
}

}  // namespace

Kernel<ExpertFfnArgs> CudaExpertFfn() { return {&RunExpertFfn, "expert_ffn/H(sm90)+I+F"}; }

}  // namespace lockstep::kernels
