"""EXL3 decoding in numpy, written from the format's description, to check its published vectors.

K may be half-integer. Positions 0..255 of a tile, states of 16 bits, codebooks '3inst', 'mcg', 'mul1'.
"""

import numpy as np

import numpy_ops as ops


def positions():
    """(row, column) inside a 16x16 tile of positions 0..255, two int arrays."""
    p = np.arange(256)
    t, j = p >> 3, p & 7
    return 2 * (t & 3) + (j & 1) + 8 * ((j >> 1) & 1), (t >> 2) + 8 * (j >> 2)


def states(words, K):
    """The 256 states of tiles: uint32 stream words [..., 8K] -> int64 [..., 256]."""
    twice = round(2 * K)
    p = np.arange(256)
    end = (p + 1) * twice // 2 if twice % 2 == 0 else (p >> 1) * twice + np.where(p & 1, twice, twice >> 1)
    bit = (end[:, None] - 16 + np.arange(16)) % (128 * twice)
    bits = (words[..., bit >> 5].astype(np.int64) >> (31 - (bit & 31))) & 1
    return (bits << np.arange(15, -1, -1)).sum(-1)


def mul1_byte_sum(state):
    """Sum of the four bytes of state * 0x83DCD12D mod 2^32."""
    x = np.asarray(state, np.int64) * 0x83DCD12D & 0xFFFFFFFF
    return sum(x >> shift & 255 for shift in (0, 8, 16, 24))


def decode(state, codebook):
    """States to float16 weights."""
    state = np.asarray(state, np.int64)
    if codebook == "mul1":
        return ((1774 * mul1_byte_sum(state) - 905216) / 2.0**18).astype(np.float16)
    x = state * 89226354 + 64248484 if codebook == "3inst" else state * 0xCBAC1FED
    y = (x & 0x8FFF8FFF) ^ 0x3B603B60
    low, high = ((half & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64) for half in (y, y >> 16))
    return (low + high).astype(np.float16)


def decode_matrix(words, rows, columns, K, codebook):
    """Stream words of all tiles (tile rows first) to float16 [rows, columns], before the Hadamard transforms."""
    tiles = decode(states(words.reshape(rows // 16, columns // 16, -1), K), codebook)
    out = np.empty((rows // 16, 16, columns // 16, 16), np.float16)
    row, column = positions()
    out[:, row, :, column] = np.moveaxis(tiles, 2, 0)
    return out.reshape(rows, columns)


def dense(Q, suh, svh):
    """diag(suh) H Q H diag(svh) with 128-blocks of the orthonormal Hadamard matrix, float64."""
    rows, columns = Q.shape
    down = ops.hadamard(Q.astype(np.float64).T.reshape(columns, rows // 128, 128)).reshape(columns, rows).T
    along = ops.hadamard(down.reshape(rows, columns // 128, 128)).reshape(rows, columns)
    return suh[:, None] * along * svh


def fnv1a64(data):
    """FNV-1a of bytes, 64 bits, as 16 hex digits."""
    value = 1469598103934665603
    for byte in data:
        value = (value ^ byte) * 1099511628211 & (2**64 - 1)
    return f"{value:016x}"
