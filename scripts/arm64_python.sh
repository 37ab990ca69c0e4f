#!/usr/bin/env bash
# Makes FOLDER/python, an emulated arm64 Python with everything that rnnqc and its tests import, for the tests on arm64:
# set RNNQC_ARM64_PYTHON to it. Needs Debian, qemu-user and PyPI; packages are unpacked in FOLDER, none is installed.
#   usage: scripts/arm64_python.sh FOLDER
set -euo pipefail

mkdir -p "${1:?usage: scripts/arm64_python.sh FOLDER}"
folder=$(cd "$1" && pwd)
emulator=$(command -v qemu-aarch64) || { echo "scripts/arm64_python.sh: qemu-aarch64 is absent (Debian: qemu-user)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# An empty package database: everything down to the C library is downloaded.
mkdir -p "$work"/{lists/partial,archives/partial}
touch "$work/status"
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State::lists=$work/lists"
  -o "Dir::State::status=$work/status" -o "Dir::Cache=$work" -o APT::Sandbox::User=root -o Debug::NoLocking=true)
apt-get "${options[@]}" update >&2
apt-get "${options[@]}" install --yes --no-install-recommends --download-only python3 libstdc++6 >&2
for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done

# onnxruntime crashes when it finds the host's description of the processor.
mkdir -p "$folder/proc"
printf 'processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n\n' >"$folder/proc/cpuinfo"

python=$(readlink "$folder/usr/bin/python3")
platforms=(--platform manylinux2014_aarch64)
for minor in {17..36}; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$folder/usr/lib/python3/dist-packages" \
  --only-binary=:all: "${platforms[@]}" --implementation cp --python-version "${python#python}" \
  numpy onnx onnxruntime onnx-graphsurgeon rich hypothesis pytest >&2

printf '#!/bin/sh\nexec "%s" -L "%s" "%s" "$@"\n' "$emulator" "$folder" "$folder/usr/bin/$python" >"$folder/python"
chmod +x "$folder/python"
"$folder/python" -c 'import numpy, onnx, onnx_graphsurgeon, onnxruntime, pytest'
echo "$folder/python"
