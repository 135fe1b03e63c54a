#!/usr/bin/env bash
# Tests the model runner on a GPU: every kernel compared with the CPU, graphs with eager steps, then
# the times of whole models and of parts.
#
#   tests/gpu/runner.sh [BIN]
#
# BIN: folder with `model-runner` and `model-runner-tests` (default: target/release). Build them on
# a host with the CUDA toolkit:
#   cargo build --release --package llmprof --no-default-features --features cuda
#   cargo test --release --package llmprof-runner --features cuda --no-run
# and copy the executable named by the second command to model-runner-tests. Needs python3. Prints a
# table; exits with 0 if every test passed and every bench ran.
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-target/release}
failed=0

echo "== kernels and graphs"
"$bin/model-runner-tests" --ignored --test-threads=1 gpu || failed=1

echo "== times"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
printf '%-46s %6s %9s %9s %9s %9s %8s %7s\n' \
  model prompt prefill p10..p90 step p10..p90 peak first
bench() {
  "$bin/model-runner" bench --device cuda:0 --warmup 2 "$@" 2>/tmp/bench.err >/tmp/bench.json || {
    failed=1
    echo "FAILED $*: $(tail -n 1 /tmp/bench.err)"
    return
  }
  python3 - <<'P'
import json
d = json.load(open("/tmp/bench.json"))
stage = {s["stage"]: s for s in d["stages"]}
def ms(name):
    s = stage.get(name)
    if s is None:
        return ("-", "-")
    wall = s["wall_ms"]
    return ("%.3f ms" % wall["median"], "%.3f..%.3f" % (wall["p10"], wall["p90"]))
eager = "decode_step" in stage and not d["decode_graph"]
part = ":" + d["target"] if d["target"] else ""
name = d["model"] + part + (" eager " if eager else " ") + d["dtype"]
peak = "%.2f GiB" % ((d["peak_device_bytes"] or 0) / 2**30)
first = "%.2f s" % d["first_token_s"]
row = [name, d["prompt_tokens"], *ms("prefill"), *ms("decode_step"), peak, first]
print("%-46s %6s %9s %15s %9s %13s %9s %7s" % tuple(row))
for name in ("sam", "clip", "projector", "vision"):
    if name in stage and stage[name]["device_ms"]:
        print("    %-10s on the device %.3f ms" % (name, stage[name]["device_ms"]["median"]))
if d["decode"]:
    rates = d["decode"]
    values = (rates["tokens_per_s"], rates["bytes_per_step"] / 1e9, rates["bytes_per_s"] / 1e12)
    print("    %.0f tokens/s, %.2f GB per step, %.2f TB/s" % values)
P
}
bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 64 --repeats 10
bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 64 --repeats 5 --decode-graph false
bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 1130 --repeats 2
bench --model deepseek-ocr --image samples/small.png --max-new-tokens 64 --repeats 10
bench --model deepseek-ocr --image samples/page.png --max-new-tokens 64 --repeats 5
bench --model deepseek-ocr --prompt-tokens 8100 --max-new-tokens 64 --repeats 3
bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 64 --repeats 3 --dtype f16
bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 16 --repeats 2 --dtype f32
bench --model qwen3-0.6b --prompt-tokens 918 --max-new-tokens 64 --repeats 5
for part in decoder.layers.3 decoder.layers.3.self_attn decoder.layers.3.mlp; do
  bench --target "deepseek-ocr:$part" --prompt-tokens 918 --max-new-tokens 64 --repeats 5
done
bench --target deepseek-ocr:decoder.layers.3.self_attn --extracted --prompt-tokens 918 \
  --max-new-tokens 64 --repeats 5
bench --target deepseek-ocr:decoder.layers.3.mlp --extracted --prompt-tokens 918 \
  --max-new-tokens 64 --repeats 5
bench --target deepseek-ocr:vision.sam --image samples/small.png --repeats 5
bench --target deepseek-ocr:vision.sam.blocks.2 --image samples/small.png --repeats 5
bench --target deepseek-ocr:vision.clip --image samples/small.png --repeats 5

[ "$failed" = 0 ] && echo "== all passed" || { echo "== something failed"; exit 1; }
