"""Makes the tiny random V4 checkpoints hf-v4-a and hf-v4-b and the logits of Hugging Face transformers for them.

    python make_v4_oracle.py [NAME ...]        needs torch and transformers (made with 5.24.0 on a CPU)

The checkpoint is drawn here under the official tensor names; its values go into
DeepseekV4ForCausalLM in float32 under that class's names, and the whole sequence runs at once.
The library applies no fake quantisation to V4, so logits.f32 compares with `--fake-quant none`.
"""

import json
import os
import sys

import numpy as np

from make_v41_oracle import ORACLES, Weights, draw_ids
from tensor_files import to_float64, write_safetensors

_COMMON = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 256,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}

CASES = {
    # 2 streams, no hash layer, no YaRN, index top-k above the number of entries, a ratio-4 layer first.
    "hf-v4-a": {
        "seed": 3,
        "tokens": 270,
        "hidden_size": 48,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 32,
        "sliding_window": 11,
        "compress_ratios": [4, 128, 0, 4],
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 512,
        "n_routed_experts": 5,
        "num_experts_per_tok": 3,
        "num_hash_layers": 0,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 7,
    },
    # 4 streams, wide heads, three hash layers, YaRN with another factor, ratio 32 where the model has 128.
    "hf-v4-b": {
        "seed": 1,
        "tokens": 251,
        "hidden_size": 32,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "head_dim": 128,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 32,
        "o_groups": 1,
        "o_lora_rank": 32,
        "sliding_window": 32,
        "compress_ratios": [0, 32, 4, 32],
        "index_n_heads": 8,
        "index_head_dim": 64,
        "index_topk": 10,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_hash_layers": 3,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "rope_scaling": {
            "type": "yarn",
            "factor": 8,
            "beta_fast": 16,
            "beta_slow": 2,
            "original_max_position_embeddings": 512,
        },
    },
}


def _draw_compressor(w, prefix, ratio, width, hidden):
    columns = 2 * width if ratio == 4 else width
    w.floats(prefix + "ape", ratio, columns, deviation=0.5)
    w.matrix(prefix + "wkv.weight", columns, hidden)
    w.matrix(prefix + "wgate.weight", columns, hidden, gain=1.5)
    w.norm(prefix + "norm.weight", width)


def _draw_attention(w, c, layer):
    p, ratio = f"layers.{layer}.attn.", c["compress_ratios"][layer]
    E, D, H, Q = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["q_lora_rank"]
    G, O, I = c["o_groups"], c["o_lora_rank"], c["index_head_dim"]
    w.floats(p + "attn_sink", H)
    w.matrix(p + "wq_a.weight", Q, E)
    w.norm(p + "q_norm.weight", Q)
    w.matrix(p + "wq_b.weight", H * D, Q)
    w.matrix(p + "wkv.weight", D, E)
    w.norm(p + "kv_norm.weight", D)
    w.matrix(p + "wo_a.weight", G * O, H * D // G, gain=1.5)
    w.matrix(p + "wo_b.weight", E, G * O, gain=1.5)
    if ratio:
        _draw_compressor(w, p + "compressor.", ratio, D, E)
    if ratio == 4:
        w.matrix(p + "indexer.wq_b.weight", c["index_n_heads"] * I, Q)
        w.matrix(p + "indexer.weights_proj.weight", c["index_n_heads"], E)
        _draw_compressor(w, p + "indexer.compressor.", ratio, I, E)


def _draw_moe(w, c, layer):
    p = f"layers.{layer}.ffn."
    E, F, X, k = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"], c["num_experts_per_tok"]
    w.matrix(p + "gate.weight", X, E, gain=1.5)
    if layer < c["num_hash_layers"]:
        table = np.array([w.rng.permutation(X)[:k] for _ in range(c["vocab_size"])])
        w.tensors[p + "gate.tid2eid"] = ("I64", table)
    else:
        w.floats(p + "gate.bias", X, deviation=0.1)
    for expert in [f"experts.{e}" for e in range(X)] + ["shared_experts"]:
        w.matrix(f"{p}{expert}.w1.weight", F, E, gain=2.0)
        w.matrix(f"{p}{expert}.w3.weight", F, E, gain=2.0)
        w.matrix(f"{p}{expert}.w2.weight", E, F)


def _draw_site(w, name, mixes, streams, hidden, scales):
    w.floats(name + "fn", mixes, streams * hidden, deviation=(streams * hidden) ** -0.5)
    w.floats(name + "base", mixes, deviation=0.5)
    w.floats(name + "scale", scales, mean=1.0, deviation=0.3)


def draw_checkpoint(c, seed):
    """All tensors of a checkpoint with the flat config `c`."""
    w, E, V, S = Weights(seed), c["hidden_size"], c["vocab_size"], c["hc_mult"]
    w.matrix("embed.weight", V, E, gain=np.sqrt(E))
    w.norm("norm.weight", E)
    w.matrix("head.weight", V, E, gain=2.0)
    _draw_site(w, "hc_head_", S, S, E, 1)
    for layer in range(c["num_hidden_layers"]):
        p = f"layers.{layer}."
        w.norm(p + "attn_norm.weight", E)
        w.norm(p + "ffn_norm.weight", E)
        for site in ("hc_attn_", "hc_ffn_"):
            _draw_site(w, p + site, (2 + S) * S, S, E, 3)
        _draw_attention(w, c, layer)
        _draw_moe(w, c, layer)
    return w.tensors


_LEAVES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    "attn.indexer.wq_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "attn.indexer.weights_proj.weight": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
}
for _official, _library in (("attn.compressor.", ""), ("attn.indexer.compressor.", "indexer.")):
    for _leaf, _name in (
        ("ape", "position_bias"),
        ("wkv.weight", "kv_proj.weight"),
        ("wgate.weight", "gate_proj.weight"),
        ("norm.weight", "kv_norm.weight"),
    ):
        _LEAVES[_official + _leaf] = f"self_attn.compressor.{_library}{_name}"
