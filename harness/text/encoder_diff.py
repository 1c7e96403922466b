"""Compares our chat encoder with the official one (PyPI package deepseek-recipe), byte for byte.

Compared are the text, which parts of it are control tokens and, where the tokenizers are, the ids. Prints one JSON object with the
counts; exits with 1 on any difference. --record writes the first cases with their official renderings as JSON lines, for the C++
test that needs no network. Package and tokenizers come from ci/fetch_test_data.sh.
"""

import argparse
import collections
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys

import chat_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = pathlib.Path(os.environ.get("LOCKSTEP_TESTDATA", ROOT / "build" / "testdata"))

try:
    import deepseek_recipe as recipe
except ImportError:
    recipe = None

RECORDS, RECORD_BYTES = 110, 4000
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class Official:
    def __init__(self, tokenizers):
        self.encoders = {}
        for family, encoder, model in (("v41", recipe.DeepseekV41Encoding(), recipe.ModelVersion.DeepseekV41Flash),
                                       ("v4", recipe.DeepseekV4Encoding(), recipe.ModelVersion.DeepseekV4Pro)):
            if tokenizers:
                encoder = encoder.with_tokenizer(recipe.Tokenizer.from_file(tokenizer_path(tokenizers, family)))
            options = recipe.ConversionOptions().with_model_versions_by_name({"m": model})
            self.encoders[family] = (encoder, options, bool(tokenizers))

    def render(self, case):
        """Returns (pieces, ids): pieces is a list of (text, is_control), ids is None without a tokenizer or after replacements."""
        encoder, options, has_tokenizer = self.encoders["v41" if case.is_v41 else "v4"]
        conversation = recipe.ChatCompletionRequest(json.dumps(case.official, ensure_ascii=False)).convert(options).conversation
        rendered = encoder.render_conversation(conversation)
        pieces, at = [], 0
        for begin, end in rendered.special_ranges:
            pieces += [(rendered.prompt[at:begin], False), (rendered.prompt[begin:end], True)]
            at = end
        pieces = [piece for piece in pieces + [(rendered.prompt[at:], False)] if piece[0]]
        for old, new in case.replacements:
            pieces = [(text if control else text.replace(old, new), control) for text, control in pieces]
        ids = encoder.encode(conversation) if has_tokenizer and not case.replacements else None
        return pieces, ids


def pieces_of_ours(line):
    data = line["text"].encode()
    pieces, at = [], 0
    for begin, end in line["controls"]:
        pieces += [(data[at:begin], False), (data[begin:end], True)]
        at = end
    return [(text.decode(), control) for text, control in pieces + [(data[at:], False)] if text]


def tokenizer_path(directory, family):
    return str(pathlib.Path(directory) / family / "tokenizer.json")


def run_ours(render, tokenizers, cases):
    """Renders the cases of each family with its tokenizer; the answers stand in the order of the cases."""
    answers = [None] * len(cases)
    for family in ("v4", "v41"):
        chosen = [i for i, case in enumerate(cases) if case.is_v41 == (family == "v41")]
        command = [render] + ([tokenizer_path(tokenizers, family)] if tokenizers else [])
        for i, line in zip(chosen, run_program(command, [cases[i] for i in chosen])):
            answers[i] = line
    return answers


def run_program(command, cases):
    lines = "".join('{"dialect": "%s", "history": "%s", "request": %s}\n' % (case.dialect, case.history, chat_cases.dump_request(case.request))
                    for case in cases)
    output = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in output.decode().rstrip("\n").split("\n")]


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
        elif ids is not None and "ids" in line and line["ids"] != list(ids):
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


def default_tokenizers():
    directory = TESTDATA / "tokenizers"
    return str(directory) if directory.exists() else None


def run_with_test_data():
    """Runs this program again under the Python that ci/fetch_test_data.sh made; skips if there is none."""
    python = TESTDATA / "venv" / "bin" / "python"
    if not python.exists() or sys.prefix == str(python.parents[1]):
        print("SKIPPED: no deepseek-recipe; run ci/fetch_test_data.sh")
        return 0
    return subprocess.run([python, __file__] + sys.argv[1:]).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", required=True, help="the chat_render program")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261001)
    parser.add_argument("--tokenizers", default=default_tokenizers(),
                        help="directory with v4/tokenizer.json and v41/tokenizer.json, to compare ids too")
    parser.add_argument("--record", help="write official renderings here")
    arguments = parser.parse_args()
    if recipe is None:
        return run_with_test_data()
    generator = chat_cases.Generator(arguments.seed)
    cases = list(chat_cases.known_cases())
    cases += [generator.case() for _ in range(arguments.count)]
    official_encoder = Official(arguments.tokenizers)
    official = [official_encoder.render(case) for case in cases]
    check_known(official)
    if arguments.record:
        record(arguments.record, cases, official)
    ours = run_ours(arguments.render, arguments.tokenizers, cases)
    differences = compare(cases, ours, official)
    deliberate = collections.Counter(name for case in cases for name in case.differs)
    for difference in differences[:5]:
        print(json.dumps(difference, ensure_ascii=False, indent=1), file=sys.stderr)
    print(json.dumps({"compared": len(cases), "by_dialect": collections.Counter(case.dialect for case in cases),
                      "ids_compared": sum(1 for (_, ids), line in zip(official, ours) if ids is not None and "ids" in line),
                      "direct": sum(1 for case in cases if not case.differs), "deliberate": deliberate,
                      "differences": len(differences)}))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
