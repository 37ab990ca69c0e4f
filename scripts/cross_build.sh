#!/usr/bin/env bash
# Builds the native library for other systems with PyPI's ziglang, a clang with headers and libraries of every target.
#
#   scripts/cross_build.sh FOLDER [TARGET ...]
#
# Targets are zig's, without names all that follow. FOLDER/TARGET gets the library; the paths are printed. PYTHON names a
# Python that has ziglang; cmake and ninja are on the PATH. This shows that the sources compile for a system and lets them be
# run under qemu or wine. Wheels are made by .github/workflows/wheels.yml with each system's own compiler: zig takes no
# -march, so that libraries for arm64 have portable kernels only here.
set -euo pipefail

if [[ $# -lt 1 ]]; then
  echo "usage: scripts/cross_build.sh FOLDER [TARGET ...]" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
targets=("$@")
if [[ ${#targets[@]} == 0 ]]; then
  targets=(x86_64-linux-gnu.2.28 aarch64-linux-gnu.2.28 x86_64-linux-musl aarch64-linux-musl
    x86_64-windows-gnu aarch64-windows-gnu x86_64-macos aarch64-macos)
fi
if ! "$python" -m ziglang version >/dev/null 2>&1; then
  echo "scripts/cross_build.sh: $python has no ziglang; install it (pip install ziglang) or set PYTHON" >&2
  exit 1
fi

for target in "${targets[@]}"; do
  case $target in
    *linux*) system=Linux ;;
    *windows*) system=Windows ;;
    *macos*) system=Darwin ;;
    *)
      echo "scripts/cross_build.sh: target '$target' is neither linux, windows nor macos" >&2
      exit 2
      ;;
  esac
  mkdir -p "$folder/$target"
  compiler=$folder/$target/c++
  printf '#!/bin/sh\nexec "%s" -m ziglang c++ -target %s "$@"\n' "$(command -v "$python")" "$target" >"$compiler"
  chmod +x "$compiler"
  cmake -S "$root/runtime_ops" -B "$folder/$target/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_SYSTEM_NAME="$system" -DCMAKE_SYSTEM_PROCESSOR="${target%%-*}" -DCMAKE_CXX_COMPILER="$compiler" >&2
  cmake --build "$folder/$target/build" ${JOBS:+-j "$JOBS"} >&2
  find "$folder/$target/build" -maxdepth 1 -name 'librnnqc_ops.*' ! -name '*.a' ! -name '*.pdb' \
    -exec mv {} "$folder/$target/" \; -exec echo "$folder/$target/{}" \; >/dev/null
  ls "$folder/$target"/librnnqc_ops.*
done
