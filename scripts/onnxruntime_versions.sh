#!/usr/bin/env bash
# Fetches versions of onnxruntime for tests/end_to_end/runtimes/test_onnxruntime_versions.py, which runs them with
# the packages that are installed besides:
#
#     scripts/onnxruntime_versions.sh FOLDER [VERSION ...]
#
# Prints FOLDER, for RNNQC_ONNXRUNTIMES. PYTHON names the interpreter. Without versions: one of each minor release.
set -euo pipefail

folder=$1
shift
(($#)) || set -- 1.19.2 1.20.1 1.21.1 1.22.1 1.23.2 1.24.1 1.24.4 1.25.1 1.26.0 1.27.0 1.28.0 1.30.0 1.31.0
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for version; do
  [[ -d $folder/$version/onnxruntime ]] && continue
  # Not into the folder itself: a version that came only in part would look like one that is there.
  "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/.$version" \
    "onnxruntime==$version" >&2
  mv "$folder/.$version" "$folder/$version"
done
echo "$folder"
