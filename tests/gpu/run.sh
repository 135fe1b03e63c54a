#!/usr/bin/env bash
# Profiles models on a GPU host and checks the results of every pass. Run from the repository's
# root.
#
#   tests/gpu/run.sh [--bin DIR] [--out DIR] [--device auto|cpu] [--models LARGE,SECOND]
#                    [--tokens N] [--by-hand]
#
# Starts the service of DIR (default target/release) on loopback with a temporary data folder,
# submits deepseek-ocr deep and light and qwen3-0.6b deep, follows each to its end, and prints one
# table. Exits with 0 if every check passed. --out keeps fixtures, in at most 8 files, including a
# small model with whole captures; --by-hand repeats the deep run with bench/by_hand.sh first.
# --device cpu tries the script without a GPU: small models, and no GPU checks. Needs bash, curl and
# python3; compiles nothing.
set -euo pipefail
bin=target/release out='' device=auto tokens=64 by_hand='' models=''
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --out) out=$2; shift ;;
    --device) device=$2; shift ;;
    --models) models=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    --by-hand) by_hand=1 ;;
    *) sed -n '2,13p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
. "$here/service.sh"

# submit NAME MODEL MODE [TOKENS]: submits one run, follows its events to the end, stores its id.
submit() {
  local body
  body=$(printf '{"model": "%s", "mode": "%s", "device": "%s", "max_new_tokens": %d,
    "labels": ["%s"]}' "$2" "$3" "$device" "${4:-$tokens}" "$1")
  follow "$1" "$body"
  echo "$1 $id" >>"$data/submitted"
}
[ "$device" != cpu ] || models=${models:-deepseek-ocr-tiny,llama-tiny}
models=${models:-deepseek-ocr,qwen3-0.6b}
large=${models%,*} second=${models#*,}
# The first run also reads the libraries of CUDA from the disk.
submit light "$large" light
submit deep "$large" deep
submit second "$second" deep
[ -z "$out" ] || submit small deepseek-ocr-tiny deep 4

status=0
python3 "$here/check.py" "$data" "$device" | tee "$data/table.txt" || status=1
if [ -n "$by_hand" ]; then
  id=$(awk '$1 == "deep" {print $2}' "$data/submitted")
  "$here/../../bench/by_hand.sh" --runner "$LLMPROF__TOOLS__MODEL_RUNNER" \
    ${LLMPROF__TOOLS__NSYS:+--nsys "$LLMPROF__TOOLS__NSYS"} \
    ${LLMPROF__TOOLS__NCU:+--ncu "$LLMPROF__TOOLS__NCU"} "$data/runs/$id" |
    tee -a "$data/table.txt" || status=1
fi
if [ -n "$out" ]; then
  mkdir -p "$out"
  id=$(awk '$1 == "deep" {print $2}' "$data/submitted")
  curl -sf "$base/runs/$id/bundle" -o "$data/deep.tar.zst"
  python3 "$here/collect.py" "$data" "$out"
fi
exit "$status"
