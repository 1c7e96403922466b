// y = W x for every way a checkpoint stores W. docs/numerics.md sections 3 and 4.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/checkpoint.h"
#include "reference/arithmetic.h"
#include "reference/mma_block.h"
#include "reference/options.h"

namespace lockstep::reference {

// A matrix read from its storage into the form its arithmetic works on; row-major, one row an output.
struct PreparedWeight {
  std::int64_t out = 0;  // EXL3: padded
  std::int64_t in = 0;
  std::vector<float> values;                           // truth and family F: the weights
  HRows rows;                                          // family H: the weights, or FP8/FP4 codes
  OperandFormat format = OperandFormat::kBf16;         // of `rows`
  std::vector<std::int16_t> byte_sums;                 // family I: b - 510
  std::vector<float> block_scales;                     // FP8/FP4 codes: [out][ceil(in/block)]
  std::int64_t block = 0;                              // inputs a scale of block_scales covers; 0: none
  std::vector<float> input_scale, output_scale, bias;  // EXL3

  std::size_t bytes() const;
};

enum class LinearOutput { kBf16, kFp32 };

// Applies linears of one checkpoint. Decoded matrices are kept up to a byte budget, least recently used go first.
template <typename A>
class LinearEngine {
 public:
  using Real = typename A::Real;

  // `activation_block`: inputs that share one FP8 activation scale, config.weight_block_size.
  LinearEngine(const Options& options, std::int64_t activation_block) : options_(options), activation_block_(activation_block) {}

  // x_TK [T, in_features] (contract: bf16 values) to y [T, out_features]. `quantize_input` false: FP8/FP4 weights are dequantised
  // to bf16 and the input is not quantized (wo_a). Throws InputError naming the linear when a value leaves the fp16 range, or
  // when an input or output is not finite.
  Matrix<Real> Apply(const LinearWeight& weight, const Matrix<Real>& x_TK, LinearOutput output = LinearOutput::kBf16,
                     bool quantize_input = true);

 private:
  std::shared_ptr<const PreparedWeight> Prepare(const LinearWeight& weight, bool codes);
  void PrepareExl3(const LinearWeight& weight, PreparedWeight* prepared) const;
  Matrix<Real> ApplyExl3(const LinearWeight& weight, const PreparedWeight& prepared, const Matrix<Real>& x_TK) const;
  Matrix<Real> ApplyStored(const LinearWeight& weight, const PreparedWeight& prepared, const Matrix<Real>& x_TK, bool codes) const;

  Options options_;
  std::int64_t activation_block_;
  struct Entry {
    std::shared_ptr<const PreparedWeight> weight;
    std::list<std::string>::iterator recency;
  };
  std::unordered_map<std::string, Entry> cache_;
  std::list<std::string> recency_;  // most recent first
  std::size_t cached_bytes_ = 0;
};

}  // namespace lockstep::reference
