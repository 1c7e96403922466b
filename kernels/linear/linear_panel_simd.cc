// Family H and family F products (docs/numerics.md sections 2 to 4). 16 outputs times 128 inputs are decoded
// into a panel of fp32 values, whatever the storage, and every row is multiplied with it. Compiled once per
// instruction set.
#include <cstring>

#include "kernels/contract/fold.h"
#include "kernels/contract/mma_emulate.h"
#include "kernels/contract/segments.h"
#include "kernels/linear/linear_simd.h"
#include "kernels/linear/linear_steps.h"
#include "kernels/linear/stored_exponents.h"
#include "kernels/linear/transpose.h"
#include "kernels/linear/trellis.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;
using Kind = LinearSpec::Kind;

constexpr std::int64_t kFmaLanes = 16;

struct Panel {
  float* values;            // [128][16]
  std::int32_t* exponents;  // [64][16]
  std::int64_t length;      // inputs in it; zeros follow up to a multiple of 16
};

// --- filling -------------------------------------------------------------------------------------------------

LOCKSTEP_INLINE F32x16 E4M3Values(const std::uint8_t* codes) {
  const I32x16 bits = LoadU8(codes);
  const F32x16 magnitude =
      Mul(FloatOf((bits & I32x16(0x7f)) << 20), F32x16(0x1p120f));  // exact, subnormal codes too
  return FloatOf(BitsOf(magnitude) | ((bits & I32x16(0x80)) << 24));
}

LOCKSTEP_INLINE F32x16 E2M1Values(I32x16 bits) {
  const F32x16 magnitude = Mul(FloatOf((bits & I32x16(7)) << 22), F32x16(0x1p126f));
  return FloatOf(BitsOf(magnitude) | ((bits & I32x16(8)) << 28));
}

// The sixteen nibbles of eight bytes, low ones first.
LOCKSTEP_INLINE I32x16 LoadNibbles(const std::uint8_t* pairs) {
#if LOCKSTEP_ISA_LEVEL >= 1
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pairs)), mask = _mm_set1_epi8(0x0f);
  const __m128i codes = _mm_and_si128(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)), mask);
#if LOCKSTEP_ISA_LEVEL == 2
  return I32x16(_mm512_cvtepu8_epi32(codes));
#else
  return I32x16(_mm256_cvtepu8_epi32(codes), _mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)));
#endif
#else
  std::uint8_t codes[16];
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(pairs[i / 2] >> (4 * (i % 2)) & 0xf);
  return LoadU8(codes);
#endif
}

// Inputs [begin, begin + n) of one output, n <= 16 (FP4: 16), zeros beyond.
LOCKSTEP_INLINE F32x16 LoadStored(Kind kind, const std::byte* row, std::int64_t begin, int n) {
  if (kind == Kind::kBF16 || kind == Kind::kF16) {
    const auto* p = reinterpret_cast<const std::uint16_t*>(row) + begin;
    if (kind == Kind::kBF16) return n == 16 ? LoadBF16(p) : LoadBF16N(p, n);
    return n == 16 ? LoadF16(p) : LoadF16N(p, n);
  }
  const auto* p = reinterpret_cast<const std::uint8_t*>(row);
  if (kind == Kind::kFp4Row) return E2M1Values(LoadNibbles(p + begin / 2));
  if (n == 16) return E4M3Values(p + begin);
  std::uint8_t codes[16] = {};
  std::memcpy(codes, p + begin, static_cast<std::size_t>(n));
  return E4M3Values(codes);
}

std::int64_t StoredRowBytes(const LinearSpec& spec) {
  const std::int64_t in = spec.in_features;
  return spec.kind == Kind::kFp4Row ? in / 2 : spec.kind == Kind::kFp8Block ? in : 2 * in;
}

