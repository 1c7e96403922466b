"""Writes golden/oracles/micro/*.json: small inputs and outputs of each operation, from numpy_ops.py.

    python make_micro.py [--check]

First it checks numpy_ops against the specification's own vectors (appendix_b.json) and
numpy_exl3 against those of the EXL3 format (exl3_vectors.json); a difference is an error.
With --check it writes nothing and also fails if a committed file differs from what it would write.

Every file is {"operation", "cases": [...]}; a case holds inputs and outputs by name, arrays as
nested lists. Inputs of quantisers are exact in BF16; floats are written so that they read back
to the same double. Outputs are float64 results: compare with a tolerance, except quantisers,
integers and Hadamard inputs on a lattice, which are exact.
"""

import json
import os
import re
import sys

import numpy as np

import numpy_exl3 as exl3
import numpy_ops as ops
from make_v41_oracle import ORACLES
from tensor_files import bf16_encode, to_float64

MICRO = os.path.join(ORACLES, "micro")


# ---- the specification's vectors ----------------------------------------------------------


def _expect(condition, what):
    if not condition:
        raise AssertionError(f"{what} differs from the specification's vector")


def _load(name):
    with open(os.path.join(MICRO, name)) as file:
        return json.load(file)


def _check_quantisers(v):
    x = np.zeros(32)
    x[:8] = v["x_then_zeros"]
    for name, (scale, y), block in (
        ("act_quant8_block32", ops.act_quant8(x, 32), 32),
        ("act_quant4_block32_E8M0", ops.act_quant4(x, 32, "E8M0"), 32),
        ("act_quant4_block16_E4M3", ops.act_quant4(x, 16, "E4M3"), 16),
    ):
        want = v[name]
        expected_scale = want["scale"] if "scale" in want else 2.0 ** want["scale_log2"]
        _expect(scale[0] == expected_scale and (y[:8] == want["values"]).all(), name)


def _check_mhc(v):
    m = np.sin(1.7 * np.arange(24))[None]
    results = ops.mhc_coefficients(m, v["scale"], np.zeros(24), 4, v["rounds"], v["eps"])
    for name, value in zip(("pre", "post", "C"), results):
        _expect(np.abs(value[0] - v[name]).max() < v["absolute_tolerance"], f"mHC {name}")


def _check_yarn(v):
    keys = ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")
    got = ops.inverse_frequencies(v["rope_dim"], v["theta"], {key: v[key] for key in keys})
    want = np.array(v["inverse_frequencies"])
    _expect((np.abs(got / want - 1) < v["relative_tolerance"]).all(), "YaRN")
    plain = ops.inverse_frequencies(64, 10000.0)
    for j, value in v["plain_theta_10000"].items():
        _expect(abs(plain[int(j)] / value - 1) < v["relative_tolerance"], f"frequency {j}")


def _check_engram(v):
    vocab, pad, ids = v["compressed_vocab_size"], v["pad"], v["compressed_ids"]
    primes = ops.engram_primes(2, 4, 8, v["prime_search_base"])
    for layer_primes, layer in zip(primes, ("1", "14")):
        multipliers = ops.engram_multipliers(int(layer), 4, vocab)
        _expect(multipliers == [int(m) for m in v["multipliers"][layer]], "Engram multipliers")
        _expect(layer_primes == v["primes"][layer], "Engram primes")
        _expect(sum(map(sum, layer_primes)) == v["prime_sums"][layer], "Engram prime sum")
        rows = ops.engram_rows(ids, multipliers, layer_primes, pad)
        for position, want in v["rows"][layer].items():
            _expect(rows[int(position)].tolist() == want, "Engram rows")
        dead = ops.engram_rows(ids[:2] + [-1] + ids[3:], multipliers, layer_primes, pad)
        _expect(dead[4, 8] == v["dead_position_2_first_3gram_column_at_p4"][layer], "Engram dead rows")
        _expect((dead[4, :8] == rows[4, :8]).all(), "Engram 2-grams beside a dead position")


def check_appendix_b():
    """Raises AssertionError if numpy_ops differs from Appendix B or section 6.2."""
    v = _load("appendix_b.json")
    _check_quantisers(v["quantisers"])
    _check_mhc(v["mhc"])
    _check_yarn(v["yarn"])
    _check_engram(v["engram"])


def _bits(values):
    return [f"{int(b):04x}" for b in np.atleast_1d(values).view(np.uint16)]


