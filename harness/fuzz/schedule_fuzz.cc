// Random schedules of the engine's steps: sessions that come, fork and go, prompts in chunks beside decode
// rows, steps cancelled at any layer. Whatever the order, a session's logits are those of its tokens in one
// piece.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fast/engine.h"
#include "harness/check/same_bits.h"
#include "harness/fuzz/fuzz_target.h"
#include "harness/invariance/small_model.h"
#include "kernels/contract/cpu_isa.h"
#include "model/error.h"

namespace lockstep {
namespace {

using fast::FastEngine;
using fast::FastSession;
using fast::Segment;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kContext = 192;
constexpr std::size_t kMaxSessions = 4;
constexpr std::int64_t kMaxPrompt = 40;

// Decisions from the fuzzer's bytes; zeros when they run out.
class Decisions {
 public:
  Decisions(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool done() const { return next_ >= size_; }
  std::int64_t Below(std::int64_t bound) { return bound <= 1 || done() ? 0 : data_[next_++] % bound; }

 private:
  const std::uint8_t* data_;
  std::size_t size_, next_ = 0;
};

fast::EngineOptions Options(bool exact_tail, std::int64_t chunk_rows, std::vector<int> devices) {
  fast::EngineOptions options;
  options.device.isa = BestIsa();
  options.device.threads = 1;
  options.device.indices = std::move(devices);
  options.numerics.profile = Profile::kFma;
  options.chunk_rows = chunk_rows;
  options.page_shift = 2;
  options.max_context = kContext;
  options.exact_tail = exact_tail;
  options.residency = fast::Residency::kRandom;
  options.poison = true;
  return options;
}

// A directory for as long as the program runs.
struct ModelDirectory {
  std::filesystem::path path;

