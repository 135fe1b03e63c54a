#!/usr/bin/env bash
# Checks alignments of parts with the whole model on a GPU host, including mocks that must fail. Run
# from the repository's root.
#
#   tests/gpu/align.sh [--bin DIR] [--out DIR] [--device auto|cpu] [--model NAME]
#                      [--attention LAYER] [--moe LAYER] [--tokens N]
#
# Starts the service of DIR (default target/release) on loopback with a temporary data folder and
# submits, one after another, runs that end in an alignment with the whole model: attention and the
# mixture of experts of a layer, and attention with three wrong mocks: f32, without the CUDA graph,
# with another prompt. Prints a table of verdicts by stage, with PASS if the verdict is the expected
# one, and with the watts and joules of each side, which decide nothing. Exits with 0 if all verdicts
# are. --out keeps the alignment reports. --device cpu tries the script without a GPU: there are no
# kernels, so every verdict is inconclusive. Needs bash, curl and python3; compiles nothing.
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
    *) sed -n '2,14p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
. "$here/service.sh"

# submit NAME PART MOCK PREFILL DECODE: runs once, and stores the two expected verdicts.
submit() {
  local body mock=''
  [ -z "$3" ] || mock=$(printf ', "mock": %s' "$3")
  body=$(printf '{"model": "%s", "target": "%s", "align_with": "e2e", "mode": "deep",
    "device": "%s", "max_new_tokens": %d, "labels": ["%s"],
    "profiling": {"ncu": {"enabled": false}, "gemm_log": {"enabled": false}}%s}' \
    "$model" "$2" "$device" "$tokens" "$1" "$mock")
  follow "$1" "$body"
  echo "$1 $id $4 $5" >>"$data/submitted"
}
# A graph is replayed in decode only; another prompt has another length in both stages.
submit attention "decoder.layers.$attention.self_attn" '' pass pass
submit moe "decoder.layers.$moe.mlp" '' pass pass
submit f32 "decoder.layers.$attention.self_attn" '{"dtype": "f32"}' fail fail
submit eager "decoder.layers.$attention.self_attn" '{"decode_graph": false}' pass fail
submit length "decoder.layers.$attention.self_attn" '{"prompt_tokens": 128}' fail fail

status=0
python3 "$here/align.py" "$data" "$device" | tee "$data/table.txt" || status=1
if [ -n "$out" ]; then
  mkdir -p "$out"
  cp "$data/table.txt" "$out/align.txt"
  while read -r name id _; do
    for file in "$data/runs/$id"/alignment-*.{md,json,html}; do
      [ ! -e "$file" ] || cp "$file" "$out/$name-$(basename "$file")"
    done
  done <"$data/submitted"
fi
exit "$status"
