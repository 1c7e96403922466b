#!/usr/bin/env python3
"""Writes unicode_tables.cc: character classes of the pre-tokenizer and the fold of Engram's token map.

From Unicode 16.0.0, the version of the regular expression engine in the `tokenizers` library 0.21 to 0.23: all six
classes agree with it on every code point (harness/text/tokenizer_diff.py checks). Needs a unicodedata of that version:
Python 3.14, or the PyPI package unicodedata2 16.0.0.

Usage: make_unicode_tables.py [--check]      --check compares with the file beside this script and writes nothing
"""

import argparse
import pathlib
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

UNICODE_VERSION = "16.0.0"
TABLES = pathlib.Path(__file__).with_name("unicode_tables.cc")

# White_Space=Yes of PropList.txt, without CR and LF, which have a class of their own.
WHITE_SPACE = [
    0x09, 0x0B, 0x0C, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000
]
NEWLINES = [0x0A, 0x0D]
# Names as in the table: L letter, M mark, N number, P punctuation or symbol, S space, R newline.
CLASS_OF_CATEGORY = {"L": "L", "M": "M", "N": "N", "P": "P", "S": "P"}
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)  # decomposed by rule


def scalar_values():
    return (c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)


def category(code_point):
    return unicodedata.category(chr(code_point))


def char_classes():
    classes = {}
    for code_point in scalar_values():
        name = CLASS_OF_CATEGORY.get(category(code_point)[0])
        if name:
            classes[code_point] = name
    for code_point in WHITE_SPACE:
        assert code_point not in classes
        classes[code_point] = "S"
    for code_point in NEWLINES:
        classes[code_point] = "R"
    return classes


def ranges_of(classes):
    ranges = []
    for code_point in sorted(classes):
        if ranges and ranges[-1][1] == code_point - 1 and ranges[-1][2] == classes[code_point]:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point, classes[code_point]])
    return ranges


def fold(code_point):
    """Compatibility decomposition, without marks, lower-case, each character for itself."""
    decomposed = unicodedata.normalize("NFKD", chr(code_point))
    return "".join(lower(c) for c in decomposed if category(ord(c))[0] != "M")


def lower(character):
    lowered = character.lower()
    assert len(lowered) == 1, "only U+0130 lowers to two characters, and it decomposes first"
    return lowered


def folds():
    for code_point in scalar_values():
        is_mark = category(code_point)[0] == "M"
        assert is_mark or unicodedata.combining(chr(code_point)) == 0, "order of marks would matter"
        if is_mark or code_point in HANGUL_SYLLABLES:
            continue
        folded = fold(code_point)
        if folded != chr(code_point):
            yield code_point, folded


def in_rows(items, width=108):
    row = "   "
    for item in items:
        if len(row) + 1 + len(item) > width:
            yield row
            row = "   "
        row += " " + item
    yield row


def generate():
    ranges = ranges_of(char_classes())
    entries, pool = [], ""
    for code_point, folded in folds():
        if folded not in pool:
            pool += folded
        entries.append(f"{{0x{code_point:X},{pool.index(folded)},{len(folded)}}},")
    assert len(pool) < 1 << 16
    lines = [
        f"// Made by make_unicode_tables.py from Unicode {UNICODE_VERSION}; do not edit.",
        '#include "model/text/unicode_tables.h"',
        "",
        "namespace lockstep {",
        "namespace {",
        "",
        "// clang-format off",
        "constexpr CharClass L = CharClass::kLetter, M = CharClass::kMark, N = CharClass::kNumber,",
        "                    P = CharClass::kPunctuation, S = CharClass::kSpace, R = CharClass::kNewline;",
        "",
        "constexpr CharClassRange kRanges[] = {",
        *in_rows(f"{{0x{first:X},0x{last:X},{name}}}," for first, last, name in ranges),
        "};",
        "",
        "constexpr FoldEntry kFolds[] = {",
        *in_rows(entries),
        "};",
        "",
        "constexpr char32_t kFoldPool[] = {",
        *in_rows(f"0x{ord(c):X}," for c in pool),
        "};",
        "// clang-format on",
        "",
        "}  // namespace",
        "",
        "std::span<const CharClassRange> CharClassRanges() { return kRanges; }",
        "std::span<const FoldEntry> FoldEntries() { return kFolds; }",
        "std::span<const char32_t> FoldPool() { return kFoldPool; }",
        "",
        "}  // namespace lockstep",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if unicodedata.unidata_version != UNICODE_VERSION:
        sys.exit(f"needs Unicode {UNICODE_VERSION}, this unicodedata has {unicodedata.unidata_version}")
    text = generate()
    if not arguments.check:
        TABLES.write_text(text)
    elif TABLES.read_text() != text:
        sys.exit(f"{TABLES.name} differs from what the script makes")


if __name__ == "__main__":
    main()
