// Compiled once per instruction set.
#include "kernels/contract/vec.h"

#include "kernels/contract/vec_probe.h"

namespace lockstep::vec_probe::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

// The operands in every form that an operation may want, and the ways to return a result. Return() is always
// true.
struct Io {
  VecOperands* raw;
  const float* Floats(const std::uint32_t* words) const { return reinterpret_cast<const float*>(words); }
  const std::int32_t* Ints(const std::uint32_t* words) const {
    return reinterpret_cast<const std::int32_t*>(words);
  }
  F32x16 Fa() const { return Load(Floats(raw->a)); }
  F32x16 Fb() const { return Load(Floats(raw->b)); }
  F32x16 Fc() const { return Load(Floats(raw->c)); }
  I32x16 Ia() const { return LoadI32(Ints(raw->a)); }
  I32x16 Ib() const { return LoadI32(Ints(raw->b)); }
  I32x16 Ic() const { return LoadI32(Ints(raw->c)); }
  Mask16 Ma() const { return Less(Ia(), I32x16(0)); }
  Mask16 Mb() const { return Less(Ib(), I32x16(0)); }
  Mask16 Mc() const { return Less(Ic(), I32x16(0)); }
  template <class T>
  const T* Narrow() const {
    return reinterpret_cast<const T*>(raw->a);
  }
  template <class T>
  T* NarrowOut() const {
    return reinterpret_cast<T*>(raw->out);
  }

  bool Return(F32x16 value) const {
    Store(value, reinterpret_cast<float*>(raw->out));
    return true;
  }
  bool Return(I32x16 value) const {
    StoreI32(value, reinterpret_cast<std::int32_t*>(raw->out));
    return true;
  }
  bool Return(Mask16 value) const {
    for (int i = 0; i < 16; ++i) raw->out[i] = (BitsOf(value) >> i) & 1u;
    return true;
  }
};

// Each of these returns false if the operation is of another kind.
bool ApplyMemory(VecOp op, const Io& io) {
  const int n = io.raw->n;
  switch (op) {
    case VecOp::kBroadcastF:
      return io.Return(F32x16(io.Floats(io.raw->a)[0]));
    case VecOp::kBroadcastI:
      return io.Return(I32x16(io.Ints(io.raw->a)[0]));
    case VecOp::kLoadN:
      return io.Return(LoadN(io.Narrow<float>(), n));
    case VecOp::kStoreN:
      StoreN(io.Fa(), io.NarrowOut<float>(), n);
      return true;
    case VecOp::kLoadI8:
      return io.Return(LoadI8(io.Narrow<std::int8_t>()));
    case VecOp::kLoadU8:
      return io.Return(LoadU8(io.Narrow<std::uint8_t>()));
    case VecOp::kLoadI16:
      return io.Return(LoadI16(io.Narrow<std::int16_t>()));
    case VecOp::kLoadU16:
      return io.Return(LoadU16(io.Narrow<std::uint16_t>()));
    case VecOp::kStoreI8:
      StoreI8(io.Ia(), io.NarrowOut<std::int8_t>());
      return true;
    case VecOp::kStoreI16:
      StoreI16(io.Ia(), io.NarrowOut<std::int16_t>());
      return true;
    case VecOp::kLoadBF16:
      return io.Return(LoadBF16(io.Narrow<std::uint16_t>()));
    case VecOp::kLoadF16:
      return io.Return(LoadF16(io.Narrow<std::uint16_t>()));
    case VecOp::kStoreBF16:
      StoreBF16(io.Fa(), io.NarrowOut<std::uint16_t>());
      return true;
    case VecOp::kStoreF16:
      StoreF16(io.Fa(), io.NarrowOut<std::uint16_t>());
      return true;
    case VecOp::kLoadBF16N:
      return io.Return(LoadBF16N(io.Narrow<std::uint16_t>(), n));
    case VecOp::kLoadF16N:
      return io.Return(LoadF16N(io.Narrow<std::uint16_t>(), n));
    case VecOp::kStoreBF16N:
      StoreBF16N(io.Fa(), io.NarrowOut<std::uint16_t>(), n);
      return true;
    case VecOp::kStoreF16N:
      StoreF16N(io.Fa(), io.NarrowOut<std::uint16_t>(), n);
      return true;
    default:
      return false;
  }
}

