#!/usr/bin/env bash
# ci/cuda_archs.sh [--archs 70,75,80,86,89,90a,100,120] [--files REGEX] [--jobs N] [--quiet]: compiles the CUDA kernels for every architecture and
# prints registers, spills and instructions a weight (ci/cuda_archs.py). Needs nvcc 13; CUDA 12.4, for sm_70 and the disassembler, is fetched
# into build/cuda-12.4.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v nvcc >/dev/null || { echo "$0: nvcc is not on PATH" >&2; exit 1; }
ci/cuda12.sh build/cuda-12.4
exec python3 ci/cuda_archs.py --cuda12 build/cuda-12.4 "$@"
