// vec.h in each build against scalar C++: std::fma, the operators, model/float_formats.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/contract/cpu_isa.h"
#include "kernels/contract/vec_probe.h"
#include "model/float_formats.h"

namespace lockstep {
namespace {

using Word = std::uint32_t;
using Words = std::array<Word, 16>;

float AsFloat(Word w) { return std::bit_cast<float>(w); }
Word AsWord(float f) { return std::bit_cast<Word>(f); }
std::int32_t AsInt(Word w) { return static_cast<std::int32_t>(w); }
Word AsWord(std::int32_t i) { return static_cast<Word>(i); }
bool IsNanWord(Word w) { return std::isnan(AsFloat(w)); }

void Apply(Isa isa, VecOp op, VecOperands* operands) {
  ForIsa(isa, vec_probe::generic::Apply, vec_probe::avx2::Apply, vec_probe::avx512::Apply)(op, operands);
}

// Words that are interesting as floats and as integers: any bits, special floats, small integers, near
// neighbours.
class WordSource {
 public:
  explicit WordSource(unsigned seed) : random_(seed) {}

  Word Next() {
    static constexpr Word kSpecial[] = {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000,
                                        0x7fc00000, 0xffc12345, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                                        0x7f7fffff, 0xff7fffff, 0x3f000000, 0x4b000000, 0xcb800001, 0x477fefff,
                                        0x477ff000, 0x38800000, 0x387fffff, 0x33000000, 0x33000001, 0x7fffffff};
    switch (random_() % 5) {
      case 0:
        return static_cast<Word>(random_());
      case 1:
        return kSpecial[random_() % std::size(kSpecial)];
      case 2:
        return static_cast<Word>(random_() % 64) - 32;
      case 3:
        return last_ + static_cast<Word>(random_() % 3) - 1;
      default:
        return last_ = AsWord(std::ldexp(static_cast<float>(random_() % 4096) - 2048.0f, random_() % 40 - 20));
    }
  }

  void Fill(Word (&words)[16]) {
    for (Word& w : words) w = Next();
  }

