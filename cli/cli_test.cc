// The program as its users meet it: exit codes, one-line errors, and outputs against recorded runs and oracles
// in golden/.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/program.h"

namespace lockstep {
namespace {

const std::string kModel = kGolden + "/models/tiny-v41-mul1";
const std::string kPrompt = kGolden + "/prompts/tiny.json";

std::vector<float> ReadFloats(const std::string& path) {
  const std::string bytes = Slurp(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST_F(Cli, VersionNamesCommitNumericsAndDevices) {
  const Result result = Lockstep({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part : {"lockstep 0.", "commit ", "numerics 1", "devices: cpu"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
}

TEST_F(Cli, HelpOfEveryCommandSucceeds) {
  for (const char* command : {"generate", "logits", "tokenize", "detokenize", "encode", "inspect", "synth", "bench"}) {
    const Result result = Lockstep({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.out.find("--"), std::string::npos) << command;
  }
}

TEST_F(Cli, BadUsageIsRefused) {
  ExpectRefusal({}, {"subcommand"});
  ExpectRefusal({"dance"}, {"dance", "generate"});
  ExpectRefusal({"logits", "--model", kModel}, {"--ids"});
  ExpectRefusal({"generate", "--model", kModel, "--prompt", "a", "--bogus"}, {"--bogus"});
  ExpectRefusal({"generate", "--model", kModel}, {"--prompt", "--ids", "--chat"});
  ExpectRefusal({"generate", "--model", kModel, "--prompt", "a", "--ids", kPrompt}, {"exactly one"});
  ExpectRefusal({"generate", "--model", kModel, "--prompt", "a", "--max-tokens", "0"}, {"--max-tokens"});
  ExpectRefusal({"generate", "--model", kModel, "--prompt", "a", "--max-tokens", "many"}, {"--max-tokens"});
  ExpectRefusal({"generate", "--model", kModel, "--prompt", "a", "--temperature", "0.7"},
                {"--temperature", "0"});
  ExpectRefusal({"logits", "--model", kModel, "--ids", kPrompt}, {"--out"});
  ExpectRefusal({"logits", "--model", kModel, "--ids", kPrompt, "--out", "x", "--chunk", "-1"}, {"--chunk"});
  ExpectRefusal({"logits", "--model", kModel, "--ids", kPrompt, "--out", "x", "--compare-truth"},
                {"--margins"});
  ExpectRefusal({"tokenize", "--model", kModel}, {"--text", "--file"});
}

TEST_F(Cli, EngineFlagsAreChecked) {
  const auto refuse = [&](std::vector<std::string> flags, const std::vector<std::string>& parts) {
    std::vector<std::string> arguments = {"generate", "--model", kModel, "--prompt", "a"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectRefusal(arguments, parts);
  };
  refuse({"--engine", "warp"}, {"--engine", "warp", "reference"});
  refuse({"--engine", "reference", "--device", "cuda:0"}, {"--device", "cuda:0"});
  refuse({"--profile", "sm42"}, {"--profile", "sm42", "sm90"});
  refuse({"--arithmetic", "guess"}, {"--arithmetic", "guess", "truth"});
  refuse({"--arithmetic", "contract:sm42"}, {"--arithmetic", "sm42"});
  refuse({"--arithmetic", "contract:fma", "--profile", "sm90"}, {"--profile", "contract:fma"});
  refuse({"--arithmetic", "truth", "--profile", "sm90"}, {"--profile", "truth"});
  refuse({"--fake-quant", "some"}, {"--fake-quant", "official", "none"});
  refuse({"--act-quant", "int4"}, {"--act-quant", "int4", "int8"});
}

TEST_F(Cli, BadFilesAreNamed) {
  ExpectRefusal({"inspect", "--model", dir_.File("absent")}, {"absent"});
  ExpectRefusal({"generate", "--model", kModel, "--ids", dir_.File("absent.json")}, {"absent.json"});
  const auto refuse_ids = [&](const std::string& text, const std::vector<std::string>& parts) {
    ExpectRefusal({"generate", "--model", kModel, "--ids", dir_.Put("ids.json", text)}, parts);
  };
  refuse_ids("[1, 2", {"ids.json"});
  refuse_ids("{\"tokens\": [1]}", {"ids.json", "ids"});
  refuse_ids("[]", {"ids.json", "at least one"});
  refuse_ids("[1, -2]", {"ids.json", "ids[1]", "-2"});
  refuse_ids("[1.5]", {"ids.json", "ids[0]"});
  refuse_ids("[9223372036854775808]", {"ids.json", "ids[0]"});
  refuse_ids("[1, 512]", {"512", "vocabulary"});
  ExpectRefusal(
      {"encode", "--model", kModel, "--chat", dir_.Put("chat.json", R"({"messages": [{"role": "judge"}]})")},
      {"chat.json", "messages[0].role"});
  ExpectRefusal({"detokenize", "--model", kModel, "--ids", dir_.Put("ids.json", "[7, 100000]")},
                {"ids[1]", "100000"});
  ExpectRefusal({"logits", "--model", kModel, "--ids", kPrompt, "--out", dir_.File("no/such/dir.f32")},
                {"dir.f32"});
}

TEST_F(Cli, GenerateRepeatsTheRecordedTokens) {
  const json recorded = json::parse(Slurp(kGolden + "/tokens/tiny-v41-mul1.json"));
  for (const std::string profile : {"sm90", "fma"}) {
    const json report = LockstepJson({"generate", "--model", kModel, "--ids", kPrompt, "--max-tokens", "32",
                                      "--ignore-eos", "--engine", "reference", "--profile", profile});
    EXPECT_EQ(report["ids"], recorded["profiles"][profile]["ids"]);
    EXPECT_EQ(report["finish_reason"], "length");
    EXPECT_EQ(report["prompt_tokens"], 200);
    EXPECT_EQ(report["arithmetic"], "contract:" + profile);
    EXPECT_GT(report["timings"]["prefill_seconds"], 0);
  }
}

TEST_F(Cli, GenerateStreamsTheTextOfItsTokens) {
  const std::vector<std::string> command = {"generate", "--model",      kModel, "--prompt",
                                            "one, two", "--max-tokens", "12"};
  const json report = LockstepJson(command);
  const Result plain = Lockstep(command);
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_EQ(plain.out, report["text"].get<std::string>() + "\n");
  const json prompt_ids = json::parse(Lockstep({"tokenize", "--model", kModel, "--text", "one, two"}).out);
  EXPECT_EQ(report["prompt_tokens"], prompt_ids.size() + 1);  // the beginning-of-sentence token
}

TEST_F(Cli, GenerateStopsWhereTheContextEnds) {
  const std::string copy = dir_.File("short");
  std::filesystem::copy(kModel, copy);
  json config = json::parse(Slurp(copy + "/config.json"));
  config["text_config"]["max_position_embeddings"] = 8;
  dir_.Put("short/config.json", config.dump());
  const json report =
      LockstepJson({"generate", "--model", copy, "--ids", dir_.Put("ids.json", "[0, 5, 6]"), "--ignore-eos"});
  EXPECT_EQ(report["ids"].size(), 6u);  // 8 positions hold 3 + 5; the sixth token is chosen at the last
  EXPECT_EQ(report["finish_reason"], "length");
}

TEST_F(Cli, LogitsAreWithinToleranceOfTheNumpyOracle) {
  const std::string oracle = kGolden + "/oracles/numpy-v41-1", out = dir_.File("logits.f32");
  const Result result = Lockstep({"logits", "--model", oracle, "--ids", oracle + "/ids.json", "--out", out,
                                  "--arithmetic", "truth", "--fake-quant", "none"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<float> ours = ReadFloats(out), expected = ReadFloats(oracle + "/logits.f32");
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], expected[i], 2e-4) << i;
}

TEST_F(Cli, LogitsDoNotDependOnTheChunk) {
  const std::string ids = dir_.Put("ids.json", json(std::vector<int>(40, 7)).dump());
  std::vector<std::string> outputs;
  for (const std::string chunk : {"1000", "7"}) {
    const std::string out = dir_.File(chunk + ".f32");
    ASSERT_EQ(Lockstep({"logits", "--model", kModel, "--ids", ids, "--out", out, "--chunk", chunk}).exit_code,
              0);
    outputs.push_back(Slurp(out));
  }
  EXPECT_EQ(outputs[0].size(), 40u * 512u * sizeof(float));
  EXPECT_TRUE(outputs[0] == outputs[1]);
}

TEST_F(Cli, AFailedRunLeavesNoFile) {
  const std::string out = dir_.File("logits.f32");
  ExpectRefusal({"logits", "--model", kModel, "--ids", dir_.Put("ids.json", "[0, 600]"), "--out", out},
                {"600"});
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.path().string().find("logits.f32"), std::string::npos) << entry.path();
  }
}

TEST_F(Cli, AnExistingDeviceIsWrittenAndNotReplaced) {
  const std::string ids = dir_.Put("ids.json", "[0, 5]");
  EXPECT_EQ(Lockstep({"logits", "--model", kModel, "--ids", ids, "--out", "/dev/null"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(Cli, MarginsReportDecisionsAndTheDistanceFromTruth) {
  const std::string report_file = dir_.File("margins.json");
  const std::string ids = dir_.Put("ids.json", json(std::vector<int>(60, 9)).dump());
  ASSERT_EQ(Lockstep({"logits", "--model", kModel, "--ids", ids, "--margins", report_file, "--compare-truth"})
                .exit_code,
            0);
  const json report = json::parse(Slurp(report_file));
  EXPECT_EQ(report["argmax"]["decisions"], 60);
  EXPECT_EQ(report["argmax"]["margins"].size(), 60u);
  const std::vector<double> margins = report["argmax"]["margins"];
  EXPECT_EQ(report["argmax"]["smallest"], *std::min_element(margins.begin(), margins.end()));
  ASSERT_EQ(report["layers"].size(), 10u);
  EXPECT_EQ(report["layers"][0]["router"]["decisions"], 60);
  EXPECT_FALSE(report["layers"][0].contains("index"));
  EXPECT_GT(report["layers"][6]["candidates"]["decisions"], 0);
  EXPECT_GT(report["truth"]["max_abs_difference"], 0);
}

TEST_F(Cli, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "red boat\n\xe4\xbd\xa0 </think>";
  const std::string file = dir_.Put("text", text);
  for (const bool special : {false, true}) {
    std::vector<std::string> command = {"tokenize", "--model", kModel, "--file", file};
    if (special) command.push_back("--special");
    const std::string ids = dir_.Put("ids.json", Lockstep(command).out);
    EXPECT_EQ(Lockstep({"detokenize", "--model", kModel, "--ids", ids}).out, text);
  }
}

TEST_F(Cli, IllFormedTextIsRefused) {
  ExpectRefusal({"tokenize", "--model", kModel, "--file", dir_.Put("text", "red\xff")}, {"text", "3"});
}

TEST_F(Cli, EncodeRendersTheChat) {
  const std::string chat = dir_.Put(
      "chat.json", R"({"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}})");
  const json encoded = LockstepJson({"encode", "--model", kModel, "--chat", chat});
  EXPECT_EQ(encoded["text"], "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
  const json special = json::parse(
      Lockstep({"tokenize", "--special", "--model", kModel, "--text", encoded["text"].get<std::string>()}).out);
  EXPECT_EQ(encoded["ids"], special);
  const json answered = LockstepJson({"generate", "--model", kModel, "--chat", chat, "--max-tokens", "2"});
  EXPECT_EQ(answered["prompt_tokens"], special.size());
}

TEST_F(Cli, InspectCountsWhatSynthWrote) {
  const json inspected = LockstepJson({"inspect", "--model", kModel});
  EXPECT_EQ(inspected["architecture"], "DeepseekV41ForCausalLM");
  EXPECT_EQ(inspected["layers"], 10);
  EXPECT_EQ(inspected["ignored_tensors"], 0);
  std::int64_t routed = 0;
  for (const json& group : inspected["matrices"]) {
    if (group["role"] == "routed experts") routed += group["weights"].get<std::int64_t>();
  }
  EXPECT_EQ(routed, 10 * 6 * 3 * 128 * 128);
  EXPECT_EQ(inspected["layer_plan"][7]["kv_source"], 6);
  const Result plain = Lockstep({"inspect", "--model", kModel});
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_NE(plain.out.find("exl3 mul1 3"), std::string::npos);
}

TEST_F(Cli, InspectPlansAPlacementOnDevicesThatNeedNotExist) {
  const std::vector<std::string> command = {"inspect", "--model", kModel, "--device", "cuda:0,1", "--vram", "64MiB", "--context", "1024"};
  const json placement = LockstepJson(command)["placement"];
  EXPECT_EQ(placement["profile"], "sm90");
  EXPECT_EQ(placement["context"], 1024);
  ASSERT_EQ(placement["devices"].size(), 2u);
  std::int64_t layers = 0, experts = 0;
  for (const json& device : placement["devices"]) {
    EXPECT_EQ(device["limit"], 64 << 20);
    std::int64_t sum = 0;
    for (const char* part : {"trunk", "activations", "staging", "session", "resident", "free"}) {
      EXPECT_GT(device[part], 0) << part;
      sum += device[part].get<std::int64_t>();
    }
    EXPECT_EQ(sum, 64 << 20);
    layers += device["layers"].get<std::int64_t>();
    experts += device["resident_experts"].get<std::int64_t>() + device["streamed_experts"].get<std::int64_t>();
  }
  EXPECT_EQ(layers, 10);
  EXPECT_EQ(experts, 10 * 6);
  EXPECT_GT(placement["engram_tables"], 0);
  const Result plain = Lockstep(command);
  EXPECT_NE(plain.out.find("placement for contract:sm90, sessions of 1024 tokens"), std::string::npos) << plain.out;
}

TEST_F(Cli, InspectRefusesPlansThatDoNotFit) {
  const auto refuse = [&](std::vector<std::string> flags, const std::vector<std::string>& parts) {
    flags.insert(flags.begin(), {"inspect", "--model", kModel});
    ExpectRefusal(flags, parts);
  };
  refuse({"--vram", "much"}, {"--vram", "much"});
  refuse({"--ram", "3XiB"}, {"--ram", "3XiB"});
  refuse({"--context", "5000"}, {"--context", "4096", "5000"});
  refuse({"--device", "tpu"}, {"--device", "tpu"});
  refuse({"--profile", "sm42"}, {"--profile", "sm42"});
  refuse({"--vram", "1MiB"}, {"cpu:0", "out of device memory"});
  const json roomy = LockstepJson({"inspect", "--model", kModel, "--vram", "64MiB"})["placement"]["devices"][0];
  const std::int64_t half = roomy["limit"].get<std::int64_t>() - roomy["free"].get<std::int64_t>() - roomy["resident"].get<std::int64_t>() / 2;
  refuse({"--vram", std::to_string(half), "--ram", "4096"}, {"--ram", "not resident"});
}

// A draft model is listed, and nothing of it is bound.
TEST_F(Cli, InspectListsTheDraft) {
  const std::string copy = dir_.File("draft");
  std::filesystem::copy(kModel, copy);
  const std::string bytes = Slurp(copy + "/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  json header = json::parse(bytes.substr(8, length));
  const std::size_t end = bytes.size() - 8 - length;
  header["mtp.0.enorm.weight"] = {{"dtype", "BF16"}, {"shape", {4}}, {"data_offsets", {end, end + 8}}};
  const std::string text = header.dump();
  length = text.size();
  dir_.Put("draft/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + bytes.substr(bytes.size() - end) + std::string(8, '\0'));
  const json inspected = LockstepJson({"inspect", "--model", copy});
  ASSERT_EQ(inspected["unbound"].size(), 1u);
  EXPECT_EQ(inspected["unbound"][0]["role"], "draft");
  EXPECT_EQ(inspected["unbound"][0]["tensors"], 1);
  EXPECT_EQ(inspected["unbound"][0]["bytes"], 8);
  EXPECT_NE(Lockstep({"inspect", "--model", copy}).out.find("the draft model, unbound"), std::string::npos);
}

TEST_F(Cli, SynthMakesAModelThatRuns) {
  const std::string out = dir_.File("made");
  ASSERT_EQ(Lockstep({"synth", "--shape", "tiny-v4", "--bits", "3", "--layers", "3", "--out", out}).exit_code,
            0);
  const json report =
      LockstepJson({"generate", "--model", out, "--ids", dir_.Put("ids.json", "[0, 5]"), "--max-tokens", "3"});
  EXPECT_FALSE(report["ids"].empty());
  EXPECT_FALSE(report.contains("text"));  // there is no tokenizer
  ExpectRefusal({"synth", "--shape", "tiny-v4", "--out", out}, {"--out", "not an empty directory"});
  ExpectRefusal({"generate", "--model", out, "--prompt", "a"}, {"--prompt", "tokenizer.json"});
}

TEST_F(Cli, ModelsWithoutFilesRun) {
  const std::string ids = dir_.Put("ids.json", "[0, 5, 9]"), made = dir_.File("made");
  ASSERT_EQ(Lockstep({"synth", "--shape", "tiny-v41", "--seed", "4", "--out", made}).exit_code, 0);
  for (const std::string engine : {"fast", "reference"}) {
    const auto generate = [&](const std::string& model) {
      return LockstepJson({"generate", "--model", model, "--engine", engine, "--ids", ids, "--max-tokens", "5"})["ids"];
    };
    EXPECT_EQ(generate("synth:tiny-v41,seed=4"), generate(made)) << engine;
  }
  const Result memory = Lockstep({"synth", "--shape", "tiny-v41", "--seed", "4", "--memory"});
  EXPECT_EQ(memory.exit_code, 0);
  EXPECT_NE(memory.out.find("synth:tiny-v41,seed=4"), std::string::npos);
  ExpectRefusal({"synth", "--shape", "tiny-v4"}, {"--out", "--memory"});
  ExpectRefusal({"generate", "--model", "synth:tiny-v9", "--ids", ids}, {"--model", "tiny-v9", "tiny-v41"});
}

TEST_F(Cli, DevicesThatAreNotThereAreRefused) {
  const std::string ids = dir_.Put("ids.json", "[0]");
  ExpectRefusal({"generate", "--model", "synth:tiny-v4", "--ids", ids, "--device", "cuda:63"}, {"CUDA"});
  ExpectRefusal({"check", "--model", "synth:tiny-v4", "--device", "cuda:63"}, {"CUDA"});
  ExpectRefusal({"bench", "--model", "synth:tiny-v4", "--device", "cuda:63", "decode", "--context", "9"}, {"CUDA"});
}

TEST_F(Cli, BenchPrintsFiguresBesideTheirLimits) {
  const std::string model = "synth:tiny-v41,layers=4";
  const Result plain = Lockstep({"bench", "--model", model, "--profile-steps", "prefill", "--tokens", "20,30"});
  EXPECT_EQ(plain.exit_code, 0);
  for (const char* part : {"prefill of 20", "prefill of 30", "limit", "attention", "route"}) {
    EXPECT_NE(plain.out.find(part), std::string::npos) << part;
  }
  const json report =
      LockstepJson({"bench", "--model", model, "decode", "--context", "50,200", "--batch", "2", "--steps", "2"});
  ASSERT_EQ(report["figures"].size(), 2u);
  EXPECT_EQ(report["figures"][1]["context"], 200);
  EXPECT_GT(report["figures"][1]["tokens_per_second"], 0);
  EXPECT_GT(report["figures"][1]["limit_seconds"], 0);
  EXPECT_FALSE(report["figures"][1].contains("profile"));
  EXPECT_EQ(LockstepJson({"bench", "--model", model, "suffix", "--prefix", "60", "--tokens", "9"})["figures"][0]["what"],
            "suffix");
  ExpectRefusal({"bench", "--model", model}, {"subcommand"});
  ExpectRefusal({"bench", "--model", model, "prefill", "--tokens", "0"}, {"--tokens"});
  ExpectRefusal({"bench", "--model", model, "decode", "--context", "5000"}, {"--context", "4096"});
  ExpectRefusal({"bench", "--model", model, "suffix", "--prefix", "4096"}, {"--prefix", "4096"});
  ExpectRefusal({"bench", "--model", model, "--engine", "reference", "prefill"}, {"--engine"});
}

}  // namespace
}  // namespace lockstep
