// What the fuzz targets share.
#pragma once

#include <string_view>

#include "model/error.h"

namespace lockstep {

// Runs `action`. It may throw an InputError, whose message must be one line; anything else it throws ends the
// program.
template <typename Action>
void AllowInputError(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    LOCKSTEP_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

}  // namespace lockstep
