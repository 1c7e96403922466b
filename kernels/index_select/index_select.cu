// The indexer on the device: queries quantized like keys, scores of a tile of rows, deterministic radix selection.
#include <algorithm>

#include "kernels/contract/total_order.h"
#include "kernels/device/cuda_stream.cuh"
#include "kernels/index_select/index_select_cuda.h"
#include "kernels/kv_rows/kv_codec.cuh"
#include "kernels/linear/mma_sm80.cuh"

namespace lockstep::kernels {
namespace {

enum Slot { kQuerySlot = 1, kScoreSlot, kBlockSlot };

constexpr int kMaxHeads = 128;
constexpr int kMaxDim = 512;

__device__ float Nothing() { return -__int_as_float(0x7f800000); }

__device__ const std::byte* KeyRow(const PagedRows& rows, std::int64_t i) {
  return rows.pages[i >> rows.page_shift] + (i & ((std::int64_t{1} << rows.page_shift) - 1)) * rows.row_bytes;
}

// A quantized query row: twice the E2M1 values as int8 [heads][dim], scales [heads][blocks].
struct QueryLayout {
  std::int64_t blocks, bytes;
  __host__ __device__ QueryLayout(int heads, int dim, int block) {
    blocks = (dim + block - 1) / block;
    bytes = (heads * dim + 3) / 4 * 4 + heads * blocks * 4;
  }
};

__global__ void PrepareQueryKernel(IndexSelectArgs a, QueryLayout layout, float hadamard_scale, std::byte* queries) {
  __shared__ float x[kMaxDim];
  __shared__ std::uint8_t codes[kMaxDim], scales[kMaxDim];
  const int h = blockIdx.x;
  const std::int64_t t = blockIdx.y;
  const std::uint16_t* q = a.q_THI + (t * a.heads + h) * a.dim;
  for (int d = threadIdx.x; d < a.dim; d += blockDim.x) x[d] = BF16Value(q[d]);
  __syncthreads();
  if (a.key_format.kind == RowFormat::Kind::kHadamardFp4) HadamardBlock(x, a.dim, hadamard_scale);
  QuantizeBlocks(a.key_format, x, codes, scales);
  __syncthreads();
  std::byte* row = queries + t * layout.bytes;
  auto* values = reinterpret_cast<signed char*>(row) + h * a.dim;
  auto* out_scales = reinterpret_cast<float*>(row + (a.heads * a.dim + 3) / 4 * 4) + h * layout.blocks;
  for (int d = threadIdx.x; d < a.dim; d += blockDim.x) values[d] = static_cast<signed char>(2.0f * E2M1Value(codes[d]));
  for (int b = threadIdx.x; b < layout.blocks; b += blockDim.x) out_scales[b] = PowerOfExponent(scales[b]);
}

// Whether a later index source may choose entry j: its block is in the ascending list.
__device__ bool IsCandidate(const IndexSelectArgs& a, std::int64_t t, std::int64_t j) {
  if (!a.candidates_in) return true;
  const std::int32_t* list = a.candidates_in + t * a.candidate_top_blocks;
  const auto block = static_cast<std::int32_t>(j / a.candidate_block);
  int low = 0, high = a.candidate_count_in[t];
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle] < block) low = middle + 1;
    else high = middle;
  }
  return low < a.candidate_count_in[t] && list[low] == block;
}

// fold over the heads of relu(d) * w, padded with +0 to a power of two.
__device__ float FoldHeads(float* part, int heads) {
  int width = 1;
  while (width < heads) width *= 2;
  for (int stride = width / 2; stride > 0; stride /= 2) {
    for (int i = 0; i < stride; ++i) part[i] = contract::Add(part[i], i + stride < heads ? part[i + stride] : 0.0f);
    heads = stride;
  }
  return part[0];
}

__device__ float HeadPart(const IndexSelectArgs& a, std::int64_t t, int h, float dot, float scale) {
  const float w = contract::Mul(BF16Value(a.weight_TH[t * a.heads + h]), scale);
  return contract::Mul(dot > 0.0f ? dot : 0.0f, w);
}

