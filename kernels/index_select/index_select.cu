// The indexer on the device: scores of a bounded number of rows, then selection by rounds. Contract: docs/numerics.md section 6, Index score and Selection.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/device/launch.cuh"
#include "kernels/index_select/index_scores.cuh"
#include "kernels/index_select/index_select_cuda.h"
#include "kernels/index_select/index_selection.cuh"
#include "kernels/index_select/index_wide.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

enum Slot { kQuerySlot = 1, kScoreSlot, kRoundSlot, kOtherRoundSlot };

constexpr std::int64_t kScoreBytes = std::int64_t{64} << 20;  // scores that exist together, but for a single row
constexpr std::int64_t kManyRows = 64;                        // from here on rows share the keys that a warp unpacks
constexpr std::int64_t kScoreWarps = 8;                       // of a block
constexpr int kReservedBytes = 1024;  // of shared memory, of every block

std::int64_t RoundUp(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Rows [begin, begin + count) of a call.
IndexSelectArgs PartOf(const IndexSelectArgs& a, std::int64_t begin, std::int64_t count) {
  IndexSelectArgs part = a;
  part.row_T += begin;
  part.rows = count;
  part.q_THI += begin * a.heads * a.dim;
  part.weight_TH += begin * a.heads;
  part.selected_TK += begin * a.top_k;
  part.count_T += begin;
  if (a.candidates_out) part.candidates_out += begin * a.candidate_top_blocks, part.candidate_count_out += begin;
  if (a.candidates_in) part.candidates_in += begin * a.candidate_top_blocks, part.candidate_count_in += begin;
  if (a.scores_out) part.scores_out += begin * a.scores_stride;
  return part;
}

struct Scores {
  float* data;
  std::int64_t stride;
};

struct QueryScales {
  float hadamard, weight;
  explicit QueryScales(const IndexSelectArgs& a)
      : hadamard(static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim)))), weight(static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim * a.heads)))) {}
};

// Whether a warp can take a head at a time.
bool HasWholeHeads(const IndexSelectArgs& a) { return a.dim == 128 && reinterpret_cast<std::uintptr_t>(a.q_THI) % 8 == 0; }

template <int kHeads>
void ScoreWide(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  using Wide = WideScores<kHeads>;
  auto* queries = reinterpret_cast<WideQuery<kHeads>*>(stream.Scratch(kQuerySlot, static_cast<std::size_t>(a.rows) * sizeof(WideQuery<kHeads>)));
  const QueryScales scale(a);
  Launch(PrepareWideQueryKernel<kHeads>, static_cast<unsigned>(a.rows), 256, 0, stream, a, scale.hadamard, scale.weight, queries);
  CheckLaunch("index query");
  const std::int64_t row_blocks = Blocks(a.rows, Wide::kRows), stretches = std::max<std::int64_t>(stream.processors() / row_blocks, 1);
  const std::int64_t keys = RoundUp((entries + stretches - 1) / stretches, Wide::kTileKeys);
  const auto kernel = &WideScoreKernel<kHeads>;
  AllowShared(kernel, stream.device());
  Launch(kernel, dim3(Blocks(entries, keys), static_cast<unsigned>(row_blocks)), Wide::kThreads, Wide::kSharedBytes, stream, a, queries, keys, scores.data, scores.stride);
  CheckLaunch("index scores");
}

template <int kBlocks, int kHeadTiles>
void ScoreFp4(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  if constexpr (kBlocks == 4 && kHeadTiles > 1) {
    const bool room = WideScores<16 * kHeadTiles>::kSharedBytes + kReservedBytes <= stream.shared_bytes();
    if (a.rows >= kManyRows && !a.candidates_in && HasWholeHeads(a) && room) return ScoreWide<16 * kHeadTiles>(stream, a, entries, scores);
  }
  using Query = IndexQuery<kBlocks, kHeadTiles>;
  auto* queries = reinterpret_cast<Query*>(stream.Scratch(kQuerySlot, static_cast<std::size_t>(a.rows) * sizeof(Query)));
  const QueryScales scale(a);
  const auto rows = static_cast<unsigned>(a.rows);
  const dim3 heads(Query::kPaddedHeads, rows);
  const auto general = [&] { Launch(PrepareIndexQueryKernel<kBlocks, kHeadTiles>, heads, 64, 0, stream, a, scale.hadamard, scale.weight, queries); };
  if constexpr (kBlocks == 4) {
    if (HasWholeHeads(a)) Launch(PrepareWholeHeadKernel<kHeadTiles>, heads, 32, 0, stream, a, scale.hadamard, scale.weight, queries);
    else general();
  } else {
    general();
  }
  CheckLaunch("index query");

  const std::int64_t groups = Blocks(entries, IndexScoreWarp<kBlocks, kHeadTiles>::kKeys), blocks = std::max<std::int64_t>(stream.processors() / a.rows, 1);
  const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>((groups + blocks - 1) / blocks, 1, kScoreWarps));
  const auto kernel = &ScoreRowKernel<kBlocks, kHeadTiles>;
  Launch(kernel, dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks, Blocks(groups, warps))), rows), 32 * warps, 0, stream, a, queries, scores.data, scores.stride);
  CheckLaunch("index scores");
}

