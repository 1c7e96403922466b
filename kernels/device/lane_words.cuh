// Values that blocks of one launch hand to another of it: a word carries the value and that it is there, so neither side needs a fence. Words are zero before
// and after. The receiver waits, so its blocks come after the senders' in the grid: those have started by then and end without it.
#pragma once

#include "kernels/device/cuda_stream.cuh"

namespace lockstep::kernels {

using LaneWord = unsigned long long;  // low half: the value's bits; high half: 1 once it is there

#if defined(__CUDACC__)
__device__ inline void SendWord(unsigned* to, unsigned word) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory"); }
__device__ inline void SendWord(unsigned long long* to, unsigned long long word) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory"); }
__device__ inline unsigned ReceiveWord(const unsigned* from) {
  unsigned word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
// The offset, in words, stays out of the address: a loop would keep a register for each.
template <int kOffset = 0>
__device__ inline unsigned long long ReceiveWord(const unsigned long long* from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1+%2];" : "=l"(word) : "l"(from), "n"(kOffset * 8) : "memory");
  return word;
}
// Neighbours on 16 bytes, each a word of its own. Three are two loads: a fourth register that nobody reads is taken for something else, which then waits for
// the load.
__device__ inline void ReceiveWords(const unsigned* from, unsigned (&words)[4]) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from) : "memory");
}
__device__ inline void ReceiveWords(const unsigned* from, unsigned (&words)[3]) {
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from) : "memory");
  words[2] = ReceiveWord(from + 2);
}

__device__ inline void SendLane(LaneWord* word, float value) { SendWord(word, (LaneWord{1} << 32) | __float_as_uint(value)); }

// Whether the value is there.
__device__ inline bool ReceiveLane(const LaneWord* word, float& value) {
  const LaneWord bits = ReceiveWord(word);
  value = __uint_as_float(static_cast<unsigned>(bits));
  return (bits >> 32) != 0;
}

__device__ inline void ClearLane(LaneWord* word) { SendWord(word, LaneWord{0}); }

// The same in 32 bits: a value's bits inverted, so that zero says that it is not there yet. All bits set is a NaN that no arithmetic here makes; a NaN goes
// as the one that it makes.
__device__ inline std::uint32_t HalfWordOf(float value) { return value == value ? ~__float_as_uint(value) : ~0x7fffffffu; }
__device__ inline float ValueOf(std::uint32_t word) { return __uint_as_float(~word); }

__device__ inline void SendHalfWord(std::uint32_t* word, float value) { SendWord(word, HalfWordOf(value)); }
__device__ inline void SendHalfWords(std::uint32_t* words, const float (&value)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(words), "r"(HalfWordOf(value[0])), "r"(HalfWordOf(value[1])), "r"(HalfWordOf(value[2])),
               "r"(HalfWordOf(value[3]))
               : "memory");
}
// Whether they are there.
template <int kCount>
__device__ inline bool ReceiveHalfWords(const std::uint32_t* words, float (&value)[kCount]) {
  std::uint32_t bits[kCount];
  ReceiveWords(words, bits);
  bool there = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = ValueOf(bits[i]), there = there && bits[i] != 0;
  return there;
}
__device__ inline void ClearHalfWords(std::uint32_t* words) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(words), "r"(0u) : "memory");
}
#endif

}  // namespace lockstep::kernels