constexpr int kScoreThreads = 128;

// A thread a key: integer dots of the 32-channel blocks in quarters.
__global__ void __launch_bounds__(kScoreThreads) ScoreFp4Kernel(IndexSelectArgs a, QueryLayout layout, const std::byte* queries, float scale,
                                                               float* scores, std::int64_t stride) {
  extern __shared__ __align__(16) std::byte query[];
  const std::int64_t t = blockIdx.y, j = blockIdx.x * static_cast<std::int64_t>(kScoreThreads) + threadIdx.x;
  const IndexRow row = a.row_T[t];
  if (blockIdx.x * static_cast<std::int64_t>(kScoreThreads) >= row.visible) return;
  for (std::int64_t i = threadIdx.x; i < layout.bytes / 4; i += kScoreThreads) {
    reinterpret_cast<std::uint32_t*>(query)[i] = reinterpret_cast<const std::uint32_t*>(queries + t * layout.bytes)[i];
  }
  __syncthreads();
  if (j >= row.visible) return;
  if (!IsCandidate(a, t, j)) {
    scores[t * stride + j] = Nothing();
    return;
  }
  const auto* key = reinterpret_cast<const std::uint8_t*>(KeyRow(row.keys, j));
  const std::uint8_t* key_scales = key + (a.dim + 1) / 2;
  const auto* query_scales = reinterpret_cast<const float*>(query + (a.heads * a.dim + 3) / 4 * 4);
  float part[kMaxHeads];
  for (int h = 0; h < a.heads; ++h) part[h] = 0.0f;
  for (int b = 0; b < layout.blocks; ++b) {
    const int begin = b * a.key_format.block, end = min(begin + a.key_format.block, a.dim);
    signed char values[32];
    for (int d = begin; d < end; ++d) values[d - begin] = static_cast<signed char>(2.0f * E2M1Value((key[d / 2] >> (d % 2 * 4)) & 0xfu));
    const float key_scale = PowerOfExponent(key_scales[b]);
    for (int h = 0; h < a.heads; ++h) {
      const auto* q = reinterpret_cast<const signed char*>(query) + h * a.dim;
      int sum = 0;
      for (int d = begin; d < end; ++d) sum += q[d] * values[d - begin];
      part[h] = contract::Fma(static_cast<float>(sum) * 0.25f, contract::Mul(query_scales[h * layout.blocks + b], key_scale), part[h]);
    }
  }
  for (int h = 0; h < a.heads; ++h) part[h] = HeadPart(a, t, h, part[h], scale);
  scores[t * stride + j] = FoldHeads(part, a.heads);
}

// Unquantized keys: a warp 8 keys, 16 heads at a time through the tensor cores.
__global__ void ScoreBf16Kernel(IndexSelectArgs a, float scale, float* scores, std::int64_t stride) {
  __shared__ float dots[kMaxHeads][8];
  const std::int64_t t = blockIdx.y, begin = blockIdx.x * std::int64_t{8};
  const IndexRow row = a.row_T[t];
  if (begin >= row.visible) return;
  const int lane = threadIdx.x, g = lane / 4, q = lane & 3;
  const auto* key = begin + g < row.visible ? reinterpret_cast<const std::uint16_t*>(KeyRow(row.keys, begin + g)) : nullptr;
  for (int h0 = 0; h0 < a.heads; h0 += 16) {
    const auto head = [&](int h) { return h < a.heads ? a.q_THI + (t * a.heads + h) * a.dim : nullptr; };
    float c[4] = {};
    for (int k = 0; k < a.dim; k += 16) {
      const FragmentA fragment = LoadA(head(h0 + g), head(h0 + g + 8), k, a.dim);
      MmaBF16(c, fragment, key ? LoadPair(key, k + 2 * q, a.dim) : 0u, key ? LoadPair(key, k + 2 * q + 8, a.dim) : 0u);
    }
    for (int i = 0; i < 4; ++i) {
      const int h = h0 + g + (i < 2 ? 0 : 8);
      if (h < a.heads) dots[h][2 * q + (i & 1)] = c[i];
    }
  }
  __syncwarp();
  if (lane >= 8 || begin + lane >= row.visible) return;
  float part[kMaxHeads];
  for (int h = 0; h < a.heads; ++h) part[h] = HeadPart(a, t, h, dots[h][lane], scale);
  scores[t * stride + begin + lane] = IsCandidate(a, t, begin + lane) ? FoldHeads(part, a.heads) : Nothing();
}

