#!/bin/sh
# Builds the native library with the address and undefined behaviour sanitizers and runs its tests on it.
# Usage: scripts/sanitize.sh [build folder] [pytest arguments ...]
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
build=${1:-"$root/build/sanitize"}
[ $# -gt 0 ] && shift

cmake -S "$root/runtime_ops" -B "$build" -DRNNQC_SANITIZE=ON -DRNNQC_TESTS=ON -DRNNQC_WERROR=ON
cmake --build "$build"

cd "$root"
# Python itself leaks at exit, and the kernel tests provoke a segmentation fault in a child process.
RNNQC_LIBRARY="$build/librnnqc_ops.so" \
LD_PRELOAD="$(${CXX:-c++} -print-file-name=libasan.so) $(${CXX:-c++} -print-file-name=libstdc++.so)" \
ASAN_OPTIONS=detect_leaks=0:handle_segv=0:${ASAN_OPTIONS:-} \
UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-} \
exec python -m pytest tests/runtime_ops -q "$@"
