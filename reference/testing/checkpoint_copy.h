// Model directories with something changed.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "model/tensor_view.h"

namespace lockstep::reference {

// Changes a tensor's stored bytes in place; `view` says dtype and shape.
using TensorEdit = std::function<void(const TensorView& view, std::span<std::byte> bytes)>;

// Copies a model directory with one model.safetensors. Every tensor named in `edits` must exist.
void CopyCheckpoint(const std::string& from, const std::string& to,
                    const std::map<std::string, TensorEdit>& edits,
                    const std::function<void(nlohmann::json& config)>& edit_config = {});

// Edits: element 0 of an F32 tensor plus `delta`; every element of a floating-point tensor set to `value`
// (F8_E4M3: to NaN).
TensorEdit AddToFirst(float delta);
TensorEdit FillWith(float value);

}  // namespace lockstep::reference
