// The joined call, every implementation, against its parts run one after the other on the generic one, which their folders' tests hold to the
// contract: where entries end, histories, absent parts, and shapes that a device takes in one launch and others.
#include "kernels/attention_inputs/attention_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <tuple>
#include <vector>

#include "kernels/testing/comparison.h"
#include "kernels/testing/inputs.h"

namespace lockstep::kernels {
namespace {

constexpr int kRopeDim = 16;
constexpr std::int64_t kPositions = 400;
constexpr std::byte kUnwritten{0x5b};

struct InputsCase {
  const char* name;
  std::int64_t rows = 1, position = 0;
  int heads = 3, width = 64, index_heads = 5, index_width = 32;
  bool norms = true;    // of queries
  RowFormat window, compressed, index_key;
  int ratio = 4;
  bool pools = true, overlap = true;  // pools: else the latents are there
  int streams = 4;
};
std::ostream& operator<<(std::ostream& out, const InputsCase& c) { return out << c.name << ", " << c.rows << " rows from " << c.position; }

constexpr RowFormat Fp8(int width, int quantized, int block) { return {RowFormat::Kind::kFp8, width, quantized, block}; }

// The models' forms in small, and in the size of V4 and V4.1.
std::vector<InputsCase> Forms() {
  const RowFormat row_v4 = Fp8(512, 448, 64), key_v4{RowFormat::Kind::kHadamardFp4, 128, 0, 32};
  return {{.name = "V4, ratio 4", .heads = 64, .width = 512, .index_heads = 64, .index_width = 128, .window = row_v4, .compressed = row_v4, .index_key = key_v4},
          {.name = "V4, ratio 128", .heads = 64, .width = 512, .index_heads = 0, .window = row_v4, .compressed = row_v4, .ratio = 128, .overlap = false},
          {.name = "V4, window alone", .heads = 8, .width = 512, .index_heads = 0, .window = row_v4, .ratio = 0, .streams = 0},
          {.name = "V4.1", .heads = 6, .width = 512, .index_heads = 4, .index_width = 128, .norms = false, .window = Fp8(512, 512, 32),
           .compressed = {RowFormat::Kind::kFp4E4M3, 512, 0, 16}, .index_key = {RowFormat::Kind::kFp4E8M0, 128, 0, 32}, .ratio = 2, .pools = false},
          {.name = "unquantized", .window = {RowFormat::Kind::kBf16, 64}, .compressed = {RowFormat::Kind::kBf16, 64}, .index_key = {RowFormat::Kind::kBf16, 32}, .ratio = 3},
          {.name = "odd widths", .width = 70, .window = Fp8(70, 38, 32), .compressed = Fp8(70, 38, 32), .index_key = {RowFormat::Kind::kBf16, 30}, .ratio = 2},
          {.name = "wide rows", .heads = 2, .width = 1024, .window = {RowFormat::Kind::kBf16, 1024}, .compressed = {RowFormat::Kind::kBf16, 640}, .index_key = {RowFormat::Kind::kBf16, 32}, .streams = 3}};
}

// A compressor of one sequence; entries that the step does not complete are none.
struct PoolProblem {
  RowFormat format;
  int ratio;
  bool pools, overlap;
  std::int64_t rows, position, channels, slots;
  std::vector<float> kv, gate, ape, weight, history;
  std::vector<std::uint16_t> latent;

  PoolProblem(const InputsCase& c, const RowFormat& f, std::uint64_t seed)
      : format(f), ratio(c.ratio), pools(c.pools), overlap(c.overlap), rows(c.rows), position(c.position), channels((overlap ? 2 : 1) * f.width), slots(2 * (2 * ratio + rows)) {
    Inputs inputs(seed);
    kv = inputs.F32(rows * channels, Recipe::kNormal), gate = inputs.F32(rows * channels, Recipe::kNormal, 2.0f), ape = inputs.F32(ratio * channels, Recipe::kNormal);
    weight = inputs.F32(format.width, Recipe::kNormal), history = inputs.F32(slots * 2 * channels, Recipe::kNormal), latent = inputs.BF16(rows * format.width, Recipe::kNormal);
  }
  std::int64_t completed() const { return (position + rows) / ratio - position / ratio; }
  std::vector<std::byte> Unwritten() const { return std::vector<std::byte>(static_cast<std::size_t>(rows * format.row_bytes()) + kMargin, kUnwritten); }

