// Errors that a person can act on, and checks for programmer errors.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lockstep {

// Bad usage or bad input. what() is one line that names the file, tensor, flag or field and says what was
// expected. The command line prints it to stderr and exits with 2.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& message) : std::runtime_error(message) {}
};

// A check that ran and failed (for one, fast and reference differ). The command line exits with 1.
class CheckFailed : public std::runtime_error {
 public:
  explicit CheckFailed(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace lockstep

// A condition that only a bug in this program can break.
#define LOCKSTEP_CHECK(condition)                                                        \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
