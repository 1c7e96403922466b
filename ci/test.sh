#!/usr/bin/env bash
# Builds everything and runs all tests. The last line is "N passed, N failed"; the exit status is 1 if anything failed,
# an unlisted skip included.
set -uo pipefail
cd "$(dirname "$0")/.."

preset=cpu-release
if ! ci/build.sh "$preset"; then
  echo "The build failed." >&2
  echo "0 passed, 1 failed"
  exit 1
fi
if ! ci/fetch_test_data.sh; then
  echo "Some test data could not be fetched; the tests that need it skip, as ci/expected_skips.txt lists." >&2
fi
results=build/$preset/test-results
rm -rf "$results"
mkdir -p "$results"
ctest --test-dir "build/$preset" -j2 --output-on-failure --no-tests=error \
  --test-output-size-passed 65536 --output-junit "$PWD/$results/ctest.xml"

# run_check NAME COMMAND...: one more thing that passes or fails.
run_check() {
  local name=$1
  shift
  if "$@" >"$results/$name.log" 2>&1; then
    echo "passed" >"$results/$name.status"
  else
    echo "failed" >"$results/$name.status"
    echo "$name failed:" >&2
    cat "$results/$name.log" >&2
  fi
}
for check in ci/check_*.py; do
  run_check "$(basename "$check" .py)" python3 "$check"
done
if command -v nvcc >/dev/null; then
  run_check cuda_sm_90a python3 ci/cuda_archs.py --archs 90a --quiet
else
  echo "There is no nvcc: the CUDA kernels are not compiled." >&2
fi
python3 ci/summarize_tests.py "$results"
