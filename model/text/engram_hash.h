// Engram's n-gram hashing (V4.1): which table rows a token reads. Constants and rule: docs/numerics.md, Engram.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace lockstep {

// A position that takes part in no n-gram: an image span or a masked token. Stands for an id in EngramShift.
inline constexpr std::int32_t kEngramDead = -1;

// Hash constants of one Engram layer. Columns: all heads of the 2-gram, then of the 3-gram and so on.
struct EngramHash {
  std::vector<std::int64_t> multipliers;          // [max_ngram_size], odd; [i] for the id i positions back
  std::vector<std::vector<std::int64_t>> primes;  // [max_ngram_size - 1][n_heads], the buckets of each column
  std::vector<std::int64_t> offsets;              // [columns], first table row of each column

  // Rows of the table that the columns can name.
  std::int64_t rows() const { return offsets.back() + primes.back().back(); }
};

// Constants of config.layer_ids[layer_index]. Primes are searched upward from config.vocab_size, never one
// twice, over the layers in order. Throws InputError if the table has fewer rows than the primes need or the
// config admits no 63-bit hash.
EngramHash MakeEngramHash(const EngramConfig& config, int layer_index);

// The ids that a position hashes, out[i] that of i positions back. `recent` holds compressed ids, newest (the
// position itself) first; it may be shorter than `out` at the start of a sequence. From the first missing or
// dead one on, all are `pad_id`.
void EngramShift(std::span<const std::int32_t> recent, std::int32_t pad_id, std::span<std::int32_t> out);

// Table rows of one position: rows_out[columns] from shifted_ids[max_ngram_size], as EngramShift makes them.
void EngramRows(const EngramHash& hash, std::span<const std::int32_t> shifted_ids,
                std::span<std::int64_t> rows_out);

}  // namespace lockstep
