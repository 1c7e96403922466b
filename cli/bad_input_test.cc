// Broken checkpoints and bad requests through the program: one line that says what is wrong and where, exit
// code 2, nothing half-written.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/testing/program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const std::string kNative = kGolden + "/models/tiny-v41-native";

// A safetensors file in two parts.
struct Safetensors {
  json header;
  std::string data;

  explicit Safetensors(const std::string& path) {
    const std::string bytes = Slurp(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    header = json::parse(bytes.substr(8, length));
    data = bytes.substr(8 + length);
  }
  std::string Bytes() const { return With(header.dump()); }
  std::string With(const std::string& header_text) const {
    const std::uint64_t length = header_text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header_text + data;
  }
  // Overwrites the start of a tensor.
  void Spoil(const std::string& tensor, const std::string& bytes) {
    data.replace(header.at(tensor)["data_offsets"][0].get<std::size_t>(), bytes.size(), bytes);
  }
};

class BadInput : public Cli {
 protected:
  // A copy of the native model.
  BadInput() : model_(dir_.File("model")), weights_(model_ + "/model.safetensors") {
    fs::copy(kNative, model_);
  }

  void Put(const std::string& bytes) { dir_.Put("model/model.safetensors", bytes); }
  void ExpectRefused(const std::vector<std::string>& parts, const std::string& engine = "fast") {
    ExpectRefusal({"generate", "--model", model_, "--engine", engine, "--max-tokens", "2", "--ids",
                   dir_.Put("ids.json", "[1, 2, 3]")},
                  parts);
  }
  void ExpectRefusedAfter(const std::function<void(Safetensors&)>& edit, const std::vector<std::string>& parts,
                          const std::string& engine = "fast") {
    Safetensors file(kNative + "/model.safetensors");
    edit(file);
    Put(file.Bytes());
    ExpectRefused(parts, engine);
  }
  void ExpectConfigRefused(const std::string& key, const json& value, const std::vector<std::string>& parts) {
    json config = json::parse(Slurp(kNative + "/config.json"));
    config["text_config"][key] = value;
    dir_.Put("model/config.json", config.dump());
    ExpectRefused(parts);
  }

