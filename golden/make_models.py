"""Makes golden/models with `lockstep synth`, or checks that it would make the same bytes.

    python3 golden/make_models.py --lockstep build/cpu-release/lockstep           writes golden/models and golden/manifest.json
    python3 golden/make_models.py --lockstep build/cpu-release/lockstep --check   compares with golden/manifest.json; exit status 1 on a difference

golden/manifest.json records for each model its arguments and the SHA-256 of each file. A change of a model needs new recorded runs
(harness/golden: golden_run --update).
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent
MANIFEST = GOLDEN / "manifest.json"
TOKENIZER = GOLDEN / "tokenizer-small" / "tokenizer.json"
MAX_MODEL_BYTES = 8_000_000

FORMS = {
    "native": ["--bits", "native"],
    "mul1": ["--bits", "2.9", "--codebook", "mul1"],
    "mixed": ["--bits", "mixed", "--codebook", "mixed"],
}


def models():
    """Name and `lockstep synth` arguments of each model."""
    for seed, shape in enumerate(("tiny-v4", "tiny-v41"), start=1):
        for form, arguments in FORMS.items():
            yield f"{shape}-{form}", ["--shape", shape, *arguments, "--routing-skew", "0.7", "--seed", str(seed)]


def synthesize(lockstep, arguments, out):
    command = [lockstep, "synth", *arguments, "--tokenizer", TOKENIZER, "--out", out]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def digests(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def make(lockstep):
    manifest = {}
    for name, arguments in models():
        out = GOLDEN / "models" / name
        shutil.rmtree(out, ignore_errors=True)
        synthesize(lockstep, arguments, out)
        size = sum(path.stat().st_size for path in out.iterdir())
        assert size < MAX_MODEL_BYTES, f"{name} has {size} bytes"
        manifest[name] = {"synth": arguments, "tokenizer": "tokenizer-small/tokenizer.json", "sha256": digests(out)}
    MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n")


def check(lockstep):
    """Returns what differs from the manifest: what synth makes now, and what lies in golden/models."""
    recorded = json.loads(MANIFEST.read_text())
    wrong = [] if recorded.keys() == dict(models()).keys() else ["golden/manifest.json lists other models than this script"]
    for name, entry in recorded.items():
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary) / name
            synthesize(lockstep, entry["synth"], out)
            if digests(out) != entry["sha256"]:
                wrong.append(f"lockstep synth {' '.join(entry['synth'])} no longer makes the recorded {name}")
        stored = digests(GOLDEN / "models" / name)
        if any(stored.get(file) != digest for file, digest in entry["sha256"].items()):
            wrong.append(f"golden/models/{name} is not what the manifest says")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    if not flags.check:
        make(flags.lockstep)
        return 0
    wrong = check(flags.lockstep)
    print("\n".join(wrong) if wrong else "all models are as recorded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
