"""Makes the tiny random V4.1 checkpoints numpy-v41-1..3 and their logits under golden/oracles.

    python make_v41_oracle.py [NAME ...]

Each directory gets config.json (nested as published), model.safetensors (official tensor
names; BF16 matrices, F32 where the published files have F32, FP8 Engram tables), ids.json,
logits.f32 (no fake quantisation), logits-kvquant.f32 (cache quantisers on), margins.json and,
with Engram, engram_token_map.i32 and engram_constants.json. Seeds are fixed; a seed was kept
if every discrete decision stays clear of a tie (see margins.json).
"""

import json
import os
import sys

import numpy as np

import numpy_ops as ops
from numpy_v41 import Forward, Model
from tensor_files import bf16_encode, e4m3_encode, write_safetensors

ORACLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "oracles")

_COMMON = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 256,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-20,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "max_position_embeddings": 4096,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _yarn(original):
    return {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": original,
    }


CASES = {
    # No Engram, no YaRN, 2 streams, 3 Sinkhorn rounds; layer 4 selects inside layer 3's blocks.
    "numpy-v41-1": {
        "seed": 16,
        "tokens": 301,
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 16,
        "sliding_window": 8,
        "compress_ratios": [0, 2, 2, 1, 1],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 4],
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 7,
        "candidate_block_size": 4,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 10,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
        "engram_layer_ids": [],
    },
    # Engram on two layers: tables longer than the buckets, a base that is itself prime, and a
    # pad token that the token map moves. Candidate blocks off.
    "numpy-v41-2": {
        "seed": 18,
        "tokens": 300,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_groups": 1,
        "o_lora_rank": 32,
        "sliding_window": 12,
        "compress_ratios": [0, 0, 2, 1],
        "kv_source_layer_ids": [2, 3],
        "index_source_layer_ids": [2, 3],
        "candidate_source_layer_id": -1,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 4,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 16,
        "rope_scaling": _yarn(128),
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "hc_mult": 3,
        "hc_sinkhorn_iters": 20,
        "engram_layer_ids": [1, 2],
        "engram_num_embeddings": [720, 720],
        "engram_vocab_size": 67,
        "engram_max_ngram_size": 4,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
    },
    # Everything: four kv sources, index sources that own no keys (5, 8, 9), layers that reuse
    # (7), candidate blocks that restrict layers 8 and 9, Engram, 4 streams.
    "numpy-v41-3": {
        "seed": 33,
        "tokens": 303,
        "hidden_size": 32,
        "num_hidden_layers": 10,
        "num_attention_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "sliding_window": 16,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
        "kv_source_layer_ids": [2, 3, 4, 6],
        "index_source_layer_ids": [2, 3, 4, 5, 6, 8, 9],
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 12,
        "candidate_block_size": 8,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 12,
        "rope_scaling": _yarn(64),
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": None,
        "engram_vocab_size": 64,
        "engram_max_ngram_size": 3,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
    },
}


