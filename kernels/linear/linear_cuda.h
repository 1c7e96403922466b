// The CUDA linears: plain ones for the table, and grouped ones that the experts share. Profile sm90.
#pragma once

#include <vector>

#include "kernels/linear/dense_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {

class CudaStream;
struct ExpertSpec;
struct ExpertTable;

Kernel<LinearArgs> CudaLinear();
Kernel<LinearSetArgs> CudaLinearSet();

// Rows of one job.
struct RowRun {
  std::int32_t job = 0;
  std::int64_t begin = 0;  // first row of the call
  std::int64_t rows = 0;
};

// What a part of a call reads and writes: x [rows][x_stride], or the gate of a SwiGLU; exactly one of y_bf16 and y_fp32 [rows][y_stride].
struct LinearPart {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::uint16_t* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
};
inline constexpr int kMaxLinearParts = 8;

// y[part][row] = W(job of the row, part) x[part][row]. All pointers but `specs`, `blobs`, `runs` and `table` are device memory.
struct GroupedLinear {
  std::vector<LinearPart> part;          // matrices of every job, up to kMaxLinearParts
  std::vector<const LinearSpec*> specs;  // [jobs][parts]
  std::vector<const std::byte*> blobs;   // [jobs][parts]
  std::vector<RowRun> runs;

  std::vector<DenseLinear> beside;  // that the launch of EXL3 jobs takes along; of few rows, and so are the jobs

  // Jobs that the device finds (ExpertFfnArgs): `part_of` names the matrices. Then specs, blobs and runs are empty.
  const ExpertTable* table = nullptr;
  std::vector<const LinearSpec ExpertSpec::*> part_of;
  PairGroups groups;
  std::int64_t max_pairs = 0, max_group = 0, shared_rows = 0;

  // Input of row r: x row r, or x_index[r]; with `up`, of one part, the clamped SwiGLU of gate x and up.
  const std::int32_t* x_index = nullptr;
  const std::uint16_t* up = nullptr;
  const float* weight = nullptr;
  float limit = 0.0f;
  const float* norm_weight = nullptr;  // not null: rms_norm of every row first. EXL3 jobs whose products prepare them
  float norm_eps = 0.0f;
  std::int32_t* overflow = nullptr;

  int parts() const { return static_cast<int>(part.size()); }
};
void RunGroupedLinear(CudaStream& stream, const GroupedLinear& linear);

// Experts of few rows whose parts are gate, up and down, all EXL3: y of part 2 = down(SwiGLU of the others), in one launch, or two
// where rows are prepared first. x_index is that of
// parts 0 and 1; part 2 has no x, they no y. False, and nothing done, where more would be needed. Defined in exl3.cu.
bool RunExl3Experts(CudaStream& stream, const GroupedLinear& experts);

// The EXL3 jobs of a call; jobs of other kinds are passed over. Defined in exl3.cu.
void RunGroupedExl3(CudaStream& stream, const GroupedLinear& linear);

// Both calls, whose jobs are all EXL3 and have the same runs; down reads what gate and up, of two parts, write, and begins before they end where it can.
void RunExl3GateUpDown(CudaStream& stream, const GroupedLinear& gate_up, const GroupedLinear& down);

}  // namespace lockstep::kernels
