#include "fast/random_weights.h"

namespace lockstep::fast {

void MakeRandom(const kernels::KernelTable& kernels, kernels::Stream& stream, const LinearWeight& weight, const kernels::LinearSpec& spec,
                std::byte* blob) {
  const Exl3Matrix& exl3 = weight.exl3;
  kernels::RandomExl3Args args;
  args.spec = &spec;
  args.trellis_key = exl3.trellis.random->key;
  args.input_key = exl3.suh.random->key;
  args.output_key = exl3.svh.random->key;
  args.input_unit = exl3.suh.random->unit;
  args.output_unit = exl3.svh.random->unit;
  args.blob = blob;
  kernels.random_exl3(stream, args);
}

void MakeRandom(const kernels::KernelTable& kernels, kernels::Stream& stream, const ExpertWeights& weights, const kernels::ExpertSpec& spec,
                std::byte* blob) {
  MakeRandom(kernels, stream, weights.w1, spec.gate, blob);
  MakeRandom(kernels, stream, weights.w3, spec.up, blob);
  MakeRandom(kernels, stream, weights.w2, spec.down, blob);
}

}  // namespace lockstep::fast
