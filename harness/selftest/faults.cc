#include "harness/selftest/faults.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "harness/selftest/plain_attention.h"
#include "kernels/device/stream.h"
#include "model/float_formats.h"
#include "model/step_trace.h"

namespace lockstep::harness {
namespace {

using namespace kernels;  // NOLINT: every name below is one of theirs

// --- attention

void SkipSink(Stream& stream, const AttentionArgs& args) {
  AttentionArgs wrong = args;
  const std::vector<float> none(static_cast<std::size_t>(args.heads), -1e30f);
  wrong.sink_H = none.data();
  Good().attention(stream, wrong);
}

void ShortenWindow(Stream& stream, const AttentionArgs& args) {
  AttentionArgs wrong = args;
  --wrong.window;
  Good().attention(stream, wrong);
}

// Every page but the first is the one before it: a table that was not updated.
void ReadStalePages(Stream& stream, const AttentionArgs& args) {
  constexpr std::size_t kPages = 256;
  AttentionArgs wrong = args;
  std::vector<AttentionRow> rows(args.row_T, args.row_T + args.rows);
  std::map<std::byte* const*, std::vector<std::byte*>> stale;
  for (AttentionRow& row : rows) {
    if (row.compressed.pages == nullptr || row.visible == 0) continue;
    std::vector<std::byte*>& pages = stale[row.compressed.pages];
    const auto used = static_cast<std::size_t>((row.visible - 1) >> row.compressed.page_shift) + 1;
    pages.reserve(kPages);
    while (pages.size() < used) pages.push_back(row.compressed.pages[pages.empty() ? 0 : pages.size() - 1]);
    row.compressed.pages = pages.data();
  }
  wrong.row_T = rows.data();
  Good().attention(stream, wrong);
}

// All rows of a batch read the last row's sequence.
void MixUpSequences(Stream& stream, const AttentionArgs& args) {
  AttentionArgs wrong = args;
  std::vector<AttentionRow> rows(args.row_T, args.row_T + args.rows);
  for (AttentionRow& row : rows) row.window.ring = rows.back().window.ring;
  wrong.row_T = rows.data();
  Good().attention(stream, wrong);
}

// --- index

// The best by score, of equal ones the later: the wrong total order.
void BreakTiesTheOtherWay(Stream& stream, const IndexSelectArgs& args) {
  IndexSelectArgs with_scores = args;
  for (std::int64_t t = 0; t < args.rows; ++t)
    with_scores.scores_stride = std::max(with_scores.scores_stride, args.row_T[t].visible);
  std::vector<float> scores(static_cast<std::size_t>(args.rows * with_scores.scores_stride));
  with_scores.scores_out = scores.data();
  Good().index_select(stream, with_scores);
  if (args.scores_out) Good().index_select(stream, args);
  for (std::int64_t t = 0; t < args.rows && !args.candidates_in; ++t) {
    const float* row = scores.data() + t * with_scores.scores_stride;
    std::vector<std::int32_t> order;
    for (std::int32_t j = 0; j < args.row_T[t].visible; ++j) order.push_back(j);
    std::sort(order.begin(), order.end(),
              [row](std::int32_t a, std::int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a > b; });
    order.resize(static_cast<std::size_t>(args.count_T[t]));
    std::sort(order.begin(), order.end());
    std::copy(order.begin(), order.end(), args.selected_TK + t * args.top_k);
  }
}

void SelectOneTooFew(Stream& stream, const IndexSelectArgs& args) {
  Good().index_select(stream, args);
  for (std::int64_t t = 0; t < args.rows; ++t) args.count_T[t] = std::min(args.count_T[t], args.top_k - 1);
}

// Every token of a tile sees what its last one sees.
void SeeTheFuture(Stream& stream, const IndexSelectArgs& args) {
  IndexSelectArgs wrong = args;
  std::vector<IndexRow> rows(args.row_T, args.row_T + args.rows);
  for (IndexRow& row : rows) {
    if (row.keys.pages == rows.back().keys.pages) row.visible = rows.back().visible;
  }
  wrong.row_T = rows.data();
  Good().index_select(stream, wrong);
}

// --- compressor

// What a group had before the chunk began is gone.
void LoseOpenGroup(Stream& stream, const CompressorArgs& args) {
  CompressorArgs wrong = args;
  const std::int64_t channels = args.width * (args.overlap ? 2 : 1);
  const std::vector<float> nothing(static_cast<std::size_t>(args.history_slots * 2 * channels), 0.0f);
  std::vector<PoolEntry> entries(args.entry_N, args.entry_N + args.entries);
  for (PoolEntry& entry : entries) entry.history = nothing.data();
  wrong.entry_N = entries.data();
  Good().compress(stream, wrong);
}

// --- linears

std::int64_t InputWidth(const LinearArgs& args) { return std::int64_t{args.groups} * args.spec->in_features; }

std::vector<std::uint16_t> CopyInput(const LinearArgs& args) {
  std::vector<std::uint16_t> x;
  for (std::int64_t r = 0; r < args.rows; ++r) {
    x.insert(x.end(), args.x + r * args.x_stride, args.x + r * args.x_stride + InputWidth(args));
  }
  return x;
}

void DropLastInput(Stream& stream, const LinearArgs& args) {
  std::vector<std::uint16_t> x = CopyInput(args);
  const std::int64_t width = InputWidth(args);
  for (std::int64_t r = 0; r < args.rows; ++r) x[static_cast<std::size_t>((r + 1) * width - 1)] = 0;
  LinearArgs wrong = args;
  wrong.x = x.data();
  wrong.x_stride = width;
  Good().linear(stream, wrong);
}

// ((s0 + s1) + s2) + s3 in place of (s0 + s1) + (s2 + s3). A segment's sum is the linear of an input that is
// zero elsewhere.
void FoldSegmentsInOrder(Stream& stream, const LinearArgs& args) {
  if (args.y_fp32 == nullptr) return Good().linear(stream, args);
  const std::int64_t width = args.spec->in_features, out = args.spec->out_features,
                     blocks = (width + 127) / 128;
  for (std::int64_t s = 0; s < 4; ++s) {
    std::vector<std::uint16_t> x = CopyInput(args);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
      const std::int64_t block = i % width / 128;
      if (block < s * blocks / 4 || block >= (s + 1) * blocks / 4) x[static_cast<std::size_t>(i)] = 0;
    }
    std::vector<float> sum(static_cast<std::size_t>(args.rows * out));
    LinearArgs segment = args;
    segment.x = x.data();
    segment.x_stride = width;
    segment.y_fp32 = sum.data();
    segment.y_stride = out;
    Good().linear(stream, segment);
    for (std::int64_t i = 0; i < args.rows * out; ++i) {
      float& y = args.y_fp32[i / out * args.y_stride + i % out];
      y = s == 0 ? sum[static_cast<std::size_t>(i)] : y + sum[static_cast<std::size_t>(i)];
    }
  }
}

// --- elementwise

// Queries, which are the only rows of several heads, one position on.
void RotateQueriesTooFar(Stream& stream, const RopeArgs& args) {
  if (args.heads == 1 || args.inverse) return Good().rope(stream, args);
  std::vector<std::int64_t> next(args.positions, args.positions + args.rows);
  for (std::int64_t& p : next) ++p;
  RopeArgs wrong = args;
  wrong.positions = next.data();
  Good().rope(stream, wrong);
}

void StopSinkhornEarly(Stream& stream, const HcMixArgs& args) {
  HcMixArgs wrong = args;
  if (!args.read_out) wrong.sinkhorn_iters = 1;
  Good().hc_mix(stream, wrong);
}

// The routed experts' sum goes through bf16 before the shared expert joins it. (The order of the sum alone
// hardly ever shows: bf16 values of like size add exactly in fp32.)
void RoundRoutedSum(Stream&, const CombineArgs& args) {
  for (std::int64_t t = 0; t < args.rows; ++t) {
    for (std::int64_t d = 0; d < args.hidden; ++d) {
      float sum = 0;
      for (int i = 0; i < args.top_k; ++i)
        sum += BF16ToFloat(args.expert_rows[args.pair_of[t * args.top_k + i] * args.hidden + d]);
      args.out_TE[t * args.hidden + d] =
          FloatToBF16(RoundToBF16(sum) + BF16ToFloat(args.shared_TE[t * args.hidden + d]));
    }
  }
}

// --- experts

void ForgetRoutingScale(Stream& stream, const RouterArgs& args) {
  RouterArgs wrong = args;
  wrong.scaling = 1.0f;
  Good().router(stream, wrong);
}

void SwapExperts(Stream& stream, const ExpertFfnArgs& args) {
  ExpertFfnArgs wrong = args;
  std::vector<ExpertJob> jobs(args.jobs, args.jobs + args.num_jobs);
  if (jobs.size() > 1) std::swap(jobs[0].blob, jobs[1].blob);
  wrong.jobs = jobs.data();
  ExpertTable table;
  std::vector<const std::byte*> blobs;
  if (args.table) {
    table = *args.table;
    blobs.assign(table.blob_X, table.blob_X + table.experts);
    if (*args.groups.num_active > 1) {
      std::swap(blobs[static_cast<std::size_t>(args.groups.active_X[0])], blobs[static_cast<std::size_t>(args.groups.active_X[1])]);
    }
    table.blob_X = blobs.data();
    wrong.table = &table;
  }
  Good().expert_ffn(stream, wrong);
}

// Two pairs of a step trade their rows.
void SwapPairs(Stream& stream, const PairGroupsArgs& args) {
  Good().pair_groups(stream, args);
  if (args.rows > 1) std::swap(args.token[0], args.token[args.rows * args.top_k - 1]);
}

void ForgetClamp(Stream& stream, const ExpertFfnArgs& args) {
  ExpertFfnArgs wrong = args;
  wrong.limit = 0.0f;
  Good().expert_ffn(stream, wrong);
}

// --- kv rows

// The last bytes of a window row do not get into its ring.
void CutStoredRowsShort(Stream& stream, const PackRowsArgs& args) {
  constexpr std::size_t kLost = 16;
  std::vector<std::byte> lost(static_cast<std::size_t>(args.rows) * kLost);
  const auto for_each_end = [&](auto visit) {
    for (std::int64_t i = 0; args.flat && i < args.rows; ++i) {
      if (args.to_T[i]) visit(args.to_T[i] + args.format.row_bytes() - kLost, lost.data() + static_cast<std::size_t>(i) * kLost);
    }
  };
  for_each_end([](std::byte* end, std::byte* kept) { std::memcpy(kept, end, kLost); });
  Good().pack_rows(stream, args);
  for_each_end([](std::byte* end, std::byte* kept) { std::memcpy(end, kept, kLost); });
}

// --- copies

// A staging slot keeps the first expert that came into it: the copy was not waited for.
Fault ReuseStagedExperts() {
  auto seen = std::make_shared<std::map<std::byte*, int>>();
  Fault fault;
  fault.memory = "expert staging slot";
  fault.begin = [seen] { seen->clear(); };
  fault.copy_in = [seen](std::byte* to, const std::byte*, std::size_t bytes,
                         const std::function<void(std::size_t)>& good) {
    if ((*seen)[to]++ == 0) good(bytes);
  };
  return fault;
}

// The first token of every step is that of the first step: captured with the step and not read anew.
Fault KeepFirstToken() {
  auto token = std::make_shared<std::vector<std::byte>>();
  Fault fault;
  fault.memory = "step record";
  fault.begin = [token] { token->clear(); };
  fault.copy_in = [token](std::byte* to, const std::byte* from, std::size_t bytes,
                          const std::function<void(std::size_t)>& good) {
    good(bytes);
    if (token->empty()) token->assign(from, from + sizeof(std::int32_t));
    std::memcpy(to, token->data(), token->size());
  };
  return fault;
}

template <typename Args>
Fault Replace(Kernel<Args> KernelTable::*member, void (*wrong)(Stream&, const Args&)) {
  Fault fault;
  fault.kernels = [=](KernelTable& table) { (table.*member).run = wrong; };
  return fault;
}

template <AttentionMistake mistake>
Fault ReplaceAttention() {
  return Replace(&KernelTable::attention, &PlainAttention<mistake>);
}

}  // namespace