void FillFromRows(const LinearWork& work, std::int64_t strip, std::int64_t block, Panel* panel) {
  const LinearSpec& spec = *work.spec;
  const std::int64_t row_bytes = StoredRowBytes(spec), first = strip * kStrip, begin = block * kLinearBlock;
  const std::byte* rows = work.blob + spec.weight + first * row_bytes;
  const std::int64_t outputs = spec.out_features - first < kStrip ? spec.out_features - first : kStrip;
  panel->length = spec.in_features - begin < kLinearBlock ? spec.in_features - begin : kLinearBlock;
  for (std::int64_t k = 0; k < panel->length; k += 16) {
    const int n = panel->length - k < 16 ? static_cast<int>(panel->length - k) : 16;
    F32x16 values[16];
    for (std::int64_t i = 0; i < 16; ++i) {
      values[i] = i < outputs ? LoadStored(spec.kind, rows + i * row_bytes, begin + k, n) : F32x16(0.0f);
    }
    Transpose16(values);
    for (std::int64_t i = 0; i < 16; ++i) Store(values[i], panel->values + (k + i) * kStrip);
  }
}

using DecodeTiles = void (*)(const std::uint8_t* tiles, float* panel);
using MultiplyTiles = void (*)(const std::uint8_t* tiles, std::int64_t count, const float* x, float* lanes);

// What one rate and codebook needs. `multiply`: both steps in one for a single row of profile fma, where there
// is such code.
struct TrellisCode {
  DecodeTiles decode = nullptr;
  MultiplyTiles multiply = nullptr;
};

template <int kBitsX2, Codebook kCodebook>
TrellisCode MakeTrellisCode() {
#if LOCKSTEP_ISA_LEVEL == 2
  return {DecodeWeights<kBitsX2, kCodebook>, MultiplyWeights<kBitsX2, kCodebook>};
#else
  return {DecodeWeights<kBitsX2, kCodebook>, nullptr};
#endif
}

TrellisCode TrellisCodeOf(const LinearSpec& spec) {
  if (spec.kind != Kind::kExl3) return {};
  return ForBits(spec.bits_x2, [&]<int kBitsX2>() -> TrellisCode {
    switch (spec.codebook) {
      case Codebook::kMcg:
        return MakeTrellisCode<kBitsX2, Codebook::kMcg>();
      case Codebook::kMul1:
        return MakeTrellisCode<kBitsX2, Codebook::kMul1>();
      default:
        return MakeTrellisCode<kBitsX2, Codebook::k3inst>();
    }
  });
}

bool HasF16Operands(const LinearSpec& spec) {
  return spec.kind == Kind::kExl3 || spec.kind == Kind::kF16 || spec.activation_block > 0;
}

void FillExponents(int smallest, Panel* panel) {
  for (std::int64_t k = 0; k < MmaPaddedLength(panel->length); k += 2) {
    const float* values = panel->values + k * kStrip;
    const I32x16 pairs = StoredExponentPairs(Load(values), Load(values + kStrip), smallest);
    StoreI32(pairs, panel->exponents + k / 2 * kStrip);
  }
}

class PanelSource {
 public:
  PanelSource(const LinearWork& work, std::int64_t strip)
      : work_(work),
        strip_(strip),
        code_(TrellisCodeOf(*work.spec)),
        smallest_exponent_(HasF16Operands(*work.spec) ? kSmallestF16Exponent : kSmallestBF16Exponent) {}

  void Fill(std::int64_t block, Panel* panel) const {
    if (code_.decode) {
      code_.decode(Tiles(block), panel->values);
      panel->length = kLinearBlock;
    } else {
      FillFromRows(work_, strip_, block, panel);
    }
    if (work_.profile != Profile::kFma) FillExponents(smallest_exponent_, panel);
  }

  // Whether a single row of profile fma goes through Multiply instead of panels.
  bool CanMultiply() const { return code_.multiply && work_.rows == 1; }
  void Multiply(SegmentRange range, float* lanes) const {
    const std::int64_t tiles = (range.end - range.begin) / kExl3Tile;
    code_.multiply(Tiles(range.begin / kLinearBlock), tiles, work_.in.values + range.begin, lanes);
  }

