#include "model/numerics_options.h"

#include <array>
#include <utility>

namespace lockstep {
namespace {

constexpr std::array<std::pair<std::string_view, Profile>, 7> kProfiles = {{{"sm90", Profile::kSm90},
                                                                            {"sm90k8", Profile::kSm90K8},
                                                                            {"sm80", Profile::kSm80},
                                                                            {"sm75", Profile::kSm75},
                                                                            {"sm70", Profile::kSm70},
                                                                            {"sm70jit", Profile::kSm70Jit},
                                                                            {"fma", Profile::kFma}}};

constexpr std::array<std::pair<std::string_view, ActQuant>, 4> kActQuants = {
    {{"auto", ActQuant::kAuto}, {"int8", ActQuant::kInt8}, {"int16", ActQuant::kInt16}, {"none", ActQuant::kNone}}};

template <typename Table, typename Value>
std::string_view NameIn(const Table& table, Value value) {
  for (const auto& [name, entry] : table) {
    if (entry == value) return name;
  }
  return "?";
}

template <typename Table, typename Value>
bool ParseIn(const Table& table, std::string_view name, Value* value) {
  for (const auto& [entry_name, entry] : table) {
    if (entry_name == name) {
      *value = entry;
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view NameOf(Profile profile) { return NameIn(kProfiles, profile); }
bool ParseProfile(std::string_view name, Profile* profile) { return ParseIn(kProfiles, name, profile); }
std::string_view NameOf(ActQuant act_quant) { return NameIn(kActQuants, act_quant); }
bool ParseActQuant(std::string_view name, ActQuant* act_quant) { return ParseIn(kActQuants, name, act_quant); }

int ActQuantLimit(ActQuant act_quant, int bits_x2) {
  constexpr int kInt8Limit = 127;
  constexpr int kInt16Limit = 32512;  // 128 * 32512 * 510 < 2^31
  switch (act_quant) {
    case ActQuant::kAuto:
      return bits_x2 <= 8 ? kInt8Limit : kInt16Limit;
    case ActQuant::kInt8:
      return kInt8Limit;
    case ActQuant::kInt16:
      return kInt16Limit;
    case ActQuant::kNone:
      return 0;
  }
  return 0;
}

}  // namespace lockstep
