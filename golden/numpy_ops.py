"""The operations of DeepSeek-V4 and V4.1, one by one, in numpy float64.

Written from the formulas of the architecture specification, independently of the engine, so
that the engine can be compared with them. Quantisers take float32 values, as the models do.
Shapes: T tokens, S streams, E hidden size, D head dim, R rope dim, X experts.
"""

import math

import numpy as np

from tensor_files import E4M3_VALUES, round_to_grid

E2M1_GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3_GRID = E4M3_VALUES[:127]


# ---- quantisers -------------------------------------------------------------------------


def _pow2_ceil(scale):
    """2^ceil(log2(s)) of positive normal float32 values, by their bits, as float64."""
    bits = scale.view(np.uint32)
    exponent = (bits >> 23).astype(np.int64) - 127 + ((bits & 0x7FFFFF) != 0)
    return np.ldexp(1.0, exponent)


def _quantise_blocks(x, block, scale_of, grid):
    """Rounds x/scale onto +-grid per block of the last dimension; returns (scales, dequantised)."""
    x = np.asarray(x, np.float32)
    assert x.shape[-1] % block == 0
    blocks = x.reshape(*x.shape[:-1], -1, block)
    scale = scale_of(np.abs(blocks).max(-1))
    # Every scale that occurs is a power of two or has 4 significant bits: x/scale rounded to
    # float32 is what the models round to the grid.
    ratio = (blocks / scale[..., None].astype(np.float32)).astype(np.float32)
    codes = round_to_grid(ratio, grid)
    values = np.copysign(grid[codes] * scale[..., None], blocks)
    return scale, values.reshape(x.shape)


def act_quant8(x, block):
    """FP8 E4M3 with one power-of-two scale a block: (scales [..., n/block], values [..., n])."""

    def scale_of(amax):
        return _pow2_ceil(np.maximum(amax, np.float32(1e-4)) * np.float32(1 / 448))

    return _quantise_blocks(x, block, scale_of, E4M3_GRID)


def act_quant4(x, block, scale_kind):
    """FP4 E2M1 with a scale a block, scale_kind 'E8M0' or 'E4M3': (scales, values)."""

    def e8m0(amax):
        return _pow2_ceil(np.maximum(amax, np.float32(6 * 2.0**-126)) * np.float32(1 / 6))

    def e4m3(amax):
        return E4M3_GRID[round_to_grid(np.maximum(amax, np.float32(6 * 2.0**-9)) / np.float32(6), E4M3_GRID)]

    return _quantise_blocks(x, block, {"E8M0": e8m0, "E4M3": e4m3}[scale_kind], E2M1_GRID)


# ---- elementwise ------------------------------------------------------------------------


def sigmoid(x):
    """1/(1+e^-x) without overflow."""
    x = np.asarray(x, np.float64)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def softmax(x, axis):
    """Softmax in float64; -inf entries get weight 0, an all -inf slice is not allowed."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def rms_norm(x, weight, eps):
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension; weight None means 1."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def clamped_swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clamp(up, -limit, limit)."""
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(gate) * up


# ---- rotary embedding -------------------------------------------------------------------


def inverse_frequencies(rope_dim, theta, yarn=None):
    """rope_dim/2 inverse frequencies, computed in double and rounded once to float32.

    yarn: None or a dict of factor, beta_fast, beta_slow, original_max_position_embeddings.
    """
    j = np.arange(rope_dim // 2)
    plain = theta ** (-2.0 * j / rope_dim)
    if yarn is None:
        return plain.astype(np.float32)

    def corner(rotations):
        original = yarn["original_max_position_embeddings"]
        return rope_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(corner(yarn["beta_fast"])), 0)
    high = min(math.ceil(corner(yarn["beta_slow"])), rope_dim - 1)
    ramp = np.clip((j - low) / (high - low if high != low else 0.001), 0, 1)
    return (plain / yarn["factor"] * ramp + plain * (1 - ramp)).astype(np.float32)


def rope(x, positions, frequencies, inverse=False):
    """Rotates the last 2*len(frequencies) channels of x [T, ..., D] in interleaved pairs by position*frequency.

    The model's tables are float32: frequency, angle, cosine and sine are each rounded once.
    """
    angle = np.asarray(positions, np.float32)[:, None] * np.asarray(frequencies, np.float32)
    angle = angle.reshape(len(positions), *([1] * (x.ndim - 2)), -1).astype(np.float64)
    cos, sin = (f(angle).astype(np.float32).astype(np.float64) for f in (np.cos, np.sin))
    sin = -sin if inverse else sin
    split = x.shape[-1] - 2 * len(frequencies)
    even, odd = x[..., split::2], x[..., split + 1 :: 2]
    out = x.copy()
    out[..., split::2] = even * cos - odd * sin
    out[..., split + 1 :: 2] = even * sin + odd * cos
    return out


# ---- hyper-connections ------------------------------------------------------------------


