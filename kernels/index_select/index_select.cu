// The indexer on the device: scores of a bounded number of rows, then selection by rounds; of few long rows both in one launch. Contract: docs/numerics.md section 6, Index score and Selection.
#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/device/launch.cuh"
#include "kernels/index_select/index_scores.cuh"
#include "kernels/index_select/index_select_cuda.h"
#include "kernels/index_select/index_selection.cuh"
#include "kernels/index_select/index_team.cuh"
#include "kernels/index_select/index_wide.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

enum Slot { kQuerySlot = 1, kScoreSlot, kRoundSlot, kOtherRoundSlot, kTeamSlot };

constexpr std::int64_t kScoreBytes = std::int64_t{64} << 20;  // scores that exist together, but for a single row
constexpr std::int64_t kManyRows = 64;                        // from here on rows share the keys that a warp unpacks
constexpr std::int64_t kScoreWarps = 8;                       // of a block
constexpr std::int64_t kTeamRows = 8, kTeamEntries = 3072;     // at most, and at least, where the blocks of a row choose together
constexpr int kReservedBytes = 1024;                           // of shared memory, of every block

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

// The prepared queries. `team`: null, or memory of every row that has to be clear.
template <int kBlocks, int kHeadTiles>
const IndexQuery<kBlocks, kHeadTiles>* PrepareQueries(CudaStream& stream, const IndexSelectArgs& a, TeamRow* team) {
  using Query = IndexQuery<kBlocks, kHeadTiles>;
  auto* queries = reinterpret_cast<Query*>(stream.Scratch(kQuerySlot, static_cast<std::size_t>(a.rows) * sizeof(Query)));
  const QueryScales scale(a);
  const dim3 heads(Query::kPaddedHeads, static_cast<unsigned>(a.rows));
  auto kernel = &PrepareIndexQueryKernel<kBlocks, kHeadTiles>;
  unsigned threads = 64;
  if constexpr (kBlocks == 4) {
    if (HasWholeHeads(a)) kernel = &PrepareWholeHeadKernel<kHeadTiles>, threads = 32;
  }
  Launch(kernel, heads, threads, 0, stream, a, scale.hadamard, scale.weight, queries, team);
  CheckLaunch("index query");
  return queries;
}

template <int kBlocks, int kHeadTiles>
void ScoreFp4(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  if constexpr (kBlocks == 4 && kHeadTiles > 1) {
    const bool room = WideScores<16 * kHeadTiles>::kSharedBytes + kReservedBytes <= stream.shared_bytes();
    if (a.rows >= kManyRows && !a.candidates_in && HasWholeHeads(a) && room) return ScoreWide<16 * kHeadTiles>(stream, a, entries, scores);
  }
  const auto* queries = PrepareQueries<kBlocks, kHeadTiles>(stream, a, nullptr);
  const std::int64_t groups = Blocks(entries, IndexScoreWarp<kBlocks, kHeadTiles>::kKeys), blocks = std::max<std::int64_t>(stream.processors() / a.rows, 1);
  const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>((groups + blocks - 1) / blocks, 1, kScoreWarps));
  const auto kernel = &ScoreRowKernel<kBlocks, kHeadTiles>;
  Launch(kernel, dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks, Blocks(groups, warps))), static_cast<unsigned>(a.rows)), 32 * warps, 0, stream, a, queries, scores.data, scores.stride);
  CheckLaunch("index scores");
}

// Calls body(integral constants of the blocks of channels and of the tiles of heads) for packed keys.
template <class Body>
void ForShape(const IndexSelectArgs& a, const Body& body) {
  const auto with_tiles = [&](auto blocks) {
    if (a.heads <= 16) body(blocks, std::integral_constant<int, 1>());
    else if (a.heads <= 32) body(blocks, std::integral_constant<int, 2>());
    else body(blocks, std::integral_constant<int, 4>());
  };
  if (a.dim <= 32) with_tiles(std::integral_constant<int, 1>());
  else if (a.dim <= 64) with_tiles(std::integral_constant<int, 2>());
  else with_tiles(std::integral_constant<int, 4>());
}

void Score(CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries, const Scores& scores) {
  if (a.key_format.kind != RowFormat::Kind::kBf16) {
    return ForShape(a, [&](auto blocks, auto tiles) { ScoreFp4<decltype(blocks)::value, decltype(tiles)::value>(stream, a, entries, scores); });
  }
  const float weight_scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim * a.heads)));
  Launch(ScoreBf16Kernel, dim3(Blocks(entries, 8), static_cast<unsigned>(a.rows)), 32, 0, stream, a, weight_scale, scores.data, scores.stride);
  CheckLaunch("index scores");
}

// How the blocks of a row share its entries, where there are few rows of many.
struct TeamShape {
  std::int64_t blocks, stretch;

  TeamShape(const CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries)
      : blocks(std::clamp<std::int64_t>(stream.processors() / a.rows, 1, kMaxTeam)), stretch(TeamStretch(entries, blocks)) {
    blocks = std::min<std::int64_t>(blocks, Blocks(entries, stretch));
  }
  std::size_t key_bytes() const { return static_cast<std::size_t>(stretch) * sizeof(unsigned); }
  bool Takes(const CudaStream& stream, const IndexSelectArgs& a, std::int64_t entries) const {
    const std::size_t bytes = key_bytes() + sizeof(TeamSelection::Shared) + kReservedBytes;
    return a.key_format.kind != RowFormat::Kind::kBf16 && !a.candidates_out && a.rows <= kTeamRows && entries >= kTeamEntries && stretch <= kMaxStretch &&
           bytes <= static_cast<std::size_t>(stream.shared_bytes());
  }
};

void ScoreAndSelect(CudaStream& stream, const IndexSelectArgs& a, const TeamShape& shape) {
  auto* team = reinterpret_cast<TeamRow*>(stream.Scratch(kTeamSlot, static_cast<std::size_t>(a.rows) * sizeof(TeamRow)));
  ForShape(a, [&](auto blocks, auto tiles) {
    const auto* queries = PrepareQueries<decltype(blocks)::value, decltype(tiles)::value>(stream, a, team);
    const auto kernel = &TeamSelectKernel<decltype(blocks)::value, decltype(tiles)::value>;
    AllowShared(kernel, stream.device());
    Launch(kernel, dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(a.rows)), kTeamThreads, shape.key_bytes(), stream, a, queries, team);
    stream.SetLastLaunch({.fills = true});
  });
  CheckLaunch("index scores and selection");
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
  if (const TeamShape shape(stream, a, entries); shape.Takes(stream, a, entries)) return ScoreAndSelect(stream, a, shape);
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
