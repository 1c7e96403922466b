// Byte-pair merging of one piece.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/text/token_tables.h"

namespace lockstep {

// Appends the ids of `piece` to `ids`: from one token a byte, the adjacent pair of lowest rank, leftmost first,
// is merged until no pair has a rank. Time n log n in the bytes of the piece.
void MergePiece(const TokenTables& tables, std::string_view piece, std::vector<std::int32_t>* ids);

// The same ids; looks the whole piece up first.
inline void EncodePiece(const TokenTables& tables, std::string_view piece, std::vector<std::int32_t>* ids) {
  const std::int32_t whole = tables.WholePiece(piece);
  if (whole >= 0) {
    ids->push_back(whole);
  } else {
    MergePiece(tables, piece, ids);
  }
}

}  // namespace lockstep
