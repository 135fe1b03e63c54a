#!/usr/bin/env bash
# tests/gpu/overhead.sh MODEL_RUNNER [ROUNDS [MODEL [IMAGE]]]: cost of tracing a prefill that is
# launched kernel by kernel, on a GPU host with nsys.
#
# Runs the prompt `Free OCR.` of qwen3-0.6b, or of another model with an image, under each tracer in
# turn, a process each, with one warm-up and eight repeats. llmprof traces stages as NVTX ranges,
# and operators only as events of the runner. Hosts are noisy, so the table has the lowest median of
# the rounds and all medians. CUPTI is attached alone by a directive of nsys that records no
# kernels.
set -euo pipefail
runner=$(realpath "$1") rounds=${2:-5} model=${3:-qwen3-0.6b}
image=()
[ $# -lt 4 ] || image=(--image "$4")
work=$(mktemp -d)
trap 'echo "took $SECONDS s"; rm -rf "$work"' EXIT

operator_ranges=true
run() { # NAME COMMAND...
    local name=$1
    shift
    rm -rf "$work/out" "$work"/report.*
    "$@" "$runner" run --model "$model" "${image[@]}" --device cuda:0 \
        --prompt 'Free OCR.' --max-new-tokens 2 --repeats 8 --warmup 1 \
        --operator-ranges "$operator_ranges" --out "$work/out" >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    python3 - "$work/out/events.jsonl" "$name" >>"$work/medians" <<'PYTHON'
import json, statistics, sys
events = [json.loads(line) for line in open(sys.argv[1])]
times = [(it["end_ns"] - it["start_ns"]) / 1e6 for it in events
         if it["kind"] == "range" and it["name"] == "prefill" and not it.get("warmup")]
print(sys.argv[2], statistics.median(times), sep="\t")
PYTHON
}
trace() { # NAME DIRECTIVES TRACE [OPTION...]
    run "$1" env NSYS_CONFIG_DIRECTIVES="$2" nsys profile --trace="$3" "${@:4}" \
        --cuda-graph-trace=node --sample=none --cpuctxsw=none --stats=false --output "$work/report"
}
for _ in $(seq "$rounds"); do
    run 'unprofiled' env
    operator_ranges=false
    trace 'ranges of stages alone' '' nvtx
    trace 'all, as llmprof traces' '' cuda,nvtx
    trace 'all, with calls of the OS' '' cuda,nvtx,osrt
    trace 'all, with calls of cuBLAS' '' cuda,nvtx,cublas
    trace 'ranges, metrics of the GPU at 10 kHz' '' nvtx --gpu-metrics-devices=cuda-visible \
        --gpu-metrics-frequency=10000
    operator_ranges=true
    trace 'ranges of operators, too' '' nvtx
    trace 'CUPTI attached, no kernels recorded' CUPTIDisableLaunchCollection=true cuda,nvtx
    trace 'no driver calls recorded' CUPTIDisableDriverAPICollection=true cuda,nvtx
    trace 'no events recorded' CUPTIDisableCudaEventCollection=true cuda,nvtx
    trace 'all, with ranges of operators' '' cuda,nvtx
done
python3 - "$work/medians" "$model" <<'PYTHON'
import sys
medians = {}
for line in open(sys.argv[1]):
    name, value = line.rstrip("\n").split("\t")
    medians.setdefault(name, []).append(float(value))
least = min(medians["unprofiled"])
title = f"prefill of {sys.argv[2]}"
print(f"{title:38} {'lowest ms':>9} {'overhead %':>10}  medians of the rounds, ms")
for name, values in medians.items():
    rounds = " ".join(f"{value:.2f}" for value in values)
    print(f"{name:38} {min(values):9.2f} {100 * (min(values) / least - 1):10.0f}  {rounds}")
PYTHON