def _check_tiles(v):
    words = lambda K: ((0x01234567 * np.arange(1, 8 * K + 1, dtype=np.int64) + 0x9E3779B9) & 0xFFFFFFFF)
    row, column = exl3.positions()
    for p, r, c in v["position_row_column"]:
        _expect((row[p], column[p]) == (r, c), "EXL3 position")
    for K, wanted in v["states_hex_by_K_and_position"].items():
        state = exl3.states(words(float(K)), float(K))
        for p, want in wanted.items():
            _expect(f"{state[int(p)]:04x}" == want, f"EXL3 state K={K} p={p}")
    for entry in v["decoded_fp16_hex"]:
        state = exl3.states(words(entry["K"]), entry["K"])[entry["position"]]
        for codebook in {"3inst", "mcg", "mul1"} & entry.keys():
            _expect(_bits(exl3.decode(state, codebook)) == [entry[codebook]], "EXL3 decoded value")
    for K, hashes in v["fnv1a64_of_tile_row_major"].items():
        for codebook, want in hashes.items():
            tile = exl3.decode_matrix(words(float(K)), 16, 16, float(K), codebook)
            _expect(exl3.fnv1a64(tile.tobytes()) == want, f"EXL3 tile K={K} {codebook}")


def _check_codebooks(v):
    for codebook, want in v["fnv1a64_of_65536_values"].items():
        _expect(exl3.fnv1a64(exl3.decode(np.arange(65536), codebook).tobytes()) == want, f"EXL3 {codebook}")
    for state, row in v["states"].items():
        for codebook in ("3inst", "mcg", "mul1"):
            _expect(_bits(exl3.decode(int(state, 16), codebook)) == [row[codebook]], f"EXL3 state {state}")
        _expect(exl3.mul1_byte_sum(int(state, 16)) == row["mul1_byte_sum"], "EXL3 byte sum")


def _pseudo_words(count):
    x = np.arange(count, dtype=np.uint64) * 2654435761 + 12345 & 0xFFFFFFFF
    x ^= x >> np.uint64(15)
    x = x * 0x2C1B3C6D & 0xFFFFFFFF
    return (x ^ (x >> np.uint64(12))).astype(np.int64)


def _check_linear(v):
    i, j = np.arange(v["in"]), np.arange(v["out"])
    suh = ((37 * i % 64) + 32) / 64 * np.where(i * i & 8, -1, 1)
    svh = ((53 * j % 32) + 16) / 1024 * np.where(j * j & 4, -1, 1)
    x = ((29 * i % 97) - 48) / 32
    for row in v["rows"]:
        words = _pseudo_words(16 * 8 * round(8 * row["K"]))
        Q = exl3.decode_matrix(words, v["in"], v["out"], row["K"], row["codebook"])
        W = exl3.dense(Q, suh, svh)
        y = x @ W
        got = {"Q[0][0]": Q[0, 0], "Q[5][77]": Q[5, 77], "Q[255][127]": Q[255, 127], "W[0][0]": W[0, 0]}
        got |= {"W[200][100]": W[200, 100], "y0": y[0], "y1": y[1], "y64": y[64], "y127": y[127], "Σy²": y @ y}
        for name, value in got.items():
            _expect(abs(float(value) - row[name]) <= v["relative_tolerance"] * abs(row[name]), f"EXL3 {name}")


def check_exl3():
    """Raises AssertionError if numpy_exl3 differs from the format's vectors."""
    v = _load("exl3_vectors.json")
    _check_tiles(v["section_2_6"])
    _check_codebooks(v["section_3_4"])
    _check_linear(v["section_4_4"])


# ---- generated vectors ----------------------------------------------------------------------


def _bf16(x):
    return to_float64(("BF16", bf16_encode(x)))


def _quantiser_inputs(rng, block):
    """Two rows of 2 blocks: ordinary values; a zero block, a block with a power-of-two maximum; grid midpoints."""
    ordinary = rng.standard_normal((2, 2 * block)) * np.exp(rng.standard_normal((2, 1)) * 3)
    edges = np.zeros((1, 2 * block))
    edges[0, block : 2 * block] = rng.uniform(-1, 1, block)
    edges[0, block] = 448 * 2.0**-3
    middles = np.zeros((1, 2 * block))
    middles[0, :8] = [6, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5]
    middles[0, block : block + 8] = [448, 17, -19, 0.001953125, -0.0009765625, 0.0029296875, 1e-6, 26]
    tiny = rng.standard_normal((1, 2 * block)) * 1e-6
    return _bf16(np.concatenate([ordinary, edges, middles, tiny]))


