// What --model names: a directory, or a model without files.
#pragma once

#include <memory>
#include <string>

#include "model/checkpoint.h"

namespace lockstep::cli {

// `only_fast`: nothing but the fast engine reads the weights. Throws InputError naming the model and what is wrong with it.
std::shared_ptr<const Checkpoint> OpenModel(const std::string& model, bool only_fast);

}  // namespace lockstep::cli
