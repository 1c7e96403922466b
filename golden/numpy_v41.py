"""Forward pass of DeepSeek-V4.1 over a whole sequence in numpy float64.

Written from the architecture specification, for tiny checkpoints under the official tensor
names with BF16/F32 matrices. It keeps no cache: every layer sees the whole sequence. With
`fake_quant` the three cache quantisers apply (window KV, compressed KV, index queries and
keys); inputs of linears are never quantised and nothing is rounded to BF16.

    python numpy_v41.py MODEL_DIR OUT.f32 [--kv-quant]
"""

import argparse
import json
import os

import numpy as np

import numpy_ops as ops
from tensor_files import read_safetensors, to_float64


class Model:
    """A checkpoint directory: `config` (the text_config), `tensors` by official name as float64, `token_map` or None."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json")) as file:
            self.config = json.load(file)["text_config"]
        raw = read_safetensors(os.path.join(directory, "model.safetensors"))
        self.tensors = {name: to_float64(tensor) for name, tensor in raw.items()}
        path = os.path.join(directory, "engram_token_map.i32")
        self.token_map = np.fromfile(path, "<i4") if os.path.exists(path) else None

    def source_of(self, layer, key):
        """The greatest layer of config[key] that is <= layer."""
        return max(source for source in self.config[key] if source <= layer)


class Trace:
    """Records how thin the discrete decisions of a run were; every list holds one array a decision site."""

    def __init__(self):
        self.router_margin, self.index_margin, self.block_margin, self.expert_counts = [], [], [], []
        self.index_cut, self.blocks_cut = 0, 0


def _cut_margin(scores, k):
    """Per row: k-th minus (k+1)-th largest of the finite values; +inf where at most k are finite."""
    ordered = -np.sort(-scores, axis=-1)
    if ordered.shape[-1] <= k:
        return np.full(len(scores), np.inf)
    below = ordered[:, k]
    return np.where(np.isfinite(below), ordered[:, k - 1] - np.where(np.isfinite(below), below, 0), np.inf)


class Forward:
    """One run. Attributes kept between layers: latents and index keys by kv source, selection by index source."""

    def __init__(self, model, ids, fake_quant):
        self.m, self.c, self.fake_quant = model, model.config, fake_quant
        self.ids = np.asarray(ids)
        self.positions = np.arange(len(ids))
        self.trace = Trace()
        self.eps = self.c["rms_norm_eps"]
        self.compressed_kv, self.index_keys, self.selected = {}, {}, {}
        self.candidates = None
        self.engram_ids = self._engram_ids()

    def _w(self, name):
        return self.m.tensors[name]

    def _norm(self, x, name):
        return ops.rms_norm(x, self._w(name), self.eps)

    def _frequencies(self, ratio):
        c = self.c
        if ratio == 0:
            return ops.inverse_frequencies(c["qk_rope_head_dim"], c["rope_theta"])
        return ops.inverse_frequencies(c["qk_rope_head_dim"], c["compress_rope_theta"], c.get("rope_scaling"))

    def _fp8(self, x):
        return ops.act_quant8(x, 32)[1] if self.fake_quant else x

    def _fp4(self, x, block, kind):
        return ops.act_quant4(x, block, kind)[1] if self.fake_quant else x

    # -- Engram --

    def _engram_ids(self):
        c = self.c
        layers = c.get("engram_layer_ids") or []
        if not layers:
            return {}
        primes = ops.engram_primes(
            len(layers), c["engram_max_ngram_size"], c["engram_n_heads"], c["engram_vocab_size"]
        )
        compressed = self.m.token_map[self.ids]
        pad = int(self.m.token_map[c["engram_pad_token_id"]])
        rows = {}
        for layer, layer_primes in zip(layers, primes):
            multipliers = ops.engram_multipliers(
                layer, c["engram_max_ngram_size"], c["engram_compressed_vocab_size"]
            )
            rows[layer] = ops.engram_rows(compressed, multipliers, layer_primes, pad)
        return rows

    def _engram(self, X, layer):
        T, S, E = X.shape
        prefix = f"layers.{layer}.engram."
        table, scale = self._w(prefix + "embed.weight"), self._w(prefix + "embed.scale")
        table = table * np.repeat(scale, table.shape[1] // scale.shape[1], axis=1)
        kv = table[self.engram_ids[layer]].reshape(T, -1) @ self._w(prefix + "wkv.weight").T
        key, value = kv[:, : S * E].reshape(T, S, E), kv[:, S * E :]
        alpha = ops.engram_gate(X, key, self._w(prefix + "q_weight"), self._w(prefix + "k_weight"), self.eps)
        return X + alpha[:, :, None] * value[:, None, :]

    # -- attention --

    def _compress(self, x, layer, ratio):
        """The kv source's latents [N,D], normalised, before RoPE."""
        prefix = f"layers.{layer}.attn.compressor."
        kv = x @ self._w(prefix + "wkv.weight").T
        if ratio > 1:
            kv = ops.pool_disjoint(kv, x @ self._w(prefix + "wgate.weight").T, ratio)
        return self._norm(kv, prefix + "norm.weight")

    def _index_key(self, latent, layer, positions, frequencies):
        prefix = f"layers.{layer}.attn.indexer."
        key = self._norm(latent @ self._w(prefix + "wk.weight").T, prefix + "k_norm.weight")
        return self._fp4(ops.rope(key, positions, frequencies), 32, "E8M0")

    def _index_scores(self, x, qr, layer, ratio, frequencies):
        """Scores [T,N] against the layer's source's keys, -inf where not visible, and the visible counts [T]."""
        c, prefix = self.c, f"layers.{layer}.attn.indexer."
        q = (qr @ self._w(prefix + "wq_b.weight").T).reshape(len(x), c["index_n_heads"], c["index_head_dim"])
        q = self._fp4(ops.rope(q, self.positions, frequencies), 32, "E8M0")
        keys = self.index_keys[self.m.source_of(layer, "kv_source_layer_ids")]
        scores = ops.index_scores(q, keys, x @ self._w(prefix + "weights_proj.weight").T)
        visible = (self.positions + 1) // ratio
        return np.where(np.arange(len(keys)) < visible[:, None], scores, -np.inf), visible

    def _candidate_mask(self, scores, visible):
        """Entries [T,N] of the best blocks, the one with the newest visible entry always among them."""
        size, keep = self.c["candidate_block_size"], self.c["candidate_topk_blocks"]
        T, N = scores.shape
        blocks = -(-N // size)
        padded = np.full((T, blocks * size), -np.inf)
        padded[:, :N] = scores
        best = padded.reshape(T, blocks, size).max(axis=2)
        reachable = np.isfinite(best)
        newest = (visible - 1) // size
        forced = np.arange(blocks) == newest[:, None]
        self.trace.block_margin.append(_cut_margin(np.where(forced, 1e30, best), min(keep, blocks)))
        self.trace.blocks_cut += int((reachable.sum(axis=1) > keep).sum())
        best = np.where(forced, np.inf, best)
        mask = np.zeros((T, blocks), bool)
        np.put_along_axis(mask, ops.top_k_stable(best, min(keep, blocks)), True, axis=1)
        mask &= reachable
        return np.repeat(mask, size, axis=1)[:, :N]

    def _select(self, x, qr, layer, ratio, frequencies):
        """Mask [T,N] of the compressed entries that each query attends."""
        scores, visible = self._index_scores(x, qr, layer, ratio, frequencies)
        source = self.c["candidate_source_layer_id"]
        if layer == source:
            self.candidates = self._candidate_mask(scores, visible)
        elif 0 <= source < layer:
            scores = np.where(self.candidates, scores, -np.inf)
        k = min(self.c["index_topk"], scores.shape[1])
        self.trace.index_margin.append(_cut_margin(scores, k))
        self.trace.index_cut += int((np.isfinite(scores).sum(axis=1) > k).sum())
        mask = np.zeros(scores.shape, bool)
        np.put_along_axis(mask, ops.top_k_stable(scores, k), True, axis=1)
        return mask & np.isfinite(scores)

    def _compressed_branch(self, x, qr, layer, ratio, frequencies):
        """(entries [N,D], mask [T,N]) that the layer attends besides its window."""
        source = self.m.source_of(layer, "kv_source_layer_ids")
        if layer == source:
            latent = self._compress(x, layer, ratio)
            positions = ratio * np.arange(len(latent))
            self.index_keys[layer] = self._index_key(latent, layer, positions, frequencies)
            self.compressed_kv[layer] = self._fp4(ops.rope(latent, positions, frequencies), 16, "E4M3")
        if layer in self.c["index_source_layer_ids"]:
            self.selected[layer] = self._select(x, qr, layer, ratio, frequencies)
        return self.compressed_kv[source], self.selected[self.m.source_of(layer, "index_source_layer_ids")]

    def _attention(self, x, layer):
        c, prefix = self.c, f"layers.{layer}.attn."
        T, H, D, G = len(x), c["num_attention_heads"], c["head_dim"], c["o_groups"]
        ratio = c["compress_ratios"][layer]
        frequencies = self._frequencies(ratio)
        qr = self._norm(x @ self._w(prefix + "wq_a.weight").T, prefix + "q_norm.weight")
        q = ops.rope((qr @ self._w(prefix + "wq_b.weight").T).reshape(T, H, D), self.positions, frequencies)
        kv = self._norm(x @ self._w(prefix + "wkv.weight").T, prefix + "kv_norm.weight")
        kv = self._fp8(ops.rope(kv, self.positions, frequencies))
        age = self.positions[:, None] - self.positions[None, :]
        mask = (age >= 0) & (age < c["sliding_window"])
        if ratio:
            entries, chosen = self._compressed_branch(x, qr, layer, ratio, frequencies)
            kv, mask = np.concatenate([kv, entries]), np.concatenate([mask, chosen], axis=1)
        logits = np.where(mask[:, None, :], np.einsum("thd,nd->thn", q, kv) / np.sqrt(D), -np.inf)
        sink = np.broadcast_to(self._w(prefix + "attn_sink")[:, None], (T, H, 1))
        weights = ops.softmax(np.concatenate([logits, sink], axis=2), axis=2)[:, :, :-1]
        out = ops.rope(np.einsum("thn,nd->thd", weights, kv), self.positions, frequencies, inverse=True)
        wo_a = self._w(prefix + "wo_a.weight").reshape(G, c["o_lora_rank"], H * D // G)
        y = np.einsum("tgi,goi->tgo", out.reshape(T, G, -1), wo_a).reshape(T, -1)
        return y @ self._w(prefix + "wo_b.weight").T

    # -- mixture of experts --

    def _expert(self, x, prefix):
        gate, up = x @ self._w(prefix + "w1.weight").T, x @ self._w(prefix + "w3.weight").T
        return ops.clamped_swiglu(gate, up, self.c["swiglu_limit"]) @ self._w(prefix + "w2.weight").T

    def _moe(self, x, layer):
        c, prefix = self.c, f"layers.{layer}.ffn."
        k, experts = c["num_experts_per_tok"], c["n_routed_experts"]
        z = x @ self._w(prefix + "gate.weight").T
        bias = self._w(prefix + "gate.bias")
        ids, weight = ops.route(z, bias, k, c["routed_scaling_factor"])
        self.trace.router_margin.append(_cut_margin(ops.sqrt_softplus(z) + bias, k))
        self.trace.expert_counts.append(np.bincount(ids.ravel(), minlength=experts))
        out = self._expert(x, prefix + "shared_experts.")
        for expert in range(experts):
            token, slot = np.nonzero(ids == expert)
            out[token] += weight[token, slot, None] * self._expert(x[token], f"{prefix}experts.{expert}.")
        return out

    # -- the stack --

    def _mix(self, X, layer, site):
        c, name = self.c, f"layers.{layer}.hc_{site}_"
        return ops.mhc_mix(
            X, self._w(name + "fn"), self._w(name + "scale"), self._w(name + "base"),
            c["hc_sinkhorn_iters"], c["hc_eps"], self.eps,
        )

    def _layer(self, X, P, layer):
        if layer in self.engram_ids:
            X = self._engram(X, layer)
        pre, post, comb = self._mix(X, layer, "attn")
        x = self._norm(ops.mhc_collapse(X, P), f"layers.{layer}.attn_norm.weight")
        X = ops.mhc_expand(self._attention(x, layer), X, post, comb)
        next_pre, post, comb = self._mix(X, layer, "ffn")
        x = self._norm(ops.mhc_collapse(X, pre), f"layers.{layer}.ffn_norm.weight")
        return ops.mhc_expand(self._moe(x, layer), X, post, comb), next_pre

    def logits(self):
        """Logits [T, vocab] of every position, float64."""
        X = np.repeat(self._w("embed.weight")[self.ids][:, None, :], self.c["hc_mult"], axis=1)
        P = np.zeros(X.shape[:2])
        P[:, 0] = 1.0
        for layer in range(self.c["num_hidden_layers"]):
            X, P = self._layer(X, P, layer)
        return self._norm(ops.mhc_collapse(X, P), "norm.weight") @ self._w("head.weight").T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--kv-quant", action="store_true", help="apply the cache quantisers")
    options = parser.parse_args()
    with open(os.path.join(options.model, "ids.json")) as file:
        ids = json.load(file)
    Forward(Model(options.model), ids, options.kv_quant).logits().astype("<f4").tofile(options.out)


if __name__ == "__main__":
    main()