bool ApplyFloat(VecOp op, const Io& io) {
  switch (op) {
    case VecOp::kAdd:
      return io.Return(Add(io.Fa(), io.Fb()));
    case VecOp::kSub:
      return io.Return(Sub(io.Fa(), io.Fb()));
    case VecOp::kMul:
      return io.Return(Mul(io.Fa(), io.Fb()));
    case VecOp::kDiv:
      return io.Return(Div(io.Fa(), io.Fb()));
    case VecOp::kSqrt:
      return io.Return(Sqrt(io.Fa()));
    case VecOp::kFma:
      return io.Return(Fma(io.Fa(), io.Fb(), io.Fc()));
    case VecOp::kMulThenAdd:
      return io.Return(Add(Mul(io.Fa(), io.Fb()), io.Fc()));
    case VecOp::kMinF:
      return io.Return(Min(io.Fa(), io.Fb()));
    case VecOp::kMaxF:
      return io.Return(Max(io.Fa(), io.Fb()));
    case VecOp::kNegate:
      return io.Return(Negate(io.Fa()));
    case VecOp::kAbs:
      return io.Return(Abs(io.Fa()));
    case VecOp::kLessF:
      return io.Return(Less(io.Fa(), io.Fb()));
    case VecOp::kLessEqualF:
      return io.Return(LessEqual(io.Fa(), io.Fb()));
    case VecOp::kEqualF:
      return io.Return(Equal(io.Fa(), io.Fb()));
    case VecOp::kIsNan:
      return io.Return(IsNan(io.Fa()));
    case VecOp::kSelectF:
      return io.Return(Select(io.Mc(), io.Fa(), io.Fb()));
    case VecOp::kRoundToBF16:
      return io.Return(RoundToBF16(io.Fa()));
    case VecOp::kRoundToF16:
      return io.Return(RoundToF16(io.Fa()));
    case VecOp::kRoundToInt:
      return io.Return(RoundToInt(io.Fa()));
    case VecOp::kTruncateToInt:
      return io.Return(TruncateToInt(io.Fa()));
    case VecOp::kTruncateUnsignedToFloat:
      return io.Return(TruncateUnsignedToFloat(io.Ia()));
    case VecOp::kToFloat:
      return io.Return(ToFloat(io.Ia()));
    case VecOp::kFold:
      return io.Return(F32x16(Fold(io.Fa())));
    default:
      return false;
  }
}

bool ApplyInt(VecOp op, const Io& io) {
  switch (op) {
    case VecOp::kAddI:
      return io.Return(io.Ia() + io.Ib());
    case VecOp::kSubI:
      return io.Return(io.Ia() - io.Ib());
    case VecOp::kMulI:
      return io.Return(io.Ia() * io.Ib());
    case VecOp::kAndI:
      return io.Return(io.Ia() & io.Ib());
    case VecOp::kOrI:
      return io.Return(io.Ia() | io.Ib());
    case VecOp::kXorI:
      return io.Return(io.Ia() ^ io.Ib());
    case VecOp::kShiftLeftBy5:
      return io.Return(io.Ia() << 5);
    case VecOp::kShiftRightBy5:
      return io.Return(io.Ia() >> 5);
    case VecOp::kShiftLeft:
      return io.Return(ShiftLeft(io.Ia(), io.Ib() & I32x16(31)));
    case VecOp::kShiftRight:
      return io.Return(ShiftRight(io.Ia(), io.Ib() & I32x16(31)));
    case VecOp::kShiftRightLogical:
      return io.Return(ShiftRightLogical(io.Ia(), io.Ib() & I32x16(31)));
    case VecOp::kMinI:
      return io.Return(Min(io.Ia(), io.Ib()));
    case VecOp::kMaxI:
      return io.Return(Max(io.Ia(), io.Ib()));
    case VecOp::kAddPairs16:
      return io.Return(AddPairs16(io.Ia(), io.Ib()));
    case VecOp::kMaxPairs16:
      return io.Return(MaxPairs16(io.Ia(), io.Ib()));
    case VecOp::kEqualI:
      return io.Return(Equal(io.Ia(), io.Ib()));
    case VecOp::kLessI:
      return io.Return(Less(io.Ia(), io.Ib()));
    case VecOp::kSelectI:
      return io.Return(Select(io.Mc(), io.Ia(), io.Ib()));
    case VecOp::kMaskAnd:
      return io.Return(io.Ma() & io.Mb());
    case VecOp::kMaskOr:
      return io.Return(io.Ma() | io.Mb());
    case VecOp::kMaskNot:
      return io.Return(~io.Ma());
    case VecOp::kFirstLanes:
      return io.Return(FirstLanes(io.raw->n));
    default:
      return false;
  }
}

}  // namespace

void Apply(VecOp op, VecOperands* operands) {
  const Io io{operands};
  if (ApplyMemory(op, io) || ApplyFloat(op, io)) return;
  ApplyInt(op, io);
}

}  // namespace lockstep::vec_probe::LOCKSTEP_ISA