  std::string model_, weights_;
};

TEST_F(BadInput, FilesThatEndEarly) {
  const std::string whole = Slurp(weights_);
  Put(whole.substr(0, whole.size() - 1000));
  ExpectRefused({"model.safetensors", "tensor '", "data_offsets", "outside"});
  Put(whole.substr(0, 1000));
  ExpectRefused({"model.safetensors", "header length", "992"});
  Put(whole.substr(0, 4));
  ExpectRefused({"model.safetensors", "4 bytes"});
  Put("");
  ExpectRefused({"model.safetensors", "0 bytes"});
  Put(std::string(8, '\xff') + whole.substr(8));
  ExpectRefused({"model.safetensors", "header length", "18446744073709551615"});
}

TEST_F(BadInput, HeadersThatContradictThemselves) {
  const std::string name = "layers.0.attn.wq_a.scale";
  ExpectRefusedAfter(
      [&](Safetensors& f) {
        for (json& offset : f.header[name]["data_offsets"]) offset = offset.get<std::int64_t>() - 2;
      },
      {"model.safetensors", name, "overlap"});
  ExpectRefusedAfter(
      [&](Safetensors& f) {
        for (json& offset : f.header[name]["data_offsets"]) offset = offset.get<std::int64_t>() + 1000000000;
      },
      {"model.safetensors", name, "outside"});
  ExpectRefusedAfter(
      [&](Safetensors& f) {
        f.header[name]["shape"] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
      },
      {"model.safetensors", name, "shape"});
  ExpectRefusedAfter([&](Safetensors& f) { f.header[name]["dtype"] = "F7"; },
                     {"model.safetensors", name, "F7"});
  ExpectRefusedAfter([&](Safetensors& f) { f.header["norm.weight"]["dtype"] = "I16"; },
                     {"model.safetensors", "norm.weight", "I16", "BF16"});
  const Safetensors file(kNative + "/model.safetensors");
  std::string text = file.header.dump();
  text.insert(text.size() - 1, ",\"" + name + "\":" + file.header[name].dump());
  Put(file.With(text));
  ExpectRefused({"model.safetensors", name, "twice"});
}

TEST_F(BadInput, TensorsThatTheModelDoesNotHaveOrLacks) {
  ExpectRefusedAfter([](Safetensors& f) { f.header.erase("layers.0.attn_norm.weight"); },
                     {"layers.0.attn_norm.weight", "missing"});
  ExpectRefusedAfter(
      [](Safetensors& f) {
        f.header["surplus"] = {{"dtype", "BF16"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
      },
      {"surplus"});
  ExpectConfigRefused("hidden_size", 192, {"embed.weight", "[512, 128]", "[512, 192]"});
  ExpectConfigRefused("n_routed_experts", 5, {"layers.0.ffn.gate.weight", "[6, 128]", "[5, 128]"});
  ExpectConfigRefused("num_hidden_layers", 11, {"config.json", "num_hidden_layers"});
}

TEST_F(BadInput, ShardsAndLinksThatLeadNowhere) {
  json index = {{"weight_map", json::object()}};
  const Safetensors file(weights_);
  for (const auto& [name, tensor] : file.header.items()) {
    if (name != "__metadata__")
      index["weight_map"][name] = name == "norm.weight" ? "b.safetensors" : "a.safetensors";
  }
  fs::rename(weights_, model_ + "/a.safetensors");
  dir_.Put("model/model.safetensors.index.json", index.dump());
  ExpectRefused({"b.safetensors"});
  fs::remove(model_ + "/model.safetensors.index.json");
  fs::remove(model_ + "/a.safetensors");
  fs::create_symlink("model.safetensors", weights_);
  ExpectRefused({"model.safetensors", "symbolic links"});
  fs::remove_all(model_);
  fs::create_symlink("model", model_);
  ExpectRefused({model_, "symbolic links"});
}

// Each tensor names its layer and the operation it belongs to, with both engines.
TEST_F(BadInput, WeightsThatAreNotNumbers) {
  const std::map<std::string, std::string> bad = {{"layers.0.attn_norm.weight", "\xff\xff"},
                                                  {"layers.0.attn.wq_b.weight", "\xff"},
                                                  {"layers.0.hc_attn_fn", "\xff\xff\xff\xff"},
                                                  {"layers.0.ffn.gate.weight", "\xff\xff"},
                                                  {"layers.0.attn.wq_a.scale", "\xff"},
                                                  {"layers.0.ffn.experts.3.w2.scale", "\xff"},
                                                  {"layers.2.attn.compressor.wkv.weight", "\xff\xff"},
                                                  {"head.weight", "\xff\xff"}};
  for (const auto& [tensor, bytes] : bad) {
    for (const char* engine : {"fast", "reference"}) {
      ExpectRefusedAfter([&, tensor = tensor, bytes = bytes](Safetensors& f) { f.Spoil(tensor, bytes); },
                         {tensor}, engine);
    }
  }
}

TEST_F(BadInput, RequestsBeyondTheModel) {
  const std::string longer = dir_.Put("long.json", json(std::vector<int>(5000, 1)).dump());
  const std::string out = dir_.File("out.f32");
  for (const std::string engine : {"fast", "reference"}) {
    ExpectRefusal({"generate", "--model", model_, "--engine", engine, "--ids", longer},
                  {"5000 tokens", "4096"});
    ExpectRefusal({"logits", "--model", model_, "--engine", engine, "--ids", longer, "--out", out},
                  {"5000 tokens", "4096"});
    ExpectRefusal({"logits", "--model", model_, "--engine", engine, "--ids", dir_.Put("ids.json", "[1, 512]"),
                   "--out", out},
                  {"512", "index 1", "vocabulary"});
  }
  EXPECT_FALSE(fs::exists(out));
  ExpectRefusal({"check", "--model", model_, "--ids", longer}, {"5000 tokens", "4096"});
  ExpectRefusal({"check", "--model", model_, "--tokens", "99999"}, {"99999 tokens", "4096"});
  ExpectRefusal({"check", "--model", model_, "--golden", dir_.File("absent")}, {"absent"});
  ExpectRefusal({"check", "--model", model_, "--only", "99"}, {"--only", "99", "expected 1 to"});
}

// A device too small for the model, or for a session beside it.
TEST_F(BadInput, DevicesTooSmall) {
  const std::string ids = dir_.Put("ids.json", "[1, 2, 3]");
  for (const char* memory : {"1MiB", "4MiB"}) {
    ExpectRefusal({"generate", "--model", model_, "--ids", ids, "--device", std::string("cpu:1,mem=") + memory},
                  {"cpu:0", "out of device memory", "bytes"});
  }
}

}  // namespace
}  // namespace lockstep