 private:
  std::mt19937 random_;
  Word last_ = 0;
};

struct LaneOp {
  VecOp op;
  const char* name;
  bool float_result;  // any NaN equals any other
  std::function<Word(Word a, Word b, Word c)> expected;
};

const std::vector<LaneOp>& FloatLaneOps() {
  static const std::vector<LaneOp> ops = {
      {VecOp::kAdd, "Add", true, [](Word a, Word b, Word) { return AsWord(AsFloat(a) + AsFloat(b)); }},
      {VecOp::kSub, "Sub", true, [](Word a, Word b, Word) { return AsWord(AsFloat(a) - AsFloat(b)); }},
      {VecOp::kMul, "Mul", true, [](Word a, Word b, Word) { return AsWord(AsFloat(a) * AsFloat(b)); }},
      {VecOp::kDiv, "Div", true, [](Word a, Word b, Word) { return AsWord(AsFloat(a) / AsFloat(b)); }},
      {VecOp::kSqrt, "Sqrt", true, [](Word a, Word, Word) { return AsWord(std::sqrt(AsFloat(a))); }},
      {VecOp::kFma, "Fma", true,
       [](Word a, Word b, Word c) { return AsWord(std::fma(AsFloat(a), AsFloat(b), AsFloat(c))); }},
      {VecOp::kMulThenAdd, "Mul then Add", true,
       [](Word a, Word b, Word c) {
         volatile float product =
             AsFloat(a) * AsFloat(b);  // volatile: two roundings whatever the compiler wants
         return AsWord(product + AsFloat(c));
       }},
      {VecOp::kMinF, "Min", true, [](Word a, Word b, Word) { return AsFloat(a) < AsFloat(b) ? a : b; }},
      {VecOp::kMaxF, "Max", true, [](Word a, Word b, Word) { return AsFloat(a) > AsFloat(b) ? a : b; }},
      {VecOp::kNegate, "Negate", false, [](Word a, Word, Word) { return a ^ 0x80000000u; }},
      {VecOp::kAbs, "Abs", false, [](Word a, Word, Word) { return a & 0x7fffffffu; }},
      {VecOp::kLessF, "Less", false, [](Word a, Word b, Word) { return Word{AsFloat(a) < AsFloat(b)}; }},
      {VecOp::kLessEqualF, "LessEqual", false,
       [](Word a, Word b, Word) { return Word{AsFloat(a) <= AsFloat(b)}; }},
      {VecOp::kEqualF, "Equal", false, [](Word a, Word b, Word) { return Word{AsFloat(a) == AsFloat(b)}; }},
      {VecOp::kIsNan, "IsNan", false, [](Word a, Word, Word) { return Word{IsNanWord(a)}; }},
      {VecOp::kSelectF, "Select", false, [](Word a, Word b, Word c) { return AsInt(c) < 0 ? a : b; }},
      {VecOp::kRoundToBF16, "RoundToBF16", true,
       [](Word a, Word, Word) { return AsWord(RoundToBF16(AsFloat(a))); }},
      {VecOp::kRoundToF16, "RoundToF16", true,
       [](Word a, Word, Word) { return AsWord(RoundToF16(AsFloat(a))); }},
      {VecOp::kTruncateUnsignedToFloat, "TruncateUnsignedToFloat", true,
       [](Word a, Word, Word) {
         float rounded = static_cast<float>(a);
         if (static_cast<double>(rounded) > static_cast<double>(a)) rounded = std::nextafter(rounded, 0.0f);
         return AsWord(rounded);
       }},
      {VecOp::kToFloat, "ToFloat", true,
       [](Word a, Word, Word) { return AsWord(static_cast<float>(AsInt(a))); }},
  };
  return ops;
}

const std::vector<LaneOp>& IntLaneOps() {
  static const std::vector<LaneOp> ops = {
      {VecOp::kAddI, "+", false, [](Word a, Word b, Word) { return a + b; }},
      {VecOp::kSubI, "-", false, [](Word a, Word b, Word) { return a - b; }},
      {VecOp::kMulI, "*", false, [](Word a, Word b, Word) { return a * b; }},
      {VecOp::kAndI, "&", false, [](Word a, Word b, Word) { return a & b; }},
      {VecOp::kOrI, "|", false, [](Word a, Word b, Word) { return a | b; }},
      {VecOp::kXorI, "^", false, [](Word a, Word b, Word) { return a ^ b; }},
      {VecOp::kShiftLeftBy5, "<<", false, [](Word a, Word, Word) { return a << 5; }},
      {VecOp::kShiftRightBy5, ">>", false, [](Word a, Word, Word) { return AsWord(AsInt(a) >> 5); }},
      {VecOp::kShiftLeft, "ShiftLeft", false, [](Word a, Word b, Word) { return a << (b & 31u); }},
      {VecOp::kShiftRight, "ShiftRight", false,
       [](Word a, Word b, Word) { return AsWord(AsInt(a) >> (b & 31u)); }},
      {VecOp::kShiftRightLogical, "ShiftRightLogical", false,
       [](Word a, Word b, Word) { return a >> (b & 31u); }},
      {VecOp::kMinI, "Min", false, [](Word a, Word b, Word) { return AsWord(std::min(AsInt(a), AsInt(b))); }},
      {VecOp::kMaxI, "Max", false, [](Word a, Word b, Word) { return AsWord(std::max(AsInt(a), AsInt(b))); }},
      {VecOp::kAddPairs16, "AddPairs16", false,
       [](Word a, Word b, Word) { return ((a + b) & 0xffffu) | (((a >> 16) + (b >> 16)) << 16); }},
      {VecOp::kMaxPairs16, "MaxPairs16", false,
       [](Word a, Word b, Word) {
         const auto low = std::max(static_cast<std::int16_t>(a), static_cast<std::int16_t>(b));
         const auto high = std::max(static_cast<std::int16_t>(a >> 16), static_cast<std::int16_t>(b >> 16));
         return static_cast<Word>(static_cast<std::uint16_t>(low)) | (static_cast<Word>(high) << 16);
       }},
      {VecOp::kEqualI, "Equal", false, [](Word a, Word b, Word) { return Word{a == b}; }},
      {VecOp::kLessI, "Less", false, [](Word a, Word b, Word) { return Word{AsInt(a) < AsInt(b)}; }},
      {VecOp::kSelectI, "Select", false, [](Word a, Word b, Word c) { return AsInt(c) < 0 ? a : b; }},
      {VecOp::kMaskAnd, "mask &", false,
       [](Word a, Word b, Word) { return Word{AsInt(a) < 0 && AsInt(b) < 0}; }},
      {VecOp::kMaskOr, "mask |", false,
       [](Word a, Word b, Word) { return Word{AsInt(a) < 0 || AsInt(b) < 0}; }},
      {VecOp::kMaskNot, "mask ~", false, [](Word a, Word, Word) { return Word{AsInt(a) >= 0}; }},
  };
  return ops;
}

class VecTest : public testing::TestWithParam<Isa> {
 protected:
  // The result words of `op` on `operands`.
  Words Run(VecOp op, const VecOperands& given) {
    VecOperands operands = given;
    Apply(GetParam(), op, &operands);
    Words out;
    std::copy(operands.out, operands.out + 16, out.begin());
    return out;
  }

