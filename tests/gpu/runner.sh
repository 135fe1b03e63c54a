#!/usr/bin/env bash
# The model runner on a GPU: every kernel against the CPU, graphs against eager steps, then the times of whole models and of parts.
#
#   tests/gpu/runner.sh [BIN]
#
# BIN: folder with `model-runner` and `model-runner-tests` (default: target/release). Build them where a toolkit is:
#   cargo build --release --features cuda --bin model-runner
#   cargo test --release --features cuda --bin model-runner --no-run   # copy the executable that it names to model-runner-tests
# Needs python3. Ends with a table, and with exit code 0 only if every test passed and every bench ran.
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-target/release}
failed=0

echo "== kernels and graphs"
"$bin/model-runner-tests" --ignored --test-threads=1 gpu || failed=1

echo "== times"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
printf '%-46s %6s %9s %9s %9s %9s %8s %7s\n' "what" prompt "prefill" "p10..p90" "step" "p10..p90" "peak" "first"
bench() {
  "$bin/model-runner" bench --device cuda:0 --warmup 2 "$@" 2>/tmp/bench.err >/tmp/bench.json || { failed=1; echo "FAILED $*: $(tail -n 1 /tmp/bench.err)"; return; }
  python3 - <<'P'
import json
d = json.load(open("/tmp/bench.json"))
stage = {s["stage"]: s for s in d["stages"]}
def ms(name):
    s = stage.get(name)
    return ("-", "-") if s is None else ("%.3f ms" % s["wall_ms"]["median"], "%.3f..%.3f" % (s["wall_ms"]["p10"], s["wall_ms"]["p90"]))
what = d["model"] + (":" + d["target"] if d["target"] else "") + ("" if d["decode_graph"] or "decode_step" not in stage else " eager") + " " + d["dtype"]
row = [what, d["prompt_tokens"], *ms("prefill"), *ms("decode_step"), "%.2f GiB" % ((d["peak_device_bytes"] or 0) / 2**30), "%.2f s" % d["first_token_s"]]
print("%-46s %6s %9s %15s %9s %13s %9s %7s" % tuple(row))
for name in ("sam", "clip", "projector", "vision"):
    if name in stage and stage[name]["device_ms"]:
        print("    %-10s on the device %.3f ms" % (name, stage[name]["device_ms"]["median"]))
if d["decode"]:
    print("    %.0f tokens/s, %.2f GB a token, %.2f TB/s" % (d["decode"]["tokens_per_s"], d["decode"]["bytes_per_token"] / 1e9, d["decode"]["bytes_per_s"] / 1e12))
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
bench --target deepseek-ocr:decoder.layers.3.self_attn --extracted --prompt-tokens 918 --max-new-tokens 64 --repeats 5
bench --target deepseek-ocr:decoder.layers.3.mlp --extracted --prompt-tokens 918 --max-new-tokens 64 --repeats 5
bench --target deepseek-ocr:vision.sam --image samples/small.png --repeats 5
bench --target deepseek-ocr:vision.sam.blocks.2 --image samples/small.png --repeats 5
bench --target deepseek-ocr:vision.clip --image samples/small.png --repeats 5

[ "$failed" = 0 ] && echo "== all passed" || { echo "== something failed"; exit 1; }
