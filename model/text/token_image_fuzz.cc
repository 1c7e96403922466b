// A tokenizer cache from a stranger, its checksum made right: either refused, or no lookup leaves its tables.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/content_hash.h"
#include "model/text/pre_tokenizer.h"
#include "model/text/token_tables.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHashOffset = 8, kHashedFrom = 16;
  if (size < kHashedFrom) return 0;
  std::vector<std::byte> image(size);
  std::memcpy(image.data(), data, size);
  const std::uint64_t hash = lockstep::ContentHash(std::span(image).subspan(kHashedFrom));
  std::memcpy(image.data() + kHashOffset, &hash, sizeof(hash));
  lockstep::TokenTables tables;
  if (!lockstep::TokenTables::Open(image, &tables)) return 0;
  const lockstep::AddedTokens added(tables);
  const std::string text = "The river <｜User｜> was wide and slow, 你好 12345 " + std::string(150, 'a');
  std::vector<lockstep::TextPart> parts;
  added.Split(text, &parts);
  std::vector<std::int32_t> ids;
  for (const lockstep::TextPart& part : parts) {
    lockstep::PieceScanner scanner(part.text);
    for (std::string_view piece; scanner.Next(&piece);) lockstep::EncodePiece(tables, piece, &ids);
  }
  for (const std::int32_t id : ids) lockstep::SpellToken(tables, id);
  return 0;
}
