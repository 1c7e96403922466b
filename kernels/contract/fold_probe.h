// fold.h as functions, by each build, for tests and benches.
#pragma once

#include <cstdint>

namespace lockstep::fold_probe {
namespace generic {
float DotF32(const float* a, const float* b, std::int64_t n);
float DotBF16(const std::uint16_t* a, const float* b, std::int64_t n);
float FoldInPlace(float* x, std::int64_t n);
}  // namespace generic
namespace avx2 {
float DotF32(const float* a, const float* b, std::int64_t n);
float DotBF16(const std::uint16_t* a, const float* b, std::int64_t n);
float FoldInPlace(float* x, std::int64_t n);
}  // namespace avx2
namespace avx512 {
float DotF32(const float* a, const float* b, std::int64_t n);
float DotBF16(const std::uint16_t* a, const float* b, std::int64_t n);
float FoldInPlace(float* x, std::int64_t n);
}  // namespace avx512
}  // namespace lockstep::fold_probe