def act_quant8_cases(rng):
    for block in (32, 64, 128):
        x = _quantiser_inputs(rng, block)
        scale, y = ops.act_quant8(x, block)
        yield {"block": block, "x": x, "scale": scale, "y": y}


def act_quant4_cases(rng):
    for block, kind in ((32, "E8M0"), (16, "E4M3")):
        x = _quantiser_inputs(rng, block)
        scale, y = ops.act_quant4(x, block, kind)
        yield {"block": block, "scale_kind": kind, "x": x, "scale": scale, "y": y}


def mhc_cases(rng):
    for streams, rounds, norm_eps in ((4, 20, 1e-20), (4, 20, 1e-6), (2, 3, 1e-6), (3, 1, 1e-20)):
        width, mixes = 6, (2 + streams) * streams
        X, f = rng.standard_normal((3, streams, width)), rng.standard_normal((3, width))
        fn = rng.standard_normal((mixes, streams * width)) * 0.5
        scale, base = rng.uniform(0.5, 2, 3), rng.standard_normal(mixes)
        pre, post, comb = ops.mhc_mix(X, fn, scale, base, rounds, 1e-6, norm_eps)
        yield {
            "streams_TSE": X, "fn": fn, "scale": scale, "base": base, "rounds": rounds, "hc_eps": 1e-6, "norm_eps": norm_eps,
            "sublayer_output_TE": f, "pre": pre, "post": post, "comb": comb,
            "collapsed": ops.mhc_collapse(X, pre), "expanded": ops.mhc_expand(f, X, post, comb),
        }


def frequency_cases(rng):
    del rng
    yarn = lambda *v: dict(zip(("factor", "beta_fast", "beta_slow", "original_max_position_embeddings"), v))
    for rope_dim, theta, scaling in (
        (64, 10000.0, None), (64, 160000.0, None), (64, 160000.0, yarn(16, 32, 1, 65536)), (16, 160000.0, yarn(16, 32, 1, 256)),
        (32, 160000.0, yarn(8, 16, 2, 512)), (8, 10000.0, yarn(4, 32, 1, 64)), (16, 160000.0, yarn(16, 32, 1, 4)),
    ):
        yield {"rope_dim": rope_dim, "theta": theta, "yarn": scaling, "inverse_frequencies": ops.inverse_frequencies(rope_dim, theta, scaling)}


def rope_cases(rng):
    for rope_dim, dim, inverse in ((8, 12, False), (8, 8, True), (16, 20, False)):
        frequencies = ops.inverse_frequencies(rope_dim, 10000.0)
        positions, x = np.array([0, 1, 17, 1000, 65537, 1048575]), rng.standard_normal((6, dim))
        yield {"positions": positions, "inverse": inverse, "theta": 10000.0, "rope_dim": rope_dim, "x": x, "y": ops.rope(x, positions, frequencies, inverse)}


def router_cases(rng):
    z = rng.standard_normal((6, 8)) * 2
    z[4], z[5] = -30 + rng.standard_normal(8), 25 + rng.standard_normal(8)
    bias = rng.standard_normal(8) * 0.2
    for k, scaling in ((2, 1.5), (6, 1.5), (1, 2.5)):
        ids, weight = ops.route(z, bias, k, scaling)
        yield {"logits": z, "bias": bias, "k": k, "scaling": scaling, "scores": ops.sqrt_softplus(z), "ids": ids, "weights": weight}
    chosen = np.array([rng.permutation(8)[:3] for _ in z])
    _, weight = ops.route(z, 0, 3, 1.5, chosen)
    yield {"logits": z, "hash_ids": chosen, "k": 3, "scaling": 1.5, "ids": chosen, "weights": weight}


def swiglu_cases(rng):
    gate = np.concatenate([rng.standard_normal(12) * 6, [-200, -30, 9.999, 10, 10.001, 50, 0, -0.5]])
    up = np.concatenate([rng.standard_normal(12) * 6, [3, -11, 10, -10, 10.5, -300, 4, 0]])
    for limit in (10.0, 7.0):
        yield {"gate": gate, "up": up, "limit": limit, "y": ops.clamped_swiglu(gate, up, limit)}


