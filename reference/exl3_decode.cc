#include "reference/exl3_decode.h"

#include "model/float_formats.h"

namespace lockstep::reference {
namespace {

// 3inst and mcg: two fp16 numbers sit in the masked and flipped product; the weight is their sum, rounded once.
std::uint16_t SumOfHalves(std::uint32_t product) {
  const std::uint32_t y = (product & 0x8fff8fffu) ^ 0x3b603b60u;
  const float low = F16ToFloat(static_cast<std::uint16_t>(y & 0xffffu));
  const float high = F16ToFloat(static_cast<std::uint16_t>(y >> 16));
  return FloatToF16(low + high);  // multiples of 2^-13 below 4: the fp32 sum is exact
}

}  // namespace

int Mul1ByteSum(std::uint32_t state) {
  const std::uint32_t x = state * 0x83DCD12Du;
  return static_cast<int>((x & 0xffu) + ((x >> 8) & 0xffu) + ((x >> 16) & 0xffu) + (x >> 24));
}

std::uint16_t DecodeState(Codebook codebook, std::uint32_t state) {
  switch (codebook) {
    case Codebook::k3inst:
      return SumOfHalves(state * 89226354u + 64248484u);
    case Codebook::kMcg:
      return SumOfHalves(state * 0xCBAC1FEDu);
    case Codebook::kMul1:
      return FloatToF16(static_cast<float>(1774 * Mul1ByteSum(state) - 905216) * 0x1p-18f);
  }
  return 0;
}

}  // namespace lockstep::reference
