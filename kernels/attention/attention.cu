// Attention on the device: rows by tiles where they fill it, each row over many blocks where they are few. Contract: docs/numerics.md section 6.
#include <algorithm>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_split_scores.cuh"
#include "kernels/attention/attention_split_values.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/device/launch.cuh"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

enum Slot { kScoreSlot = 1, kKeySlot };
constexpr std::int64_t kFewRows = 32;  // up to here splitting a row is faster than a block a row (docs/performance.md)
constexpr int kReservedBytes = 1024;  // of shared memory, of every block
constexpr std::int64_t kSplitBytes = std::int64_t{64} << 20;  // of the keys that splitting leaves in memory

// Block: a row and 64 heads.
__global__ void __launch_bounds__(AttentionTile::kThreads, 1) AttentionTileKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionTile::Layout layout,
                                                                                  float scale) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  AttentionTile(a, layout, scale, blockIdx.x, memory).Run();
}

// Heads of 512 channels; blocks go from row to row.
__global__ void __launch_bounds__(WideLayout::kThreads, 1) AttentionWideKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ AttentionTile::Layout layout,
                                                                               float scale) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  RunWideAttention(a, scale, memory + (1024 - SharedAddress(memory) % 1024) % 1024);
#else
  for (int item = blockIdx.x; item < WideItem::Count(a); item += gridDim.x) {
    AttentionTile(a, layout, scale, item, memory).Run();
    __syncthreads();
  }
#endif
}

// Blocks of the longest list that a row may have, 0 if the host does not know.
std::int64_t MaxBlocks(const AttentionArgs& a) {
  const std::int64_t compressed = a.all_visible ? a.max_visible : a.selected_TK ? a.top_k : 0;
  if (a.all_visible && a.max_visible == 0) return 0;
  return MaxWindowBlocks(a.window) + (compressed + kAttentionSlots - 1) / kAttentionSlots;
}

// Shared memory of a block that walks the chain.
int ValueBytes(std::int64_t blocks) {
  return static_cast<int>(sizeof(AttentionValues::Shared) - (blocks <= AttentionSplit::kBlocks ? sizeof(AttentionValues::Chunk) : 0));
}

void RunSplit(CudaStream& stream, const AttentionArgs& a, std::int64_t blocks, float scale) {
  AttentionSplit split;
  split.slots = blocks * kAttentionSlots;
  split.padded = (a.head_dim + AttentionSplit::kChannels - 1) / AttentionSplit::kChannels * AttentionSplit::kChannels;
  split.raw_stride = static_cast<int>((std::max(a.window_format.row_bytes(), a.compressed_format.row_bytes()) + 15) / 16 * 16);
  split.rehearse = a.rows == 1 && blocks <= AttentionSplit::kBlocks;
  split.rehearse_scores = split.rehearse && !stream.last_launch().fills;
  split.compressed_blocks = static_cast<int>(blocks) - MaxWindowBlocks(a.window);
  split.score = reinterpret_cast<float*>(stream.Scratch(kScoreSlot, static_cast<std::size_t>(a.rows * a.heads * split.slots) * sizeof(float)));
  split.key = reinterpret_cast<std::uint16_t*>(stream.Scratch(kKeySlot, static_cast<std::size_t>(a.rows * split.slots * split.padded) * 2));
  const auto rows = static_cast<unsigned>(a.rows);
  const dim3 score_grid(static_cast<unsigned>(split.slots / AttentionSplit::kScoreSlots), Blocks(a.heads, AttentionSplit::kScoreHeads), rows);
  AllowShared(AttentionScoreKernel, stream.device());
  Launch(AttentionScoreKernel, score_grid, AttentionSplit::kScoreThreads, split.score_bytes(), stream, a, split, scale);
  CheckLaunch("attention scores");
  AllowShared(AttentionValueKernel, stream.device());
  const dim3 value_grid(Blocks(a.head_dim, AttentionSplit::kChannels), Blocks(a.heads, AttentionSplit::kValueHeads), rows);
  Launch(AttentionValueKernel, value_grid, AttentionSplit::kValueThreads, static_cast<std::size_t>(ValueBytes(blocks)), stream, a, split);
  CheckLaunch("attention values");
}

void RunTiles(CudaStream& stream, const AttentionArgs& a, float scale) {
  const AttentionTile::Layout layout(a.head_dim, std::max(a.window_format.row_bytes(), a.compressed_format.row_bytes()));
  const std::int64_t items = a.rows * Blocks(a.heads, AttentionTile::kHeads);
  static_assert(AttentionTile::kThreads == WideLayout::kThreads);
  const bool whole = a.head_dim == WideLayout::kDim && a.window_format.width == a.head_dim && (!(a.all_visible || a.selected_TK) || a.compressed_format.width == a.head_dim);
  const bool wide = whole && layout.raw_stride <= WideLayout::kMaxRowBytes && WideLayout::kBytes + kReservedBytes <= stream.shared_bytes();
  const auto kernel = wide ? &AttentionWideKernel : &AttentionTileKernel;
  AllowShared(kernel, stream.device());
  const auto blocks = static_cast<unsigned>(wide ? std::min<std::int64_t>(items, stream.processors()) : items);
  Launch(kernel, blocks, AttentionTile::kThreads, static_cast<std::size_t>(wide ? WideLayout::kBytes : layout.bytes), stream, a, layout, scale);
  CheckLaunch("attention");
}

void RunAttention(Stream& stream, const AttentionArgs& a) {
  LOCKSTEP_CHECK(a.head_dim <= AttentionTile::kMaxDim);
  if (a.rows == 0) return;
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.head_dim)));
  const std::int64_t blocks = MaxBlocks(a);
  const bool room = ValueBytes(blocks) + kReservedBytes <= AsCuda(stream).shared_bytes();
  if (a.rows <= kFewRows && blocks > 0 && room && a.rows * blocks * kAttentionSlots * a.head_dim * 2 <= kSplitBytes) {
    RunSplit(AsCuda(stream), a, blocks, scale);
  } else {
    RunTiles(AsCuda(stream), a, scale);
  }
}

}  // namespace

Kernel<AttentionArgs> CudaAttention() { return {&RunAttention, "attention/H(sm90)"}; }

}  // namespace lockstep::kernels
