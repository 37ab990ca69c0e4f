#!/usr/bin/env bash
# Unpacks onnxruntime's C headers from Debian's libonnxruntime-dev into FOLDER and prints the folder to set
# ONNXRUNTIME_INCLUDE_DIR to. Works on releases of Debian that do not carry the package: it reads the package list of a
# newer release (SUITE, default sid) from the machine's own mirror, in a folder of its own.
#   usage: scripts/onnxruntime_headers.sh FOLDER
set -euo pipefail

target=${1:?usage: scripts/onnxruntime_headers.sh FOLDER}
suite=${SUITE:-sid}
mirror=$(sed -n 's/^URIs: *\([^ ]*debian\) *$/\1/p; s/^deb  *\(\[[^]]*\] \)\{0,1\}\([^ ]*debian\/\{0,1\}\) .*/\2/p' \
  /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)
[[ -n $mirror ]] || { echo "scripts/onnxruntime_headers.sh: found no Debian mirror in /etc/apt" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial} "$target"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
  -o "Dir::Cache::archives=$work/archives" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update -qq >&2
(cd "$work" && apt-get "${options[@]}" download -qq libonnxruntime-dev >&2)
dpkg-deb -x "$work"/libonnxruntime-dev_*.deb "$target"
dirname "$(find "$(cd "$target" && pwd)" -name onnxruntime_c_api.h | head -n 1)"
