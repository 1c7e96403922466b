// Random EXL3 blobs against PackLinear of the same tensors as harness/synth writes them to files.
#include "kernels/random_exl3/random_exl3.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "harness/synth/tensor_source.h"

namespace lockstep::kernels {
namespace {

struct Case {
  Codebook codebook;
  int bits_x2;
  std::int64_t out, in;
};

// A matrix as a file would hold it, and what makes the same one in place.
struct StoredMatrix {
  std::vector<synth::SynthTensor> tensors;
  std::map<std::string, std::vector<std::byte>> bytes;
  LinearWeight weight;

  explicit StoredMatrix(const Case& c) {
    synth::TensorSource source(5, &tensors);
    source.Exl3Matrix("m", c.out, c.in, {c.codebook, c.bits_x2}, 0.02);
    weight.kind = LinearWeight::Kind::kExl3;
    weight.name = std::string("m");
    weight.out_features = c.out;
    weight.in_features = c.in;
    weight.exl3.codebook = c.codebook;
    weight.exl3.bits_x2 = c.bits_x2;
    weight.exl3.in_padded = (c.in + 127) / 128 * 128;
    weight.exl3.out_padded = (c.out + 127) / 128 * 128;
    weight.exl3.trellis = Fill("m.trellis");
    weight.exl3.suh = Fill("m.suh");
    weight.exl3.svh = Fill("m.svh");
  }

  const synth::SynthTensor& Named(const std::string& name) const {
    for (const synth::SynthTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors.front();
  }

  TensorView Fill(const std::string& name) {
    const synth::SynthTensor& tensor = Named(name);
    TensorView view;
    view.name = name;
    view.dtype = tensor.dtype;
    view.shape = tensor.shape;
    std::vector<std::byte>& data = bytes[name];
    data.resize(static_cast<std::size_t>(view.bytes()));
    tensor.fill(0, data);
    view.data = data;
    return view;
  }
};

class RandomExl3Test : public testing::TestWithParam<Case> {};

TEST_P(RandomExl3Test, EqualsThePackedFile) {
  const StoredMatrix matrix(GetParam());
  LinearSpec spec = MakeLinearSpec(matrix.weight, NumericsOptions(), 128);
  std::vector<std::byte> expected(static_cast<std::size_t>(spec.bytes)), made(expected.size(), std::byte{0xee});
  PackLinear(matrix.weight, spec, expected.data());

  RandomExl3Args args;
  args.spec = &spec;
  args.trellis_key = matrix.Named("m.trellis").key;
  args.input_key = matrix.Named("m.suh").key;
  args.output_key = matrix.Named("m.svh").key;
  args.input_unit = matrix.Named("m.suh").unit;
  args.output_unit = matrix.Named("m.svh").unit;
  args.blob = made.data();
  const auto stream = MakeCpuStream(2);
  CpuRandomExl3()(*stream, args);
  EXPECT_EQ(std::memcmp(made.data(), expected.data(), made.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Forms, RandomExl3Test,
                         testing::Values(Case{Codebook::kMul1, 6, 256, 384}, Case{Codebook::kMul1, 3, 128, 128},
                                         Case{Codebook::kMul1, 5, 384, 256}, Case{Codebook::kMcg, 10, 128, 640},
                                         Case{Codebook::k3inst, 16, 64, 200}, Case{Codebook::kMul1, 12, 512, 128}));

}  // namespace
}  // namespace lockstep::kernels
