#include "kernels/index_select/index_select_cpu.h"

#include <algorithm>
#include <limits>

#include "kernels/device/profile_kernel.h"
#include "kernels/index_select/index_rows.h"
#include "kernels/index_select/top_k.h"

namespace lockstep::kernels {
namespace {

struct IndexFunctions {
  void (*prepare)(const IndexSelectArgs&, std::int64_t, std::byte*);
  void (*scores)(const IndexSelectArgs&, Profile, std::int64_t, const std::byte*, std::int64_t, std::int64_t, float*);
};

constexpr std::int64_t kKeyPiece = 2048;  // keys that one work item scores

std::size_t Aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Memory for one row: its query, the scores, the numbers of restricted entries, sort keys.
struct RowScratch {
  std::byte* query;
  float* scores;
  std::int32_t* numbers;
  std::uint64_t* keys;

  static std::size_t Bytes(const IndexSelectArgs& a, std::int64_t visible) {
    return Aligned(generic::IndexQueryBytes(a)) + static_cast<std::size_t>(visible) * 16 + 192;
  }
  RowScratch(const IndexSelectArgs& a, std::int64_t visible, std::byte* base) {
    query = base;
    base += Aligned(generic::IndexQueryBytes(a));
    keys = reinterpret_cast<std::uint64_t*>(base);
    scores = reinterpret_cast<float*>(keys + visible);
    numbers = reinterpret_cast<std::int32_t*>(scores + visible);
  }
};

// Entries of row t that a later index source may choose from: those of the kept blocks. Returns how many.
std::int64_t RestrictedEntries(const IndexSelectArgs& a, std::int64_t t, std::int32_t* numbers) {
  std::int64_t n = 0;
  for (std::int32_t i = 0; i < a.candidate_count_in[t]; ++i) {
    const std::int64_t begin = std::int64_t{a.candidates_in[t * a.candidate_top_blocks + i]} * a.candidate_block;
    const std::int64_t end = std::min(begin + a.candidate_block, a.row_T[t].visible);
    for (std::int64_t j = begin; j < end; ++j) numbers[n++] = static_cast<std::int32_t>(j);
  }
  return n;
}

// The blocks that the candidate source keeps: by their largest score, the newest always.
void KeepCandidates(const IndexSelectArgs& a, std::int64_t t, RowScratch& s) {
  const std::int64_t visible = a.row_T[t].visible, blocks = (visible + a.candidate_block - 1) / a.candidate_block;
  for (std::int64_t b = 0; b < blocks; ++b) {
    float top = s.scores[b * a.candidate_block];
    for (std::int64_t j = b * a.candidate_block; j < std::min((b + 1) * a.candidate_block, visible); ++j) top = std::max(top, s.scores[j]);
    s.scores[b] = top;  // behind the scores still to be read
  }
  if (blocks > 0) s.scores[blocks - 1] = std::numeric_limits<float>::infinity();
  a.candidate_count_out[t] = SelectBest(s.scores, nullptr, blocks, a.candidate_top_blocks, s.keys, a.candidates_out + t * a.candidate_top_blocks);
}

void FinishRow(const IndexSelectArgs& a, std::int64_t t, std::int64_t n, RowScratch& s) {
  const bool restricted = a.candidates_in != nullptr;
  a.count_T[t] = SelectBest(s.scores, restricted ? s.numbers : nullptr, n, a.top_k, s.keys, a.selected_TK + t * a.top_k);
  if (a.scores_out && !restricted) std::copy(s.scores, s.scores + n, a.scores_out + t * a.scores_stride);
  if (a.candidates_out && a.count_T[t] >= 0) KeepCandidates(a, t, s);
}

// Scores of the row's choosable entries [begin, end) in their order.
void ScorePiece(const IndexFunctions& f, const IndexSelectArgs& a, Profile profile, std::int64_t t, RowScratch& s, std::int64_t begin,
                std::int64_t end) {
  if (!a.candidates_in) {
    f.scores(a, profile, t, s.query, begin, end, s.scores + begin);
    return;
  }
  for (std::int64_t i = begin; i < end; ++i) f.scores(a, profile, t, s.query, s.numbers[i], s.numbers[i] + 1, s.scores + i);
}

std::int64_t BeginRow(const IndexFunctions& f, const IndexSelectArgs& a, std::int64_t t, RowScratch& s) {
  f.prepare(a, t, s.query);
  return a.candidates_in ? RestrictedEntries(a, t, s.numbers) : a.row_T[t].visible;
}

// Many rows: a thread each. Few rows: the threads share a row's keys.
void RunIndexSelect(const IndexFunctions& f, Stream& stream, const IndexSelectArgs& a, Profile profile) {
  CpuStream& cpu = AsCpu(stream);
  if (a.rows >= cpu.threads()) {
    cpu.ParallelFor(a.rows, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t visible = a.row_T[t].visible;
        RowScratch s(a, visible, cpu.Scratch(worker, RowScratch::Bytes(a, visible)));
        const std::int64_t n = BeginRow(f, a, t, s);
        ScorePiece(f, a, profile, t, s, 0, n);
        FinishRow(a, t, n, s);
      }
    });
    return;
  }
  for (std::int64_t t = 0; t < a.rows; ++t) {
    const std::int64_t visible = a.row_T[t].visible;
    RowScratch s(a, visible, cpu.SharedScratch(RowScratch::Bytes(a, visible)));
    const std::int64_t n = BeginRow(f, a, t, s);
    cpu.ParallelFor(n, kKeyPiece, [&](std::int64_t begin, std::int64_t end, int) { ScorePiece(f, a, profile, t, s, begin, end); });
    FinishRow(a, t, n, s);
  }
}

struct Generic {
  static constexpr IndexFunctions kFunctions = {&generic::PrepareIndexQuery, &generic::IndexScores};
};
struct Avx2 {
  static constexpr IndexFunctions kFunctions = {&avx2::PrepareIndexQuery, &avx2::IndexScores};
};
struct Avx512 {
  static constexpr IndexFunctions kFunctions = {&avx512::PrepareIndexQuery, &avx512::IndexScores};
};

template <class Build>
struct For {
  template <Profile profile>
  struct Run {
    static void Call(Stream& stream, const IndexSelectArgs& a) { RunIndexSelect(Build::kFunctions, stream, a, profile); }
  };
};

}  // namespace

Kernel<IndexSelectArgs> CpuIndexSelect(Isa isa, Profile profile) {
  constexpr std::string_view kContracts[7] = LOCKSTEP_PROFILE_CONTRACTS("index_select", "+I");
  if (isa == Isa::kAvx512) return ProfileKernel<IndexSelectArgs, For<Avx512>::template Run>(profile, kContracts);
  if (isa == Isa::kAvx2) return ProfileKernel<IndexSelectArgs, For<Avx2>::template Run>(profile, kContracts);
  return ProfileKernel<IndexSelectArgs, For<Generic>::template Run>(profile, kContracts);
}

}  // namespace lockstep::kernels
