#include "fast/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::fast {
namespace {

std::vector<float> Frequencies(double theta, const YarnConfig& yarn, int rope_dim) {
  const bool scaled = yarn.factor > 1.0;
  const auto channel = [&](double rotations) {
    const double waves = static_cast<double>(yarn.original_max_position_embeddings) / (2.0 * std::numbers::pi * rotations);
    return rope_dim * std::log(waves) / (2.0 * std::log(theta));
  };
  const double low = scaled ? std::max(std::floor(channel(yarn.beta_fast)), 0.0) : 0.0;
  double high = scaled ? std::min(std::ceil(channel(yarn.beta_slow)), rope_dim - 1.0) : 1.0;
  if (low == high) high += 0.001;
  std::vector<float> frequencies;
  for (int j = 0; j < rope_dim / 2; ++j) {
    const double plain = std::pow(theta, -2.0 * j / rope_dim);
    const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
    frequencies.push_back(static_cast<float>(scaled ? plain / yarn.factor * ramp + plain * (1.0 - ramp) : plain));
  }
  return frequencies;
}

void FillRows(const std::vector<float>& frequencies, std::int64_t begin, std::int64_t end, std::vector<float>* rows) {
  rows->clear();
  for (std::int64_t position = begin; position < end; ++position) {
    for (float f : frequencies) rows->push_back(static_cast<float>(std::cos(static_cast<double>(static_cast<float>(position) * f))));
    for (float f : frequencies) rows->push_back(static_cast<float>(std::sin(static_cast<double>(static_cast<float>(position) * f))));
  }
}

}  // namespace

RopeTables::RopeTables(kernels::Device& device, const ModelConfig& config, std::int64_t max_positions)
    : device_(device),
      window_frequencies_(Frequencies(config.rope_theta, YarnConfig{}, config.rope_head_dim)),
      compressed_frequencies_(Frequencies(config.compress_rope_theta, config.yarn, config.rope_head_dim)),
      window_(device, static_cast<std::size_t>(max_positions * config.rope_head_dim), "RoPE table"),
      compressed_(device, static_cast<std::size_t>(max_positions * config.rope_head_dim), "RoPE table") {}

void RopeTables::Ensure(std::int64_t end) {
  if (end <= ready_) return;
  const auto width = static_cast<std::int64_t>(2 * window_frequencies_.size());
  // Ahead of need, so that decode extends the tables once in a thousand tokens.
  const std::int64_t target = std::min<std::int64_t>(end + 1024, static_cast<std::int64_t>(window_.size()) / width);
  std::vector<float> rows;
  for (auto [frequencies, table] : {std::pair{&window_frequencies_, &window_}, std::pair{&compressed_frequencies_, &compressed_}}) {
    FillRows(*frequencies, ready_, target, &rows);
    device_.CopyIn(device_.compute(), reinterpret_cast<std::byte*>(table->data() + ready_ * width),
                   reinterpret_cast<const std::byte*>(rows.data()), rows.size() * sizeof(float));
    device_.Synchronize(device_.compute());
  }
  ready_ = target;
}

}  // namespace lockstep::fast