  PooledRowsArgs Place(CallMemory& memory, const float* angles, std::vector<std::uint16_t>& latents, std::vector<float>& kept, std::vector<std::byte>& packed) const {
    PooledRowsArgs args;
    float* ring = memory.InOut(kept);
    std::byte* out = memory.InOut(packed);
    std::uint16_t* x = memory.InOut(latents);
    std::vector<PoolEntry> entries(static_cast<std::size_t>(rows));
    std::vector<std::byte*> to(entries.size(), nullptr);
    std::vector<std::int64_t> at(entries.size(), 0), positions(entries.size());
    std::vector<float*> slot(entries.size());
    for (std::int64_t i = 0; i < completed(); ++i) {
      const auto e = static_cast<std::size_t>(i);
      at[e] = (position / ratio + i) * ratio;
      entries[e] = {at[e], position, 0, ring};
      to[e] = out + i * format.row_bytes();
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      positions[static_cast<std::size_t>(t)] = position + t;
      slot[static_cast<std::size_t>(t)] = t == rows - 2 ? nullptr : ring + (position + t) % slots * 2 * channels;
    }
    const float* offsets = overlap ? memory.In(ape) : nullptr;
    if (pools) {
      args.compress = {memory.In(kv), memory.In(gate), memory.Own(entries), rows, ratio, overlap, format.width, offsets, slots, x};
      args.history = {args.compress.kv, args.compress.gate, rows, memory.Own(positions), memory.Own(slot), ratio, channels, offsets};
    }
    args.pack.norm = {x, format.width, rows, format.width, memory.In(weight), 1e-6f, x, format.width};
    if (!pools && format.width > 100) args.pack.norm.rows = 0;  // normed before
    args.pack.rope = {x, rows, 1, format.width, kRopeDim, angles, memory.Own(at), false};
    args.pack.pack = {format, x, format.width, rows, nullptr, memory.Own(to)};
    return args;
  }
};

// Nothing is said of the padding of rows.
void ForgetPadding(const RowFormat& f, std::vector<std::byte>& rows) {
  if (f.kind != RowFormat::Kind::kFp8) return;
  const std::int64_t used = f.quantized + (f.quantized + f.block - 1) / f.block + 2 * (f.width - f.quantized), bytes = f.row_bytes();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows.size()); ++i) {
    if (i % bytes >= used) rows[static_cast<std::size_t>(i)] = kUnwritten;
  }
}

class InputsProblem {
 public:
  // Queries, index queries, window rows; those packed, twice; entries and keys packed; both histories; mixing matrices.
  using Output = std::tuple<std::vector<std::uint16_t>, std::vector<std::uint16_t>, std::vector<std::uint16_t>, std::vector<std::byte>, std::vector<std::byte>, std::vector<std::byte>,
                            std::vector<std::byte>, std::vector<float>, std::vector<float>, std::vector<float>>;

  explicit InputsProblem(const InputsCase& problem) : c(problem), entries(c, c.compressed, 5), keys(c, c.index_key, 6) {
    Inputs inputs(7);
    query = inputs.BF16(c.rows * c.heads * c.width, Recipe::kNormal), index_query = inputs.BF16(c.rows * c.index_heads * c.index_width, Recipe::kNormal);
    window = inputs.BF16(c.rows * c.window.width, Recipe::kNormal), weight = inputs.F32(c.window.width, Recipe::kNormal), angles = inputs.F32(kPositions * kRopeDim, Recipe::kNormal);
    mix = inputs.F32(c.rows * c.streams * c.streams, Recipe::kNormal);
  }

  Output Run(const Implementation& implementation, bool joined) const {
    const std::vector<std::byte> rows(static_cast<std::size_t>(c.rows * c.window.row_bytes()) + kMargin, kUnwritten);
    Output out = {query, index_query, window, rows, rows, entries.Unwritten(), keys.Unwritten(), entries.history, keys.history, mix};
    std::vector<std::uint16_t> latents = entries.latent, key_latents = keys.latent;
    CallMemory memory(implementation);
    const AttentionInputsArgs args = Place(memory, out, latents, key_latents);
    if (joined) implementation.kernels().attention_inputs(implementation.stream(), args);
    else RunParts(implementation, args);
    memory.Finish();
    ForgetPadding(c.window, std::get<3>(out)), ForgetPadding(c.window, std::get<4>(out)), ForgetPadding(c.compressed, std::get<5>(out));
    return out;
  }

