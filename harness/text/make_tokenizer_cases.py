#!/usr/bin/env python3
"""Makes golden/tokenizer-small/cases.json: what the `tokenizers` library makes of the small tokenizer.

Tests compare with it where the library is not at hand. Runs under the Python of ci/fetch_test_data.sh.

Usage: make_tokenizer_cases.py TOKENIZER.json CASES.json
"""

import json
import pathlib
import random
import sys

import tokenizers
import tokenizer_diff
from tokenizers import Regex, normalizers

RANDOM_TEXTS = 100
RANDOM_ID_LISTS = 80


def texts_of(rng, added):
    yield from (text for text in tokenizer_diff.HAND_WRITTEN if len(text) < 400)
    yield from (tokenizer_diff.random_text(rng) for _ in range(RANDOM_TEXTS))
    yield from tokenizer_diff.added_token_texts(rng, added, 25)


def engram_classes(tokenizer):
    """Class of each id after Engram's token compression, with the library's own normalizers."""
    normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), "\ue000"),
        normalizers.Strip(), normalizers.Replace("\ue000", " "),
    ])
    classes, keys = [], {}
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        key = tokenizer.id_to_token(token_id) if "\ufffd" in text else normalizer.normalize_str(text) or text
        classes.append(keys.setdefault(key, len(keys)))
    return classes


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    rng = random.Random(7)
    document = json.loads(source.read_text())
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    texts = list(texts_of(rng, [token["content"] for token in document["added_tokens"]]))
    with_added = tokenizer_diff.encode_theirs(tokenizer, texts)
    without_added = tokenizer_diff.encode_theirs(plain, texts)
    piece_lengths = tokenizer_diff.piece_lengths_theirs(tokenizer, texts)
    size = tokenizer.get_vocab_size()
    id_lists = [[rng.randrange(size) for _ in range(rng.randint(1, 20))] for _ in range(RANDOM_ID_LISTS)]
    cases = {
        "made_by": f"tokenizers {tokenizers.__version__}",
        "encode": [
            {"text": text, "ids": ids, "ids_without_added_tokens": without, "piece_bytes": pieces}
            for text, ids, without, pieces in zip(texts, with_added, without_added, piece_lengths)
        ],
        "decode": [
            {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
             "text_without_special": tokenizer.decode(ids, skip_special_tokens=True)}
            for ids in id_lists
        ],
        "engram_classes": engram_classes(tokenizer),
    }
    lines = ",\n".join(f" {json.dumps(key)}: " + rows(value) for key, value in cases.items())
    target.write_text("{\n" + lines + "\n}\n")


def rows(value):
    """Lists of objects one to a line, in ASCII: an editor must not change the texts."""
    if isinstance(value, list) and isinstance(value[0], dict):
        return "[\n" + ",\n".join("  " + json.dumps(item, separators=(",", ":")) for item in value) + "\n ]"
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    main()
