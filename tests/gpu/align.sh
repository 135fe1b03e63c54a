#!/usr/bin/env bash
# Holds parts of a model to the whole model on a GPU host, and wrong mocks to their failure: run from the repository's root.
#
#   tests/gpu/align.sh [--bin DIR] [--out DIR] [--device auto|cpu] [--model NAME] [--attention LAYER] [--moe LAYER] [--tokens N]
#
# Starts the service of DIR (default target/release) on loopback with a temporary data folder and submits, one after another, runs that
# end in an alignment with the whole model: attention and the mixture of experts of a layer, and attention with three mocks that are
# wrong: f32, without the CUDA graph, with another prompt. Prints one table of verdicts by stage, with PASS where the verdict is the one
# that is expected. Exit code 0: all are. With --out the alignment reports are left there. --device cpu tries the script where there is no
# GPU: there are no kernels, so that every verdict is inconclusive. Needs bash, curl and python3; compiles nothing.
set -euo pipefail
bin=target/release out='' device=auto model=deepseek-ocr attention=3 moe=3 tokens=64
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --out) out=$2; shift ;;
    --device) device=$2; shift ;;
    --model) model=$2; shift ;;
    --attention) attention=$2; shift ;;
    --moe) moe=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
. "$here/service.sh"

# submit NAME PART MOCK PREFILL DECODE: one run to its end, and what its two verdicts must be.
submit() {
  local body mock=''
  [ -z "$3" ] || mock=$(printf ', "mock": %s' "$3")
  body=$(printf '{"model": "%s", "target": "%s", "align_with": "e2e", "mode": "deep", "device": "%s", "max_new_tokens": %d, "labels": ["%s"],
    "profiling": {"ncu": {"enabled": false}, "gemm_log": {"enabled": false}}%s}' "$model" "$2" "$device" "$tokens" "$1" "$mock")
  follow "$1" "$body"
  echo "$1 $id $4 $5" >>"$data/submitted"
}
# A graph is replayed in decode alone, and another prompt is another length in both stages.
submit attention "decoder.layers.$attention.self_attn" '' pass pass
submit moe "decoder.layers.$moe.mlp" '' pass pass
submit f32 "decoder.layers.$attention.self_attn" '{"dtype": "f32"}' fail fail
submit eager "decoder.layers.$attention.self_attn" '{"decode_graph": false}' pass fail
submit length "decoder.layers.$attention.self_attn" '{"prompt_tokens": 128}' fail fail

held=0
python3 "$here/align.py" "$data" "$device" | tee "$data/table.txt" || held=1
if [ -n "$out" ]; then
  mkdir -p "$out"
  cp "$data/table.txt" "$out/align.txt"
  while read -r name id _; do
    for file in "$data/runs/$id"/alignment-*.{md,json,html}; do
      [ ! -e "$file" ] || cp "$file" "$out/$name-$(basename "$file")"
    done
  done <"$data/submitted"
fi
exit "$held"
