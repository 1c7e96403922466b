#include "reference/linear.h"

#include <algorithm>
#include <cmath>

#include "model/error.h"
#include "reference/exl3_decode.h"
#include "reference/finite.h"
#include "reference/loops.h"
#include "reference/quantize.h"

namespace lockstep::reference {
namespace {

constexpr std::int64_t kSegments = 4;
constexpr std::int64_t kSegmentUnit = 128;
constexpr std::int64_t kFp4Block = 32;
constexpr float kHadamardScale = static_cast<float>(1.0 / 11.313708498984761);  // 1/sqrt(128)
constexpr float kMul1Step = 1774.0f * 0x1p-18f;
constexpr float kMul1Offset = 476.0f * 0x1p-18f;

// Calls segment_sum(begin, end) for each K segment and folds the four results.
template <typename SegmentSum>
float FoldSegments(std::int64_t k_length, SegmentSum segment_sum) {
  const std::int64_t units = (k_length + kSegmentUnit - 1) / kSegmentUnit;
  float sums[kSegments];
  for (std::int64_t s = 0; s < kSegments; ++s) {
    const std::int64_t begin = s * units / kSegments * kSegmentUnit;
    const std::int64_t end = std::min(k_length, (s + 1) * units / kSegments * kSegmentUnit);
    sums[s] = begin < end ? segment_sum(begin, end) : 0.0f;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// --- reading weights -------------------------------------------------------------------------------------------------

// FP8 or FP4 code (as value) of output n, input k.
float StoredCode(const LinearWeight& weight, std::int64_t n, std::int64_t k) {
  const std::int64_t row = weight.row_begin + n;
  if (weight.kind == LinearWeight::Kind::kFp8Block) {
    return E4M3ToFloat(weight.weight.At<std::uint8_t>(row * weight.in_features + k));
  }
  const std::uint8_t pair = weight.weight.At<std::uint8_t>((row * weight.in_features + k) / 2);
  return E2M1ToFloat((k % 2 == 0) ? (pair & 0xfu) : (pair >> 4));
}

float StoredScale(const LinearWeight& weight, std::int64_t n, std::int64_t k) {
  const std::int64_t row = weight.row_begin + n;
  const std::int64_t columns = DivideUp(weight.in_features, weight.block);
  const std::int64_t scale_row = weight.kind == LinearWeight::Kind::kFp8Block ? row / weight.block : row;
  return E8M0ToFloat(weight.scale.At<std::uint8_t>(scale_row * columns + k / weight.block));
}

bool IsBlockScaled(const LinearWeight& weight) {
  return weight.kind == LinearWeight::Kind::kFp8Block || weight.kind == LinearWeight::Kind::kFp4Row;
}

// [out, in] values of a dense, FP8 or FP4 weight; `codes` leaves the scales out.
std::vector<float> ReadValues(const LinearWeight& weight, bool codes) {
  std::vector<float> values(static_cast<std::size_t>(weight.out_features * weight.in_features));
  std::size_t i = 0;
  for (std::int64_t n = 0; n < weight.out_features; ++n) {
    for (std::int64_t k = 0; k < weight.in_features; ++k, ++i) {
      if (!IsBlockScaled(weight)) {
        values[i] = weight.weight.Float((weight.row_begin + n) * weight.in_features + k);
      } else {
        values[i] = StoredCode(weight, n, k) * (codes ? 1.0f : StoredScale(weight, n, k));
      }
      if (!std::isfinite(values[i])) {
        throw InputError(weight.weight.file + ": tensor " + weight.weight.name + " holds a value that is not finite at row " +
                         std::to_string(weight.row_begin + n) + ", column " + std::to_string(k));
      }
    }
  }
  return values;
}

std::vector<float> ReadBlockScales(const LinearWeight& weight) {
  const std::int64_t columns = DivideUp(weight.in_features, weight.block);
  std::vector<float> scales(static_cast<std::size_t>(weight.out_features * columns));
  for (std::int64_t n = 0; n < weight.out_features; ++n) {
    for (std::int64_t c = 0; c < columns; ++c) {
      scales[static_cast<std::size_t>(n * columns + c)] = StoredScale(weight, n, c * weight.block);
    }
  }
  return scales;
}

// --- products --------------------------------------------------------------------------------------------------------

LOCKSTEP_CLONES
std::int32_t IntegerDot(const std::int32_t* q, const std::int16_t* w, std::int64_t n) {
  std::int32_t sum = 0;
  for (std::int64_t k = 0; k < n; ++k) sum += q[k] * w[k];
  return sum;
}

Matrix<double> Multiply(const Matrix<double>& x_TK, const std::vector<float>& values, std::int64_t out) {
  const Eigen::Map<const Matrix<float>> w(values.data(), out, x_TK.cols());
  return x_TK * w.cast<double>().transpose();
}

// Plain family H linear: every row of x against every row of w.
Matrix<float> MultiplyH(Profile profile, const Matrix<float>& x_TK, const PreparedWeight& weight) {
  Matrix<float> y_TN(x_TK.rows(), weight.out);
  for (Eigen::Index t = 0; t < x_TK.rows(); ++t) {
    const HRows x = MakeHRows(profile, {x_TK.row(t).data(), x_TK.row(t).data() + weight.in}, weight.format);
    for (std::int64_t n = 0; n < weight.out; ++n) {
      y_TN(t, n) = FoldSegments(weight.in, [&](std::int64_t begin, std::int64_t end) {
        return ChainH(profile, x, begin, weight.rows, n * weight.in + begin, end - begin);
      });
    }
  }
  return y_TN;
}

// FP8/FP4 weights: per scale block an unscaled chain, then one fma with the scales. `activation_block` 0: x is not quantized.
Matrix<float> MultiplyBlockScaled(Profile profile, const Matrix<float>& x_TK, const PreparedWeight& weight, std::int64_t activation_block) {
  const std::int64_t scale_columns = DivideUp(weight.in, weight.block);
  Matrix<float> y_TN(x_TK.rows(), weight.out);
  for (Eigen::Index t = 0; t < x_TK.rows(); ++t) {
    std::vector<float> codes(x_TK.row(t).data(), x_TK.row(t).data() + weight.in);
    std::vector<float> scales;
    for (std::int64_t k = 0; activation_block > 0 && k < weight.in; k += activation_block) {
      scales.push_back(ActQuant8Block(x_TK.row(t).data() + k, std::min(activation_block, weight.in - k), codes.data() + k));
    }
    const HRows x = MakeHRows(profile, std::move(codes), weight.format);
    for (std::int64_t n = 0; n < weight.out; ++n) {
      y_TN(t, n) = FoldSegments(weight.in, [&](std::int64_t begin, std::int64_t end) {
        float y = 0.0f;
        for (std::int64_t k = begin; k < end; k += weight.block) {
          const float p = ChainH(profile, x, k, weight.rows, n * weight.in + k, std::min(weight.block, end - k));
          const float weight_scale = weight.block_scales[static_cast<std::size_t>(n * scale_columns + k / weight.block)];
          const float scale = scales.empty() ? weight_scale : scales[static_cast<std::size_t>(k / activation_block)] * weight_scale;
          y = std::fma(p, scale, y);
        }
        return y;
      });
    }
  }
  return y_TN;
}

// --- EXL3 ------------------------------------------------------------------------------------------------------------

template <typename Real>
void ScaledButterflies(Real* x, std::int64_t n, Real scale) {
  for (std::int64_t i = 0; i < n; i += kExl3HadamardBlock) {
    Butterfly(x + i, kExl3HadamardBlock);
    for (std::int64_t k = i; k < i + kExl3HadamardBlock; ++k) x[k] = x[k] * scale;
  }
}

// Family I: y and z of docs/numerics.md section 4 for one row.
void MultiplyMul1(const float* t, const PreparedWeight& weight, int limit, float* v_N) {
  const std::int64_t blocks = weight.in / kExl3HadamardBlock;
  std::vector<std::int32_t> q(static_cast<std::size_t>(weight.in));
  std::vector<float> scale(static_cast<std::size_t>(blocks));
  for (std::int64_t b = 0; b < blocks; ++b) {
    scale[static_cast<std::size_t>(b)] =
        QuantizeActivations(t + b * kExl3HadamardBlock, kExl3HadamardBlock, limit, q.data() + b * kExl3HadamardBlock);
  }
  const auto blockwise = [&](auto block_sum) {
    return FoldSegments(weight.in, [&](std::int64_t begin, std::int64_t end) {
      float sum = 0.0f;
      for (std::int64_t k = begin; k < end; k += kExl3HadamardBlock) {
        sum = std::fma(static_cast<float>(block_sum(k)), scale[static_cast<std::size_t>(k / kExl3HadamardBlock)], sum);
      }
      return sum;
    });
  };
  const std::vector<std::int16_t> ones(kExl3HadamardBlock, 1);
  const float z = blockwise([&](std::int64_t k) { return IntegerDot(q.data() + k, ones.data(), kExl3HadamardBlock); });
  for (std::int64_t n = 0; n < weight.out; ++n) {
    const std::int16_t* row = weight.byte_sums.data() + n * weight.in;
    const float y = blockwise([&](std::int64_t k) { return IntegerDot(q.data() + k, row + k, kExl3HadamardBlock); });
    v_N[n] = std::fma(y, kMul1Step, -(z * kMul1Offset));
  }
}

template <typename Real>
void RequireFiniteRows(const LinearWeight& weight, const Matrix<Real>& rows, const char* side) {
  if (!rows.allFinite()) throw InputError("layer " + weight.name + ": an " + side + " is not finite; the weights or activations overflow");
}

[[noreturn]] void ThrowBeyondFp16(const std::string& name, float value) {
  throw InputError("layer " + name + ": activation " + std::to_string(value) + " is beyond the fp16 range that its EXL3 codebook needs");
}

void RoundRowToFp16(float* x, std::int64_t n, const std::string& name) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float rounded = RoundToF16(x[i]);
    if (!std::isfinite(rounded)) ThrowBeyondFp16(name, x[i]);
    x[i] = rounded;
  }
}

// v_TN = transformed, quantized input times the trellis matrix, in the contract.
Matrix<float> TrellisProduct(const LinearWeight& weight, const PreparedWeight& prepared, Matrix<float> t_TK, const NumericsOptions& numerics) {
  const int limit = weight.exl3.codebook == Codebook::kMul1 ? ActQuantLimit(numerics.act_quant, weight.exl3.bits_x2) : 0;
  if (limit == 0) {
    for (Eigen::Index t = 0; t < t_TK.rows(); ++t) RoundRowToFp16(t_TK.row(t).data(), prepared.in, weight.name);
  }
  for (Eigen::Index t = 0; t < t_TK.rows(); ++t) ScaledButterflies(t_TK.row(t).data(), prepared.in, kHadamardScale);
  if (limit == 0) {
    for (Eigen::Index t = 0; t < t_TK.rows(); ++t) RoundRowToFp16(t_TK.row(t).data(), prepared.in, weight.name);
    return MultiplyH(numerics.profile, t_TK, prepared);
  }
  Matrix<float> v_TN(t_TK.rows(), prepared.out);
  for (Eigen::Index t = 0; t < t_TK.rows(); ++t) MultiplyMul1(t_TK.row(t).data(), prepared, limit, v_TN.row(t).data());
  return v_TN;
}

// The same in double; the activation quantization is part of the function.
Matrix<double> TrellisProduct(const LinearWeight& weight, const PreparedWeight& prepared, Matrix<double> t_TK, const NumericsOptions& numerics) {
  const int limit = weight.exl3.codebook == Codebook::kMul1 ? ActQuantLimit(numerics.act_quant, weight.exl3.bits_x2) : 0;
  std::int32_t q[kExl3HadamardBlock];
  for (Eigen::Index t = 0; t < t_TK.rows(); ++t) {
    double* row = t_TK.row(t).data();
    ScaledButterflies(row, prepared.in, 1.0 / std::sqrt(128.0));
    for (std::int64_t k = 0; limit > 0 && k < prepared.in; k += kExl3HadamardBlock) {
      const double scale = QuantizeActivations(row + k, kExl3HadamardBlock, limit, q);
      for (int i = 0; i < kExl3HadamardBlock; ++i) row[k + i] = q[i] * scale;
    }
  }
  return Multiply(t_TK, prepared.values, prepared.out);
}

}  // namespace

std::size_t PreparedWeight::bytes() const {
  return 4 * (values.size() + rows.values.size() + block_scales.size() + input_scale.size() + output_scale.size() + bias.size()) +
         2 * (rows.operands.significand.size() + rows.operands.exponent.size() + byte_sums.size());
}

template <typename A>
void LinearEngine<A>::PrepareExl3(const LinearWeight& weight, PreparedWeight* prepared) const {
  const Exl3Matrix& matrix = weight.exl3;
  prepared->out = matrix.out_padded;
  prepared->in = matrix.in_padded;
  for (std::int64_t i = 0; i < prepared->in; ++i) prepared->input_scale.push_back(matrix.InputScale(i));
  for (std::int64_t j = 0; j < prepared->out; ++j) prepared->output_scale.push_back(matrix.OutputScale(j));
  if (!matrix.bias.empty()) prepared->bias = ReadParameters(matrix.bias);
  const bool integer = !A::kTruth && matrix.codebook == Codebook::kMul1 &&
                       ActQuantLimit(options_.numerics.act_quant, matrix.bits_x2) > 0;
  const auto size = static_cast<std::size_t>(prepared->out * prepared->in);
  if (integer) {
    prepared->byte_sums.resize(size);
    ForEachState(matrix, [&](std::int64_t k, std::int64_t n, std::uint32_t state) {
      prepared->byte_sums[static_cast<std::size_t>(n * prepared->in + k)] = static_cast<std::int16_t>(Mul1ByteSum(state) - 510);
    });
    return;
  }
  std::vector<float> values(size);
  ForEachState(matrix, [&](std::int64_t k, std::int64_t n, std::uint32_t state) {
    values[static_cast<std::size_t>(n * prepared->in + k)] = F16ToFloat(DecodeState(matrix.codebook, state));
  });
  if (A::kTruth) {
    prepared->values = std::move(values);
  } else {
    prepared->format = OperandFormat::kFp16;
    prepared->rows = MakeHRows(options_.numerics.profile, std::move(values), prepared->format);
  }
}

template <typename A>
std::shared_ptr<const PreparedWeight> LinearEngine<A>::Prepare(const LinearWeight& weight, bool codes) {
  const std::string key = weight.name + "@" + std::to_string(weight.row_begin) + (codes ? "c" : "");
  if (const auto found = cache_.find(key); found != cache_.end()) {
    recency_.splice(recency_.begin(), recency_, found->second.recency);
    return found->second.weight;
  }
  auto prepared = std::make_shared<PreparedWeight>();
  if (weight.kind == LinearWeight::Kind::kExl3) {
    PrepareExl3(weight, prepared.get());
  } else {
    prepared->out = weight.out_features;
    prepared->in = weight.in_features;
    std::vector<float> values = ReadValues(weight, codes);
    if (!A::kTruth && IsBlockScaled(weight) && !codes) {
      for (float& v : values) v = RoundToBF16(v);  // wo_a: dequantised once
    }
    if (codes) {
      prepared->block_scales = ReadBlockScales(weight);
      prepared->block = weight.block;
    }
    if (A::kTruth || weight.weight.dtype == DType::kF32) {
      prepared->values = std::move(values);
    } else {
      const bool fp16 = weight.weight.dtype == DType::kF16 || (codes && options_.numerics.fake_quant);
      prepared->format = fp16 ? OperandFormat::kFp16 : OperandFormat::kBf16;
      prepared->rows = MakeHRows(options_.numerics.profile, std::move(values), prepared->format);
    }
  }
  cached_bytes_ += prepared->bytes();
  recency_.push_front(key);
  cache_[key] = {prepared, recency_.begin()};
  while (cached_bytes_ > options_.weight_cache_bytes && recency_.size() > 1) {
    const auto oldest = cache_.find(recency_.back());
    cached_bytes_ -= oldest->second.weight->bytes();
    cache_.erase(oldest);
    recency_.pop_back();
  }
  return prepared;
}

template <typename A>
Matrix<typename A::Real> LinearEngine<A>::ApplyExl3(const LinearWeight& weight, const PreparedWeight& prepared, const Matrix<Real>& x_TK) const {
  Matrix<Real> t_TK = Matrix<Real>::Zero(x_TK.rows(), prepared.in);
  for (Eigen::Index t = 0; t < x_TK.rows(); ++t) {
    for (Eigen::Index k = 0; k < x_TK.cols(); ++k) t_TK(t, k) = x_TK(t, k) * prepared.input_scale[static_cast<std::size_t>(k)];
  }
  Matrix<Real> v_TN = TrellisProduct(weight, prepared, std::move(t_TK), options_.numerics);
  const Real scale = A::kTruth ? static_cast<Real>(1.0 / std::sqrt(128.0)) : static_cast<Real>(kHadamardScale);
  for (Eigen::Index t = 0; t < v_TN.rows(); ++t) {
    Real* v = v_TN.row(t).data();
    ScaledButterflies(v, prepared.out, scale);
    for (std::int64_t n = 0; n < weight.out_features; ++n) {
      v[n] = v[n] * prepared.output_scale[static_cast<std::size_t>(n)];
      if (!prepared.bias.empty()) v[n] = v[n] + prepared.bias[static_cast<std::size_t>(n)];
    }
  }
  return v_TN.leftCols(weight.out_features);
}

template <typename A>
Matrix<typename A::Real> LinearEngine<A>::ApplyStored(const LinearWeight& weight, const PreparedWeight& prepared, const Matrix<Real>& x_TK, bool codes) const {
  const bool quantize = codes && options_.numerics.fake_quant;
  if constexpr (A::kTruth) {
    if (!quantize) return Multiply(x_TK, prepared.values, prepared.out);
    Matrix<double> quantized_TK = x_TK;
    for (Eigen::Index t = 0; t < x_TK.rows(); ++t) FakeQuant8(quantized_TK.row(t).data(), x_TK.cols(), activation_block_);
    return Multiply(quantized_TK, prepared.values, prepared.out);
  } else {
    if (codes) return MultiplyBlockScaled(options_.numerics.profile, x_TK, prepared, quantize ? activation_block_ : 0);
    if (!prepared.values.empty()) {
      Matrix<float> y_TN(x_TK.rows(), prepared.out);
      for (Eigen::Index t = 0; t < x_TK.rows(); ++t) {
        for (std::int64_t n = 0; n < prepared.out; ++n) y_TN(t, n) = DotF(x_TK.row(t).data(), prepared.values.data() + n * prepared.in, prepared.in);
      }
      return y_TN;
    }
    if (prepared.format != OperandFormat::kFp16) return MultiplyH(options_.numerics.profile, x_TK, prepared);
    Matrix<float> rounded_TK = x_TK;
    for (Eigen::Index t = 0; t < x_TK.rows(); ++t) RoundRowToFp16(rounded_TK.row(t).data(), x_TK.cols(), weight.name);
    return MultiplyH(options_.numerics.profile, rounded_TK, prepared);
  }
}

template <typename A>
Matrix<typename A::Real> LinearEngine<A>::Apply(const LinearWeight& weight, const Matrix<Real>& x_TK, LinearOutput output, bool quantize_input) {
  LOCKSTEP_CHECK(x_TK.cols() == weight.in_features);
  RequireFiniteRows(weight, x_TK, "input");
  const bool block_scaled = IsBlockScaled(weight);
  const bool codes = block_scaled && quantize_input && !A::kTruth;
  const std::shared_ptr<const PreparedWeight> prepared = Prepare(weight, codes);
  Matrix<Real> y_TN = weight.kind == LinearWeight::Kind::kExl3
                          ? ApplyExl3(weight, *prepared, x_TK)
                          : ApplyStored(weight, *prepared, x_TK, block_scaled && quantize_input);
  if (output == LinearOutput::kBf16) y_TN = y_TN.unaryExpr([](Real v) { return A::Bf16(v); });
  RequireFiniteRows(weight, y_TN, "output");
  return y_TN;
}

template class LinearEngine<Truth>;
template class LinearEngine<Contract>;

}  // namespace lockstep::reference
