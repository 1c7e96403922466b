// Blobs against the checkpoint they were packed from, read element by element through the tensor views.
#include "kernels/linear/linear_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear/linear_cases.h"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

using Kind = LinearSpec::Kind;

// A blob full of 0xee, so that a byte that packing left alone shows.
std::vector<std::byte> Pack(const TestLinear& linear, const LinearSpec& spec) {
  std::vector<std::byte> blob(static_cast<std::size_t>(spec.bytes), std::byte{0xee});
  PackLinear(linear.weight, spec, blob.data());
  return blob;
}

template <typename T>
T ElementAt(const std::vector<std::byte>& blob, std::int64_t offset, std::int64_t index) {
  T value;
  std::memcpy(&value, blob.data() + offset + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void ExpectZeros(const std::vector<std::byte>& blob, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) ASSERT_EQ(blob[static_cast<std::size_t>(i)], std::byte{0}) << i;
}

TEST(LinearLayout, PartsAreAlignedAndInOrder) {
  LinearMaker maker(1);
  for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kF32, Kind::kFp8Block, Kind::kFp4Row, Kind::kExl3}) {
    const TestLinear linear = maker.Make({.kind = kind, .out = 37, .in = 96, .bias = true});
    const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32);
    EXPECT_EQ(spec.kind, kind);
    std::int64_t end = 0;
    for (const std::int64_t offset :
         {spec.weight, spec.scale, spec.input_scale, spec.output_scale, spec.bias, spec.bytes}) {
      EXPECT_EQ(offset % 256, 0);
      EXPECT_GE(offset, end);
      end = offset;
    }
  }
}

TEST(LinearLayout, DenseRowsKeepTheirBytes) {
  LinearMaker maker(2);
  for (const Kind kind : {Kind::kBF16, Kind::kF16, Kind::kF32}) {
    const TestLinear linear = maker.Make({.kind = kind, .out = 19, .in = 45, .row_begin = 38});
    const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32);
    const std::vector<std::byte> blob = Pack(linear, spec);
    const std::int64_t size = kind == Kind::kF32 ? 4 : 2;
    EXPECT_EQ(std::memcmp(blob.data() + spec.weight, linear.weight_bytes.data() + 38 * 45 * size,
                          static_cast<std::size_t>(19 * 45 * size)),
              0);
    ExpectZeros(blob, spec.weight + 19 * 45 * size, spec.bytes);
  }
}

TEST(LinearLayout, Fp8KeepsCodesAndTheScalesOfItsRows) {
  LinearMaker maker(3);
  const TestLinear linear = maker.Make({.kind = Kind::kFp8Block, .out = 40, .in = 70, .row_begin = 64});
  const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32);
  const std::vector<std::byte> blob = Pack(linear, spec);
  for (std::int64_t n = 0; n < 40; ++n) {
    for (std::int64_t k = 0; k < 70; ++k) {
      ASSERT_EQ(ElementAt<std::uint8_t>(blob, spec.weight, n * 70 + k),
                linear.weight.weight.At<std::uint8_t>((64 + n) * 70 + k));
      ASSERT_EQ(ElementAt<std::uint8_t>(blob, spec.scale, n / 32 * 3 + k / 32),
                linear.weight.scale.At<std::uint8_t>((64 + n) / 32 * 3 + k / 32));
    }
  }
  ExpectZeros(blob, spec.scale + 2 * 3, spec.bytes);
}

TEST(LinearLayout, Fp4KeepsCodesAndScales) {
  LinearMaker maker(4);
  const TestLinear linear = maker.Make({.kind = Kind::kFp4Row, .out = 5, .in = 96});
  const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32);
  const std::vector<std::byte> blob = Pack(linear, spec);
  EXPECT_EQ(std::memcmp(blob.data() + spec.weight, linear.weight_bytes.data(), 5 * 48), 0);
  EXPECT_EQ(std::memcmp(blob.data() + spec.scale, linear.scale_bytes.data(), 5 * 3), 0);
}

TEST(LinearLayout, UnquantizedInputMeansDequantisedWeights) {
  LinearMaker maker(5);
  const TestLinear linear = maker.Make({.kind = Kind::kFp8Block, .out = 33, .in = 64, .row_begin = 7});
  const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32, /*quantize_input=*/false);
  EXPECT_EQ(spec.kind, Kind::kBF16);
  EXPECT_EQ(spec.activation_block, 0);
  const std::vector<std::byte> blob = Pack(linear, spec);
  for (std::int64_t n = 0; n < 33; ++n) {
    for (std::int64_t k = 0; k < 64; ++k) {
      const double expected = static_cast<double>(linear.weight.weight.Float((7 + n) * 64 + k)) *
                              static_cast<double>(linear.weight.scale.Float((7 + n) / 32 * 2 + k / 32));
      ASSERT_EQ(static_cast<double>(BF16ToFloat(ElementAt<std::uint16_t>(blob, spec.weight, n * 64 + k))),
                expected);
    }
  }
}

