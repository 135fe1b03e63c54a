#!/usr/bin/env bash
# Writes what a build makes of each capture in tests/fixtures/captures: every report, table and
# timeline, and the alignment of each capture with itself. A change that must change no output is
# checked by `diff -r` of the outputs of the build before and of the one after it.
#
#   scripts/outputs.sh LLMPROF OUT
set -euo pipefail
usage='usage: outputs.sh LLMPROF OUT'
llmprof=$(realpath "${1:?$usage}") out=$(realpath -m "${2:?$usage}")
captures=$(cd "$(dirname "$0")/.." && pwd)/tests/fixtures/captures
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
[ -z "$(ls -A "$out")" ] || { echo "$out is not empty: older outputs would stay" >&2; exit 1; }
cd "$work"
# Paths are part of some outputs: each capture has the same one in each run of this script.
for packed in "$captures"/*.sqlite.zst; do
    zstd -dqf "$packed" -o "$(basename "$packed" .zst)"
done
# A run's folder has its id as its name.
for packed in "$captures"/*.tar.zst; do
    zstd -dqc "$packed" | tar -xf -
done
cp "$captures"/*.json.gz .
zstd -dqf "$captures/hf-llama-decode.ncu-raw.csv.zst" -o ncu-raw.csv
# made NAME ARGUMENT...: the outputs of a command, its text and its status.
made() {
    local name=$1 rc=0
    shift
    mkdir -p "$out/$name"
    "$llmprof" "$@" --out "$out/$name" >"$out/$name/stdout" 2>"$out/$name/stderr" || rc=$?
    echo "$rc" >"$out/$name/status"
    # gzip's header has a time of its own.
    find "$out/$name" -type f -name '*.gz' -exec gunzip -f {} +
}
for capture in *.sqlite *.json.gz */; do
    name=${capture%/}
    made "analyze/$name" analyze "$name"
    made "align/$name" align --mock "$name" --e2e "$name"
done
made analyze/hf-llama-with-ncu analyze hf-llama-e2e.sqlite --ncu ncu-raw.csv
made analyze/torch-gloo analyze torch-gloo-rank0.json.gz torch-gloo-rank1.json.gz
echo "$(find "$out" -type f | wc -l) files in $out"
