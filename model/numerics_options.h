// The choices that select one function and one set of bits: profile, activation quantization, fake quantizers. docs/numerics.md.
#pragma once

#include <string_view>

namespace lockstep {

// Reduction profile of contract family H.
enum class Profile { kSm90, kSm90K8, kSm80, kSm75, kSm70, kSm70Jit, kFma };

inline constexpr Profile kAllProfiles[] = {Profile::kSm90, Profile::kSm90K8, Profile::kSm80,   Profile::kSm75,
                                           Profile::kSm70, Profile::kSm70Jit, Profile::kFma};

// "sm90", "sm90k8", "sm80", "sm75", "sm70", "sm70jit", "fma".
std::string_view NameOf(Profile profile);
bool ParseProfile(std::string_view name, Profile* profile);

// Quantization of the transformed activations of EXL3 mul1 linears. kAuto: int8 up to 4 bits a weight, int16 above.
enum class ActQuant { kAuto, kInt8, kInt16, kNone };
std::string_view NameOf(ActQuant act_quant);
bool ParseActQuant(std::string_view name, ActQuant* act_quant);

struct NumericsOptions {
  Profile profile = Profile::kSm90;
  ActQuant act_quant = ActQuant::kAuto;
  bool fake_quant = true;         // the official models' activation, KV and index quantizers
  bool stale_index_keys = false;  // V4.1 reference quirk, numerics.md section 8
};

// Largest quantized magnitude for a mul1 matrix of bits_x2 / 2 bits: 127, 32512, or 0 when activations stay unquantized.
int ActQuantLimit(ActQuant act_quant, int bits_x2);

}  // namespace lockstep