def pooling_cases(rng):
    draw = lambda rows, columns, scale=1.0: np.round(rng.standard_normal((rows, columns)) * scale, 4)
    kv, gate = draw(9, 4), draw(9, 4, 2)
    yield {"kind": "disjoint", "ratio": 2, "kv": kv, "gate": gate, "entries": ops.pool_disjoint(kv, gate, 2)}
    kv, gate, ape = draw(14, 6), draw(14, 6, 2), draw(4, 6)
    yield {"kind": "overlapping", "ratio": 4, "kv": kv, "gate": gate, "ape": ape, "entries": ops.pool_overlapping(kv, gate, 4, ape)}
    kv, gate, ape = draw(260, 2), draw(260, 2, 2), draw(128, 2)
    yield {"kind": "disjoint", "ratio": 128, "kv": kv, "gate": gate, "ape": ape, "entries": ops.pool_disjoint(kv, gate, 128, ape)}


def engram_cases(rng):
    ids = rng.integers(0, 90, 12).tolist()
    dead = ids[:5] + [-1] + ids[6:]
    primes = ops.engram_primes(2, 4, 2, 67)
    for layer, layer_primes in zip((1, 2), primes):
        multipliers = ops.engram_multipliers(layer, 4, 90)
        for sequence in (ids, dead):
            rows = ops.engram_rows(sequence, multipliers, layer_primes, 1)
            yield {
                "layer": layer, "compressed_vocab_size": 90, "prime_search_base": 67, "pad": 1, "compressed_ids": sequence,
                "multipliers": [str(m) for m in multipliers], "primes": layer_primes, "rows": rows,
            }
    for eps in (1e-20, 1e-6):
        X, key = rng.standard_normal((3, 4, 8)), rng.standard_normal((3, 4, 8)) * 0.1
        q, k, value = rng.standard_normal((4, 8)), rng.standard_normal((4, 8)), rng.standard_normal((3, 8))
        key[2, 0] = 0
        alpha = ops.engram_gate(X, key, q, k, eps)
        yield {
            "streams_TSE": X, "key_TSE": key, "value_TE": value, "q_weight": q, "k_weight": k, "eps": eps, "alpha": alpha,
            "y": X + alpha[:, :, None] * value[:, None, :],
        }


def hadamard_cases(rng):
    for n in (32, 64, 128):
        lattice = rng.integers(-8, 9, (1, n)).astype(float)
        yield {"x": lattice, "y_times_sqrt_n": np.round(ops.hadamard(lattice) * np.sqrt(n)), "y": ops.hadamard(lattice)}
        x = np.round(rng.standard_normal((1, n)), 4)
        yield {"x": x, "y": ops.hadamard(x)}


def index_score_cases(rng):
    q, k, w = rng.standard_normal((3, 4, 8)), rng.standard_normal((5, 8)), rng.standard_normal((3, 4))
    yield {"q_THI": q, "k_NI": k, "w_TH": w, "scores": ops.index_scores(q, k, w)}


FILES = {
    "act_quant8": act_quant8_cases,
    "act_quant4": act_quant4_cases,
    "mhc": mhc_cases,
    "inverse_frequencies": frequency_cases,
    "rope": rope_cases,
    "router": router_cases,
    "clamped_swiglu": swiglu_cases,
    "pooling": pooling_cases,
    "engram": engram_cases,
    "hadamard": hadamard_cases,
    "index_scores": index_score_cases,
}


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        # float32 results (RoPE frequencies) widen exactly.
        return value.astype(np.float64).tolist() if value.dtype.kind == "f" else value.tolist()
    return value


def render(name, seed):
    """Text of one micro file."""
    cases = [_plain(case) for case in FILES[name](np.random.default_rng([seed, 2026]))]
    text = json.dumps({"operation": name, "cases": cases}, indent=1, allow_nan=False)
    # One line for each innermost list.
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text) + "\n"


def main():
    check_appendix_b()
    check_exl3()
    for seed, name in enumerate(FILES):
        path, text = os.path.join(MICRO, name + ".json"), render(name, seed)
        if "--check" not in sys.argv:
            with open(path, "w") as file:
                file.write(text)
        elif open(path).read() != text:
            raise AssertionError(f"{path} is not what this program writes")


if __name__ == "__main__":
    main()