 private:
  const std::uint8_t* Tiles(std::int64_t block) const {
    const std::int64_t block_bytes = 8 * work_.spec->tile_bytes(),
                       blocks = work_.spec->in_padded / kLinearBlock;
    return reinterpret_cast<const std::uint8_t*>(work_.blob + work_.spec->weight) +
           (strip_ * blocks + block) * block_bytes;
  }

  const LinearWork& work_;
  std::int64_t strip_;
  TrellisCode code_;
  int smallest_exponent_;
};

// --- multiplying ---------------------------------------------------------------------------------------------

// A chain's accumulators in memory: every row has kVectors vectors of 16 outputs. Profile fma keeps 16 lanes
// for each output, the MMA profiles one sum.
struct MmaChains {
  static constexpr std::int64_t kVectors = 1;
  Profile profile;

  template <int kRows>
  void AddRows(const LinearWork& work, std::int64_t first, std::int64_t input, const Panel& panel,
               std::int64_t k, std::int64_t length, float* sums) const {
    const std::int64_t padded = PrepareBlocks(*work.spec) * kLinearBlock;
    MmaDecoded a[kRows];
    F32x16 c[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = (first + r) * padded + input;
      a[r] = {work.in.values + at, work.in.exponents + at / 2};
      c[r] = Load(sums + (first + r) * kStrip);
    }
    MmaAccumulateLanes(profile, a, {panel.values + k * kStrip, panel.exponents + k / 2 * kStrip}, length, c);
    for (int r = 0; r < kRows; ++r) Store(c[r], sums + (first + r) * kStrip);
  }

  // Inputs [k, k + length) of the panel, which are the matrix' inputs from `input` on, for every row.
  void Add(const LinearWork& work, std::int64_t input, const Panel& panel, std::int64_t k, std::int64_t length,
           float* sums) const {
    constexpr int kTogether = LOCKSTEP_ISA_LEVEL == 2 ? 4 : 2;
    std::int64_t r = 0;
    for (; r + kTogether <= work.rows; r += kTogether)
      AddRows<kTogether>(work, r, input, panel, k, length, sums);
    for (; r < work.rows; ++r) AddRows<1>(work, r, input, panel, k, length, sums);
  }

  static F32x16 Total(const float* sums, std::int64_t row) { return Load(sums + row * kStrip); }
};

struct FmaChains {
  static constexpr std::int64_t kVectors = kFmaLanes;

