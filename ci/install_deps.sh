#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need, if any is missing. Works as root and with sudo.
set -euo pipefail

packages=(
  ca-certificates cmake g++ git ninja-build python3 python3-venv
  libbenchmark-dev libcli11-dev libeigen3-dev libgtest-dev libspdlog-dev libxxhash-dev nlohmann-json3-dev
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "$0: ${missing[*]} are missing, and neither root nor sudo is at hand" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
