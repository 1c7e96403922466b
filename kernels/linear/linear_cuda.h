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

// y[row] = W(job of the row) x[index(row)] for rows that belong to several matrices of one shape and storage form. All pointers but `specs`,
// `blobs` and `tiles` are device memory.
struct GroupedLinear {
  // Where a row of the call finds its input.
  struct Rows {
    const std::uint16_t* x;
    std::int64_t x_stride;
    const std::int32_t* x_index;
  };
  std::vector<const LinearSpec*> specs;  // [jobs]
  std::vector<const std::byte*> blobs;   // [jobs]
  std::vector<RowTile> tiles;
  std::int64_t total_rows = 0;  // highest row + 1
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_index = nullptr;  // [total_rows] or null
  std::uint16_t* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
  std::int32_t* overflow = nullptr;
};
void RunGroupedLinear(CudaStream& stream, const GroupedLinear& linear);

}  // namespace lockstep::kernels