 private:
  AttentionInputsArgs Place(CallMemory& memory, Output& out, std::vector<std::uint16_t>& latents, std::vector<std::uint16_t>& key_latents) const {
    AttentionInputsArgs args;
    const float* table = memory.In(angles);
    std::vector<std::int64_t> positions;
    std::vector<std::byte*> to;
    std::byte *flat = memory.InOut(std::get<3>(out)), *ring = memory.InOut(std::get<4>(out));
    for (std::int64_t t = 0; t < c.rows; ++t) {
      positions.push_back(c.position + t);
      to.push_back(t % 3 == 1 ? nullptr : ring + (c.rows - 1 - t) * c.window.row_bytes());
    }
    const std::int64_t* at = memory.Own(positions);
    std::uint16_t *q = memory.InOut(std::get<0>(out)), *kv = memory.InOut(std::get<2>(out));
    if (c.norms) args.query.norm = {q, c.width, c.rows * c.heads, c.width, nullptr, 1e-6f, q, c.width};
    args.query.rope = {q, c.rows, c.heads, c.width, kRopeDim, table, at, false};
    if (c.index_heads > 0) args.index_query = {memory.InOut(std::get<1>(out)), c.rows, c.index_heads, c.index_width, kRopeDim, table, at, false};
    args.window.norm = {kv, c.window.width, c.rows, c.window.width, memory.In(weight), 1e-6f, kv, c.window.width};
    args.window.rope = {kv, c.rows, 1, c.window.width, kRopeDim, table, at, false};
    args.window.pack = {c.window, kv, c.window.width, c.rows, flat, memory.Own(to)};
    if (c.ratio > 0) args.pooled[0] = entries.Place(memory, table, latents, std::get<7>(out), std::get<5>(out));
    if (c.streams > 0) args.mix = {memory.InOut(std::get<9>(out)), c.rows, c.streams, 20, 1e-6f};
    if (c.index_heads > 0) args.pooled[1] = keys.Place(memory, table, key_latents, std::get<8>(out), std::get<6>(out));
    return args;
  }

  static void RunParts(const Implementation& implementation, const AttentionInputsArgs& a) {
    const KernelTable& parts = implementation.kernels();
    Stream& stream = implementation.stream();
    if (a.query.norm.rows > 0) parts.rms_norm(stream, a.query.norm);
    parts.rope(stream, a.query.rope);
    parts.rope(stream, a.index_query);
    const auto pack = [&](const NormRopePackArgs& rows) {
      if (rows.norm.rows > 0) parts.rms_norm(stream, rows.norm);
      parts.rope(stream, rows.rope);
      parts.pack_rows(stream, rows.pack);
    };
    pack(a.window);
    parts.sinkhorn(stream, a.mix);
    for (const PooledRowsArgs& pooled : a.pooled) {
      parts.compress(stream, pooled.compress);
      pack(pooled.pack);
      parts.store_history(stream, pooled.history);
    }
  }

  const InputsCase c;
  const PoolProblem entries, keys;
  std::vector<std::uint16_t> query, index_query, window;
  std::vector<float> weight, angles, mix;
};

void ExpectParts(const InputsCase& c) {
  const InputsProblem problem(c);
  const InputsProblem::Output expected = problem.Run(Implementations(Profile::kSm90).front(), /*joined=*/false);
  EXPECT_TRUE(Trustworthy(std::get<0>(expected), c.rows * c.heads * c.width)) << c;
  for (const int threads : {1, 3}) {
    for (const Implementation& implementation : Implementations(Profile::kSm90, threads)) {
      EXPECT_TRUE(SameOutputs(problem.Run(implementation, /*joined=*/true), expected)) << c << ", " << implementation << ", threads " << threads;
    }
  }
}

TEST(AttentionInputs, HaveTheBitsOfTheirParts) {
  for (InputsCase c : Forms()) {
    const int ratio = std::max(c.ratio, 1);
    for (const std::int64_t rows : {1, 2, 8, 16, 17}) {
      for (const std::int64_t position : {0, ratio - 1, ratio, 2 * ratio - 1, 2 * ratio + 1}) {
        c.rows = rows, c.position = position;
        ExpectParts(c);
      }
    }
  }
}

TEST(AttentionInputs, WhatIsAbsentIsLeftOut) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) {
    EXPECT_TRUE(AttentionInputsArgs{}.empty());
    implementation.kernels().attention_inputs(implementation.stream(), {});
    implementation.Synchronize();
  }
}

TEST(AttentionInputsContract, IdsAreTheSameEverywhere) {
  for (const Implementation& implementation : Implementations(Profile::kSm90)) EXPECT_EQ(implementation.kernels().attention_inputs.contract, "attention_inputs/F");
}

}  // namespace
}  // namespace lockstep::kernels
