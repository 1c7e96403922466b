// Which instruction set a translation unit is built for, and on which side of nvcc it is.
//
// lockstep_simd_sources() compiles one source several times and defines LOCKSTEP_ISA (generic, avx2 or avx512)
// and LOCKSTEP_ISA_LEVEL (0, 1 or 2). Everything in kernels/contract that becomes code lies in an inline
// namespace of that name: the linker may keep any copy of an inline function, so copies built with different
// flags must not share a name.
#pragma once

#ifndef LOCKSTEP_ISA
#define LOCKSTEP_ISA generic
#define LOCKSTEP_ISA_LEVEL 0
#endif

#define LOCKSTEP_INLINE inline __attribute__((always_inline))
#if defined(__CUDACC__)
#define LOCKSTEP_HD __host__ __device__ __forceinline__
#else
#define LOCKSTEP_HD LOCKSTEP_INLINE
#endif

#if defined(__FAST_MATH__)
#error "The numerics contract does not hold under -ffast-math."
#endif
