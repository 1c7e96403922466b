// Weights of a model without files: filled in where they are used, never on the way there.
#pragma once

#include <cstddef>

#include "kernels/device/backend.h"
#include "kernels/linear/linear_layout.h"
#include "model/checkpoint.h"

namespace lockstep::fast {

inline bool IsRandom(const LinearWeight& weight) { return weight.exl3.trellis.random != nullptr; }

// Enqueues the work that fills a matrix's or an expert's blob.
void MakeRandom(const kernels::KernelTable& kernels, kernels::Stream& stream, const LinearWeight& weight, const kernels::LinearSpec& spec,
                std::byte* blob);
void MakeRandom(const kernels::KernelTable& kernels, kernels::Stream& stream, const ExpertWeights& weights, const kernels::ExpertSpec& spec,
                std::byte* blob);

}  // namespace lockstep::fast
