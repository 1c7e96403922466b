"""Compares our chat encoder with the official one (PyPI package deepseek-recipe), byte for byte.

Compared are the text, which parts of it are control tokens, and the ids. Prints one JSON object with the
counts; exits with 1 on any difference. --record writes the first cases with their official renderings as JSON lines, for the C++
test that needs no network. Package and tokenizers come from ci/fetch_test_data.sh.
"""

import argparse
import collections
import hashlib
import itertools
import json
import pathlib
import sys

import chat_cases
import official_chat
from official_chat import recipe

RECORDS, RECORD_BYTES = 110, 4000
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class Official:
    def __init__(self):
        self.encoders = {}
        for family, encoder, model in (("v41", recipe.DeepseekV41Encoding(), recipe.ModelVersion.DeepseekV41Flash),
                                       ("v4", recipe.DeepseekV4Encoding(), recipe.ModelVersion.DeepseekV4Pro)):
            encoder = encoder.with_tokenizer(recipe.Tokenizer.from_file(official_chat.tokenizer_path(family)))
            self.encoders[family] = (encoder, recipe.ConversionOptions().with_model_versions_by_name({"m": model}))

    def render(self, case):
        """Returns (pieces, ids): pieces is a list of (text, is_control), ids is None after replacements."""
        encoder, options = self.encoders["v41" if case.is_v41 else "v4"]
        conversation = recipe.ChatCompletionRequest(json.dumps(case.official, ensure_ascii=False)).convert(options).conversation
        rendered = encoder.render_conversation(conversation)
        pieces, at = [], 0
        for begin, end in rendered.special_ranges:
            pieces += [(rendered.prompt[at:begin], False), (rendered.prompt[begin:end], True)]
            at = end
        pieces = [piece for piece in pieces + [(rendered.prompt[at:], False)] if piece[0]]
        for old, new in case.replacements:
            pieces = [(text if control else text.replace(old, new), control) for text, control in pieces]
        ids = None if case.replacements else encoder.encode(conversation)
        return pieces, ids


def pieces_of_ours(line):
    data = line["text"].encode()
    pieces, at = [], 0
    for begin, end in line["controls"]:
        pieces += [(data[at:begin], False), (data[begin:end], True)]
        at = end
    return [(text.decode(), control) for text, control in pieces + [(data[at:], False)] if text]


def run_ours(program, cases):
    """Renders the cases of each family with its tokenizer; the answers stand in the order of the cases."""
    answers = [None] * len(cases)
    for family in ("v4", "v41"):
        chosen = [i for i, case in enumerate(cases) if case.is_v41 == (family == "v41")]
        lines = ['{"dialect": "%s", "history": "%s", "request": %s}' %
                 (cases[i].dialect, cases[i].history, chat_cases.dump_request(cases[i].request)) for i in chosen]
        for i, answer in zip(chosen, official_chat.run_program([program, official_chat.tokenizer_path(family)], lines)):
            answers[i] = answer
    return answers


def fingerprint(ids):
    value = FNV_OFFSET
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = ((value ^ byte) * FNV_PRIME) % 2**64
    return f"{value:016x}"


def record_line(case, pieces, ids):
    controls, at = [], 0
    for text, control in pieces:
        end = at + len(text.encode())
        if control:
            controls.append([at, end])
        at = end
    line = {"dialect": case.dialect, "history": case.history, "differs": case.differs,
            "text": "".join(text for text, _ in pieces), "controls": controls}
    if ids is not None:
        line["ids"] = [len(ids), fingerprint(ids)]
    head = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    return head[:-1] + ',"request":' + chat_cases.dump_request(case.request) + "}\n"


def record(path, cases, official):
    """Writes the first cases that are not long."""
    lines = (record_line(case, pieces, ids) for case, (pieces, ids) in zip(cases, official))
    chosen = itertools.islice((line for line in lines if len(line.encode()) <= RECORD_BYTES), RECORDS)
    pathlib.Path(path).write_text("".join(chosen), encoding="utf-8")


def compare(cases, ours, official):
    differences = []
    for number, (case, line, (pieces, ids)) in enumerate(zip(cases, ours, official)):
        wrong = None
        if "error" in line:
            wrong = line["error"]
        elif pieces_of_ours(line) != pieces:
            wrong = "text or control tokens"
        elif ids is not None and line["ids"] != list(ids):
            wrong = "ids"
        if wrong:
            differences.append({"case": number, "dialect": case.dialect, "what": wrong, "request": case.request,
                                "ours": line.get("text"), "official": "".join(text for text, _ in pieces)})
    return differences


def check_known(official):
    """The official encoder must give the prompts that the specification recorded, or it is another version."""
    for (dialect, _, characters, digest), (pieces, _) in zip(chat_cases.KNOWN, official):
        text = "".join(text for text, _ in pieces)
        if len(text) != characters or not hashlib.sha256(text.encode()).hexdigest().startswith(digest):
            sys.exit(f"deepseek-recipe renders the known {dialect} prompt otherwise, expected version 0.2.0")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cli", required=True, help="the chat_cli program")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261001)
    parser.add_argument("--record", help="write official renderings here")
    arguments = parser.parse_args()
    if recipe is None:
        return official_chat.run_with_test_data(__file__)
    generator = chat_cases.Generator(arguments.seed)
    cases = list(chat_cases.known_cases())
    cases += [generator.case() for _ in range(arguments.count)]
    official_encoder = Official()
    official = [official_encoder.render(case) for case in cases]
    check_known(official)
    if arguments.record:
        record(arguments.record, cases, official)
    ours = run_ours(arguments.cli, cases)
    differences = compare(cases, ours, official)
    deliberate = collections.Counter(name for case in cases for name in case.differs)
    for difference in differences[:5]:
        print(json.dumps(difference, ensure_ascii=False, indent=1), file=sys.stderr)
    print(json.dumps({"compared": len(cases), "by_dialect": collections.Counter(case.dialect for case in cases),
                      "ids_compared": sum(1 for _, ids in official if ids is not None),
                      "direct": sum(1 for case in cases if not case.differs), "deliberate": deliberate,
                      "differences": len(differences)}))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
