#!/usr/bin/env bash
# The passes of one ended run again, by hand: the same tools with the same settings in plain shell, timed, beside the run's steps.
#
#   bench/by_hand.sh [--runner FILE] [--nsys FILE] [--ncu FILE] [--most PCT] RUN_FOLDER
#
# RUN_FOLDER is a run's folder as the service left it (data/runs/ID): requests, chosen kernels and settings are read from it. Prints
# a row per pass: seconds by hand, seconds in the run, and how much longer the run took. Exit code 1 when all passes together took
# more than PCT percent longer in the run (default 10), or when a command failed. A pass that the run did not take is left out.
set -euo pipefail
runner=target/release/model-runner nsys=$(command -v nsys || true) ncu=$(command -v ncu || true) most=10
while [ $# -gt 1 ]; do
  case $1 in
    --runner) runner=$2 ;;
    --nsys) nsys=$2 ;;
    --ncu) ncu=$2 ;;
    --most) most=$2 ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
run=${1:?the folder of a run}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
field() { python3 -c 'import functools, json, sys
value = functools.reduce(lambda at, key: at[key], sys.argv[2:], json.load(open(sys.argv[1])))
print("\n".join(map(str, value)) if isinstance(value, list) else value)' "$@"; }
took() { # took PASS: seconds of the run's own step
  python3 - "$run/progress.jsonl" "$1" <<'PY'
import datetime, json, sys
at = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
steps = [event["step"] for event in map(json.loads, open(sys.argv[1])) if event.get("event") == "step" and event["step"]["step"] == sys.argv[2]]
ended = [step for step in steps if step["ended_at"] and step["state"] == "succeeded"]
print((at(ended[-1]["ended_at"]) - at(ended[-1]["started_at"])).total_seconds() if ended else "")
PY
}
gpu=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("gpu") or "")' "$run/baseline/request.json")
[ -z "$gpu" ] || export CUDA_VISIBLE_DEVICES=$gpu

plain() { "$runner" run --request "$run/baseline/request.json" --out "$work/plain"; }
timeline() {
  local on=trace graph=()
  [ -n "$gpu" ] && graph=("--cuda-graph-trace=$(field "$run/spec.json" profiling nsys cuda_graph_trace)") || on=trace_on_cpu
  "$nsys" profile --trace "$(field "$run/spec.json" profiling nsys "$on" | paste -sd,)" \
    "--sample=$(field "$run/spec.json" profiling nsys sample)" "--cpuctxsw=$(field "$run/spec.json" profiling nsys cpuctxsw)" \
    "${graph[@]}" --wait=primary --stats=false --force-overwrite=true --output "$work/nsys/run" \
    "$runner" run --request "$run/nsys/request.json" --out "$work/nsys" &&
  "$nsys" export --type sqlite --quiet=true --force-overwrite=true --output "$work/nsys/run.sqlite" "$work/nsys/run.nsys-rep"
}
counters() { # one process for each stage, over the kernels that the run chose, then both pages
  local folder stage names sections=() metrics
  while read -r section; do sections+=(--section "$section"); done < <(field "$run/spec.json" profiling ncu sections)
  metrics=$("$ncu" --query-metrics | awk '{print $1}' | grep -xF -f <(field "$run/spec.json" profiling ncu metrics) | sed 's/$/.sum/' | paste -sd, || true)
  for folder in "$run"/ncu/*/; do
    stage=$(basename "$folder")
    mkdir -p "$work/ncu/$stage"
    names=$(python3 -c 'import json, re, sys
print("|".join(re.escape(kernel["name"]) for kernel in json.load(open(sys.argv[1]))["kernels"]))' "$folder/choice.json")
    "$ncu" --target-processes all --graph-profiling node --clock-control "$(field "$run/spec.json" profiling ncu clock_control)" \
      --nvtx --nvtx-include "LLM@$stage/" --kernel-name-base function --kernel-name "regex:^($names)\$" \
      --filter-mode per-launch-config --launch-skip "$(field "$folder/choice.json" window skip)" \
      --launch-count "$(field "$folder/choice.json" window count)" "${sections[@]}" ${metrics:+--metrics "$metrics"} \
      --force-overwrite --export "$work/ncu/$stage/run.ncu-rep" \
      "$runner" run --request "$folder/request.json" --out "$work/ncu/$stage" || return
    "$ncu" --import "$work/ncu/$stage/run.ncu-rep" --csv --page raw --print-units base >"$work/ncu/$stage/raw.csv" || return
    "$ncu" --import "$work/ncu/$stage/run.ncu-rep" --csv --page details --print-details all --print-units base \
      >"$work/ncu/$stage/details.csv" || return
  done
}
products() {
  local folder pass
  for folder in "$run"/gemm_log/*/; do
    pass=$(basename "$folder")
    mkdir -p "$work/gemm_log/$pass"
    CUBLAS_LOGINFO_DBG=1 CUBLAS_LOGDEST_DBG=$work/gemm_log/$pass/cublas.log CUBLASLT_LOG_LEVEL=5 \
      CUBLASLT_LOG_FILE=$work/gemm_log/$pass/cublaslt.log \
      "$runner" run --request "$folder/request.json" --out "$work/gemm_log/$pass" || return
  done
}

rows=''
measure() { # measure STEP FUNCTION
  local inside begun by_hand
  inside=$(took "$1")
  [ -n "$inside" ] || return 0
  mkdir -p "$work/plain" "$work/nsys" "$work/ncu" "$work/gemm_log"
  begun=$(date +%s.%N)
  "$2" >"$work/$1.log" 2>&1 || { echo "$1 by hand failed:" >&2; tail -n 20 "$work/$1.log" >&2; exit 1; }
  by_hand=$(python3 -c 'import sys, time; print(time.time() - float(sys.argv[1]))' "$begun")
  rows+="$1 $by_hand $inside"$'\n'
}
measure baseline plain
measure nsys timeline
measure ncu counters
measure gemm_log products
python3 - "$most" <<PY
import sys
rows = [(name, float(hand), float(inside)) for name, hand, inside in map(str.split, """$rows""".splitlines())]
rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
print(f"{'pass':<10} {'by hand s':>10} {'in the run s':>13} {'longer %':>9}")
for name, hand, inside in rows:
    print(f"{name:<10} {hand:>10.2f} {inside:>13.2f} {100 * (inside / hand - 1):>9.1f}")
sys.exit(rows[-1][2] > rows[-1][1] * (1 + float(sys.argv[1]) / 100))
PY
