#!/usr/bin/env bash
# Makes what `cargo build --features cuda` needs where no CUDA toolkit is installed, out of NVIDIA's Python wheels.
#
# It writes to its own folder alone and replaces no folder that it did not make. Progress goes to stderr, and stdout is
# for the caller's shell to evaluate: exports, or `false` where something failed.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: eval "$(scripts/cuda-toolchain.sh [DIR])"
Makes a CUDA 13.0 toolchain in DIR (default .cuda, 1.2 GB) unless it is there, and prints the exports that cargo needs:
CUDA_HOME, PATH and CUDA_COMPUTE_CAP. Needs x86-64 Linux, python3 with venv, a C++ compiler, and the network once;
neither a GPU nor a driver.
CUDA_COMPUTE_CAP=89 names the GPU generation to build for (80: A100, 89: L4, 90: H100 and H200, 100: B200).
Without it, that of the first GPU here, or 90.
USAGE
}

say() { printf 'cuda-toolchain: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Ends in one line, with an `eval` that fails too; what was half made goes.
new=
finish() {
    local status=$?
    [ -z "$new" ] || rm -rf "$new"
    [ "$status" -eq 0 ] || echo false
}
trap finish EXIT

# Says why here no toolchain can be made, before anything is.
check_host() {
    [ "$(uname -sm)" = "Linux x86_64" ] || die "the wheels are for x86-64 Linux, and this is $(uname -sm): install the CUDA toolkit"
    command -v cc >/dev/null && command -v c++ >/dev/null || die "no cc and c++: install a C++ compiler (Debian: build-essential)"
    python3 -c 'import ensurepip, venv' 2>/dev/null || die "no python3 with venv: install it (Debian: python3-venv)"
}

# The wheels, unpacked into $1 as /usr/local/cuda is laid out.
install_wheels() {
    python3 -m venv "$new/venv" >"$new/log" 2>&1 || die "python3 cannot make a venv: $(tail -n 1 "$new/log")"
    "$new/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-compile --no-deps --only-binary :all: \
        --retries 2 --require-hashes -r "$wheels" >"$new/log" 2>&1 ||
        die "cannot fetch the wheels: $(grep -m 1 -E 'ERROR|error' "$new/log" || tail -n 1 "$new/log")"
    mv "$new"/venv/lib/python3*/site-packages/nvidia/cu13 "$1"
}

# The linker asks for libX.so, and wheels have libX.so.VERSION alone.
name_libraries() {
    local file
    ln -s lib "$1/lib64"
    for file in "$1"/lib/lib*.so.*; do
        file=${file##*/}
        ln -s "$file" "$1/lib/${file%%.so.*}.so"
    done
}

# The driver's library comes with a driver alone. To link against it, its names will do: each of those that the headers
# declare, at one instruction that answers CUDA_ERROR_STUB_LIBRARY.
stand_in_for_driver() {
    mkdir "$1/lib/stubs"
    {
        cat "$1"/include/cuda{,GL,EGL,VDPAU,ProfilerTypedefs}.h | sed 's/\bPFN_cu/ cu/g' | grep -oE '\bcu[A-Z][A-Za-z0-9_]*' | sort -u |
            sed 's/.*/.globl &\n.type &, @function\n&:/'
        printf 'mov $34, %%eax\nret\n.section .note.GNU-stack, "", @progbits\n'
    } | cc -shared -nostdlib -Wl,-soname,libcuda.so.1 -x assembler -o "$1/lib/stubs/libcuda.so" - ||
        die "cc cannot link a stand-in for libcuda.so.1"
}

# The GPU generation to build for.
capability() {
    local first
    # A broken driver answers in words.
    first=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -m 1 -xE '[0-9]+\.[0-9]+') || true
    first=${CUDA_COMPUTE_CAP:-${first:-90}}
    first=${first//./}
    [[ $first =~ ^[1-9][0-9]{1,2}a?$ ]] || die "CUDA_COMPUTE_CAP: '$first' is no compute capability such as 90"
    printf '%s' "$first"
}

case ${1-} in
    -h | --help) usage; exit ;;
    -*) die "there is no option $1: see --help" ;;
esac
[ $# -le 1 ] || die "one folder at most: see --help"
root=$(realpath -m -- "${1:-.cuda}")
wheels=$(dirname "$(realpath -- "$0")")/cuda-toolchain.txt
stamp=$root/wheels.txt
capability=$(capability)

if ! cmp -s "$wheels" "$stamp"; then
    if [ -e "$root" ] && [ ! -e "$stamp" ]; then
        rmdir "$root" 2>/dev/null || die "$root is something else already: name another folder"
    fi
    check_host
    mkdir -p "${root%/*}" 2>/dev/null && new=$(mktemp -d "$root.XXXXXX" 2>/dev/null) || die "cannot write beside $root"
    say "fetching CUDA into $root, about 1.2 GB"
    install_wheels "$new/cuda"
    name_libraries "$new/cuda"
    stand_in_for_driver "$new/cuda"
    [ -x "$new/cuda/bin/nvcc" ] || die "the wheels hold no nvcc"
    cp "$wheels" "$new/cuda/wheels.txt"
    echo '*' >"$new/cuda/.gitignore"
    rm -rf "$root"
    mv "$new/cuda" "$root"
fi

say "CUDA is in $root"
printf 'export CUDA_HOME=%q PATH=%q:"$PATH" CUDA_COMPUTE_CAP=%q\n' "$root" "$root/bin" "$capability"