  explicit ModelDirectory(const std::string& name)
      : path(std::filesystem::temp_directory_path() / ("lockstep-" + name + "-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~ModelDirectory() { std::filesystem::remove_all(path); }
};

// A model, an engine for the schedules on two devices, and one that runs whole sequences the plain way.
struct Subject {
  ModelDirectory dir;
  std::shared_ptr<const Checkpoint> checkpoint;
  FastEngine scheduled, plain;

  Subject(ModelFamily family, const std::string& name)
      : dir(name),
        checkpoint(harness::MakeSmallModel(
            {.family = family, .layers = 7, .window = 8, .max_positions = kContext, .hidden = 64, .seed = 3},
            dir.path.string())),
        scheduled(checkpoint, Options(true, 32, {0, 1})),
        plain(checkpoint, Options(false, kContext, {0})) {}
};

// A session, the prompt it is in, and the logits it has given.
struct Track {
  std::unique_ptr<FastSession> session;
  Ids ids;  // processed, then what is left of the prompt
  std::int64_t last_rows = 0;
  std::vector<std::pair<std::int64_t, std::vector<float>>> rows;  // [position, logits]

  std::int64_t end() const { return static_cast<std::int64_t>(ids.size()); }
  bool idle() const { return session->position() == end(); }
};

class Schedule {
 public:
  Schedule(Subject& subject, Decisions decisions) : subject_(subject), decisions_(decisions) {}

  void Run() {
    while (!decisions_.done()) {
      switch (decisions_.Below(8)) {
        case 0:
          if (tracks_.size() < kMaxSessions) tracks_.push_back(NewTrack());
          break;
        case 1:
          if (!tracks_.empty()) Drop();
          break;
        case 2:
          if (!tracks_.empty() && tracks_.size() < kMaxSessions) Fork();
          break;
        default:
          Step();
      }
    }
    for (const Track& track : tracks_) Verify(track);
  }

 private:
  Track NewTrack() {
    Track track;
    track.session.reset(static_cast<FastSession*>(subject_.scheduled.NewSession().release()));
    return track;
  }
  std::size_t Any() {
    return static_cast<std::size_t>(decisions_.Below(static_cast<std::int64_t>(tracks_.size())));
  }
  void Drop() {
    const std::size_t i = Any();
    Verify(tracks_[i]);
    tracks_.erase(tracks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void Fork() {
    const Track& from = tracks_[Any()];
    Track copy;
    copy.session.reset(static_cast<FastSession*>(from.session->Fork().release()));
    copy.ids = from.ids;
    copy.last_rows = from.last_rows;
    copy.rows = from.rows;
    tracks_.push_back(std::move(copy));
  }

  // A new prompt behind what the session has: one token, a few, or many.
  void Continue(Track& track) {
    const std::int64_t most = std::min(kMaxPrompt, kContext - track.end());
    const std::int64_t rows = std::min(most, decisions_.Below(2) == 0 ? 1 : 1 + decisions_.Below(kMaxPrompt));
    const std::int64_t text = decisions_.Below(256);
    const int vocab = subject_.scheduled.config().vocab_size;
    for (std::int64_t i = 0; i < rows; ++i)
      track.ids.push_back(static_cast<std::int32_t>((text * 7 + i * i * 5 + track.end()) % vocab));
    track.last_rows = std::min(rows, decisions_.Below(4) == 0 ? decisions_.Below(rows + 1) : 1);
  }
  // Gives up what is left of a prompt.
  void Abandon(Track& track) { track.ids.resize(static_cast<std::size_t>(track.session->position())); }

  void Step() {
    std::vector<Segment> segments;
    std::vector<Track*> owners;
    std::int64_t budget = subject_.scheduled.step_rows();
    for (Track& track : tracks_) {
      if (decisions_.Below(4) == 0 || budget == 0) continue;
      if (!track.idle() && decisions_.Below(8) == 0) Abandon(track);
      if (track.idle()) Continue(track);
      if (track.idle()) continue;
      Segment segment;
      segment.state = &track.session->state();
      segment.prompt_end = track.end();
      segment.last_rows = track.last_rows;
      const std::int64_t position = track.session->position();
      const std::int64_t rows =
          std::min({budget, track.end() - position, 1 + decisions_.Below(subject_.scheduled.step_rows())});
      const std::int64_t count = fast::ChunkRows(position, track.end(), track.last_rows, rows);
      segment.ids =
          std::span(track.ids).subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(count));
      segments.push_back(segment);
      if (!subject_.scheduled.Fits(segments)) {
        segments.pop_back();
        continue;
      }
      owners.push_back(&track);
      budget -= count;
    }
    if (segments.empty()) return;
    std::int64_t boundaries = decisions_.Below(3) == 0 ? decisions_.Below(10) : -1;
    if (!subject_.scheduled.RunStep(segments, [&] { return boundaries-- == 0; })) return;
    for (std::size_t i = 0; i < segments.size(); ++i) Keep(*owners[i], segments[i]);
  }

  void Keep(Track& track, const Segment& segment) {
    const auto vocab = static_cast<std::size_t>(subject_.scheduled.config().vocab_size);
    const std::int64_t end = track.session->position(),
                       count = static_cast<std::int64_t>(segment.logits.size() / vocab);
    for (std::int64_t r = 0; r < count; ++r) {
      const auto row =
          segment.logits.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(r) * vocab);
      track.rows.emplace_back(end - count + r,
                              std::vector<float>(row, row + static_cast<std::ptrdiff_t>(vocab)));
    }
  }

  void Verify(const Track& track) {
    const std::int64_t tokens = track.session->position();
    if (track.rows.empty()) return;
    const Ids ids(track.ids.begin(), track.ids.begin() + tokens);
    const std::vector<float> expected = subject_.plain.NewSession()->Append(ids, tokens);
    const auto vocab = static_cast<std::size_t>(subject_.plain.config().vocab_size);
    for (const auto& [position, row] : track.rows) {
      const auto difference = harness::FindDifference(
          row, std::span(expected).subspan(static_cast<std::size_t>(position) * vocab, vocab));
      if (difference)
        std::fprintf(stderr, "logits of position %lld: %s\n", static_cast<long long>(position),
                     difference->Describe().c_str());
      LOCKSTEP_CHECK(!difference);
    }
  }

  Subject& subject_;
  Decisions decisions_;
  std::vector<Track> tracks_;
};

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  static Subject v41(ModelFamily::kV41, "schedule-v41"), v4(ModelFamily::kV4, "schedule-v4");
  Decisions decisions(data, size);
  Subject& subject = decisions.Below(2) == 0 ? v41 : v4;
  Schedule(subject, decisions).Run();
  return 0;
}
