#!/usr/bin/env bash
# ci/cuda_architectures.sh: the CUDA architectures to build for, as CMake takes them (80;90a): LOCKSTEP_CUDA_ARCHITECTURES if it is set, else those of this
# machine's GPUs, else 90a. Exits with 1 and says why if a GPU is too old, or too old for the nvcc that is on PATH.
set -euo pipefail

if [ -n "${LOCKSTEP_CUDA_ARCHITECTURES:-}" ]; then
  echo "$LOCKSTEP_CUDA_ARCHITECTURES"
  exit
fi
nvcc_major=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
architectures=()
for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -uV); do
  number=${capability/./}
  if [ "$number" -lt 70 ]; then
    echo "$0: this machine has a GPU of compute capability $capability; 7.0 (Volta) is the oldest that is supported. LOCKSTEP_CUDA_ARCHITECTURES names others to build for." >&2
    exit 1
  fi
  if [ "$number" -lt 75 ] && [ "$nvcc_major" -ge 13 ]; then
    echo "$0: this machine has a GPU of compute capability $capability, for which CUDA $nvcc_major does not compile: put the nvcc of CUDA 12 first on PATH." >&2
    exit 1
  fi
  [ "$number" = 90 ] && number=90a  # with Hopper's own instructions
  architectures+=("$number")
done
[ ${#architectures[@]} -gt 0 ] || architectures=(90a)
(IFS=';' && echo "${architectures[*]}")
