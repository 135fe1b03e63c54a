#!/usr/bin/env bash
# Times of batches: 1, 4, 16 and 64 sequences of 918 prompt and 64 new tokens, and their tokens per
# second against one sequence's. The prompts are equal: so must be the tokens of a batch.
#
#   tests/gpu/batches.sh [BIN [DEVICE [MODEL...]]]
#
# BIN: folder with a `model-runner` built for CUDA (default: target/release). DEVICE: cuda:0. MODEL:
# by default deepseek-ocr and qwen3-0.6b. Needs python3. Prints a table; exits with 0 if every batch
# ran and every sequence of a batch had the same tokens in each repeat.
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-target/release} device=${2:-cuda:0}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- deepseek-ocr qwen3-0.6b
work=$(mktemp -d)
trap 'echo "took $SECONDS s"; rm -rf "$work"' EXIT
failed=0

if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
printf '%-20s %5s %12s %9s %17s %10s %8s %9s\n' \
  model batch prefill step p10..p90 tokens/s 'x of 1' peak
for model; do
  for batch in 1 4 16 64; do
    options=(--model "$model" --device "$device" --prompt-tokens 918 --max-new-tokens 64
      --batch "$batch")
    "$bin/model-runner" bench "${options[@]}" --warmup 1 --repeats 3 >"$work/bench.json" \
      2>"$work/err" && "$bin/model-runner" run "${options[@]}" --warmup 0 --repeats 2 \
      --out "$work/out" >/dev/null 2>"$work/err" || {
      failed=1
      echo "FAILED $model, batch $batch: $(tail -n 1 "$work/err")"
      continue
    }
    python3 - "$work" <<'P' || failed=1
import json, os, sys
work = sys.argv[1]
d = json.load(open(work + "/bench.json"))
stage = {s["stage"]: s["wall_ms"] for s in d["stages"]}
rate, alone = d["decode"]["tokens_per_s"], os.path.join(work, d["model"])
if d["batch"] == 1:
    open(alone, "w").write(str(rate))
ratio = rate / float(open(alone).read()) if os.path.exists(alone) else float("nan")
step = stage["decode_step"]
peak = "%.2f GiB" % ((d["peak_device_bytes"] or 0) / 2**30)
print("%-20s %5d %9.2f ms %6.3f ms %8.3f..%-7.3f %10.0f %8.2f %9s" % (
    d["model"], d["batch"], stage["prefill"]["median"], step["median"], step["p10"], step["p90"],
    rate, ratio, peak))
tokens = {tuple(json.loads(line)["tokens"]) for line in open(work + "/out/predictions.jsonl")}
if len(tokens) != 1:
    sys.exit("    %d different texts of equal prompts" % len(tokens))
P
  done
done

[ "$failed" = 0 ] && echo "== all ran" || { echo "== something failed"; exit 1; }
