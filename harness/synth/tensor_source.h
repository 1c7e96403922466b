// Tensors whose elements follow from a seed and their name alone, so that any part of a file can be made again
// anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/synth/matrix_plan.h"
#include "model/safetensors.h"

namespace lockstep::synth {

// A tensor to write, or to make where it is used.
struct SynthTensor : TensorToWrite {
  bool made_where_used = false;  // in a model without files: EXL3 matrices and Engram tables, the bulk of a model
  std::uint64_t key = 0;         // as in RandomTensor
  float unit = 0;
};

// Appends tensors to a list. An element is a random integer times a constant, rounded once, so it is the same
// on every machine.
class TensorSource {
 public:
  TensorSource(std::uint64_t seed, std::vector<SynthTensor>* out) : seed_(seed), out_(*out) {}

  using Shape = std::vector<std::int64_t>;

  // Nearly normal BF16 or F32 values.
  void Normal(const std::string& name, DType dtype, const Shape& shape, double mean, double deviation);
  // F32 [values.size()] or I64 as given.
  void Floats(const std::string& name, std::vector<float> values);
  void Ids(const std::string& name, const Shape& shape, std::vector<std::int64_t> values);

  // F8_E4M3 [rows, columns] `weight` with F8_E8M0 `scale`, one scale a block of row_block x column_block: one
  // of two neighbouring powers of two, drawn for each block, with codes that make up for it.
  struct Blocks {
    std::int64_t rows = 0, columns = 0;
    std::int64_t row_block = 0, column_block = 0;
    bool made_where_used = false;
  };
  void Fp8(const std::string& weight, const std::string& scale, const Blocks& blocks, double deviation);

  // A matrix [out, in] as FP4 rows: `name`.weight with all codes equally likely, and `name`.scale.
  void Fp4Matrix(const std::string& name, std::int64_t out, std::int64_t in, double deviation);

  // A matrix [out, in] as EXL3, sizes padded to 128. Any bits are a valid trellis; suh and svh carry the
  // magnitude.
  void Exl3Matrix(const std::string& name, std::int64_t out, std::int64_t in, const Exl3Form& form,
                  double deviation);

 private:
  using Fill = std::function<void(std::int64_t offset, std::span<std::byte> chunk)>;

  SynthTensor& RandomBytes(const std::string& name, DType dtype, const Shape& shape);
  // F16 [size], random signs, magnitudes within a quarter of `magnitude` and with that mean square.
  void Exl3Scale(const std::string& name, std::int64_t size, double magnitude);
  void Marker(const std::string& name, std::uint32_t value);
  template <typename T>
  void Constant(const std::string& name, DType dtype, const Shape& shape, std::vector<T> values);
  SynthTensor& Add(const std::string& name, DType dtype, const Shape& shape, Fill fill);

  std::uint64_t seed_;
  std::vector<SynthTensor>& out_;
};

}  // namespace lockstep::synth