// What a dump asked for.
__global__ void KeepScoresKernel(IndexSelectArgs a, const float* scores, std::int64_t stride) {
  const std::int64_t t = blockIdx.y, j = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (j < a.row_T[t].visible) a.scores_out[t * a.scores_stride + j] = scores[t * stride + j];
}

// The largest score of each candidate block; the newest block counts as infinite.
__global__ void BlockMaxKernel(IndexSelectArgs a, const float* scores, std::int64_t stride, float* block_scores, std::int64_t block_stride) {
  const std::int64_t t = blockIdx.y, b = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x, visible = a.row_T[t].visible;
  const std::int64_t blocks = (visible + a.candidate_block - 1) / a.candidate_block;
  if (b >= blocks) return;
  float top = Nothing();
  for (std::int64_t j = b * a.candidate_block; j < min((b + 1) * a.candidate_block, visible); ++j) top = fmaxf(top, scores[t * stride + j]);
  block_scores[t * block_stride + b] = b + 1 == blocks ? -Nothing() : top;
}

// --- selection -------------------------------------------------------------------------------------------------------

constexpr int kSelectThreads = 512;

// Sum of a value over the block's threads before this one, and over all of them.
__device__ int PrefixSum(int value, int* total) {
  __shared__ int warp_sum[kSelectThreads / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int sum = value;
  for (int stride = 1; stride < 32; stride *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, stride);
    if (lane >= stride) sum += other;
  }
  __syncthreads();
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kSelectThreads / 32; ++w) {
    before += w < warp ? warp_sum[w] : 0;
    all += warp_sum[w];
  }
  *total = all;
  return before + sum - value;
}