  // Lanes [first, first + kLanes) of kRows rows; x and lanes are the first row's.
  template <int kLanes, int kRows>
  static LOCKSTEP_INLINE void AddLanes(const float* x, std::int64_t x_stride, const float* values,
                                       std::int64_t length, int first, float* lanes) {
    F32x16 lane[kRows][kLanes];
    const auto at = [&](int r, int i) { return lanes + (r * kVectors + first + i) * kStrip; };
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kLanes; ++i) lane[r][i] = Load(at(r, i));
    }
    std::int64_t k = first;
    for (; k - first + kFmaLanes <= length; k += kFmaLanes) {
      for (int i = 0; i < kLanes; ++i) {
        const F32x16 weights = Load(values + (k + i) * kStrip);
        for (int r = 0; r < kRows; ++r) lane[r][i] = Fma(F32x16(x[r * x_stride + k + i]), weights, lane[r][i]);
      }
    }
    // A lane beyond the end is left alone: a product of zeros could turn its -0 into +0.
    for (int i = 0; i < kLanes; ++i) {
      if (k + i >= length) break;
      const F32x16 weights = Load(values + (k + i) * kStrip);
      for (int r = 0; r < kRows; ++r) lane[r][i] = Fma(F32x16(x[r * x_stride + k + i]), weights, lane[r][i]);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kLanes; ++i) Store(lane[r][i], at(r, i));
    }
  }

  template <int kLanes, int kRows>
  static void AddRows(const float* x, std::int64_t x_stride, const float* values, std::int64_t length,
                      float* lanes) {
    for (int first = 0; first < kFmaLanes; first += kLanes) {
      AddLanes<kLanes, kRows>(x, x_stride, values, length, first, lanes);
    }
  }

  void Add(const LinearWork& work, std::int64_t input, const Panel& panel, std::int64_t k, std::int64_t length,
           float* sums) const {
    constexpr bool kManyRegisters = LOCKSTEP_ISA_LEVEL == 2;
    constexpr int kTogether = kManyRegisters ? 6 : 3;
    const std::int64_t padded = PrepareBlocks(*work.spec) * kLinearBlock;
    const float* values = panel.values + k * kStrip;
    const auto x = [&](std::int64_t r) { return work.in.values + r * padded + input; };
    const auto lanes = [&](std::int64_t r) { return sums + r * kVectors * kStrip; };
    std::int64_t r = 0;
    for (; r + kTogether <= work.rows; r += kTogether) {
      AddRows<kManyRegisters ? 4 : 2, kTogether>(x(r), padded, values, length, lanes(r));
    }
    for (; r + 2 <= work.rows; r += 2) {
      AddRows<kManyRegisters ? 8 : 2, 2>(x(r), padded, values, length, lanes(r));
    }
    if (r < work.rows) AddRows<kManyRegisters ? 16 : 4, 1>(x(r), padded, values, length, lanes(r));
  }

  static F32x16 Total(const float* sums, std::int64_t row) {
    F32x16 lane[kFmaLanes];
    for (int i = 0; i < kFmaLanes; ++i) lane[i] = Load(sums + (row * kVectors + i) * kStrip);
    for (int stride = kFmaLanes / 2; stride > 0; stride /= 2) {
      for (int i = 0; i < stride; ++i) lane[i] = contract::Add(lane[i], lane[i + stride]);
    }
    return lane[0];
  }
};

// What a strip works with, in its scratch.
struct StripMemory {
  Panel panel;
  float* segments;  // [4][rows][16]
  float* chains;    // [rows][kVectors][16]
};

void Zero(float* values, std::int64_t vectors) {
  for (std::int64_t i = 0; i < vectors; ++i) Store(F32x16(0.0f), values + i * kStrip);
}

float E8M0Value(std::uint8_t code) { return FloatOf(code != 0 ? code << 23 : 1 << 22); }

// Weight scales of the strip's 16 outputs at input k. FP8's tiles are whole strips high.
F32x16 WeightScales(const LinearSpec& spec, const std::byte* blob, std::int64_t strip, std::int64_t k) {
  const std::int64_t columns = (spec.in_features + spec.block - 1) / spec.block, first = strip * kStrip;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(blob + spec.scale) + k / spec.block;
  if (spec.kind == Kind::kFp8Block) return F32x16(E8M0Value(scales[first / spec.block * columns]));
  float lanes[kStrip] = {};
  for (std::int64_t i = 0; i < kStrip && first + i < spec.out_features; ++i) {
    lanes[i] = E8M0Value(scales[(first + i) * columns]);
  }
  return Load(lanes);
}

// One segment of a matrix with one scale: a single chain for each row.
template <class Chains>
void PlainSegment(const LinearWork& work, const PanelSource& source, const Chains& chains, SegmentRange range,
                  StripMemory* memory, float* segment) {
  Zero(memory->chains, work.rows * Chains::kVectors);
  if (Chains::kVectors == kFmaLanes && source.CanMultiply()) {
    source.Multiply(range, memory->chains);
  } else {
    for (std::int64_t k = range.begin; k < range.end; k += kLinearBlock) {
      source.Fill(k / kLinearBlock, &memory->panel);
      chains.Add(work, k, memory->panel, 0, memory->panel.length, memory->chains);
    }
  }
  for (std::int64_t r = 0; r < work.rows; ++r) Store(Chains::Total(memory->chains, r), segment + r * kStrip);
}

