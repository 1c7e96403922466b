#!/usr/bin/env bash
# ci/build.sh [preset] [target...]: configures and builds a preset of CMakePresets.json (default cpu-release, all targets).
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu-release}
shift || true
ci/install_deps.sh
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset "$preset" "${launcher[@]}"
cmake --build --preset "$preset" ${1:+--target "$@"}