for _site in ("attn", "ffn"):
    for _leaf in ("fn", "base", "scale"):
        _LEAVES[f"hc_{_site}_{_leaf}"] = f"{_site}_hc.{_leaf}"

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}


def library_state(c, tensors):
    """The checkpoint as {library name: numpy array}."""
    value = {name: to_float64(tensor) for name, tensor in tensors.items()}
    state = {library: value[official] for official, library in _TOP.items()}
    for layer in range(c["num_hidden_layers"]):
        source, target = f"layers.{layer}.", f"model.layers.{layer}."
        for official, library in _LEAVES.items():
            if source + official in value:
                state[target + library] = value[source + official]
        expert = lambda e, name: value[f"{source}ffn.experts.{e}.{name}.weight"]
        count = range(c["n_routed_experts"])
        state[target + "mlp.experts.gate_up_proj"] = np.stack(
            [np.concatenate([expert(e, "w1"), expert(e, "w3")]) for e in count]
        )
        state[target + "mlp.experts.down_proj"] = np.stack([expert(e, "w2") for e in count])
    return state


def library_logits(c, tensors, ids):
    """Float32 logits [T, vocab] of the library's model."""
    import torch
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    plain = max((r for r in c["compress_ratios"] if r not in (0, 4)), default=128)
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", plain: "heavily_compressed_attention"}
    arguments = {k: v for k, v in c.items() if k not in ("architectures", "model_type", "compress_ratios", "torch_dtype")}
    config = DeepseekV4Config(
        **arguments,
        layer_types=[kinds[r] for r in c["compress_ratios"]],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": plain},
    )
    config._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).float().eval()
    state = {
        name: torch.tensor(array, dtype=torch.int64 if array.dtype == np.int64 else torch.float32)
        for name, array in library_state(c, tensors).items()
    }
    missing, extra = model.load_state_dict(state, strict=False)
    if extra or missing:
        raise RuntimeError(f"tensor names do not match: missing {missing}, extra {extra}")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def make(name, root=ORACLES):
    """Writes one oracle directory."""
    case = CASES[name]
    c = {**_COMMON, **{key: value for key, value in case.items() if key not in ("seed", "tokens")}}
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    path = lambda file: os.path.join(directory, file)
    tensors, ids = draw_checkpoint(c, case["seed"]), draw_ids(c["vocab_size"], case["tokens"], case["seed"])
    with open(path("config.json"), "w") as file:
        json.dump(c, file, indent=1)
        file.write("\n")
    with open(path("ids.json"), "w") as file:
        json.dump(ids, file)
    write_safetensors(path("model.safetensors"), tensors)
    logits = library_logits(c, tensors, ids)
    logits.astype("<f4").tofile(path("logits.f32"))
    top = np.sort(logits, axis=1)
    print(name, "deviation", logits.std(), "smallest top-2 margin", (top[:, -1] - top[:, -2]).min())


def main():
    for name in sys.argv[1:] or CASES:
        make(name)


if __name__ == "__main__":
    main()
