"""What encoder_diff.py and parser_diff.py share: the official package, the fetched tokenizers, and running our program."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = pathlib.Path(os.environ.get("LOCKSTEP_TESTDATA", ROOT / "build" / "testdata"))

try:
    import deepseek_recipe as recipe
except ImportError:
    recipe = None


def run_with_test_data(script):
    """Runs `script` again under the Python that ci/fetch_test_data.sh made; skips if there is none."""
    python = TESTDATA / "venv" / "bin" / "python"
    if not python.exists() or pathlib.Path(sys.prefix) == python.parents[1]:
        print("SKIPPED: no deepseek-recipe; run ci/fetch_test_data.sh")
        return 0
    return subprocess.run([python, script] + sys.argv[1:]).returncode


def tokenizer_path(family):
    """The fetched tokenizer.json of "v4" or "v41"."""
    return str(TESTDATA / "tokenizers" / family / "tokenizer.json")


def run_program(command, lines):
    """Gives the lines to the program, returns the JSON value of each line of its output."""
    output = subprocess.run(command, input="".join(line + "\n" for line in lines).encode(), stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in output.decode().rstrip("\n").split("\n")]
