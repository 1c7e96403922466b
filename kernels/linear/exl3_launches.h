// The jobs of a call sorted into launches: which of them one launch can serve, and whether one serves gate, up and down of all experts.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::kernels {

// Jobs that one launch can serve, whatever their outputs. Small tiles: any rate and codebook of a form.
struct LaunchKey {
  std::int32_t in = 0, in_features = 0;
  Exl3Form form = Exl3Form::kInt8;
  auto operator<=>(const LaunchKey&) const = default;
};

inline LaunchKey KeyOf(const LinearSpec& s) { return {s.in_padded, s.in_features, FormOf(Exl3JobOf(s, nullptr))}; }

// What the jobs of a launch are like: their rates (codebook, twice the bits), and the widest of each part.
struct LaunchJobs {
  std::set<std::pair<Codebook, int>> rates;
  std::int32_t max_out[kExl3Parts] = {};
};

// visit(spec, part) for all matrices of a call.
template <class Visit>
void ForSpecs(const GroupedLinear& g, Visit visit) {
  for (std::size_t i = 0; i < g.specs.size(); ++i) visit(*g.specs[i], i % g.part.size());
  for (int f = 0; g.table && f < g.table->num_forms; ++f) {
    for (std::size_t p = 0; p < g.part_of.size(); ++p) visit(g.table->host_forms[f].*g.part_of[p], p);
  }
}

// Gate, up and down of all experts in one launch.
struct ExpertLaunch {
  std::optional<LaunchKey> pair, down;
  LaunchJobs jobs;
  std::int32_t width = -1;  // features between them
};

// Nothing if it takes more launches, or other kernels.
std::optional<ExpertLaunch> OneLaunch(const GroupedLinear& g);

// The launches of a call's EXL3 matrices.
std::map<LaunchKey, LaunchJobs> LaunchesOf(const GroupedLinear& g);

}  // namespace lockstep::kernels
