#include "harness/golden/golden.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/greedy.h"
#include "model/json_text.h"
#include "model/numerics_version.h"
#include "model/safetensors.h"
#include "model/text/content_hash.h"

namespace lockstep::golden {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string DigestOf(std::span<const float> logits_V) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(ContentHash(std::as_bytes(logits_V))));
  return text;
}

json ReadJsonFile(const std::string& path) {
  const MappedFile file(path);
  return ParseJson({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

// The entry of a profile in DIR/KIND/MODEL.json.
json ReadProfile(const std::string& path, const std::string& profile) {
  const json root = ReadJsonFile(path);
  if (root.value("numerics", 0) != kNumericsVersion) {
    throw InputError(path + ": numerics: expected " + std::to_string(kNumericsVersion) +
                     ", run golden_run --update");
  }
  if (!root["profiles"].contains(profile)) throw InputError(path + ": profiles: there is no " + profile);
  return root["profiles"][profile];
}

// Replaces the entry of one profile; entries of another numerics version go.
void WriteProfile(const std::string& path, const std::string& profile, const ordered_json& entry) {
  ordered_json root = ordered_json::object();
  if (std::ifstream in(path); in) root = ordered_json::parse(in);
  if (root.value("numerics", 0) != kNumericsVersion) root = {{"numerics", kNumericsVersion}};
  root["profiles"][profile] = entry;
  std::ofstream out(path);
  out << root.dump(1) << "\n";
  out.close();
  if (!out) throw InputError(path + ": cannot write");
}

std::string TokensPath(const std::string& dir, const std::string& model) {
  return dir + "/tokens/" + model + ".json";
}
std::string DigestsPath(const std::string& dir, const std::string& model) {
  return dir + "/digests/" + model + ".json";
}

// Index of the first element that differs, or of the first that only one list has; -1 for equal lists.
template <typename T>
std::ptrdiff_t FirstDifference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a == b) return -1;
  const auto end = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + end, b.begin()).first - a.begin();
}

}  // namespace

GoldenRun RunGreedy(Engine& engine, std::span<const std::int32_t> prompt, std::int64_t chunk) {
  const auto vocab = static_cast<std::size_t>(engine.config().vocab_size);
  const std::unique_ptr<Session> session = engine.NewSession();
  GoldenRun run;
  std::vector<float> logits;
  const auto process = [&](std::span<const std::int32_t> ids) {
    logits = session->Append(ids, static_cast<std::int64_t>(ids.size()));
    for (std::size_t row = 0; row < ids.size(); ++row) {
      run.digests.push_back(DigestOf(std::span(logits).subspan(row * vocab, vocab)));
    }
  };
  const auto total = static_cast<std::int64_t>(prompt.size());
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    process(prompt.subspan(static_cast<std::size_t>(begin),
                           static_cast<std::size_t>(std::min(chunk, total - begin))));
  }
  for (;;) {
    const GreedyChoice choice = ChooseGreedy(std::span(logits).last(vocab));
    run.ids.push_back(choice.id);
    run.margins.push_back(choice.margin);
    if (static_cast<std::int64_t>(run.ids.size()) == kGeneratedTokens) return run;
    process({&choice.id, 1});
  }
}

std::string Difference(const GoldenRun& expected, const GoldenRun& actual) {
  if (const auto at = FirstDifference(expected.digests, actual.digests); at >= 0) {
    return "logits differ from position " + std::to_string(at) + " on";
  }
  if (const auto at = FirstDifference(expected.ids, actual.ids); at >= 0) {
    return "generated token " + std::to_string(at) + " differs";
  }
  if (const auto at = FirstDifference(expected.margins, actual.margins); at >= 0) {
    return "the margin of generated token " + std::to_string(at) + " differs";
  }
  return "";
}

std::vector<std::int32_t> LoadPrompt(const std::string& dir) {
  return ReadJsonFile(dir + "/prompts/tiny.json")["ids"].get<std::vector<std::int32_t>>();
}

GoldenRun LoadRun(const std::string& dir, const std::string& model, const std::string& profile) {
  const json tokens = ReadProfile(TokensPath(dir, model), profile);
  return {.ids = tokens["ids"],
          .margins = tokens["margins"],
          .digests = ReadProfile(DigestsPath(dir, model), profile)};
}

void SaveRun(const std::string& dir, const std::string& model, const std::string& profile,
             const GoldenRun& run) {
  WriteProfile(TokensPath(dir, model), profile, {{"ids", run.ids}, {"margins", run.margins}});
  WriteProfile(DigestsPath(dir, model), profile, run.digests);
}

}  // namespace lockstep::golden