TEST(LinearLayout, TrellisTilesOfAStripAreContiguous) {
  LinearMaker maker(6);
  for (const int bits_x2 : {2, 3, 5, 7, 12, 16}) {
    const TestLinear linear =
        maker.Make({.kind = Kind::kExl3, .out = 200, .in = 250, .bits_x2 = bits_x2, .bias = true});
    const LinearSpec spec = MakeLinearSpec(linear.weight, {}, 32);
    const std::vector<std::byte> blob = Pack(linear, spec);
    EXPECT_EQ(spec.in_padded, 256);
    EXPECT_EQ(spec.out_padded, 256);
    const std::int64_t words = 8 * bits_x2;  // u16 of a tile
    for (std::int64_t kt = 0; kt < 16; ++kt) {
      for (std::int64_t nt = 0; nt < 16; ++nt) {
        for (std::int64_t i = 0; i < words; ++i) {
          ASSERT_EQ(ElementAt<std::uint16_t>(blob, spec.weight, (nt * 16 + kt) * words + i),
                    linear.weight.exl3.trellis.At<std::uint16_t>((kt * 16 + nt) * words + i));
        }
      }
    }
    for (std::int64_t i = 0; i < 256; ++i) {
      ASSERT_EQ(ElementAt<float>(blob, spec.input_scale, i), linear.weight.exl3.suh.Float(i));
      ASSERT_EQ(ElementAt<float>(blob, spec.output_scale, i), linear.weight.exl3.svh.Float(i));
      ASSERT_EQ(ElementAt<float>(blob, spec.bias, i), i < 200 ? linear.weight.exl3.bias.Float(i) : 0.0f);
    }
    EXPECT_GE(spec.bytes - spec.weight - 256 * words * 2, 256);
  }
}

TEST(LinearLayout, OptionsDecideTheFamily) {
  LinearMaker maker(7);
  const TestLinear low = maker.Make({.kind = Kind::kExl3, .out = 128, .in = 128, .bits_x2 = 8});
  const TestLinear high = maker.Make({.kind = Kind::kExl3, .out = 128, .in = 128, .bits_x2 = 10});
  const TestLinear mcg = maker.Make({.kind = Kind::kExl3, .out = 128, .in = 128, .codebook = Codebook::kMcg});
  EXPECT_EQ(MakeLinearSpec(low.weight, {}, 32).act_limit, 127);
  EXPECT_EQ(MakeLinearSpec(high.weight, {}, 32).act_limit, 32512);
  EXPECT_EQ(MakeLinearSpec(mcg.weight, {}, 32).act_limit, 0);
  EXPECT_EQ(MakeLinearSpec(low.weight, {.act_quant = ActQuant::kNone}, 32).act_limit, 0);
  const TestLinear fp8 = maker.Make({.kind = Kind::kFp8Block, .out = 128, .in = 128, .block = 128});
  EXPECT_EQ(MakeLinearSpec(fp8.weight, {}, 128).activation_block, 128);
  EXPECT_EQ(MakeLinearSpec(fp8.weight, {.fake_quant = false}, 128).activation_block, 0);
}

TEST(LinearLayout, OddScaleBlocksAreRefused) {
  LinearMaker maker(10);
  const TestLinear linear = maker.Make({.kind = Kind::kFp8Block, .out = 96, .in = 96, .block = 48});
  EXPECT_THROW(MakeLinearSpec(linear.weight, {}, 32), InputError);
  EXPECT_THROW(MakeLinearSpec(linear.weight, {}, 48), InputError);
  EXPECT_NO_THROW(MakeLinearSpec(linear.weight, {}, 48, /*quantize_input=*/false));
}

TEST(LinearLayout, ExpertPartsLieBehindOneAnother) {
  LinearMaker maker(8);
  const TestLinear w1 = maker.Make({.kind = Kind::kExl3, .out = 96, .in = 160, .bits_x2 = 4});
  const TestLinear w2 = maker.Make({.kind = Kind::kFp4Row, .out = 160, .in = 96});
  const TestLinear w3 = maker.Make({.kind = Kind::kBF16, .out = 96, .in = 160});
  const ExpertWeights expert = {.w1 = w1.weight, .w2 = w2.weight, .w3 = w3.weight};
  const ExpertSpec spec = MakeExpertSpec(expert, {}, 32);
  EXPECT_EQ(spec.gate.weight, 0);
  EXPECT_EQ(spec.up.weight, spec.gate.bytes);
  EXPECT_EQ(spec.down.weight, spec.gate.bytes + spec.up.bytes);
  EXPECT_EQ(spec.bytes, spec.gate.bytes + spec.up.bytes + spec.down.bytes);
  std::vector<std::byte> blob(static_cast<std::size_t>(spec.bytes), std::byte{0xee});
  PackExpert(expert, spec, blob.data());
  std::vector<std::byte> parts;
  for (const TestLinear* part : {&w1, &w3, &w2}) {
    const std::vector<std::byte> alone = Pack(*part, MakeLinearSpec(part->weight, {}, 32));
    parts.insert(parts.end(), alone.begin(), alone.end());
  }
  EXPECT_TRUE(blob == parts);
}

TEST(LinearLayout, WeightsThatAreNotFiniteAreNamed) {
  struct Spoiled {
    Kind kind;
    std::vector<std::uint8_t> element;
  };
  const Spoiled cases[] = {{Kind::kBF16, {0x80, 0xff}},
                           {Kind::kF16, {0x01, 0x7c}},
                           {Kind::kF32, {0, 0, 0x80, 0x7f}},
                           {Kind::kFp8Block, {0xff}}};
  for (const Spoiled& spoiled : cases) {
    LinearMaker maker(9);
    TestLinear linear = maker.Make({.kind = spoiled.kind, .out = 8, .in = 32, .row_begin = 32});
    const std::size_t at = (37 * 32 + 11) * spoiled.element.size();
    std::memcpy(linear.weight_bytes.data() + at, spoiled.element.data(), spoiled.element.size());
    try {
      Pack(linear, MakeLinearSpec(linear.weight, {}, 32));
      ADD_FAILURE() << "no error";
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()),
                "made.safetensors: tensor w: expected finite weights, row 37, column 11 is not");
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
