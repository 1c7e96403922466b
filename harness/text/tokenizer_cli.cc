// Encodes or decodes many texts in one run, for tokenizer_diff.py. All integers little-endian.
//   tokenizer_cli encode|encode-special TOKENIZER.json IN OUT   IN: (u32 bytes, text)*   OUT: (u32 count, i32
//   ids)* tokenizer_cli decode|decode-skip    TOKENIZER.json IN OUT   IN: (u32 count, i32 ids)*   OUT: (u32
//   bytes, text)* tokenizer_cli stream                TOKENIZER.json IN OUT   as decode, one id at a time
//   through StreamDecoder tokenizer_cli pieces                TOKENIZER.json IN OUT   IN: texts   OUT: (u32
//   count, i32 byte lengths of the pieces)*
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "model/error.h"
#include "model/text/pre_tokenizer.h"
#include "model/text/stream_decoder.h"
#include "model/text/tokenizer.h"

namespace lockstep {
namespace {

// The next record of `item_bytes`-sized items; removes it from `input`.
std::string_view TakeRecord(std::string_view* input, std::size_t item_bytes) {
  std::uint32_t count = 0;
  if (input->size() < sizeof(count)) throw InputError("IN: expected a record length");
  std::memcpy(&count, input->data(), sizeof(count));
  input->remove_prefix(sizeof(count));
  if (input->size() / item_bytes < count)
    throw InputError("IN: expected a record of " + std::to_string(count) + " items");
  const std::string_view record = input->substr(0, count * item_bytes);
  input->remove_prefix(record.size());
  return record;
}

void PutRecord(const void* data, std::size_t count, std::size_t item_bytes, std::string* out) {
  const auto length = static_cast<std::uint32_t>(count);
  out->append(reinterpret_cast<const char*>(&length), sizeof(length));
  out->append(static_cast<const char*>(data), count * item_bytes);
}

std::vector<std::int32_t> PieceLengths(std::string_view text) {
  std::vector<std::int32_t> lengths;
  PieceScanner scanner(text);
  for (std::string_view piece; scanner.Next(&piece);)
    lengths.push_back(static_cast<std::int32_t>(piece.size()));
  return lengths;
}

std::string StreamText(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  StreamDecoder decoder(tokenizer, false);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Flush();
}

void Run(const std::string& mode, const Tokenizer& tokenizer, std::string_view input, std::string* out) {
  while (!input.empty()) {
    if (mode == "encode" || mode == "encode-special" || mode == "pieces") {
      const std::string_view text = TakeRecord(&input, 1);
      const auto ids = mode == "pieces" ? PieceLengths(text) : tokenizer.Encode(text, mode == "encode-special");
      PutRecord(ids.data(), ids.size(), sizeof(std::int32_t), out);
    } else {
      const std::string_view record = TakeRecord(&input, sizeof(std::int32_t));
      std::vector<std::int32_t> ids(record.size() / sizeof(std::int32_t));
      std::memcpy(ids.data(), record.data(), record.size());
      const std::string text =
          mode == "stream" ? StreamText(tokenizer, ids) : tokenizer.Decode(ids, mode == "decode-skip");
      PutRecord(text.data(), text.size(), 1, out);
    }
  }
}

int Main(int argc, char** argv) {
  if (argc != 5) throw InputError("usage: tokenizer_cli MODE TOKENIZER.json IN OUT");
  const Tokenizer tokenizer = Tokenizer::FromFile(argv[2], {.use_cache = false});
  std::ifstream in(argv[3], std::ios::binary);
  const std::string input((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::string out;
  Run(argv[1], tokenizer, input, &out);
  std::ofstream(argv[4], std::ios::binary) << out;
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Main(argc, argv);
  } catch (const lockstep::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
