// XXH64, the 64-bit xxHash: tells whether a file changed. Not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

std::uint64_t Xxh64(std::span<const std::byte> bytes);

}  // namespace lockstep