// A block a row: the best k of scores[n] (below -infinity nothing counts) ascending into out; ties by smaller index. count: how many, -1 on NaN.
__device__ void SelectRow(const float* scores, std::int64_t n, int k, std::int32_t* out, std::int32_t* count) {
  __shared__ unsigned histogram[256];
  __shared__ unsigned prefix, remaining;
  bool nan = false;
  int candidates = 0;
  for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) {
    nan = nan || scores[j] != scores[j];
    candidates += scores[j] > Nothing() ? 1 : 0;
  }
  int total;
  PrefixSum(candidates, &total);
  nan = __syncthreads_or(nan);
  const int taken = min(k, total);
  if (threadIdx.x == 0) {
    *count = nan ? -1 : taken;
    prefix = 0;
    remaining = static_cast<unsigned>(taken);
  }
  if (nan || taken == 0) return;
  // The key of the taken-th best, eight bits at a time.
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    const unsigned mask = shift == 24 ? 0u : ~0u << (shift + 8);
    for (std::int64_t j = threadIdx.x; j < n; j += kSelectThreads) {
      const unsigned key = contract::OrderKey(scores[j]);
      if ((key & mask) == (prefix & mask)) atomicAdd(&histogram[(key >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      while (histogram[digit] < remaining) remaining -= histogram[digit--];
      prefix |= static_cast<unsigned>(digit) << shift;
    }
    __syncthreads();
  }
  const unsigned threshold = prefix;
  const int ties = static_cast<int>(remaining);  // of the keys equal to the threshold the first so many are taken
  int written = 0, ties_seen = 0;
  for (std::int64_t base = 0; base < n; base += kSelectThreads) {
    const std::int64_t j = base + threadIdx.x;
    const unsigned key = j < n ? contract::OrderKey(scores[j]) : 0u;
    const bool tie = j < n && key == threshold;
    int tie_total, take_total;
    const int tie_rank = ties_seen + PrefixSum(tie ? 1 : 0, &tie_total);
    const bool take = j < n && (key > threshold || (tie && tie_rank < ties));
    const int place = written + PrefixSum(take ? 1 : 0, &take_total);
    if (take) out[place] = static_cast<std::int32_t>(j);
    ties_seen += tie_total;
    written += take_total;
  }
}

__global__ void __launch_bounds__(kSelectThreads) SelectEntriesKernel(IndexSelectArgs a, const float* scores, std::int64_t stride) {
  const std::int64_t t = blockIdx.x;
  SelectRow(scores + t * stride, a.row_T[t].visible, a.top_k, a.selected_TK + t * a.top_k, a.count_T + t);
}

__global__ void __launch_bounds__(kSelectThreads) SelectBlocksKernel(IndexSelectArgs a, const float* scores, std::int64_t stride) {
  const std::int64_t t = blockIdx.x, blocks = (a.row_T[t].visible + a.candidate_block - 1) / a.candidate_block;
  SelectRow(scores + t * stride, blocks, a.candidate_top_blocks, a.candidates_out + t * a.candidate_top_blocks, a.candidate_count_out + t);
}

void RunIndexSelect(Stream& s, const IndexSelectArgs& a) {
  CudaStream& stream = AsCuda(s);
  const std::int64_t visible = std::max<std::int64_t>(a.max_visible, 1);
  auto* scores = reinterpret_cast<float*>(stream.Scratch(kScoreSlot, static_cast<std::size_t>(a.rows * visible) * sizeof(float)));
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim * a.heads)));
  const auto rows = static_cast<unsigned>(a.rows);  // of a query tile: far below the grid's limit
  if (a.key_format.kind == RowFormat::Kind::kBf16) {
    ScoreBf16Kernel<<<dim3(Blocks(visible, 8), rows), 32, 0, stream.handle()>>>(a, scale, scores, visible);
  } else {
    const QueryLayout layout(a.heads, a.dim, a.key_format.block);
    std::byte* queries = stream.Scratch(kQuerySlot, static_cast<std::size_t>(a.rows * layout.bytes));
    const float hadamard_scale = static_cast<float>(1.0 / sqrt(static_cast<double>(a.dim)));
    PrepareQueryKernel<<<dim3(static_cast<unsigned>(a.heads), rows), 64, 0, stream.handle()>>>(a, layout, hadamard_scale, queries);
    ScoreFp4Kernel<<<dim3(Blocks(visible, kScoreThreads), rows), kScoreThreads, static_cast<std::size_t>(layout.bytes), stream.handle()>>>(
        a, layout, queries, scale, scores, visible);
  }
  if (a.scores_out && !a.candidates_in) KeepScoresKernel<<<dim3(Blocks(visible, 256), rows), 256, 0, stream.handle()>>>(a, scores, visible);
  SelectEntriesKernel<<<rows, kSelectThreads, 0, stream.handle()>>>(a, scores, visible);
  if (a.candidates_out) {
    const std::int64_t blocks = (visible + a.candidate_block - 1) / a.candidate_block;
    auto* block_scores = reinterpret_cast<float*>(stream.Scratch(kBlockSlot, static_cast<std::size_t>(a.rows * blocks) * sizeof(float)));
    BlockMaxKernel<<<dim3(Blocks(blocks, 128), rows), 128, 0, stream.handle()>>>(a, scores, visible, block_scores, blocks);
    SelectBlocksKernel<<<rows, kSelectThreads, 0, stream.handle()>>>(a, block_scores, blocks);
  }
  CheckLaunch("index_select");
}

}  // namespace

Kernel<IndexSelectArgs> CudaIndexSelect() { return {&RunIndexSelect, "index_select/H(sm90)+I"}; }

}  // namespace lockstep::kernels