class Weights:
    """Draws seeded tensors into `tensors`, {official name: (dtype, array)}."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tensors = {}

    def matrix(self, name, rows, columns, gain=1.0):
        """BF16 [rows, columns] with standard deviation gain/sqrt(columns)."""
        draw = self.rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)
        self.tensors[name] = ("BF16", bf16_encode(draw))

    def norm(self, name, *shape):
        """BF16 norm weight around 1."""
        self.tensors[name] = ("BF16", bf16_encode(1 + 0.2 * self.rng.standard_normal(shape)))

    def floats(self, name, *shape, mean=0.0, deviation=1.0):
        """F32 tensor."""
        draw = mean + deviation * self.rng.standard_normal(shape)
        self.tensors[name] = ("F32", draw.astype("<f4"))

    def fp8_table(self, name, rows, columns):
        """F8_E4M3 rows with one E8M0 scale per 32 channels."""
        draw = self.rng.standard_normal((rows, columns)) * 32
        self.tensors[name + ".weight"] = ("F8_E4M3", e4m3_encode(draw))
        exponents = self.rng.integers(120, 124, size=(rows, columns // 32))
        self.tensors[name + ".scale"] = ("F8_E8M0", exponents.astype(np.uint8))


def _draw_site(w, c, name):
    S, E = c["hc_mult"], c["hidden_size"]
    mixes = (2 + S) * S
    w.floats(name + "fn", mixes, S * E, deviation=(S * E) ** -0.5)
    w.floats(name + "base", mixes, deviation=0.5)
    w.floats(name + "scale", 3, mean=1.0, deviation=0.3)


def _draw_attention(w, c, layer):
    p = f"layers.{layer}.attn."
    E, D, H, Q = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["q_lora_rank"]
    G, O, I = c["o_groups"], c["o_lora_rank"], c["index_head_dim"]
    w.floats(p + "attn_sink", H)
    w.matrix(p + "wq_a.weight", Q, E)
    w.norm(p + "q_norm.weight", Q)
    w.matrix(p + "wq_b.weight", H * D, Q, gain=1.5)
    w.matrix(p + "wkv.weight", D, E)
    w.norm(p + "kv_norm.weight", D)
    w.matrix(p + "wo_a.weight", G * O, H * D // G, gain=1.5)
    w.matrix(p + "wo_b.weight", E, G * O, gain=1.5)
    if layer in c["kv_source_layer_ids"]:
        w.matrix(p + "compressor.wkv.weight", D, E)
        if c["compress_ratios"][layer] > 1:
            w.matrix(p + "compressor.wgate.weight", D, E, gain=1.5)
        w.norm(p + "compressor.norm.weight", D)
        w.matrix(p + "indexer.wk.weight", I, D)
        w.norm(p + "indexer.k_norm.weight", I)
    if layer in c["index_source_layer_ids"]:
        w.matrix(p + "indexer.wq_b.weight", c["index_n_heads"] * I, Q)
        w.matrix(p + "indexer.weights_proj.weight", c["index_n_heads"], E)


def _draw_moe(w, c, layer):
    p = f"layers.{layer}.ffn."
    E, F, X = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    w.matrix(p + "gate.weight", X, E, gain=1.5)
    w.floats(p + "gate.bias", X, deviation=0.1)
    w.floats(p + "gate.bias_vl", X, deviation=0.1)
    for expert in [f"experts.{e}" for e in range(X)] + ["shared_experts"]:
        w.matrix(f"{p}{expert}.w1.weight", F, E, gain=2.0)
        w.matrix(f"{p}{expert}.w3.weight", F, E, gain=2.0)
        w.matrix(f"{p}{expert}.w2.weight", E, F)


def _draw_engram(w, c, layer):
    p, S, E = f"layers.{layer}.engram.", c["hc_mult"], c["hidden_size"]
    columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    rows = c["engram_num_embeddings"][c["engram_layer_ids"].index(layer)]
    w.fp8_table(p + "embed", rows, c["engram_head_dim"])
    w.matrix(p + "wkv.weight", (S + 1) * E, columns * c["engram_head_dim"])
    w.norm(p + "q_weight", S, E)
    w.norm(p + "k_weight", S, E)


def draw_checkpoint(c, seed):
    """All tensors of a checkpoint with text config `c`."""
    w, E, V = Weights(seed), c["hidden_size"], c["vocab_size"]
    w.matrix("embed.weight", V, E, gain=np.sqrt(E))
    w.norm("norm.weight", E)
    w.matrix("head.weight", V, E, gain=2.0)
    for layer in range(c["num_hidden_layers"]):
        p = f"layers.{layer}."
        w.norm(p + "attn_norm.weight", E)
        w.norm(p + "ffn_norm.weight", E)
        _draw_site(w, c, p + "hc_attn_")
        _draw_site(w, c, p + "hc_ffn_")
        _draw_attention(w, c, layer)
        _draw_moe(w, c, layer)
        if layer in c["engram_layer_ids"]:
            _draw_engram(w, c, layer)
    return w.tensors


def draw_token_map(vocab, seed):
    """First-seen-order compressed ids in which token 2 (the pad) and about a fifth of the others join an earlier id."""
    rng = np.random.default_rng([seed, 41])
    token_map, used = np.zeros(vocab, np.int32), 0
    for token in range(vocab):
        if token == 2 or (token > 4 and rng.random() < 0.2):
            token_map[token] = 1 if token == 2 else rng.integers(used)
        else:
            token_map[token], used = used, used + 1
    return token_map, used


def draw_ids(vocab, tokens, seed):
    """A sequence that starts with id 0 and repeats some of its own spans, so that n-grams recur."""
    rng = np.random.default_rng([seed, 7])
    ids = [0]
    while len(ids) < tokens:
        if len(ids) > 40 and rng.random() < 0.3:
            start = int(rng.integers(len(ids) - 12))
            ids += ids[start : start + int(rng.integers(3, 12))]
        else:
            ids += rng.integers(1, vocab, size=6).tolist()
    return ids[:tokens]


def complete_config(case):
    """(text config, token map or None) of a case."""
    c = {**_COMMON, **{key: value for key, value in case.items() if key not in ("seed", "tokens")}}
    if not c["engram_layer_ids"]:
        return c, None
    token_map, used = draw_token_map(c["vocab_size"], case["seed"])
    c["engram_compressed_vocab_size"] = used
    if c["engram_num_embeddings"] is None:
        c["engram_num_embeddings"] = [sum(map(sum, primes)) for primes in _primes(c)]
    return c, token_map


def _primes(c):
    return ops.engram_primes(
        len(c["engram_layer_ids"]), c["engram_max_ngram_size"], c["engram_n_heads"], c["engram_vocab_size"]
    )


def _write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def _engram_constants(c, run):
    constants = []
    for layer, primes in zip(c["engram_layer_ids"], _primes(c)):
        multipliers = ops.engram_multipliers(layer, c["engram_max_ngram_size"], c["engram_compressed_vocab_size"])
        rows = run.engram_ids[layer]
        constants.append(
            {
                "layer": layer,
                "multipliers": [str(m) for m in multipliers],
                "primes": primes,
                "rows_of_first_8_positions": rows[:8].tolist(),
                "rows_of_last_position": rows[-1].tolist(),
            }
        )
    return constants


def margins(run, logits):
    """How thin the discrete decisions of a run are, as plain numbers."""
    top = np.sort(logits, axis=1)
    trace = run.trace
    smallest = lambda arrays: float(min((a.min() for a in arrays), default=np.inf))
    finite = lambda value: value if np.isfinite(value) else None
    return {
        "logits_standard_deviation": float(logits.std()),
        "top2_margin_min": float((top[:, -1] - top[:, -2]).min()),
        "top2_margin_median": float(np.median(top[:, -1] - top[:, -2])),
        "router_margin_min": smallest(trace.router_margin),
        "index_margin_min": finite(smallest(trace.index_margin)),
        "index_selections_that_cut": trace.index_cut,
        "block_margin_min": finite(smallest(trace.block_margin)),
        "block_selections_that_cut": trace.blocks_cut,
        "expert_share_min": float(min(n.min() / n.sum() for n in trace.expert_counts)),
        "expert_share_max": float(max(n.max() / n.sum() for n in trace.expert_counts)),
    }


def make(name, root=ORACLES):
    """Writes one oracle directory and returns its margins."""
    case = CASES[name]
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    path = lambda file: os.path.join(directory, file)
    c, token_map = complete_config(case)
    root_config = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": c["vocab_size"] - 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "text_config": c,
    }
    _write_json(path("config.json"), root_config)
    ids = draw_ids(c["vocab_size"] - 1, case["tokens"], case["seed"])
    with open(path("ids.json"), "w") as file:
        json.dump(ids, file)
    write_safetensors(path("model.safetensors"), draw_checkpoint(c, case["seed"]))
    if token_map is not None:
        token_map.astype("<i4").tofile(path("engram_token_map.i32"))
    model, report = Model(directory), {"seed": case["seed"]}
    for file, fake_quant in (("logits.f32", False), ("logits-kvquant.f32", True)):
        run = Forward(model, ids, fake_quant)
        logits = run.logits()
        logits.astype("<f4").tofile(path(file))
        report[file] = margins(run, logits)
    if token_map is not None:
        _write_json(path("engram_constants.json"), _engram_constants(c, run))
    _write_json(path("margins.json"), report)
    return report


def main():
    for name in sys.argv[1:] or CASES:
        print(name, json.dumps(make(name), indent=1))


if __name__ == "__main__":
    main()
