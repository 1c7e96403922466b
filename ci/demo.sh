#!/usr/bin/env bash
# Builds lockstep and continues a prompt with a small random model from golden/: text in, tokens out.
set -euo pipefail
cd "$(dirname "$0")/.."

model=golden/models/tiny-v41-mul1
prompt='The quick brown fox'
ci/build.sh cpu-release lockstep
lockstep=build/cpu-release/lockstep
"$lockstep" --version
echo "+ lockstep generate --model $model --prompt '$prompt' --max-tokens 24"
"$lockstep" generate --model "$model" --prompt "$prompt" --max-tokens 24
echo "The same with ids and timings:"
"$lockstep" generate --model "$model" --prompt "$prompt" --max-tokens 24 --json