std::vector<KnownFault> CommonFaults() {
  return {
      {"SkippedSink", step::kAttnHeads, Replace(&KernelTable::attention, &SkipSink)},
      {"WindowOneShort", step::kAttnHeads, Replace(&KernelTable::attention, &ShortenWindow)},
      {"SequencesMixedUp", step::kAttnHeads, Replace(&KernelTable::attention, &MixUpSequences)},
      {"NoRescale", step::kAttnHeads, ReplaceAttention<AttentionMistake::kNoRescale>()},
      {"BlocksFromWindow", step::kAttnHeads, ReplaceAttention<AttentionMistake::kBlocksFromWindow>()},
      {"WeightsNotRounded", step::kAttnHeads, ReplaceAttention<AttentionMistake::kWeightsNotRounded>()},
      {"DenominatorInOrder", step::kAttnHeads, ReplaceAttention<AttentionMistake::kDenominatorInOrder>()},
      {"SinkInMaximum", step::kAttnHeads, ReplaceAttention<AttentionMistake::kSinkInMaximum>()},
      {"LastInputDropped", step::kQueryLatent, ReplaceLinears<&DropLastInput>()},
      {"QueriesOnePositionOn", step::kQuery, Replace(&KernelTable::rope, &RotateQueriesTooFar)},
      {"SinkhornStopsEarly", step::kHcAttn, Replace(&KernelTable::hc_mix, &StopSinkhornEarly)},
      {"RoutingNotScaled", step::kRouter, Replace(&KernelTable::router, &ForgetRoutingScale)},
      {"ExpertsSwapped", step::kFfnOut, Replace(&KernelTable::expert_ffn, &SwapExperts)},
      {"NoClamp", step::kFfnOut, Replace(&KernelTable::expert_ffn, &ForgetClamp)},
      {"RoutedSumRounded", step::kFfnOut, Replace(&KernelTable::combine, &RoundRoutedSum)},
      {"PairsSwapped", step::kFfnOut, Replace(&KernelTable::pair_groups, &SwapPairs)},
      {"WindowRowsCutShort", step::kAttnHeads, Replace(&KernelTable::pack_rows, &CutStoredRowsShort)},
      {"FirstTokenKept", step::kEmbed, KeepFirstToken()},
      {"StagedExpertReused", step::kFfnOut, ReuseStagedExperts()},
  };
}

std::vector<KnownFault> IndexFaults() {
  return {
      {"StalePages", step::kAttnHeads, Replace(&KernelTable::attention, &ReadStalePages)},
      {"WrongTies", step::kSelected, Replace(&KernelTable::index_select, &BreakTiesTheOtherWay)},
      {"OneTooFew", step::kSelected, Replace(&KernelTable::index_select, &SelectOneTooFew)},
      {"FutureEntries", step::kSelected, Replace(&KernelTable::index_select, &SeeTheFuture)},
      {"OpenGroupLost", step::kIndexKey, Replace(&KernelTable::compress, &LoseOpenGroup)},
  };
}

Fault SegmentFoldFault() { return ReplaceLinears<&FoldSegmentsInOrder>(); }

}  // namespace lockstep::harness
