#!/usr/bin/env bash
# ci/cuda12.sh DIR: lays out the CUDA 12.4 compiler, cuobjdump and nvdisasm of Debian 13 in DIR, which the rest of the machine does not see.
# It is the newest in Debian that compiles for sm_70 (Volta). Fetches about 1 GB, keeps 200 MB. Does nothing if DIR has it.
set -euo pipefail

dir=${1:?usage: ci/cuda12.sh DIR}
[ -x "$dir/bin/nvcc" ] && exit 0
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The mirror that this machine already uses, with the release that has the packages.
mirror=$(grep -rhoE 'https?://[^ ]+/debian/? ' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | head -1 || true)
[ -n "$mirror" ] || mirror=$(grep -rhE '^URIs:' /etc/apt/sources.list.d/*.sources | grep -oE 'https?://[^ ]+' | grep -v security | head -1)
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main contrib non-free" >"$work/sources.list"
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::Lists="$work/lists"
  -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$work/debs" && "${apt[@]}" download nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4 libcudart12 libcu++-dev libthrust-dev libcub-dev)
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done

# As NVIDIA lays it out, with a profile of our own; the packages' one names their places under /usr.
lib=$work/root/usr/lib/nvidia-cuda-toolkit
mkdir -p "$dir/bin" "$dir/nvvm/bin"
cp "$work"/root/usr/bin/{ptxas,fatbinary,cudafe++,nvlink,bin2c,cuobjdump,nvdisasm} "$dir/bin/"
cp -r "$lib/bin/crt" "$dir/bin/"
cp "$lib/bin/cicc" "$dir/nvvm/bin/"
cp -r "$lib/libdevice" "$dir/nvvm/"
cp -r "$work/root/usr/include" "$dir/"
mkdir -p "$dir/lib64"
cp "$work"/root/usr/lib/x86_64-linux-gnu/{libcudart_static.a,libcudadevrt.a} "$dir/lib64/"
cat >"$dir/bin/nvcc.profile" <<'PROFILE'
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES       =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE
cp "$lib/bin/nvcc" "$dir/bin/"
