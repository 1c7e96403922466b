#!/usr/bin/env python3
"""Compares the tokenizer with the `tokenizers` library: pieces, ids, decoded text. Differences are printed and fail.

Texts: every code point between letters, spaces and digits; random strings over all character classes; words of each
script of the vocabulary, run together; hard cases by hand; added tokens, whole and broken; files found on this machine.
Ids: those of the texts, and random ones. Needs what ci/fetch_test_data.sh fetches, and skips without it.

Usage: tokenizer_diff.py --cli PATH/tokenizer_cli [--quick] [--strings N] [--corpus-mb N] [--seed N] [TOKENIZER.json...]
       --quick: below a minute; every assigned character, but only a sample of ideographs and unassigned code points
       Default tokenizers: the published ones (quick: only V4.1) and golden/tokenizer-small
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
except ImportError:
    tokenizers = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = pathlib.Path(os.environ.get("LOCKSTEP_TESTDATA", ROOT / "build" / "testdata"))

CORPUS_ROOTS = ["/usr/share", "/usr/lib/python3", "/usr/include", "/usr/lib/git-core", "/usr/local", sys.prefix, sys.base_prefix]
CORPUS_SUFFIXES = set(
    ".py .c .h .cc .cpp .hpp .js .ts .css .html .xml .svg .json .md .rst .txt .pl .pm .sh .cmake .po .tex .yaml .toml .csv .tsv .mo "
    ".dat .sgml .conf".split()
) | {""}
BLOCK = 512  # code points of the exhaustive texts in one string

HAND_WRITTEN = [
    "", " ", "\n", "\r\n", "\r", "\t", "\0", "a", " a", "a ", "  a", "a  b", "a   \n", " \n ", "\n\n\n a", "x \r\n\r\n\ty", "0000", "1 23 4567",
    "x1y", "!!!abc", "don't won't I'M", "a\u00a0b", "a\u3000b", "\u200b\u200ba", "\u180ea", "a\u0085b", "\ufeffa", "e\u0301", "\u0301e",
    "①②③④", "٣٤٥٦", "Ⅷ²", "龥龦", "㐀", "ｱｲｳ", "한국어", "ー・ヽ", "你好，世界！今日は", "naïve café Ünïcode", "مرحبا بالعالم", "שלום",
    "😀👩‍👩‍👧 🇩🇪🏳️‍🌈", "a" * 3000, "ab" * 2000, " " * 999, "\n" * 500, "\t \n" * 300, "9" * 1000, "!" * 1000, "中" * 1000, "\u0301" * 500,
    "}</tool_result>", "```python\nprint('x')\n```\n", "C:\\Users\\x\\n", "$100 £5 €6", "a\u2028b\u2029c", "\x1b[31mred\x1b[0m",
    "\U000e0001\U0010ffff", "\ue000 \ufffd\ufffe\uffff",
]

CHARACTER_POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " ", "\n", "\r", "\t", "\u00a0\u3000\u2003\u0085\u2028\x0b\x0c",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "\u0300\u0301\u0308\u20dd\u0903\u3099\u093e", "äöüßéèñçøÅĐłœ", "αβγΔЖщяІіӘ", "אבגשעاللهمرحبا",
    "的一是不了人我在有他这中大来上国", "ひらがなカタカナー・", "한국어조선말", "กขคไทยम्नस्ते", "٠١٢٣४५六七①②ⅣⅫ½", "，。！？「」—…“”·", "€£¥₿©®™°±×÷→∑√∞",
    "😀👩👧🏽🇩🇪\u200d\ufe0f🏴", "\u200b\u200c\u200e\u2060\ufeff\u00ad\u180e", "\0\x01\x07\x1b\x7f\x80\x9f", "\u0378\u0530\ue000\U000f0000\U0010fffd\uffff",
    "龥龦㐀𠀀𪜀ｱﾝＡ１！",
]


def exhaustive_texts(rng, quick):
    """Each code point between characters of other classes and beside one like itself."""
    scalars = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    if quick:
        scalars = [c for c in scalars if unicodedata.category(chr(c)) not in ("Cn", "Co", "Lo") or rng.random() < 0.03]
    for start in range(0, len(scalars), BLOCK):
        block = [chr(c) for c in scalars[start : start + BLOCK]]
        yield "".join(f"a{c}b {c}.中{c}{c}1" for c in block)


def random_text(rng):
    pools = rng.sample(CHARACTER_POOLS, rng.randint(1, 5))
    pieces = []
    for _ in range(rng.randint(1, 40)):
        kind = rng.random()
        if kind < 0.75:
            pool = rng.choice(pools)
            pieces.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 6))))
        elif kind < 0.9:
            pieces.append(rng.choice(" \n\t'") * rng.randint(1, 4))
        else:
            code_point = rng.randrange(rng.choice([0x250, 0x3000, 0x10000, 0x110000]))
            pieces.append(chr(code_point) if not 0xD800 <= code_point <= 0xDFFF else "\ud7ff")
    return "".join(pieces)


def added_token_texts(rng, added, count):
    """Added tokens whole, doubled, cut short and run into each other."""
    for token in added:
        yield token
        yield "x" + token + token[1:] + " " + token[:-1] + token + "\n" + token
    for _ in range(count):
        pieces = []
        for _ in range(rng.randint(1, 12)):
            token = rng.choice(added)
            cut = rng.randrange(len(token))
            pieces.append(rng.choice([token, token, token[:cut], token[cut:], random_text(rng)[:8], "<", "｜", " "]))
        yield "".join(pieces)


def words_by_script(tokenizer):
    """Whole-character tokens of the vocabulary by the script of their first letter: CJK, HIRAGANA, ARABIC, LATIN, ..."""
    scripts = {}
    for token_id in tokenizer.get_vocab().values():
        word = tokenizer.decode([token_id])
        letters = [c for c in word if c.isalpha()]
        if letters and "\ufffd" not in word:
            scripts.setdefault(unicodedata.name(letters[0], "OTHER").split()[0], []).append(word)
    return list(scripts.values())


def prose_texts(rng, scripts, count):
    """Words of one script run together, with the spaces, marks and digits of prose: nearer to real text than characters."""
    for _ in range(count):
        words = rng.choice(scripts)
        yield "".join(
            rng.choice(words) + rng.choice(["", "", "", " ", ", ", "。", "，", "、", "؟ ", "!\n", "・", "…", " 12", "٣"])
            for _ in range(rng.randint(1, 60))
        )


def corpus_texts(rng, megabytes):
    """Files of many kinds, in random order, each cut to 64 KB of text, until there are enough bytes."""
    paths = [p for root in CORPUS_ROOTS for p in pathlib.Path(root).glob("**/*") if p.suffix in CORPUS_SUFFIXES]
    rng.shuffle(paths)
    left = int(megabytes * 1e6)
    for path in paths:
        if left <= 0:
            return
        try:
            data = path.read_bytes() if path.is_file() and path.stat().st_size < 4e6 else b""
        except OSError:
            continue
        text = data[:65536].decode("utf-8", errors="replace")
        if text:
            left -= len(text.encode())
            yield text


class Cli:
    """tokenizer_cli with texts and ids in files."""

    def __init__(self, program, tokenizer_path):
        self.program, self.tokenizer_path = program, tokenizer_path

    def run(self, mode, records, decode):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            source.write_bytes(b"".join(records))
            subprocess.run([self.program, mode, self.tokenizer_path, source, target], check=True)
            data = target.read_bytes()
        results, offset = [], 0
        while offset < len(data):
            (count,) = struct.unpack_from("<I", data, offset)
            result, offset = decode(data, offset + 4, count)
            results.append(result)
        return results

    def to_ids(self, mode, texts):
        records = (struct.pack("<I", len(raw)) + raw for raw in (text.encode() for text in texts))
        return self.run(mode, records, lambda data, at, n: (list(struct.unpack_from(f"<{n}i", data, at)), at + 4 * n))

    def to_texts(self, mode, id_lists):
        records = (struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in id_lists)
        return self.run(mode, records, lambda data, at, n: (data[at : at + n].decode(), at + n))


class Comparison:
    def __init__(self):
        self.failures = 0

    def check(self, what, inputs, ours, theirs):
        assert len(inputs) == len(ours) == len(theirs)
        wrong = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
        print(f"  {what}: {len(inputs)} inputs, {len(wrong)} differences", flush=True)
        for i in wrong[:3]:
            print(f"    input  {inputs[i]!r:.300}\n    ours   {ours[i]!r:.300}\n    theirs {theirs[i]!r:.300}")
        self.failures += len(wrong)


def encode_theirs(tokenizer, texts):
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encoded]


def piece_lengths_theirs(tokenizer, texts):
    results = []
    for text in texts:
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        results.append([len(text[start:end].encode()) for _, (start, end) in pieces])
    return results


def compare(path, arguments, comparison):
    rng = random.Random(arguments.seed)
    document = json.loads(pathlib.Path(path).read_text())
    added = [token["content"] for token in document["added_tokens"]]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    cli = Cli(arguments.cli, path)
    print(f"{path}, tokenizers {tokenizers.__version__}")

    groups = {
        "every code point": list(exhaustive_texts(rng, arguments.quick)),
        "by hand": HAND_WRITTEN,
        "random": [random_text(rng) for _ in range(arguments.strings)],
        "prose": list(prose_texts(rng, words_by_script(theirs), arguments.strings // 4)),
        "added tokens": list(added_token_texts(rng, added, arguments.strings // 4)),
        "corpus": list(corpus_texts(rng, arguments.corpus_mb)),
    }
    size = sum(len(text.encode()) for text in groups["corpus"])
    print(f"  corpus of {size / 1e6:.1f} MB in {len(groups['corpus'])} texts")
    ids = list(theirs.get_vocab().values())
    id_lists = [[rng.choice(ids) for _ in range(rng.randint(1, 60))] for _ in range(arguments.strings)]
    for name, texts in groups.items():
        if name != "corpus":
            comparison.check(f"pieces, {name}", texts, cli.to_ids("pieces", texts), piece_lengths_theirs(theirs, texts))
        ours = cli.to_ids("encode-special", texts)
        comparison.check(f"encode, {name}", texts, ours, encode_theirs(theirs, texts))
        comparison.check(f"encode without added tokens, {name}", texts, cli.to_ids("encode", texts), encode_theirs(plain, texts))
        comparison.check(f"round trip, {name}", texts, cli.to_texts("decode", ours), texts)
        id_lists += rng.sample(ours, min(len(ours), 500))
    kept = theirs.decode_batch(id_lists, skip_special_tokens=False)
    comparison.check("decode", id_lists, cli.to_texts("decode", id_lists), kept)
    comparison.check("decode as a stream", id_lists, cli.to_texts("stream", id_lists), kept)
    comparison.check("decode without special tokens", id_lists, cli.to_texts("decode-skip", id_lists),
                     theirs.decode_batch(id_lists, skip_special_tokens=True))


def run_with_test_data():
    """Runs this script again under the Python that ci/fetch_test_data.sh made; skips if there is none."""
    python = TESTDATA / "venv" / "bin" / "python"
    if not python.exists() or pathlib.Path(sys.prefix) == python.parents[1]:
        print("SKIPPED: no tokenizers library; run ci/fetch_test_data.sh")
        return 0
    return subprocess.run([python, *sys.argv]).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--strings", type=int, help="default 20,000; quick 2,000")
    parser.add_argument("--corpus-mb", type=float, help="default 20; quick 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tokenizers", nargs="*")
    arguments = parser.parse_args()
    arguments.strings = arguments.strings or (2000 if arguments.quick else 20000)
    arguments.corpus_mb = arguments.corpus_mb or (1 if arguments.quick else 20)
    names = ["v41"] if arguments.quick else ["v41", "v4"]
    published = [TESTDATA / "tokenizers" / name / "tokenizer.json" for name in names]
    for path in published:
        if not path.exists():
            print(f"{path}: absent, not compared; ci/fetch_test_data.sh makes it")
    published = [path for path in published if path.exists()]
    comparison = Comparison()
    for path in arguments.tokenizers or [*published, ROOT / "golden" / "tokenizer-small" / "tokenizer.json"]:
        compare(path, arguments, comparison)
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main() if tokenizers else run_with_test_data())
