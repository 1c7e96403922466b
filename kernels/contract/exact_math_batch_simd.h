// What each build of exact_math_batch_simd.cc exports. ElementaryBatch and ElementaryScalar choose.
#pragma once

#include <cstddef>

namespace lockstep {

enum class Elementary;

namespace exact_math_batch {
namespace generic {
void Vector(Elementary f, const float* in, float* out, std::size_t n);
void Scalar(Elementary f, const float* in, float* out, std::size_t n);
}  // namespace generic
namespace avx2 {
void Vector(Elementary f, const float* in, float* out, std::size_t n);
void Scalar(Elementary f, const float* in, float* out, std::size_t n);
}  // namespace avx2
namespace avx512 {
void Vector(Elementary f, const float* in, float* out, std::size_t n);
void Scalar(Elementary f, const float* in, float* out, std::size_t n);
}  // namespace avx512
}  // namespace exact_math_batch
}  // namespace lockstep
