#!/usr/bin/env bash
# Makes onnxruntime's C# API for tests/end_to_end/runtimes/test_java_and_csharp.py where NuGet cannot be reached:
#
#     scripts/csharp_onnxruntime.sh FOLDER
#
# Prints FOLDER, for RNNQC_CSHARP_ONNXRUNTIME: FOLDER/compile SOURCE PROGRAM.dll compiles, FOLDER/dotnet PROGRAM.dll runs.
# The sources of the API and libonnxruntime.so 1.29.0 come from npm (onnxruntime for Unity), the runtime, Microsoft's .NET
# Core 3.1, from PyPI, the compiler is Mono's (Debian: mono-mcs). It knows C# 7: what the sources have from C# 8 and 9 is
# rewritten. PYTHON names the interpreter.
set -euo pipefail

mkdir -p "${1:?usage: scripts/csharp_onnxruntime.sh FOLDER}"
folder=$(cd "$1" && pwd)
command -v mcs >/dev/null || { echo "scripts/csharp_onnxruntime.sh: mcs is absent (Debian: mono-mcs)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$work" && npm pack --silent com.github.asus4.onnxruntime@0.4.9 >&2) &
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/python" dotnetcore2==3.1.23 >&2
wait $!
tar -xzf "$work"/*.tgz -C "$work" package/Runtime package/Plugins/Linux/x64/libonnxruntime.so
rm -rf "$folder/runtime"
mv "$work/python/dotnetcore2/bin" "$folder/runtime"
chmod +x "$folder/runtime/dotnet"
mv "$work/package/Plugins/Linux/x64/libonnxruntime.so" "$folder"

# "is null" and "is not", static lambdas, "using var" (what it names is not disposed), "new()", "unmanaged"; then
# assignments through references, on which the compiler fails.
find "$work/package/Runtime" -name '*.cs' -exec sed -E -i \
  -e 's/\b([A-Za-z_.]+) is null\b/\1 == null/g' \
  -e 's/\(([A-Za-z_.]+) is not (\w+)\)/(!(\1 is \2))/' \
  -e 's/\(static (\w+) =>/(\1 =>/g' \
  -e 's/^(\s*)using var /\1var /' \
  -e 's/DisposableList<OrtValue> (\w+) = new\(/var \1 = new DisposableList<OrtValue>(/' \
  -e 's/where (\w+) : unmanaged/where \1 : struct/g' \
  -e 's/([A-Za-z_]+)\.Span\[(\w+)\] = ([^;]+);/\1.Span.Slice(\2, 1).Fill(\3);/' \
  -e 's/(\w+\[\w+\]) = (\w+\[\w+\]) = (\w+);/\1 = \3; \2 = \3;/' {} +

cat >"$folder/runtimeconfig.json" <<'JSON'
{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
  "configProperties": {"System.Globalization.Invariant": true}}}
JSON
cat >"$folder/mcs" <<'SH'
#!/bin/bash
# Mono's compiler with the libraries of .NET Core: mcs OPTION ... SOURCE ...
framework=$(echo "$(dirname "$0")"/runtime/shared/Microsoft.NETCore.App/*)
for name in System.Private.CoreLib System.Runtime System.Collections System.Console System.Linq System.Memory netstandard \
  System.Runtime.Extensions System.Runtime.InteropServices System.Runtime.InteropServices.RuntimeInformation; do
  references+=("-r:$framework/$name.dll")
done
exec mcs -nostdlib -noconfig -langversion:latest -warn:0 "${references[@]}" "$@"
SH
cat >"$folder/compile" <<'SH'
#!/bin/bash -e
# A program with onnxruntime and its libraries beside it: compile SOURCE PROGRAM.dll
here=$(dirname "$0")
"$here/mcs" -r:"$here/Microsoft.ML.OnnxRuntime.dll" -out:"$2" "$1"
cp "$here/Microsoft.ML.OnnxRuntime.dll" "$here/libonnxruntime.so" "$(dirname "$2")"
cp "$here/runtimeconfig.json" "${2%.dll}.runtimeconfig.json"
SH
printf '#!/bin/sh\nexec "%s" "$@"\n' "$folder/runtime/dotnet" >"$folder/dotnet"
chmod +x "$folder"/{mcs,compile,dotnet}
find "$work/package/Runtime" -name '*.cs' -exec "$folder/mcs" -target:library -unsafe -d:NETSTANDARD2_0 \
  -out:"$folder/Microsoft.ML.OnnxRuntime.dll" {} + >&2
echo "$folder"
