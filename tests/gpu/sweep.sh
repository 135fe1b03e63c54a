#!/usr/bin/env bash
# Sweeps batches in mode light, without a service, is interrupted once, and continues.
#
#   tests/gpu/sweep.sh [BIN [DEVICE [MODEL...]]]
#
# BIN: folder with llmprof and `model-runner` (default: target/release). DEVICE: auto (cpu without a
# GPU). MODEL: by default deepseek-ocr and qwen3-0.6b. Prints the table and the batches at which
# operators turn. PROMPT_TOKENS (918) and NEW_TOKENS (64) are lengths. Exits with 0 if some point was
# measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(realpath "${1:-target/release}") device=${2:-auto}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- deepseek-ocr qwen3-0.6b
folder=$(mktemp -d)
trap 'echo "took $SECONDS s"; rm -rf "$folder"' EXIT
export LLMPROF__TOOLS__MODEL_RUNNER=$bin/model-runner LLMPROF_LOG=warn

models=$(printf '"%s", ' "$@")
cat >"$folder/sweep.json" <<JSON
{"name": "batches",
 "base": {"model": "$1", "mode": "light", "device": "$device",
          "max_new_tokens": ${NEW_TOKENS:-64}, "repeats": 3},
 "axes": {"model": [${models%, }], "prompt_tokens": [${PROMPT_TOKENS:-918}],
          "batch": [1, 4, 16, 64]}}
JSON
sweep=("$bin/llmprof" sweep "$folder/sweep.json" --local "$folder/data")
# Interrupted as soon as some point has a run, then continued to its end.
"${sweep[@]}" >"$folder/first.txt" 2>&1 &
first=$!
until [ -n "$(ls "$folder/data/runs" 2>/dev/null)" ]; do
  kill -0 "$first" 2>/dev/null || { cat "$folder/first.txt" >&2; exit 1; }
  sleep 0.1
done
kill -INT "$first"
wait "$first" && code=0 || code=$?
[ "$code" = 130 ] || { echo "the interrupted sweep ended with $code" >&2; exit 1; }
"${sweep[@]}"
echo "== runs: $(ls "$folder/data/runs" | wc -l) for $(($# * 4)) points"
