#!/bin/sh
# Checks a program's links to CUDA libraries: all that a runner for GPUs needs, or none.
# usage: scripts/check-linkage.sh all|none PROGRAM
# Reads the file only; starts nothing.
set -eu

want=${1:?usage: check-linkage.sh all|none PROGRAM}
program=${2:?usage: check-linkage.sh all|none PROGRAM}
needed=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if [ -z "$needed" ]; then
    printf '%s is linked to nothing: is it a program?\n' "$program" >&2
    exit 1
fi
cuda=$(printf '%s\n' "$needed" | sed -nE 's/^lib(cu[a-zA-Z]*|nv[a-zA-Z-]*)\.so.*/\1/p' | sort |
    tr '\n' ' ')

case $want in
    none) expected= ;;
    # cuBLAS brings cuBLASLt along.
    all) expected="cublas cuda cudart curand " ;;
    *) printf 'check-linkage.sh: %s is neither all nor none\n' "$want" >&2; exit 1 ;;
esac
if [ "$cuda" != "$expected" ]; then
    printf '%s is linked to CUDA libraries [%s]; expected [%s]\n' "$program" "${cuda% }" \
        "${expected% }" >&2
    exit 1
fi
printf '%s: CUDA libraries [%s]\n' "$program" "${cuda% }"