def mhc_coefficients(m, scale, base, streams, rounds, eps):
    """(pre [T,S], post [T,S], comb [T,S,S]) from the mixes m [T, 2S+S*S], before scale and base.

    The Sinkhorn rounds start with the row softmax and end with a column division.
    """
    S = streams
    pre = sigmoid(m[:, :S] * scale[0] + base[:S]) + eps
    post = 2 * sigmoid(m[:, S : 2 * S] * scale[1] + base[S : 2 * S])
    comb = (m[:, 2 * S :] * scale[2] + base[2 * S :]).reshape(-1, S, S)
    comb = softmax(comb, axis=2) + eps
    comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(axis=2, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
    return pre, post, comb


def mhc_mix(streams_TSE, fn, scale, base, rounds, hc_eps, norm_eps):
    """Coefficients of one site from the residual streams [T,S,E]."""
    T, S, E = streams_TSE.shape
    u = streams_TSE.reshape(T, S * E)
    r = 1 / np.sqrt(np.mean(u * u, axis=1, keepdims=True) + norm_eps)
    return mhc_coefficients((u @ fn.T) * r, scale, base, S, rounds, hc_eps)


def mhc_collapse(streams_TSE, pre_TS):
    """Weighted sum over the streams: [T,E]."""
    return (pre_TS[:, :, None] * streams_TSE).sum(axis=1)


def mhc_expand(f_TE, streams_TSE, post_TS, comb_TSS):
    """out_k = post_k f + sum_j comb[j,k] X_j: [T,S,E]."""
    return post_TS[:, :, None] * f_TE[:, None, :] + np.swapaxes(comb_TSS, 1, 2) @ streams_TSE


# ---- router -----------------------------------------------------------------------------


def sqrt_softplus(z):
    """sqrt(log(1 + e^z)), accurate for very negative z."""
    return np.sqrt(np.logaddexp(0.0, np.asarray(z, np.float64)))


def top_k_stable(values, k):
    """Indices of the k largest of each row, by value descending then index ascending."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :k]


def route(z, bias, k, scaling, chosen=None):
    """(expert ids [T,k], weights [T,k]) from router logits z [T,X].

    `bias` moves the choice only; `chosen` [T,k] fixes the choice (hash layers).
    """
    score = sqrt_softplus(z)
    ids = top_k_stable(score + bias, k) if chosen is None else chosen
    weight = np.take_along_axis(score, ids, axis=1)
    return ids, weight / (weight.sum(axis=1, keepdims=True) + 1e-20) * scaling


# ---- compressors (pooling only: before the norm and RoPE) --------------------------------


def pool_disjoint(kv, gate, ratio, ape=None):
    """Softmax-gated mean of each complete group of `ratio` rows: [T,D],[T,D] -> [T//ratio,D]. ape [ratio,D] is added to gate."""
    groups = len(kv) // ratio
    kv = kv[: groups * ratio].reshape(groups, ratio, -1)
    gate = gate[: groups * ratio].reshape(groups, ratio, -1)
    weight = softmax(gate if ape is None else gate + ape, axis=1)
    return (weight * kv).sum(axis=1)


def pool_overlapping(kv, gate, ratio, ape):
    """Overlapping pooling: rows carry [previous-entry half | own-entry half], [T,2D] -> [T//ratio,D].

    Entry j weighs the first halves of group j-1 (absent for j = 0) and the second halves of group j.
    """
    groups, width = len(kv) // ratio, kv.shape[1] // 2
    kv = kv[: groups * ratio].reshape(groups, ratio, 2 * width)
    gate = gate[: groups * ratio].reshape(groups, ratio, 2 * width) + ape
    out = np.empty((groups, width))
    for j in range(groups):
        values, scores = kv[j, :, width:], gate[j, :, width:]
        if j > 0:
            values = np.concatenate([kv[j - 1, :, :width], values])
            scores = np.concatenate([gate[j - 1, :, :width], scores])
        out[j] = (softmax(scores, axis=0) * values).sum(axis=0)
    return out


# ---- index and Engram -------------------------------------------------------------------


def hadamard(x):
    """Orthonormal Walsh-Hadamard transform (Sylvester order) of the last dimension, a power of two."""
    n = x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x @ matrix / math.sqrt(n)


def index_scores(q_THI, k_NI, w_TH):
    """sum_h w_h relu(q_h . k_j) / sqrt(I * H): [T,N]."""
    heads, dim = q_THI.shape[1:]
    dots = np.maximum(np.einsum("thi,ni->thn", q_THI, k_NI), 0)
    return np.einsum("thn,th->tn", dots, w_TH) / math.sqrt(dim * heads)


def engram_multipliers(layer_id, max_ngram, compressed_vocab):
    """The layer's `max_ngram` odd hash multipliers (python ints)."""
    bound = max(1, (2**63 - 1) // compressed_vocab // 2)
    draws = np.random.default_rng(10007 * layer_id).integers(0, bound, size=max_ngram, dtype=np.int64)
    return [2 * int(v) + 1 for v in draws]


def _is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_primes(layers, max_ngram, heads, base):
    """primes[layer][n-gram][head]: ascending unused primes >= base, the search restarting for every n-gram size."""
    used, out = set(), []
    for _ in range(layers):
        per_ngram = []
        for _ in range(max_ngram - 1):
            candidate, row = base, []
            while len(row) < heads:
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
                candidate += 1
            per_ngram.append(row)
        out.append(per_ngram)
    return out


def engram_rows(compressed, multipliers, primes, pad, dead=-1):
    """Table rows [T, columns] of one layer from compressed ids; `pad` is a compressed id, `dead` blocks look-back."""
    sizes = [p for row in primes for p in row]
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    out = []
    for p in range(len(compressed)):
        blocked, rolling, columns = False, 0, []
        for shift in range(len(multipliers)):
            blocked = blocked or p < shift or compressed[p - shift] == dead
            token = pad if blocked else int(compressed[p - shift])
            rolling ^= token * multipliers[shift]
            if shift > 0:
                columns += [rolling % prime for prime in primes[shift - 1]]
        out.append(np.array(columns) + offsets)
    return np.array(out)


def engram_gate(streams_TSE, key_TSE, q_weight_SE, k_weight_SE, eps):
    """Gate alpha [T,S] of the Engram read-out."""
    dot = (streams_TSE * q_weight_SE * k_weight_SE * key_TSE).sum(-1)
    for side in (streams_TSE, key_TSE):
        dot = dot / np.sqrt(np.mean(side * side, axis=-1) + eps)
    g = dot / math.sqrt(streams_TSE.shape[-1])
    return sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(g), 1e-6)), g))
