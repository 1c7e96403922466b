#include "kernels/linear/exl3_launches.h"

#include <algorithm>

namespace lockstep::kernels {
namespace {

void Add(const LinearSpec& spec, std::size_t part, LaunchJobs* jobs) {
  jobs->rates.insert({spec.codebook, spec.bits_x2});
  jobs->max_out[part] = std::max(jobs->max_out[part], spec.out_padded);
}

// What a launch of small tiles needs to serve jobs of both keys: bytes are words whose upper byte is zero. Nothing if none can.
std::optional<LaunchKey> Joined(const LaunchKey& a, const LaunchKey& b) {
  if (a.in != b.in || a.in_features != b.in_features || (a.form != b.form && (a.form == Exl3Form::kHalf || b.form == Exl3Form::kHalf))) return std::nullopt;
  LaunchKey both = a;
  if (a.form != b.form) both.form = Exl3Form::kInt16;
  return both;
}

}  // namespace

std::optional<ExpertLaunch> OneLaunch(const GroupedLinear& g) {
  ExpertLaunch launch;
  bool fits = std::all_of(g.runs.begin(), g.runs.end(), [](const RowRun& run) { return run.rows <= kExl3SmallSlots; });
  ForSpecs(g, [&](const LinearSpec& spec, std::size_t part) {
    fits = fits && spec.kind == LinearSpec::Kind::kExl3;
    if (!fits) return;
    std::optional<LaunchKey>& key = part < 2 ? launch.pair : launch.down;
    const std::optional<LaunchKey> joined = Joined(KeyOf(spec), key.value_or(KeyOf(spec)));
    if (launch.width < 0) launch.width = part < 2 ? spec.out_features : spec.in_features;
    fits = joined && launch.width == (part < 2 ? spec.out_features : spec.in_features);
    key = joined;
    Add(spec, part, &launch.jobs);
  });
  if (!fits || !launch.pair || !launch.down) return std::nullopt;
  LaunchKey pair = *launch.pair;
  pair.in = launch.down->in, pair.in_features = launch.down->in_features;  // codes of down leave the first launch in its form
  const std::optional<LaunchKey> both = Joined(pair, *launch.down);
  if (!both) return std::nullopt;
  launch.pair->form = both->form;
  return launch;
}

std::map<LaunchKey, LaunchJobs> LaunchesOf(const GroupedLinear& g) {
  std::map<LaunchKey, LaunchJobs> launches;
  ForSpecs(g, [&](const LinearSpec& spec, std::size_t part) {
    if (spec.kind == LinearSpec::Kind::kExl3) Add(spec, part, &launches[KeyOf(spec)]);
  });
  return launches;
}

}  // namespace lockstep::kernels
