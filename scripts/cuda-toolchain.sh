#!/usr/bin/env bash
# Creates the CUDA toolchain for `cargo build --features cuda` from NVIDIA's Python wheels, if no
# toolkit is installed.
#
# It writes to its own folder only and replaces no folder that it did not create. Progress goes to
# stderr; stdout is for the caller's shell to evaluate: exports, or `false` after a failure.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: eval "$(scripts/cuda-toolchain.sh [DIR])"
Creates a CUDA 13.0 toolchain in DIR (default .cuda, 1.2 GB) unless it exists, and prints the
exports that cargo needs: CUDA_HOME, PATH and CUDA_COMPUTE_CAP. Requires x86-64 Linux, python3 with
venv, a C++ compiler, and the network once; neither a GPU nor a driver.
CUDA_COMPUTE_CAP=89 selects the GPU generation (80: A100, 89: L4, 90: H100 and H200, 100: B200);
the default is that of the first GPU of this host, or 90.
USAGE
}

report() { printf 'cuda-toolchain: %s\n' "$*" >&2; }
die() { report "$@"; exit 1; }

# Removes an incomplete toolchain, and makes the caller's `eval` fail after an error.
new=
finish() {
    local status=$?
    [ -z "$new" ] || rm -rf "$new"
    [ "$status" -eq 0 ] || echo false
}
trap finish EXIT

# Checks the requirements before anything is created.
check_host() {
    [ "$(uname -sm)" = "Linux x86_64" ] ||
        die "the wheels are for x86-64 Linux, and this is $(uname -sm): install the CUDA toolkit"
    command -v cc >/dev/null && command -v c++ >/dev/null ||
        die "no cc and c++: install a C++ compiler (Debian: build-essential)"
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        die "no python3 with venv: install it (Debian: python3-venv)"
}

# Unpacks the wheels into $1, in the layout of /usr/local/cuda.
install_wheels() {
    python3 -m venv "$new/venv" >"$new/log" 2>&1 ||
        die "python3 cannot create a venv: $(tail -n 1 "$new/log")"
    "$new/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
        --no-deps --only-binary :all: --retries 2 --require-hashes -r "$wheels" >"$new/log" 2>&1 ||
        die "cannot fetch the wheels: $(grep -m 1 -E 'ERROR|error' "$new/log" ||
            tail -n 1 "$new/log")"
    mv "$new"/venv/lib/python3*/site-packages/nvidia/cu13 "$1"
}

# Links libX.so, which the linker needs, to libX.so.VERSION of the wheels.
name_libraries() {
    local file
    ln -s lib "$1/lib64"
    for file in "$1"/lib/lib*.so.*; do
        file=${file##*/}
        ln -s "$file" "$1/lib/${file%%.so.*}.so"
    done
}

# Creates a stub of the driver's library, which only drivers contain: every function that the
# headers declare, at one instruction that returns CUDA_ERROR_STUB_LIBRARY.
create_driver_stub() {
    mkdir "$1/lib/stubs"
    {
        cat "$1"/include/cuda{,GL,EGL,VDPAU,ProfilerTypedefs}.h | sed 's/\bPFN_cu/ cu/g' |
            grep -oE '\bcu[A-Z][A-Za-z0-9_]*' | sort -u |
            sed 's/.*/.globl &\n.type &, @function\n&:/'
        printf 'mov $34, %%eax\nret\n.section .note.GNU-stack, "", @progbits\n'
    } | cc -shared -nostdlib -Wl,-soname,libcuda.so.1 -x assembler \
        -o "$1/lib/stubs/libcuda.so" - || die "cc cannot link a stub of libcuda.so.1"
}

# The GPU generation to build for.
capability() {
    local first
    # A broken driver prints a message.
    first=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        grep -m 1 -xE '[0-9]+\.[0-9]+') || true
    first=${CUDA_COMPUTE_CAP:-${first:-90}}
    first=${first//./}
    [[ $first =~ ^[1-9][0-9]{1,2}a?$ ]] ||
        die "CUDA_COMPUTE_CAP: '$first' is not a compute capability; expected one like 90"
    printf '%s' "$first"
}

case ${1-} in
    -h | --help) usage; exit ;;
    -*) die "unknown option $1; see --help" ;;
esac
[ $# -le 1 ] || die "expected at most one folder; see --help"
root=$(realpath -m -- "${1:-.cuda}")
wheels=$(dirname "$(realpath -- "$0")")/cuda-toolchain.txt
stamp=$root/wheels.txt
capability=$(capability)

if ! cmp -s "$wheels" "$stamp"; then
    if [ -e "$root" ] && [ ! -e "$stamp" ]; then
        rmdir "$root" 2>/dev/null || die "$root exists and is not a toolchain; name another folder"
    fi
    check_host
    mkdir -p "${root%/*}" 2>/dev/null && new=$(mktemp -d "$root.XXXXXX" 2>/dev/null) ||
        die "cannot write to ${root%/*}"
    report "fetching CUDA into $root, about 1.2 GB"
    install_wheels "$new/cuda"
    name_libraries "$new/cuda"
    create_driver_stub "$new/cuda"
    [ -x "$new/cuda/bin/nvcc" ] || die "the wheels contain no nvcc"
    cp "$wheels" "$new/cuda/wheels.txt"
    echo '*' >"$new/cuda/.gitignore"
    rm -rf "$root"
    mv "$new/cuda" "$root"
fi

report "CUDA is in $root"
printf 'export CUDA_HOME=%q PATH=%q:"$PATH" CUDA_COMPUTE_CAP=%q\n' "$root" "$root/bin" "$capability"
