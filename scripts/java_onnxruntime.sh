#!/usr/bin/env bash
# Makes onnxruntime's jar for tests/end_to_end/runtimes/test_java_and_csharp.py where Maven cannot be reached, for Linux
# x86-64:
#
#     scripts/java_onnxruntime.sh FOLDER
#
# Prints FOLDER/onnxruntime.jar, for RNNQC_JAVA_ONNXRUNTIME. Its classes and JNI library are those of onnxruntime 1.17.0,
# out of a jar in a wheel of PyPI (pyserini, 180 MB). That version is too old for lowered files, so the jar's
# libonnxruntime.so hands over to the library of PYTHON's onnxruntime, which has the functions of all before it.
set -euo pipefail

mkdir -p "${1:?usage: scripts/java_onnxruntime.sh FOLDER}"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}
library=$("$python" -c 'import glob, onnxruntime; print(*glob.glob(onnxruntime.__path__[0] + "/capi/libonnxruntime.so.*"))')
[[ -f $library ]] || { echo "scripts/java_onnxruntime.sh: the onnxruntime of $python has no libonnxruntime.so" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --ignore-requires-python \
  --dest "$work" pyserini==0.40.0 >&2
cat >"$work/shim.c" <<'C'
#include <dlfcn.h>
static void *function(const char *name) { return dlsym(dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), name); }
const void *OrtGetApiBase(void) { return ((const void *(*)(void))function("OrtGetApiBase"))(); }
void *OrtSessionOptionsAppendExecutionProvider_CPU(void *options, int arena) {
  return ((void *(*)(void *, int))function("OrtSessionOptionsAppendExecutionProvider_CPU"))(options, arena);
}
C
echo 'VERS_1.17.0 { global: Ort*; local: *; };' >"$work/versions"
cc -shared -fPIC "-DLIBRARY=\"$library\"" "$work/shim.c" -o "$work/libonnxruntime.so" -ldl \
  -Wl,-soname,libonnxruntime.so.1.17.0 -Wl,--version-script="$work/versions"

"$python" - "$work" "$folder/onnxruntime.jar" <<'PY'
import io, pathlib, sys, zipfile

work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    held = next(name for name in wheel.namelist() if name.endswith("-fatjar.jar"))
    everything = zipfile.ZipFile(io.BytesIO(wheel.read(held)))
with zipfile.ZipFile(sys.argv[2], "w", zipfile.ZIP_DEFLATED) as jar:
    for name in everything.namelist():
        if name.startswith("ai/onnxruntime/") and name.endswith((".class", "linux-x64/libonnxruntime4j_jni.so")):
            jar.writestr(name, everything.read(name))
    jar.write(work / "libonnxruntime.so", "ai/onnxruntime/native/linux-x64/libonnxruntime.so")
PY
echo "$folder/onnxruntime.jar"
