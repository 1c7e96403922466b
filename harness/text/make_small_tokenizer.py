#!/usr/bin/env python3
"""Makes golden/tokenizer-small/tokenizer.json: 512 ids, for golden models and for tests without a network.

Layout as in DeepSeek-V4.1's file: ids 0..2 are BOS, EOS and pad, then the 256 byte tokens in the order of their
characters, then merges, then added tokens with the texts and flags of V4.1 (the ids differ). The merges are trained on
the text below.

Usage: make_small_tokenizer.py [--check] FILE
"""

import argparse
import collections
import json
import pathlib
import re
import sys

VOCABULARY = 512

# (text, normalized, special), as V4.1 marks them
LEADING = [("<｜begin▁of▁sentence｜>", False, True), ("<｜end▁of▁sentence｜>", False, True), ("<｜▁pad▁｜>", False, True)]
TRAILING = [
    ("<｜System｜>", True, False), ("<｜fim▁hole｜>", True, False), ("<｜fim▁begin｜>", True, False), ("<｜fim▁end｜>", True, False),
    ("<｜User｜>", True, False), ("<｜Assistant｜>", True, False), ("<|EOT|>", True, False), ("<think>", True, False),
    ("</think>", True, False), ("｜DSML｜", True, False), ("<｜latest_reminder｜>", True, False), ("<｜action｜>", True, False),
    ("<｜query｜>", True, False), ("<｜authority｜>", True, False), ("<｜domain｜>", True, False), ("<｜title｜>", True, False),
    ("<｜read_url｜>", True, False), ("<｜deepseek_image｜>", False, False),
]

SPLIT_PATTERNS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    + "\r\n" + r"""]*|\s*[""" + "\r\n" + r"""]+|\s+(?!\S)|\s+""",
]

TRAINING_TEXT = """
The river was wide and slow where the road came down to it. There had been a bridge once, and there were still stones in the water
that showed where it had stood, but no one in the town could say when it had fallen or who had built it. When the rain came in the
spring the water rose over the stones and then there was nothing to see at all. The man at the mill said that he would build another
if the others would help him, and they said that they would think about it. That was nine years ago.

Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)

You are a helpful assistant. What is the stock price of NVDA? Answer with only the number. Please write the function and then test it.

def read_lines(path, limit=None):
    with open(path) as source:
        for number, line in enumerate(source):
            if limit is not None and number >= limit:
                return
            yield line.rstrip()

static int count_tokens(const std::string& text, std::size_t begin, std::size_t end) {
  int count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (text[i] == ' ' || text[i] == '\\n') count += 1;
  }
  return count;
}

{"name": "get_weather", "description": "Get the weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
<tool_result>{"city": "Paris", "temperature": 21.5, "unit": "celsius"}</tool_result>
 calls>
 invoke name="get_weather">
 parameter name="city" string="true">Paris</ parameter>
</ invoke>
</ calls>
tool_calls invoke parameter string="false">

今天的天气很好，我们一起去公园吧。你好，世界！我是一个学生，今天我们学习中文。人工智能的发展很快，我们的生活也在改变。
今日は天気がいいです。私は学生です。
"""


def byte_characters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        characters.setdefault(byte, chr(0x100 + len(characters) - len(printable)))
    return characters


def train(count):
    """The merges that byte-pair encoding learns: the most frequent pair first, ties by text."""
    characters = byte_characters()
    pieces = re.findall(r" ?[A-Za-z]+| ?[!-/:-@\[-`{-~]+\n*|[0-9]{1,3}|\s+|[^\x00-\x7f]+", TRAINING_TEXT)
    words = collections.Counter(tuple(characters[byte] for byte in piece.encode()) for piece in pieces)
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = collections.Counter({merge_in(word, best): times for word, times in words.items()})
    return merges


def merge_in(word, pair):
    merged = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] = merged[-1] + symbol
        else:
            merged.append(symbol)
    return tuple(merged)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def make():
    vocabulary = [text for text, _, _ in LEADING] + sorted(byte_characters().values())
    merges = train(VOCABULARY - len(vocabulary) - len(TRAILING))
    vocabulary += ["".join(pair) for pair in merges]
    added = []
    for first_id, tokens in ((0, LEADING), (len(vocabulary), TRAILING)):
        for token_id, (text, normalized, special) in enumerate(tokens, first_id):
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special}
            added.append({"id": token_id, "content": text, **flags})
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*map(split, SPLIT_PATTERNS), {**byte_level, "add_prefix_space": False, "use_regex": False}],
        },
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: token_id for token_id, text in enumerate(vocabulary)},
            "merges": [" ".join(pair) for pair in merges],
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with FILE and write nothing")
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    text = json.dumps(make(), ensure_ascii=False, indent=1) + "\n"
    if not arguments.check:
        arguments.file.write_text(text)
    elif arguments.file.read_text() != text:
        sys.exit(f"{arguments.file} differs from what the script makes")


if __name__ == "__main__":
    main()
