// A checkpoint bound to a config: every tensor found by its official name or an EXL3 pack's name, with dtype
// and shape checked. No arithmetic. Views stay valid as long as the Checkpoint lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/exl3_layout.h"
#include "model/safetensors.h"

namespace lockstep {

// One matrix y_out = W x_in in whatever form the checkpoint stores it.
struct LinearWeight {
  enum class Kind {
    kDense,     // BF16, F16 or F32 [out, in]
    kFp8Block,  // F8_E4M3 [out, in] with F8_E8M0 scale [ceil(out/block), ceil(in/block)]
    kFp4Row,    // I8 [out, in/2] (two E2M1 codes, low nibble = even input) with F8_E8M0 scale [out, in/32]
    kExl3,
  };
  Kind kind = Kind::kDense;
  std::string name;  // without ".weight": "layers.3.attn.wq_a"; an output group: "layers.3.attn.wo_a.slice.2",
                     // stored so or not
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  TensorView weight;  // the whole stored tensor
  TensorView scale;
  int block = 0;  // kFp8Block: tile edge; kFp4Row: 32
  std::int64_t row_begin =
      0;  // this matrix is rows [row_begin, row_begin + out_features) of `weight` (wo_a groups)
  Exl3Matrix exl3;

  // Bits stored per weight, scales included.
  double BitsPerWeight() const;
};

// Small parameters that the published files keep as F32 (below: "F32") are read with TensorView::Float: files
// of other writers hold them, like norms and embeddings, as BF16, F16 or F32.

// Hyper-connection parameters of one site: fn F32 [n, S*E], base F32 [n], scale F32 [3] (read-out: [1]).
struct HcWeights {
  TensorView fn, base, scale;
};

struct CompressorWeights {
  LinearWeight wkv;
  std::optional<LinearWeight> wgate;  // absent at ratio 1
  TensorView ape;                     // V4 only: F32 [ratio, width]
  TensorView norm;
};

// V4.1: wk and k_norm belong to kv sources, wq_b and weights_proj to index sources; a layer may have either
// set.
struct LayerIndexWeights {
  std::optional<LinearWeight> wq_b, weights_proj, wk;
  TensorView k_norm;
  std::optional<CompressorWeights> compressor;
};

struct ExpertWeights {
  LinearWeight w1, w2, w3;  // gate [F,E], down [E,F], up [F,E]
};

struct EngramWeights {
  TensorView
      table;  // F8_E4M3 [rows, head_dim]; BF16, F16 or F32 when there is no scale. NaN codes are not looked for
  TensorView table_scale;  // F8_E8M0 [rows, ceil(head_dim/32)], or empty
  LinearWeight wkv;        // [(S+1)*E, columns*head_dim]
  TensorView q_weight;     // [S, E]
  TensorView k_weight;     // [S, E]
};

struct LayerWeights {
  TensorView attn_norm, ffn_norm;
  HcWeights hc_attn, hc_ffn;
  TensorView attn_sink;  // F32 [H]
  LinearWeight wq_a, wq_b, wkv, wo_b;
  std::vector<LinearWeight> wo_a;  // one a group, each [o_lora_rank, H*D/groups]
  TensorView q_norm, kv_norm;
  std::optional<CompressorWeights> compressor;
  LayerIndexWeights indexer;
  TensorView gate_weight;   // [X, E]
  TensorView gate_bias;     // F32 [X]; empty on hash layers
  TensorView gate_bias_vl;  // F32 [X]; V4.1, optional
  TensorView tid2eid;       // I64 [V, top_k], each in [0, X); V4 hash layers
  std::vector<ExpertWeights> experts;
  ExpertWeights shared_expert;
  std::optional<EngramWeights> engram;
};

struct ModelWeights {
  TensorView embed;  // [V, E] BF16, F16 or F32
  TensorView norm;
  LinearWeight head;
  std::optional<HcWeights> hc_head;  // V4
  std::vector<LayerWeights> layers;
};

struct Checkpoint {
  std::string dir;
  ModelConfig config;
  SafetensorsSet files;
  ModelWeights weights;
  std::vector<std::string>
      ignored;  // tensors known and not used: mtp.*, vision.*, aligner.*, image_*, __align_pad__*
  std::vector<std::int32_t> engram_token_map;  // of a model that has no directory; else empty
};

// Opens DIR: config.json and the safetensors. Names may carry the prefix "model.", the head may be called
// lm_head, block scales weight_scale_inv. Reads headers, scales and tid2eid, no weights. Throws InputError
// naming the file and tensor that is missing, extra, misshapen, of the wrong dtype, or holds a scale that is
// not a number (EXL3 suh/svh, E8M0 255 in FP8/FP4 scales) or an expert id out of range.
Checkpoint OpenCheckpoint(const std::string& dir);

// The same for tensors that are already there. `name` stands for the directory in messages.
Checkpoint BindCheckpoint(const std::string& name, const ModelConfig& config, SafetensorsSet files);

}  // namespace lockstep
