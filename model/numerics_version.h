// Version of the numerics contract in docs/numerics.md.
#pragma once

namespace lockstep {
inline constexpr int kNumericsVersion = 1;
}
