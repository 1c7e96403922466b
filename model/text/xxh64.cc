#include "model/text/xxh64.h"

#include <bit>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                        kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

static_assert(std::endian::native == std::endian::little);

template <typename T>
std::uint64_t Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

std::uint64_t Round(std::uint64_t accumulator, std::uint64_t lane) {
  return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

// Consumes whole blocks of 32 bytes.
std::uint64_t HashBlocks(const std::byte*& p, const std::byte* end) {
  std::uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  for (; end - p >= 32; p += 32) {
    for (int i = 0; i < 4; ++i) lanes[i] = Round(lanes[i], Load<std::uint64_t>(p + 8 * i));
  }
  std::uint64_t hash =
      std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

std::uint64_t Avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint64_t Xxh64(std::span<const std::byte> bytes) {
  const std::byte* p = bytes.data();
  const std::byte* const end = p + bytes.size();
  std::uint64_t hash = bytes.size() >= 32 ? HashBlocks(p, end) : kPrime5;
  hash += bytes.size();
  for (; end - p >= 8; p += 8) hash = std::rotl(hash ^ Round(0, Load<std::uint64_t>(p)), 27) * kPrime1 + kPrime4;
  for (; end - p >= 4; p += 4) hash = std::rotl(hash ^ Load<std::uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; p != end; ++p) hash = std::rotl(hash ^ Load<std::uint8_t>(p) * kPrime5, 11) * kPrime1;
  return Avalanche(hash);
}

}  // namespace lockstep
