// Index scores of many rows. Keys are the rows of the products, unpacked into their A fragments; the heads of a query are the columns and wait in shared
// memory, so that a thread has a key's heads side by side and folds most of them by itself. Contract: docs/numerics.md section 6, Index score.
#pragma once

#include "kernels/index_select/index_scores.cuh"
#include "kernels/index_select/index_wide_query.cuh"
#include "kernels/linear/wgmma_bf16.cuh"

namespace lockstep::kernels {

// Whether `own` holds for all of the calling 128 threads, which are warps of one warpgroup and wait for each other.
__device__ inline bool AllOfGroup(bool own) {
  int all;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.and.pred q, %2, 128, p;\nselp.b32 %0, 1, 0, q;\n}\n"
               : "=r"(all)
               : "r"(static_cast<int>(own)), "r"(static_cast<int>(threadIdx.x / 128) + 1)
               : "memory");
  return all != 0;
}

// The keys g and g + 8 of a warp's sixteen: thread q has word q of every 32-block's codes.
struct WideKeys {
  static constexpr int kBlocks = 4;
  std::uint32_t fragment[2 * kBlocks][4];
  float scale[2][kBlocks];
  bool usual;  // of the warpgroup's keys, so that its warps go one way

  // Keys `first` and first + 8; those from `end` on are zero.
  __device__ WideKeys(const IndexEntries& entries, std::int64_t first, std::int64_t end) : usual(true) {
    unsigned codes[2][kBlocks], exponents[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t i = first + 8 * half;
      const auto* row = reinterpret_cast<const unsigned*>(i < end ? entries.Key(i) : nullptr);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) codes[half][b] = row ? row[4 * b + (threadIdx.x & 3)] : 0u;
      exponents[half] = row ? row[4 * kBlocks] : 0x7f7f7f7fu;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint2 low = Fp4Values(codes[half][b] & 0xffffu), high = Fp4Values(codes[half][b] >> 16);
        fragment[2 * b][half] = low.x, fragment[2 * b][2 + half] = low.y;
        fragment[2 * b + 1][half] = high.x, fragment[2 * b + 1][2 + half] = high.y;
        const unsigned exponent = exponents[half] >> (8 * b) & 0xffu;
        scale[half][b] = PowerOfExponent(exponent);
        usual = usual && IsUsualScale(exponent);
      }
    }
    usual = AllOfGroup(usual);
  }
};

// Rows of a block and 64 keys at a time of each of its warpgroups.
template <int kHeads>
class WideScores {
 public:
  static constexpr int kGroups = 3, kThreads = 128 * kGroups, kKeys = 64, kTileKeys = kGroups * kKeys, kRows = 8;
  using Query = WideQuery<kHeads>;
  static constexpr int kOutputs = kHeads / 2, kHeadsOfThread = kHeads / 4;

  struct Shared {
    std::byte value[kRows][2 * Query::kTileBytes];  // 1024-byte aligned
    float weight[kRows][4][kHeadsOfThread];
    std::int64_t visible[kRows];
    bool usual[kRows];
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;

  __device__ WideScores(const IndexSelectArgs& args, const Query* all_queries, Shared& shared, float* all_scores, std::int64_t score_stride)
      : a(args), first_row(blockIdx.y * std::int64_t{kRows}), queries(all_queries + first_row), s(shared), scores(all_scores + first_row * score_stride), stride(score_stride) {}

  // Keys [begin, end) of the rows' sequences.
  __device__ void Run(std::int64_t begin, std::int64_t end) {
    const int rows = static_cast<int>(min(a.rows - first_row, std::int64_t{kRows}));
    LoadQueries(rows);
#pragma unroll 1
    for (int run = 0, run_end; run < rows; run = run_end) {
      const IndexEntries entries(a, first_row + run);
      std::int64_t most = 0;
      for (run_end = run; run_end < rows && a.row_T[first_row + run_end].keys.pages == entries.keys.pages; ++run_end) most = max(most, s.visible[run_end]);
      most = min(most, end);
#pragma unroll 1
      for (std::int64_t tile = begin + threadIdx.x / 128 * kKeys; tile < most; tile += kTileKeys) {
        const std::int64_t key = tile + threadIdx.x % 128 / 32 * 16 + (threadIdx.x & 31) / 4;
        const WideKeys keys(entries, key, most);
#pragma unroll 1
        for (int r = run; r < run_end; ++r) {
          if (keys.usual && s.usual[r]) ScoreRow<true>(keys, key, r);
          else ScoreRow<false>(keys, key, r);
        }
      }
    }
  }

 private:
  __device__ void LoadQueries(int rows) {
    constexpr int kUnits = sizeof(s.value[0]) / 16, kWeightUnits = sizeof(s.weight[0]) / 16;
    for (int i = threadIdx.x; i < rows * kUnits; i += kThreads) CopyAsync<16>(&s.value[i / kUnits][i % kUnits * 16], &queries[i / kUnits].value[i % kUnits]);
    for (int i = threadIdx.x; i < rows * kWeightUnits; i += kThreads) {
      CopyAsync<16>(&s.weight[i / kWeightUnits][0][0] + i % kWeightUnits * 4, &queries[i / kWeightUnits].weight[0][0] + i % kWeightUnits * 4);
    }
    CommitCopies();
    if (const int r = threadIdx.x; r < rows) s.visible[r] = a.row_T[first_row + r].visible, s.usual[r] = queries[r].usual;
    WaitForCopies<0>();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
  }

