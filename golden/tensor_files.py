"""Safetensors files and the small float formats that checkpoints use, in plain numpy.

A tensor is a pair (dtype name as safetensors spells it, array). BF16 arrays hold the upper
16 bits as uint16, F8_E4M3 and F8_E8M0 arrays the code bytes as uint8; the other dtypes map
to numpy's own. `to_float64` gives the values.
"""

import json
import struct

import numpy as np

_STORAGE = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
}


def _e4m3_table():
    """Values of the 256 E4M3 (finite, 'fn') codes; 0x7F and 0xFF are NaN."""
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent = (code >> 3) & 15
    mantissa = code & 7
    value = np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10)
    )
    value[(code & 0x7F) == 0x7F] = np.nan
    return sign * value


E4M3_VALUES = _e4m3_table()


def round_to_grid(x, grid):
    """Index into the ascending non-negative `grid` of the value nearest to |x|, ties to the even index.

    |x| beyond the last grid value gives the last index.
    """
    magnitude = np.minimum(np.abs(np.asarray(x, np.float64)), grid[-1])
    upper = np.clip(np.searchsorted(grid, magnitude, side="left"), 1, len(grid) - 1)
    lower = upper - 1
    below, above = magnitude - grid[lower], grid[upper] - magnitude
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.where(take_upper, upper, lower)


def e4m3_encode(x):
    """Nearest E4M3 codes (ties to even), saturating at 448; uint8."""
    index = round_to_grid(x, E4M3_VALUES[:127])
    return (index | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def bf16_encode(x):
    """Float values rounded to nearest-even BF16; uint16. Finite inputs only."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def to_float64(tensor):
    """Values of a (dtype, array) pair as float64 (integers stay integers)."""
    dtype, array = tensor
    if dtype == "BF16":
        return (array.astype("<u4") << 16).view("<f4").astype(np.float64)
    if dtype == "F8_E4M3":
        return E4M3_VALUES[array]
    if dtype == "F8_E8M0":
        return np.ldexp(1.0, array.astype(np.int32) - 127)
    if dtype.startswith("I"):
        return array
    return array.astype(np.float64)


def write_safetensors(path, tensors):
    """Writes {name: (dtype, array)} sorted by name, the header padded to 8 bytes."""
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        blob = np.ascontiguousarray(array, _STORAGE[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)


def read_safetensors(path):
    """Reads a file into {name: (dtype, array)}."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[begin:end], _STORAGE[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = (entry["dtype"], array)
    return tensors
