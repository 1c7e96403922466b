#!/usr/bin/env bash
# ci/build.sh [preset] [target...]: configures and builds a preset of CMakePresets.json (default cpu-release, all targets). The cuda-* presets build for the
# GPUs of this machine, or for the architectures that LOCKSTEP_CUDA_ARCHITECTURES names (ci/cuda_architectures.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-cpu-release}
shift || true
ci/install_deps.sh
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
options=()
if [[ $preset == cuda-* ]]; then
  command -v nvcc >/dev/null || { echo "$0: nvcc is not on PATH: install NVIDIA's CUDA Toolkit, 13 for GPUs from Turing on, 12 for Volta" >&2; exit 1; }
  architectures=$(ci/cuda_architectures.sh)
  options=("-DLOCKSTEP_CUDA_ARCHITECTURES=$architectures")
  [ ${#launcher[@]} -eq 0 ] || options+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  echo "Building for CUDA architectures $architectures."
fi
cmake --preset "$preset" "${launcher[@]}" "${options[@]}"
cmake --build --preset "$preset" ${1:+--target "$@"}
