// The CUDA linears: plain ones for the table, and row-grouped ones that the experts share. Profile sm90.
#pragma once

#include <vector>

#include "kernels/linear/linear.h"

namespace lockstep::kernels {

class CudaStream;

Kernel<LinearArgs> CudaLinear();

// Up to 16 rows of one job.
struct RowTile {
  std::int32_t job = 0;
  std::int32_t rows = 0;
  std::int64_t begin = 0;  // first row of the call
};

// Jobs and row tiles of a launch: short lists travel as kernel parameters, so that decode uploads nothing; long ones lie in device memory.
template <class Job>
struct JobList {
  static constexpr int kSmall = 48;
  const Job* jobs = nullptr;  // null: the small arrays
  const RowTile* tiles = nullptr;
  std::int64_t num_tiles = 0;
  Job small_jobs[kSmall];
  RowTile small_tiles[kSmall];

#if defined(__CUDACC__)
  __device__ const Job& JobOf(const RowTile& tile) const { return jobs ? jobs[tile.job] : small_jobs[tile.job]; }
  __device__ const RowTile& Tile(std::int64_t i) const { return tiles ? tiles[i] : small_tiles[i]; }
#endif
};

// Where a row of a call finds its input.
struct InputRows {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t x_rows = 1;
  const std::int32_t* x_index = nullptr;

#if defined(__CUDACC__)
  __device__ const std::uint16_t* Row(std::int64_t row) const {
    const std::int64_t i = row % x_rows;
    return x + (x_index ? x_index[i] : i) * x_stride;
  }
#endif
};

// y[row] = W(job of the row) x[index(row)] for rows that belong to several matrices of one shape and storage form. All pointers but `specs`,
// `blobs` and `tiles` are device memory.
struct GroupedLinear {
  std::vector<const LinearSpec*> specs;  // [jobs]
  std::vector<const std::byte*> blobs;   // [jobs]
  std::vector<RowTile> tiles;
  std::int64_t total_rows = 0;  // highest row + 1
  // Input of row r: x row i = r % x_rows, or x_index[i].
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t x_rows = 0;
  const std::int32_t* x_index = nullptr;  // [x_rows] or null
  std::uint16_t* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
  std::int32_t* overflow = nullptr;
};
void RunGroupedLinear(CudaStream& stream, const GroupedLinear& linear);

}  // namespace lockstep::kernels
