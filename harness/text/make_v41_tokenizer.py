#!/usr/bin/env python3
"""Makes the tokenizer.json of DeepSeek-V4.1 from that of DeepSeek-V4.

The two differ in nine added tokens and a final newline. Both files are checked against the SHA-256 of the published
ones, so what comes out is the published file, byte for byte.

Usage: make_v41_tokenizer.py V4.json V41.json
"""

import hashlib
import pathlib
import re
import sys

V4_SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
V41_SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"

# id -> fields that change
CHANGES = {
    128799: {"content": '"<｜System｜>"', "normalized": "true", "special": "false"},
    129264: {"content": '"<｜deepseek_image｜>"'},
    **{129265 + i: {"content": f'"<|place_holder_mm_span_{436 + i:04}|>"'} for i in range(6)},
    129279: {"content": '"<|place_holder_mm_span_0442|>"'},
}


def check(data, expected, name):
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        sys.exit(f"{name}: expected SHA-256 {expected}, got {actual}")


def change_token(text, token_id, fields):
    entry = re.search(r'\{\s*"id": %d,[^{}]*\}' % token_id, text)
    changed = entry.group()
    for name, value in fields.items():
        changed = re.sub(f'("{name}": )("[^"]*"|true|false)', lambda match: match[1] + value, changed)
    return text[: entry.start()] + changed + text[entry.end() :]


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    data = source.read_bytes()
    check(data, V4_SHA256, source)
    text = data.decode()
    for token_id, fields in CHANGES.items():
        text = change_token(text, token_id, fields)
    made = (text + "\n").encode()
    check(made, V41_SHA256, target)
    target.write_bytes(made)


if __name__ == "__main__":
    main()
