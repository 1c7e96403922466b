// exact_math_digest: prints golden/digests/exact_math.json, computed here.
//   exact_math_digest            the sampled digests (seconds)
//   exact_math_digest --full     also all 2^32 inputs: digests, largest errors, scalar against vector (minutes)
//   --isa generic|avx2|avx512    which build computes; the output must not depend on it
// Exit 1 if scalar and vector differ anywhere.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/contract/exact_math_digest.h"
#include "kernels/contract/exact_math_survey.h"
#include "model/error.h"

namespace lockstep {
namespace {

std::string Hex(std::uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string HexFloat(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%a", static_cast<double>(value));
  return text;
}

Survey FullSurvey(const ElementaryInfo& f, Isa isa) {
  constexpr std::uint64_t kAll = std::uint64_t{1} << 32;
  const std::uint64_t parts = std::bit_floor(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::future<Survey>> results;
  for (std::uint64_t i = 0; i < parts; ++i) {
    results.push_back(std::async(std::launch::async, SurveyPatterns, f, isa, i * (kAll / parts), kAll / parts));
  }
  Survey survey;
  for (std::future<Survey>& result : results) survey += result.get();
  return survey;
}

// Returns whether scalar and vector agreed everywhere.
bool PrintDigests(Isa isa, bool full) {
  nlohmann::ordered_json functions;
  bool agreed = true;
  for (const ElementaryInfo& f : kElementaryFunctions) {
    nlohmann::ordered_json& entry = functions[std::string(f.name)];
    const Survey sampled = SurveySamples(f, isa, 0, contract::kSampledInputs);
    entry["sampled"] = Hex(sampled.digest);
    agreed = agreed && sampled.scalar_mismatches == 0;
    if (!full) continue;
    const Survey survey = FullSurvey(f, isa);
    entry["full"] = Hex(survey.digest);
    entry["max_ulp"] = survey.max_ulp;
    entry["max_ulp_at"] = HexFloat(survey.worst);
    entry["measured_from"] = HexFloat(f.lowest);
    entry["measured_to"] = HexFloat(f.highest);
    agreed = agreed && survey.scalar_mismatches == 0;
  }
  std::cout << functions.dump(2) << "\n";
  return agreed;
}

int Main(int argc, char** argv) {
  bool full = false;
  std::string isa;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--full") {
      full = true;
    } else if (flag == "--isa" && i + 1 < argc) {
      isa = argv[++i];
    } else {
      throw InputError("exact_math_digest: expected --full or --isa NAME, got '" + std::string(flag) + "'");
    }
  }
  if (PrintDigests(SelectIsa(isa), full)) return EXIT_SUCCESS;
  std::cerr << "exact_math_digest: scalar and vector results differ\n";
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Main(argc, argv);
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