// One segment of a matrix with block scales: a chain for each block, then one fma with the scales.
template <class Chains>
void ScaledSegment(const LinearWork& work, const PanelSource& source, const Chains& chains, std::int64_t strip,
                   SegmentRange range, StripMemory* memory, float* segment) {
  const LinearSpec& spec = *work.spec;
  const std::int64_t scales =
      spec.activation_block > 0 ? PrepareBlocks(spec) * kLinearBlock / spec.activation_block : 0;
  Zero(segment, work.rows);
  for (std::int64_t begin = range.begin; begin < range.end; begin += kLinearBlock) {
    source.Fill(begin / kLinearBlock, &memory->panel);
    for (std::int64_t k = 0; k < memory->panel.length; k += spec.block) {
      const std::int64_t rest = memory->panel.length - k;
      Zero(memory->chains, work.rows * Chains::kVectors);
      chains.Add(work, begin + k, memory->panel, k, rest < spec.block ? rest : spec.block, memory->chains);
      const F32x16 weight_scale = WeightScales(spec, work.blob, strip, begin + k);
      for (std::int64_t r = 0; r < work.rows; ++r) {
        const F32x16 scale =
            scales ? Mul(F32x16(work.in.scale[r * scales + (begin + k) / spec.activation_block]), weight_scale)
                   : weight_scale;
        Store(Fma(Chains::Total(memory->chains, r), scale, Load(segment + r * kStrip)), segment + r * kStrip);
      }
    }
  }
}

template <class Chains>
void MultiplyStrip(const LinearWork& work, const Chains& chains, std::int64_t strip, std::byte* scratch) {
  const LinearSpec& spec = *work.spec;
  StripMemory memory;
  memory.panel.values = reinterpret_cast<float*>(scratch);
  memory.panel.exponents = reinterpret_cast<std::int32_t*>(memory.panel.values + kLinearBlock * kStrip);
  memory.segments = reinterpret_cast<float*>(memory.panel.exponents + kLinearBlock / 2 * kStrip);
  memory.chains = memory.segments + kSegments * work.rows * kStrip;

  const PanelSource source(work, strip);
  const bool scaled = spec.kind == Kind::kFp8Block || spec.kind == Kind::kFp4Row;
  const std::int64_t segment_size = work.rows * kStrip;
  for (int s = 0; s < kSegments; ++s) {
    const SegmentRange range = SegmentOf(spec.packed_in(), s);
    float* segment = memory.segments + s * segment_size;
    if (range.begin == range.end) {
      Zero(segment, work.rows);
    } else if (scaled) {
      ScaledSegment(work, source, chains, strip, range, &memory, segment);
    } else {
      PlainSegment(work, source, chains, range, &memory, segment);
    }
  }
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const float* row = memory.segments + r * kStrip;
    F32x16 v = FoldSegments(Load(row), Load(row + segment_size), Load(row + 2 * segment_size),
                            Load(row + 3 * segment_size));
    if (spec.kind == Kind::kExl3) v = ColumnOrder(v);
    Store(v, work.v + r * work.v_stride + strip * kStrip);
  }
}

}  // namespace

void PanelStrip(const LinearWork& work, std::int64_t strip, std::byte* scratch) {
  if (work.profile == Profile::kFma) {
    MultiplyStrip(work, FmaChains{}, strip, scratch);
  } else {
    MultiplyStrip(work, MmaChains{work.profile}, strip, scratch);
  }
}

void FloatStrip(const LinearWork& work, std::int64_t strip, std::byte*) {
  const LinearSpec& spec = *work.spec;
  const std::int64_t in = spec.in_features, padded = PrepareBlocks(spec) * kLinearBlock;
  const float* weights = reinterpret_cast<const float*>(work.blob + spec.weight);
  for (std::int64_t n = strip * kStrip; n < spec.out_features && n < (strip + 1) * kStrip; ++n) {
    for (std::int64_t r = 0; r < work.rows; ++r) {
      work.v[r * work.v_stride + n] =
          DotF(F32Elements{work.in.values + r * padded}, F32Elements{weights + n * in}, in);
    }
  }
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
