// Files that other programs see whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep {

// Writes `bytes` under a temporary name beside `path` and renames it over `path`; makes missing directories.
// False, with nothing left behind, if that is not possible.
bool WriteFileAtomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace lockstep