template <int kBlocks>
void ScoreFp4Heads(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  if (a.heads <= 16) ScoreFp4<kBlocks, 1>(stream, a, entries, scores);
  else if (a.heads <= 32) ScoreFp4<kBlocks, 2>(stream, a, entries, scores);
  else ScoreFp4<kBlocks, 4>(stream, a, entries, scores);
}

void Score(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  if (a.key_format.kind == RowFormat::Kind::kBf16) {
    const float weight_scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim * a.heads)));
    Launch(ScoreBf16Kernel, dim3(Blocks(entries, 8), static_cast<unsigned>(a.rows)), 32, 0, stream, a, weight_scale, scores.data, scores.stride);
    CheckLaunch("index scores");
  } else if (a.dim <= 32) {
    ScoreFp4Heads<1>(stream, a, entries, scores);
  } else if (a.dim <= 64) {
    ScoreFp4Heads<2>(stream, a, entries, scores);
  } else {
    ScoreFp4Heads<4>(stream, a, entries, scores);
  }
}

// The best k of every row's candidates into out and count. `n`: the most candidates that a row has.
void Select(CudaStream& stream, const IndexSelectArgs& a, Candidates candidates, int k, std::int64_t n, const Scores& scores, std::int32_t* out, std::int32_t* count) {
  if (n > kSelectSegment && k > kSelectSegment / 2) {
    throw InputError("indexer: the best " + std::to_string(k) + " of " + std::to_string(n) + ", expected at most " + std::to_string(kSelectSegment / 2) + " on a CUDA device");
  }
  Selection s{};
  s.candidates = candidates;
  s.k = k;
  s.score = scores.data;
  s.stride = scores.stride;
  s.out = out;
  s.count = count;
  const auto rows = static_cast<unsigned>(a.rows);
  const std::int64_t room = LeftAfterRound(n, k);  // a later round leaves fewer
  std::byte* memory[2] = {};
  const auto launch = [&] {
    const auto kernel = s.round > 0 ? &SelectKernel<LeftKeys> : candidates == Candidates::kEntries ? &SelectKernel<EntryKeys> : &SelectKernel<BlockKeys>;
    Launch(kernel, dim3(Blocks(std::max<std::int64_t>(n, 1), kSelectSegment), rows), kSelectThreads, 0, stream, a, s);
  };
  for (; n > kSelectSegment; n = LeftAfterRound(n, k), ++s.round) {
    std::byte*& to = memory[s.round % 2];
    if (!to) to = stream.Scratch(s.round % 2 == 0 ? kRoundSlot : kOtherRoundSlot, static_cast<std::size_t>(a.rows * room) * 8);
    s.next_key = reinterpret_cast<unsigned*>(to);
    s.next_number = reinterpret_cast<std::int32_t*>(to + a.rows * room * 4);
    s.next_stride = room;
    launch();
    s.key = s.next_key;
    s.number = s.next_number;
    s.stride = room;
  }
  s.next_key = nullptr;
  launch();
  CheckLaunch("index selection");
}

// What a dump asked for.
__global__ void KeepScoresKernel(const __grid_constant__ IndexSelectArgs a, const float* scores, std::int64_t stride) {
  BeginKernel();
  const std::int64_t t = blockIdx.y, j = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (j < a.row_T[t].visible) a.scores_out[t * a.scores_stride + j] = scores[t * stride + j];
}

// Rows whose scores exist together.
void SelectRows(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, std::int64_t stride) {
  const Scores scores{reinterpret_cast<float*>(stream.Scratch(kScoreSlot, static_cast<std::size_t>(a.rows * stride) * sizeof(float))), stride};
  Score(stream, a, entries, scores);
  Select(stream, a, Candidates::kEntries, a.top_k, entries, scores, a.selected_TK, a.count_T);
  if (a.candidates_out) {
    const std::int64_t blocks = (entries + a.candidate_block - 1) / a.candidate_block;
    Select(stream, a, Candidates::kBlocks, a.candidate_top_blocks, blocks, scores, a.candidates_out, a.candidate_count_out);
  }
  if (!a.scores_out || a.candidates_in) return;
  Launch(KeepScoresKernel, dim3(Blocks(entries, 256), static_cast<unsigned>(a.rows)), 256, 0, stream, a, scores.data, stride);
  CheckLaunch("index scores");
}

void RunIndexSelect(Stream& s, const IndexSelectArgs& a) {
  const bool packed = a.key_format.kind != RowFormat::Kind::kBf16;
  if (packed ? a.heads > 64 || a.dim > 128 || a.key_format.block != kIndexQuantizerBlock : a.heads > kMaxBf16Heads) {
    throw InputError("indexer: " + std::to_string(a.heads) + " heads of " + std::to_string(a.dim) + " channels, expected at most 64 of 128 on a CUDA device");
  }
  std::int64_t entries = std::max<std::int64_t>(a.max_visible, 1);
  if (a.candidates_in) entries = std::min(entries, std::int64_t{a.candidate_top_blocks} * a.candidate_block);
  const std::int64_t stride = RoundUp(entries, 8), together = std::max<std::int64_t>(kScoreBytes / (stride * 4) / 8 * 8, 8);
  for (std::int64_t begin = 0; begin < a.rows; begin += together) SelectRows(AsCuda(s), PartOf(a, begin, std::min(together, a.rows - begin)), entries, stride);
}

}  // namespace

Kernel<IndexSelectArgs> CudaIndexSelect() { return {&RunIndexSelect, "index_select/H(sm90)+I"}; }

}  // namespace lockstep::kernels
