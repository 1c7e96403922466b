// The mixing matrix of a hyper-connection site on its way from logits to a doubly stochastic matrix. Contract: docs/numerics.md section 6, mHC mix.
#pragma once

#include "kernels/device/cuda_stream.cuh"
#include "kernels/elementwise/elementwise.h"

namespace lockstep::kernels {

inline constexpr int kMaxStreams = 8;

// The mixing matrix C in a warp: lane l holds elements l and, if there are so many, l + 32; element n*j + k is C_jk. kN: n, or 0 for any.
template <int kElements, int kN>
struct MixingMatrix {
  float c[kElements];
  const int n;

  __device__ explicit MixingMatrix(int streams) : n(kN > 0 ? kN : streams) {}

  // To and from memory [n][n].
  __device__ void Load(const float* matrix) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) c[i] = matrix[Own(i)];
  }
  __device__ void Store(float* matrix) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (const int e = static_cast<int>(threadIdx.x & 31) + 32 * i; e < n * n) matrix[e] = c[i];
    }
  }

  __device__ float Element(int e) const {
    float value = __shfl_sync(0xffffffffu, c[0], e & 31);
    if constexpr (kElements == 2) {
      const float second = __shfl_sync(0xffffffffu, c[1], e & 31);
      value = e < 32 ? value : second;
    }
    return value;
  }

  // sum_asc of the elements first, first + stride, ...
  __device__ float LineSum(int first, int stride) const {
    float sum = Element(first);
#pragma unroll
    for (int i = 1; i < (kN > 0 ? kN : n); ++i) sum = contract::Add(sum, Element(first + i * stride));
    return sum;
  }

  // Divides every element by the sum of its row or column plus eps.
  __device__ void Normalize(bool rows, float eps) {
    float divisor[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int e = Own(i);
      divisor[i] = contract::Add(rows ? LineSum(e / n * n, 1) : LineSum(e % n, n), eps);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) c[i] = contract::Div(c[i], divisor[i]);
  }

  __device__ void SoftmaxRows(float eps) {
    float top[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int row = Own(i) / n * n;
      top[i] = Element(row);
      for (int k = 1; k < n; ++k) {
        const float other = Element(row + k);
        top[i] = other > top[i] ? other : top[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) c[i] = contract::Exp(contract::Sub(c[i], top[i]));
    Normalize(/*rows=*/true, 0.0f);  // sums of exponentials: adding +0 changes nothing
#pragma unroll
    for (int i = 0; i < kElements; ++i) c[i] = contract::Add(c[i], eps);
  }

  __device__ void Sinkhorn(int iterations, float eps) {
    SoftmaxRows(eps);
    Normalize(false, eps);
    int left = iterations - 1;
    if constexpr (kElements == 1 && kN > 0) left = NormalizeFast(left, InRegister(eps));
#pragma unroll 1
    for (; left > 0; --left) {
      Normalize(true, eps);
      Normalize(false, eps);
    }
  }

  // As many iterations as the short division serves; the rest, of which there is none where one changes nothing: so would all that are left.
  __device__ int NormalizeFast(int left, float eps) {
    constexpr float kSmallest = 0x1p-60f;  // no quotient or remainder of an iteration is then near the subnormals
    const int own = Own(0);
#pragma unroll 1
    for (; left > 0 && __all_sync(0xffffffffu, c[0] >= kSmallest); --left) {
      const float before = c[0];
      c[0] = DivideNormal(c[0], contract::Add(LineSum(own / n * n, 1), eps));
      c[0] = DivideNormal(c[0], contract::Add(LineSum(own % n, n), eps));
      if (__all_sync(0xffffffffu, __float_as_uint(c[0]) == __float_as_uint(before))) return 0;
    }
    return left;
  }

  // a / b, correctly rounded where a, b, the quotient and the remainders are normal: what the compiler makes of a division (its seed too, whose ftz finds
  // nothing to flush then), without the test for the rest, which costs half as much again in a chain of 40.
  __device__ static float DivideNormal(float a, float b) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = contract::Fma(r, contract::Fma(-b, r, 1.0f), r);
    const float q = contract::Mul(a, r);
    return contract::Fma(r, contract::Fma(-b, q, a), q);
  }

  // Not fetched again from where parameters lie.
  __device__ static float InRegister(float x) {
    float y;
    asm volatile("mov.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  // The number of this lane's i-th element; lanes past the matrix repeat the last one.
  __device__ int Own(int i) const { return min(static_cast<int>(threadIdx.x & 31) + 32 * i, n * n - 1); }
};

// Row t's matrix by a warp; its logits are there.
template <int kElements, int kN>
__device__ void FinishMix(const SinkhornArgs& a, std::int64_t t) {
  float* matrix = a.mix_TSS + t * a.streams * a.streams;
  MixingMatrix<kElements, kN> mix(a.streams);
  mix.Load(matrix);
  __syncwarp();
  mix.Sinkhorn(a.iterations, a.eps);
  mix.Store(matrix);
}

}  // namespace lockstep::kernels
