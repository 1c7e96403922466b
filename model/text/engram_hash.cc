#include "model/text/engram_hash.h"

#include <limits>
#include <string>

#include "model/error.h"
#include "model/text/numpy_random.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeedPerLayer = 10007;

bool IsPrime(std::int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (std::int64_t d = 3; d <= n / d; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

std::int64_t FirstPrimeFrom(std::int64_t n) {
  while (!IsPrime(n)) ++n;
  return n;
}

void Require(bool condition, const std::string& field, const std::string& expected) {
  if (!condition) throw InputError("config.json: " + field + ": expected " + expected);
}

// Odd, and small enough that the product with any compressed id stays below 2^63.
std::vector<std::int64_t> Multipliers(const EngramConfig& config, int layer) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max() / config.compressed_vocab_size;
  const auto bound = static_cast<std::uint64_t>(largest / 2);
  NumpyPcg64 generator(kSeedPerLayer * static_cast<std::uint64_t>(layer));
  std::vector<std::int64_t> multipliers;
  for (int i = 0; i < config.max_ngram_size; ++i) {
    multipliers.push_back(2 * static_cast<std::int64_t>(generator.Below(bound)) + 1);
  }
  return multipliers;
}

}  // namespace

EngramHash MakeEngramHash(const EngramConfig& config, int layer_index) {
  LOCKSTEP_CHECK(layer_index >= 0 && static_cast<std::size_t>(layer_index) < config.layer_ids.size());
  Require(config.max_ngram_size >= 2, "engram_max_ngram_size", "at least 2");
  Require(config.n_heads >= 1, "engram_n_heads", "at least 1");
  Require(config.vocab_size >= 1, "engram_vocab_size", "at least 1");
  Require(config.compressed_vocab_size >= 1 && config.compressed_vocab_size < (1 << 30),
          "engram_compressed_vocab_size", "1 to 2^30 - 1");
  EngramHash hash;
  hash.multipliers = Multipliers(config, config.layer_ids[static_cast<std::size_t>(layer_index)]);

  // No prime serves twice, so the layers before this one take theirs first.
  std::int64_t candidate = config.vocab_size;
  const int earlier = layer_index * config.columns();
  for (int i = 0; i < earlier; ++i) candidate = FirstPrimeFrom(candidate) + 1;

  std::int64_t offset = 0;
  hash.primes.resize(static_cast<std::size_t>(config.max_ngram_size - 1));
  for (std::vector<std::int64_t>& heads : hash.primes) {
    for (int head = 0; head < config.n_heads; ++head) {
      const std::int64_t prime = FirstPrimeFrom(candidate);
      candidate = prime + 1;
      heads.push_back(prime);
      hash.offsets.push_back(offset);
      offset += prime;
    }
  }
  const std::int64_t table_rows = config.num_embeddings[static_cast<std::size_t>(layer_index)];
  Require(offset <= table_rows, "engram_num_embeddings[" + std::to_string(layer_index) + "]",
          "at least " + std::to_string(offset) + " rows, got " + std::to_string(table_rows));
  return hash;
}

void EngramShift(std::span<const std::int32_t> recent, std::int32_t pad_id, std::span<std::int32_t> out) {
  bool blocked = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    blocked = blocked || i >= recent.size() || recent[i] == kEngramDead;
    out[i] = blocked ? pad_id : recent[i];
  }
}

void EngramRows(const EngramHash& hash, std::span<const std::int32_t> shifted_ids,
                std::span<std::int64_t> rows_out) {
  LOCKSTEP_CHECK(shifted_ids.size() == hash.multipliers.size() && rows_out.size() == hash.offsets.size());
  std::int64_t mixed = shifted_ids[0] * hash.multipliers[0];
  std::size_t column = 0;
  for (std::size_t n = 1; n < shifted_ids.size(); ++n) {
    mixed ^= shifted_ids[n] * hash.multipliers[n];
    for (const std::int64_t prime : hash.primes[n - 1]) {
      rows_out[column] = hash.offsets[column] + mixed % prime;
      ++column;
    }
  }
}

}  // namespace lockstep
