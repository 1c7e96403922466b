// Where the states of an EXL3 tile lie, as constants for byte shuffles. Everything is computed while compiling.
//
// A tile is a ring of bits, first bit highest in each little-endian 32-bit word. Column pair c (columns c and
// c+8) owns the 2*bits_x2 bytes after c*2*bits_x2, in four runs q = 0..3 of eight states: j = 0..3 are rows 2q,
// 2q+1, 2q+8, 2q+9 of column c, j = 4..7 the same rows of column c+8. A state is the 16 bits that end at
// Exl3EndBit, so the first runs reach back into the word before.
#pragma once

#include <cstdint>

#include "kernels/contract/isa.h"
#include "model/exl3_layout.h"

namespace lockstep::kernels::LOCKSTEP_ISA {

constexpr int FloorDivide(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Bits from the start of a column pair to the end of state j of run q.
constexpr int StateEnd(int bits_x2, int q, int j) { return Exl3EndBit(8 * q + j, bits_x2); }

// Memory byte of stream byte `b`, both from the start of a word.
constexpr int MemoryByte(int b) { return 4 * FloorDivide(b, 4) + 3 - (b - 4 * FloorDivide(b, 4)); }

// How AVX-512 decodes: byte permutations gather, for every column pair, 64 stream bits that hold a run (or half
// of each of its columns) into one 64-bit lane, most significant byte first; vpmultishiftqb then cuts states
// out of it.
template <int kBitsX2>
struct WideTables {
  static constexpr int kPairBytes = 2 * kBitsX2;
  // Above six bits a run does not fit in 64 bits: window g = 0, 1 then holds j = 2g, 2g+1, 2g+4, 2g+5.
  static constexpr int kWindows = kBitsX2 <= 12 ? 1 : 2;
  // Column pairs that one 64-byte load serves.
  static constexpr int kPairsPerLoad = kBitsX2 <= 4 ? 8 : kBitsX2 <= 8 ? 4 : kBitsX2 <= 12 ? 3 : 2;
  static constexpr int kLoads = (8 + kPairsPerLoad - 1) / kPairsPerLoad;
  static constexpr int kLoadStride = kPairsPerLoad * kPairBytes;

  struct Window {
    int offset;  // of the first load, a multiple of 4 bytes from the tile's start; -4: the word before
    alignas(64) std::uint8_t permutation[64];  // the same for every load
    alignas(64) std::uint8_t pairs[2][64];     // vpmultishiftqb: 16-bit states 2h, 2h+1, 2h+4, 2h+5
    alignas(
        64) std::uint8_t singles[4][64];  // vpmultishiftqb: 32-bit states j, j+4 (upper halves to be masked)
  };
  struct All {
    Window window[4][kWindows];
  };

  static constexpr Window MakeWindow(int q, int g) {
    const int first = kWindows == 1 ? 0 : 2 * g, last = kWindows == 1 ? 7 : 2 * g + 5;
    const int begin = FloorDivide(StateEnd(kBitsX2, q, first) - 16, 8);
    const int end = FloorDivide(StateEnd(kBitsX2, q, last) + 7, 8);
    Window window = {};
    int lowest = 1 << 20;
    for (int i = 0; i < kPairsPerLoad; ++i) {
      for (int b = begin; b < end; ++b) {
        const int byte = MemoryByte(i * kPairBytes + b);
        if (byte < lowest) lowest = byte;
      }
    }
    window.offset = 4 * FloorDivide(lowest, 4);
    for (int lane = 0; lane < 8; ++lane) {
      for (int b = begin; b < end; ++b) {
        const int byte = MemoryByte(lane % kPairsPerLoad * kPairBytes + b) - window.offset;
        window.permutation[8 * lane + end - 1 - b] = static_cast<std::uint8_t>(byte);
      }
      for (int j = first; j <= last; ++j) {
        if (kWindows == 2 && ((j >> 1) & 1) != g) continue;
        const int shift = 8 * end - StateEnd(kBitsX2, q, j);
        const int pair = 8 * lane + 2 * (j & 1) + 4 * (j >> 2), single = 8 * lane + 4 * (j >> 2);
        for (int byte = 0; byte < 2; ++byte) {
          window.pairs[(j >> 1) & 1][pair + byte] = static_cast<std::uint8_t>(shift + 8 * byte);
          window.singles[j & 3][single + byte] = static_cast<std::uint8_t>(shift + 8 * byte);
        }
      }
    }
    return window;
  }

  static constexpr All Make() {
    All all = {};
    for (int q = 0; q < 4; ++q) {
      for (int g = 0; g < kWindows; ++g) all.window[q][g] = MakeWindow(q, g);
    }
    return all;
  }

  static constexpr All kTables = Make();
};

// How AVX2 decodes: 16 bytes around a run, of which byte shuffles take two or three for every state. Tables are
// for even and odd column pairs, because at half-integer rates an odd pair starts in the middle of a word.
template <int kBitsX2>
struct NarrowTables {
  static constexpr int kPairBytes = 2 * kBitsX2;
  static constexpr int kParities = kBitsX2 % 2 == 0 ? 1 : 2;

  struct Run {
    int offset;  // bytes from the word in which the column pair starts; -4: the word before
    // 16-bit lanes, the same eight in both halves: (high << shift) | (low >> (16 - shift)) is the state.
    alignas(32) std::uint8_t high[32];
    alignas(32) std::uint8_t low[32];
    alignas(32) std::uint16_t power[16];  // 2^shift
    // 32-bit lanes j = 0..7: three bytes, then a shift to the right leaves the state in the low 16 bits.
    alignas(32) std::uint8_t triple[32];
    alignas(32) std::int32_t shift[8];
  };
  struct All {
    Run run[kParities][4];
  };

  static constexpr Run MakeRun(int parity, int q) {
    const int pair_bit = parity == 0 ? 0 : 16;  // where the pair starts in its word
    Run run = {};
    run.offset = 4 * FloorDivide(pair_bit + StateEnd(kBitsX2, q, 0) - 16, 32);
    for (int j = 0; j < 8; ++j) {
      const int begin = pair_bit + StateEnd(kBitsX2, q, j) - 16 - 8 * run.offset;
      const int byte = begin / 8, shift = begin % 8;
      const auto at = [](int b) { return static_cast<std::uint8_t>(MemoryByte(b)); };
      for (int half = 0; half < 2; ++half) {
        const int lane = 16 * half + 2 * j;
        run.high[lane] = at(byte + 1);
        run.high[lane + 1] = at(byte);
        run.low[lane] = 0x80;
        run.low[lane + 1] = at(byte + 2);
        run.power[lane / 2] = static_cast<std::uint16_t>(1 << shift);
      }
      run.triple[4 * j] = at(byte + 2);
      run.triple[4 * j + 1] = at(byte + 1);
      run.triple[4 * j + 2] = at(byte);
      run.triple[4 * j + 3] = 0x80;
      run.shift[j] = 8 - shift;
    }
    return run;
  }

  static constexpr All Make() {
    All all = {};
    for (int parity = 0; parity < kParities; ++parity) {
      for (int q = 0; q < 4; ++q) all.run[parity][q] = MakeRun(parity, q);
    }
    return all;
  }

  static constexpr All kTables = Make();
};

}  // namespace lockstep::kernels::LOCKSTEP_ISA
