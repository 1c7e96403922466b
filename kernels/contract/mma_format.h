// What the operands of a tensor core block are.
#pragma once

namespace lockstep {

enum class MmaFormat { kF16, kBF16 };

}  // namespace lockstep