  // Products of a 32-block's codes: keys g (i < 2) and g + 8 with heads 4 (2 j + i % 2) + q in [4 j + i].
  __device__ void Multiply(const WideKeys& keys, int r, int block, float (&sum)[kOutputs]) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const std::uint64_t query = SwizzledDescriptor(s.value[r]) + static_cast<unsigned>((block / 2 * Query::kTileBytes + block % 2 * 64) / 16);
    WgmmaFence();
    WgmmaBF16(sum, keys.fragment[2 * block], query, false);
    WgmmaBF16(sum, keys.fragment[2 * block + 1], query + 32 / 16, true);
    WgmmaCommit();
#else
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
      float c[4] = {};
#pragma unroll
      for (int step = 2 * block; step < 2 * block + 2; ++step) {
        const auto word = [&](int k) { return *reinterpret_cast<const std::uint32_t*>(s.value[r] + Query::Place(8 * j + lane / 4, step, k + lane % 4 * 2)); };
        FragmentA fragment;
#pragma unroll
        for (int i = 0; i < 4; ++i) fragment.a[i] = keys.fragment[step][i];
        MmaBF16(c, fragment, word(0), word(8));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[4 * j + i] = c[i];
    }
#endif
  }

  // Waits for the products of all blocks but `kPending`.
  template <int kPending>
  __device__ static void Wait(float (&sum)[kOutputs]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    WgmmaWait<kPending>();
    ReadFromHere(sum);
#endif
  }

  template <bool kUsual>
  __device__ void ScoreRow(const WideKeys& keys, std::int64_t key, int r) const {
    float dot[kOutputs], even[kOutputs], odd[kOutputs];
#pragma unroll
    for (float& own : dot) own = 0.0f;
    Multiply(keys, r, 0, even);
    Multiply(keys, r, 1, odd);
    Wait<1>(even);
    AddBlock<kUsual>(keys, r, 0, even, dot);
    Multiply(keys, r, 2, even);
    Wait<1>(odd);
    AddBlock<kUsual>(keys, r, 1, odd, dot);
    Multiply(keys, r, 3, odd);
    Wait<1>(even);
    AddBlock<kUsual>(keys, r, 2, even, dot);
    Wait<0>(odd);
    AddBlock<kUsual>(keys, r, 3, odd, dot);
#pragma unroll
    for (int i = 0; i < 2 * WideKeys::kBlocks * 4; ++i) asm volatile("" ::"r"(keys.fragment[i / 4][i % 4]));  // products have read them
    Store(key, r, Fold(r, dot));
  }

  // Usual scales: the query's is in the sum, exactly. Others: the sum of codes, and the scales' product as it rounds.
  template <bool kUsual>
  __device__ void AddBlock(const WideKeys& keys, int r, int block, const float (&sum)[kOutputs], float (&dot)[kOutputs]) const {
    using contract::Fma, contract::Mul;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const float key_scale = keys.scale[i / 2 % 2][block];
      if constexpr (kUsual) {
        dot[i] = Fma(sum[i], key_scale, dot[i]);
      } else {
        const float scale = queries[r].scale[4 * (i / 4 * 2 + i % 2) + (threadIdx.x & 3)][block];
        const bool scaled = IsUsualScale(__float_as_uint(scale) >> 23);
        dot[i] = Fma(scaled ? Mul(sum[i], __uint_as_float(0x7f000000u - __float_as_uint(scale))) : sum[i], Mul(scale, key_scale), dot[i]);
      }
    }
  }

  template <int kCount>
  __device__ static float FoldOf(const float* x) {
    if constexpr (kCount == 1) {
      return x[0];
    } else {
      float sum[kCount / 2];
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) sum[i] = contract::Add(x[i], x[i + kCount / 2]);
      return FoldOf<kCount / 2>(sum);
    }
  }

  // fold over the heads of the keys g and g + 8: the thread's are four and more apart.
  __device__ float2 Fold(int r, const float (&dot)[kOutputs]) const {
    float score[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[kHeadsOfThread];
#pragma unroll
      for (int m = 0; m < kHeadsOfThread; m += 4) {
        const float4 weight = *reinterpret_cast<const float4*>(&s.weight[r][threadIdx.x & 3][m]);
        const auto head = [&](int i) { return fmaxf(dot[4 * ((m + i) / 2) + 2 * half + i % 2], 0.0f); };
        part[m] = contract::Mul(head(0), weight.x), part[m + 1] = contract::Mul(head(1), weight.y);
        part[m + 2] = contract::Mul(head(2), weight.z), part[m + 3] = contract::Mul(head(3), weight.w);
      }
      score[half] = FoldOf<kHeadsOfThread>(part);
#pragma unroll
      for (int lanes = 2; lanes > 0; lanes /= 2) score[half] = contract::Add(score[half], __shfl_xor_sync(0xffffffffu, score[half], lanes));
    }
    return make_float2(score[0], score[1]);
  }

  __device__ void Store(std::int64_t key, int r, float2 score) const {
    const int half = threadIdx.x & 3;
    if (half < 2 && key + 8 * half < s.visible[r]) scores[r * stride + key + 8 * half] = half == 0 ? score.x : score.y;
  }

  const IndexSelectArgs& a;
  const std::int64_t first_row;
  const Query* queries;
  Shared& s;
  float* scores;
  const std::int64_t stride;
};

// Block: `keys` keys (x) of eight rows (y).
template <int kHeads>
__global__ void __launch_bounds__(WideScores<kHeads>::kThreads, 1) WideScoreKernel(const __grid_constant__ IndexSelectArgs a, const WideQuery<kHeads>* queries, std::int64_t keys,
                                                                                   float* scores, std::int64_t stride) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  using Scores = WideScores<kHeads>;
  auto& shared = *reinterpret_cast<typename Scores::Shared*>(memory + (1024 - SharedAddress(memory) % 1024) % 1024);
  Scores(a, queries, shared, scores, stride).Run(blockIdx.x * keys, (blockIdx.x + 1) * keys);
}

}  // namespace lockstep::kernels
