// Names of the steps of a forward pass, and the hook through which either engine reports them. The reference and the fast engine use
// the same names in the same order, so the first step that differs can be named.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

namespace step {
inline constexpr std::string_view kEmbed = "embed";                // [S*E] stream after the embedding
inline constexpr std::string_view kEngram = "engram";              // [S*E] stream after the engram read-out
inline constexpr std::string_view kHcAttn = "hc_attn";             // [2S + S*S] pre, post, C
inline constexpr std::string_view kAttnIn = "attn_in";             // [E]
inline constexpr std::string_view kQueryLatent = "qr";             // [Q]
inline constexpr std::string_view kQuery = "q";                    // [H*D] after RoPE
inline constexpr std::string_view kKv = "kv";                      // [D] stored window row
inline constexpr std::string_view kCompressed = "compressed";      // [D] stored compressed row; position = entry
inline constexpr std::string_view kIndexKey = "index_key";         // [I] stored index key; position = entry
inline constexpr std::string_view kIndexScore = "index_score";     // [visible]
inline constexpr std::string_view kSelected = "selected";          // [n] entry numbers, ascending
inline constexpr std::string_view kAttnHeads = "attn_heads";       // [H*D] after inverse RoPE
inline constexpr std::string_view kAttnOut = "attn_out";           // [E]
inline constexpr std::string_view kAttnStream = "attn_stream";     // [S*E]
inline constexpr std::string_view kHcFfn = "hc_ffn";               // [2S + S*S]
inline constexpr std::string_view kFfnIn = "ffn_in";               // [E]
inline constexpr std::string_view kRouter = "router";              // [2*top_k] ids ascending, then weights
inline constexpr std::string_view kFfnOut = "ffn_out";             // [E]
inline constexpr std::string_view kFfnStream = "ffn_stream";       // [S*E]
inline constexpr std::string_view kFinal = "final";                // [E] input of the head
inline constexpr std::string_view kLogits = "logits";              // [V]
}  // namespace step

// Receives step values. `layer` is -1 outside the layers. Values are fp32 (truth: rounded to fp32).
class StepTrace {
 public:
  virtual ~StepTrace() = default;
  virtual void OnStep(std::string_view step, int layer, std::int64_t position, std::span<const float> values) = 0;
  // A discrete decision and its margin: the difference between the last value taken and the first one left out. `kind` is
  // "router", "index", "candidates" or "argmax".
  virtual void OnDecision(std::string_view kind, int layer, std::int64_t position, double margin) {
    (void)kind, (void)layer, (void)position, (void)margin;
  }
};

}  // namespace lockstep
