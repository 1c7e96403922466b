#include <cstring>

#include "kernels/random_exl3/random_exl3.h"
#include "model/error.h"

namespace lockstep::kernels {

RandomExl3Words::RandomExl3Words(const RandomExl3Args& a) : args(a) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t);
  const LinearSpec& spec = *a.spec;
  LOCKSTEP_CHECK(spec.kind == LinearSpec::Kind::kExl3 && !spec.has_bias);
  k_tiles = static_cast<std::uint32_t>(spec.in_padded / kExl3Tile);
  n_tiles = static_cast<std::uint32_t>(spec.out_padded / kExl3Tile);
  tile_words = static_cast<std::uint32_t>(spec.tile_bytes() / kWord);
  trellis_words = std::int64_t{k_tiles} * n_tiles * tile_words;
  input_word = (spec.input_scale - spec.weight) / kWord;
  input_words = spec.in_padded * std::int64_t{sizeof(float)} / kWord;
  output_word = (spec.output_scale - spec.weight) / kWord;
  output_words = spec.out_padded * std::int64_t{sizeof(float)} / kWord;
  words = spec.bytes / kWord;
  LOCKSTEP_CHECK(words < (std::int64_t{1} << 32));
}

namespace {

void Run(Stream& stream, const RandomExl3Args& args) {
  constexpr std::int64_t kGrain = 1 << 14;
  const RandomExl3Words words(args);
  std::byte* out = args.blob + args.spec->weight;
  AsCpu(stream).ParallelFor(words.words, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t value = words.At(static_cast<std::uint32_t>(i));
      std::memcpy(out + i * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
    }
  });
}

}  // namespace

Kernel<RandomExl3Args> CpuRandomExl3() { return {&Run, "random_exl3"}; }

}  // namespace lockstep::kernels
