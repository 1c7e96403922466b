// BF16 linears of one input and many rows: tiles of 128 rows and 128 columns, which lie swizzled in shared memory for wgmma. The last rows and columns repeat
// where there are no more. Contract: docs/numerics.md sections 2 and 3.
#pragma once

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/ldmatrix.cuh"
#include "kernels/linear/wgmma_bf16.cuh"

namespace lockstep::kernels {

inline constexpr int kMaxDenseParts = 8;

// One linear: y = W x for all rows of the call.
struct DensePart {
  const std::uint16_t* w;  // [out][in]
  std::uint16_t* y_bf16;   // or y_fp32
  float* y_fp32;
  std::int64_t y_stride;
  int out, end_tile;  // past its last tile of columns
};

struct WideDenseCall {
  const std::uint16_t* x;  // [rows][x_stride]
  std::int64_t x_stride, rows;
  int in, parts;
  DensePart part[kMaxDenseParts];
};

class WideDense {
 public:
  static constexpr int kThreads = 256, kTile = 128, kChunk = 64, kStages = 6;
  static constexpr int kOperandBytes = kTile * kChunk * 2, kStageBytes = 2 * kOperandBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // 1024: where it begins is made a multiple

  __device__ WideDense(const WideDenseCall& call, const DensePart& own, int tile, std::byte* shared)
      : part(own), row0(blockIdx.y * std::int64_t{kTile}), rows(call.rows), column0(tile * kTile), chunks(call.in / kChunk), memory(shared) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int r = Row() + i * kThreads / 8, column = static_cast<int>(threadIdx.x) % 8 * 8;
      x[i] = call.x + min(row0 + r, rows - 1) * call.x_stride + column;
      w[i] = part.w + static_cast<std::int64_t>(min(column0 + r, part.out - 1)) * call.in + column;
    }
  }

  __device__ void Run(int in) {
    float sum[64], last[64], first[64];  // of a segment, of the one before, of the first two
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Fetch(i);
    int chunk = 0;
#pragma unroll
    for (int segment = 0; segment < contract::kSegments; ++segment) {
#pragma unroll
      for (float& own : sum) own = 0.0f;
#pragma unroll 1
      for (const int end = static_cast<int>(contract::SegmentOf(in, segment).end) / kChunk; chunk < end; ++chunk) {
        WaitForCopies<kAhead - 1>();
        ShowCopies();
        __syncthreads();  // the chunk is there, and nobody multiplies the one before the last
        Fetch(chunk + kAhead);
        Multiply(chunk, sum);
      }
      WaitForProducts(sum);
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (segment == 1) first[i] = contract::Add(last[i], sum[i]);
        else if (segment == 3) sum[i] = contract::Add(first[i], contract::Add(last[i], sum[i]));
        else last[i] = sum[i];
      }
    }
    Store(sum);
  }

 private:
  static constexpr int kUnits = kTile * kChunk / 8 / kThreads, kAhead = kStages - 2;

  __device__ static int Row() { return static_cast<int>(threadIdx.x) / 8; }
  // Where 16 bytes of a row of an operand lie.
  __device__ static int Place(int row, int unit) { return row * 128 + (unit ^ row % 8) * 16; }
  __device__ std::byte* Stage(int chunk) const { return memory + chunk % kStages * kStageBytes; }

  __device__ void Fetch(int chunk) const {
    if (chunk < chunks) {
      std::byte* stage = Stage(chunk) + Place(Row(), static_cast<int>(threadIdx.x) % 8);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        CopyAsync<16>(stage + i * kThreads / 8 * 128, x[i] + chunk * kChunk);
        CopyAsync<16>(stage + kOperandBytes + i * kThreads / 8 * 128, w[i] + chunk * kChunk);
      }
    }
    CommitCopies();
  }

  // Warps 4 to 7 have the second 64 rows. sum[4 j + i]: row 16 (warp % 4) + g + 8 (i / 2) of these, column 8 j + 2 q + i % 2.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __device__ static void ShowCopies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  __device__ static void WaitForProducts(float (&sum)[64]) {
    WgmmaWait<0>();
    ReadFromHere(sum);
  }
  __device__ void Multiply(int chunk, float (&sum)[64]) const {
    const std::uint64_t rows_of = SwizzledDescriptor(Stage(chunk) + static_cast<int>(threadIdx.x) / 128 * 64 * 128), columns = SwizzledDescriptor(Stage(chunk) + kOperandBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) WgmmaBF16<128, false>(sum, rows_of + k * 2 / 16, columns + k * 2 / 16, true);
    WgmmaCommit();
    WgmmaWait<1>();
  }
#else
  __device__ static void ShowCopies() {}
  __device__ static void WaitForProducts(float (&)[64]) {}
  __device__ void Multiply(int chunk, float (&sum)[64]) const {
    const int lane = threadIdx.x & 31, row = static_cast<int>(threadIdx.x) / 32 * 16 + (lane & 15);
    const auto load = [](std::uint32_t(&to)[4], const std::byte* operand, int r, int unit) { LoadMatrices(to, reinterpret_cast<const std::uint16_t*>(operand + Place(r, unit))); };
#pragma unroll 1
    for (int k = 0; k < kChunk; k += 16) {
      FragmentA a;
      load(a.a, Stage(chunk), row, k / 8 + (lane >> 4));
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        std::uint32_t b[4];
        load(b, Stage(chunk) + kOperandBytes, 8 * j + (lane & 7) + (lane >> 4) * 8, k / 8 + (lane >> 3 & 1));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float(&c)[4] = *reinterpret_cast<float(*)[4]>(&sum[4 * (j + n)]);
          MmaBF16(c, a, b[2 * n], b[2 * n + 1]);
        }
      }
    }
  }
#endif

  __device__ void Store(const float (&sum)[64]) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const std::int64_t row = row0 + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + i % 4 / 2 * 8;
      const int column = column0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row >= rows || column >= part.out) continue;
      if (part.y_bf16) part.y_bf16[row * part.y_stride + column] = BF16Bits(sum[i]);
      else part.y_fp32[row * part.y_stride + column] = sum[i];
    }
  }

  const DensePart& part;
  const std::int64_t row0, rows;
  const int column0, chunks;
  std::byte* const memory;
  const std::uint16_t *x[kUnits], *w[kUnits];
};

// Block: a tile of columns (x) of one of the linears, a tile of rows (y).
__global__ void __launch_bounds__(WideDense::kThreads, 1) WideDenseKernel(const __grid_constant__ WideDenseCall call) {
  BeginKernel();
  extern __shared__ __align__(16) std::byte memory[];
  int p = 0, tile = blockIdx.x;
  while (tile >= call.part[p].end_tile) ++p;
  if (p > 0) tile -= call.part[p - 1].end_tile;
  WideDense(call, call.part[p], tile, memory + (1024 - SharedAddress(memory) % 1024) % 1024).Run(call.in);
}

}  // namespace lockstep::kernels