  void ExpectLaneOps(const std::vector<LaneOp>& ops) {
    for (const LaneOp& op : ops) {
      WordSource source(17);
      for (int round = 0; round < 4000; ++round) {
        VecOperands operands{};
        source.Fill(operands.a);
        source.Fill(operands.b);
        source.Fill(operands.c);
        const Words out = Run(op.op, operands);
        for (int i = 0; i < 16; ++i) {
          const Word expected = op.expected(operands.a[i], operands.b[i], operands.c[i]);
          if (op.float_result && IsNanWord(expected) && IsNanWord(out[i])) continue;
          ASSERT_EQ(out[i], expected) << op.name << " of " << std::hex << operands.a[i] << " " << operands.b[i]
                                      << " " << operands.c[i];
        }
      }
    }
  }
};

TEST_P(VecTest, FloatLanesEqualScalarCpp) { ExpectLaneOps(FloatLaneOps()); }

TEST_P(VecTest, IntLanesEqualScalarCpp) { ExpectLaneOps(IntLaneOps()); }

TEST_P(VecTest, BroadcastFillsEveryLane) {
  VecOperands operands{};
  operands.a[0] = 0xc0490fdbu;
  for (VecOp op : {VecOp::kBroadcastF, VecOp::kBroadcastI}) {
    for (Word w : Run(op, operands)) EXPECT_EQ(w, operands.a[0]);
  }
}

TEST_P(VecTest, RoundAndTruncateEqualLibm) {
  std::mt19937 random(5);
  for (int round = 0; round < 4000; ++round) {
    VecOperands operands{};
    for (Word& w : operands.a) {
      const float halves = static_cast<float>(static_cast<int>(random() % 4001) - 2000) * 0.5f;
      const float any = std::ldexp(static_cast<float>(AsInt(random())), -static_cast<int>(random() % 32) - 1);
      w = AsWord(random() % 2 ? halves : any);
    }
    const Words out = Run(VecOp::kRoundToInt, operands);
    const Words truncated = Run(VecOp::kTruncateToInt, operands);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(AsInt(truncated[i]), static_cast<std::int32_t>(std::trunc(AsFloat(operands.a[i]))));
      ASSERT_EQ(AsInt(out[i]), static_cast<std::int32_t>(std::nearbyint(AsFloat(operands.a[i]))))
          << AsFloat(operands.a[i]);
    }
  }
}

TEST_P(VecTest, ConversionsBeyondInt32GiveItsMinimum) {
  VecOperands operands{};
  const float values[] = {0x1p31f, -0x1p31f, 0x1.fffffep30f, 3e38f, -3e38f, HUGE_VALF, -HUGE_VALF, NAN};
  for (int i = 0; i < 16; ++i) operands.a[i] = AsWord(values[i % 8]);
  for (VecOp op : {VecOp::kRoundToInt, VecOp::kTruncateToInt}) {
    const Words out = Run(op, operands);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(AsInt(out[i]), i % 8 == 2 ? 0x7fffff80 : INT32_MIN) << values[i % 8];
  }
}

TEST_P(VecTest, FoldAddsByHalving) {
  WordSource source(23);
  for (int round = 0; round < 4000; ++round) {
    VecOperands operands{};
    float lanes[16];
    for (int i = 0; i < 16; ++i) {
      do operands.a[i] = source.Next();
      while (!std::isfinite(AsFloat(operands.a[i])));
      lanes[i] = AsFloat(operands.a[i]);
    }
    for (int stride : {8, 4, 2, 1}) {
      for (int i = 0; i < stride; ++i) lanes[i] += lanes[i + stride];
    }
    const Word out = Run(VecOp::kFold, operands)[0];
    if (std::isnan(lanes[0])) continue;  // two infinities of opposite sign
    ASSERT_EQ(out, AsWord(lanes[0]));
  }
}

TEST_P(VecTest, AllHalfPrecisionPatternsWiden) {
  for (Word first = 0; first < 65536; first += 16) {
    VecOperands operands{};
    std::uint16_t narrow[16];
    for (Word i = 0; i < 16; ++i) narrow[i] = static_cast<std::uint16_t>(first + i);
    std::memcpy(operands.a, narrow, sizeof(narrow));
    const Words f16 = Run(VecOp::kLoadF16, operands);
    const Words bf16 = Run(VecOp::kLoadBF16, operands);
    for (Word i = 0; i < 16; ++i) {
      const Word expected = AsWord(F16ToFloat(narrow[i]));
      if (IsNanWord(expected)) {
        ASSERT_TRUE(IsNanWord(f16[i]));
      } else {
        ASSERT_EQ(f16[i], expected) << narrow[i];
      }
      ASSERT_EQ(bf16[i], AsWord(BF16ToFloat(narrow[i])));
    }
  }
}

TEST_P(VecTest, NarrowStoresEqualFloatFormats) {
  WordSource source(29);
  for (int round = 0; round < 20000; ++round) {
    VecOperands operands{};
    source.Fill(operands.a);
    const Words f16 = Run(VecOp::kStoreF16, operands);
    const Words bf16 = Run(VecOp::kStoreBF16, operands);
    std::uint16_t got_f16[16], got_bf16[16];
    std::memcpy(got_f16, f16.data(), sizeof(got_f16));
    std::memcpy(got_bf16, bf16.data(), sizeof(got_bf16));
    for (int i = 0; i < 16; ++i) {
      const float value = AsFloat(operands.a[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(F16ToFloat(got_f16[i])));
        ASSERT_TRUE(std::isnan(BF16ToFloat(got_bf16[i])));
        continue;
      }
      ASSERT_EQ(got_f16[i], FloatToF16(value)) << value;
      ASSERT_EQ(got_bf16[i], FloatToBF16(value)) << value;
    }
  }
}

template <class T>
void ExpectExtended(const Words& out, const VecOperands& operands) {
  T narrow[16];
  std::memcpy(narrow, operands.a, sizeof(narrow));
  for (int i = 0; i < 16; ++i) ASSERT_EQ(AsInt(out[i]), static_cast<std::int32_t>(narrow[i]));
}

template <class T>
void ExpectTruncated(const Words& out, const VecOperands& operands) {
  T narrow[16];
  std::memcpy(narrow, out.data(), sizeof(narrow));
  for (int i = 0; i < 16; ++i) ASSERT_EQ(narrow[i], static_cast<T>(operands.a[i]));
}

TEST_P(VecTest, NarrowIntegersExtendAndTruncate) {
  std::mt19937 random(31);
  for (int round = 0; round < 1000; ++round) {
    VecOperands operands{};
    for (Word& w : operands.a) w = static_cast<Word>(random());
    ExpectExtended<std::int8_t>(Run(VecOp::kLoadI8, operands), operands);
    ExpectExtended<std::uint8_t>(Run(VecOp::kLoadU8, operands), operands);
    ExpectExtended<std::int16_t>(Run(VecOp::kLoadI16, operands), operands);
    ExpectExtended<std::uint16_t>(Run(VecOp::kLoadU16, operands), operands);
    ExpectTruncated<std::int8_t>(Run(VecOp::kStoreI8, operands), operands);
    ExpectTruncated<std::int16_t>(Run(VecOp::kStoreI16, operands), operands);
  }
}

TEST_P(VecTest, TailsTouchOnlyTheirElements) {
  constexpr Word kKept = 0xa5a5a5a5u;
  for (int n = 0; n <= 16; ++n) {
    VecOperands operands{};
    operands.n = n;
    for (int i = 0; i < 16; ++i) operands.a[i] = AsWord(1.0f + static_cast<float>(i));
    std::fill(operands.out, operands.out + 16, kKept);
    const Words loaded = Run(VecOp::kLoadN, operands);
    const Words stored = Run(VecOp::kStoreN, operands);
    const Words mask = Run(VecOp::kFirstLanes, operands);
    const Words bf16 = Run(VecOp::kStoreBF16N, operands);
    const Words f16 = Run(VecOp::kStoreF16N, operands);
    std::uint16_t got_bf16[32], got_f16[32];
    std::memcpy(got_bf16, bf16.data(), 64);
    std::memcpy(got_f16, f16.data(), 64);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(loaded[i], i < n ? operands.a[i] : 0u);
      EXPECT_EQ(stored[i], i < n ? operands.a[i] : kKept);
      EXPECT_EQ(mask[i], Word{i < n});
      EXPECT_EQ(got_bf16[i], i < n ? FloatToBF16(AsFloat(operands.a[i])) : 0xa5a5);
      EXPECT_EQ(got_f16[i], i < n ? FloatToF16(AsFloat(operands.a[i])) : 0xa5a5);
    }
  }
}

TEST_P(VecTest, HalfPrecisionTailsLoadZeroBeyond) {
  for (int n = 0; n <= 16; ++n) {
    VecOperands operands{};
    operands.n = n;
    std::uint16_t ones[16];
    std::fill(std::begin(ones), std::end(ones), std::uint16_t{0x3c3c});
    std::memcpy(operands.a, ones, sizeof(ones));
    const Words f16 = Run(VecOp::kLoadF16N, operands);
    const Words bf16 = Run(VecOp::kLoadBF16N, operands);
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(f16[i], i < n ? AsWord(F16ToFloat(0x3c3c)) : 0u);
      EXPECT_EQ(bf16[i], i < n ? AsWord(BF16ToFloat(0x3c3c)) : 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, VecTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(NameOf(isa.param)); });

}  // namespace
}  // namespace lockstep
