// Reads golden/oracles/mma: what tensor cores returned. For tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/contract/mma_block.h"

namespace lockstep {

// D[M][N] = C + A[M][K] * B[N][K]^T, accumulated over ascending k with one MMA instruction for each `block` of
// k.
struct MmaRecord {
  int kind = 0;          // the instruction; odd kinds are bf16 (README.md there)
  int distribution = 0;  // of the inputs
  int m = 0, n = 0, k = 0, block = 0;
  bool is_bf16 = false;
  std::vector<std::uint16_t> a, b;
  std::vector<float> c, d;

  // Row i of A, row j of B.
  std::vector<contract::MmaOperand> RowOfA(int i) const { return Operands(a, i); }
  std::vector<contract::MmaOperand> RowOfB(int j) const { return Operands(b, j); }

 private:
  std::vector<contract::MmaOperand> Operands(const std::vector<std::uint16_t>& matrix, int row) const;
};

// sm90.bin: random inputs, long K, C = 0.
std::vector<MmaRecord> ReadMmaOracle();

// sm90_edges.bin: one block, any C: subnormals, zeros of both signs, cancellation, overflow, the end of the
// grid.
std::vector<MmaRecord> ReadMmaEdgeOracle();

}  // namespace lockstep
