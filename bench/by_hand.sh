#!/usr/bin/env bash
# Repeats the passes of one ended run by hand: the same tools with the same settings in plain shell,
# timed, next to the run's steps.
#
#   bench/by_hand.sh [--runner FILE] [--nsys FILE] [--ncu FILE] [--max PCT] RUN_FOLDER
#
# RUN_FOLDER is a run's folder as the service left it (data/runs/ID): requests, chosen kernels and
# settings are read from it. Prints a row per pass: seconds by hand, seconds in the run, and the
# difference in percent. Exit code 1 when all passes together took more than PCT percent longer in
# the run (default 10), or when a command failed. Passes that the run lacks are left out.
set -euo pipefail
runner=target/release/model-runner max=10
nsys=$(command -v nsys || true) ncu=$(command -v ncu || true)
while [ $# -gt 1 ]; do
  case $1 in
    --runner) runner=$2 ;;
    --nsys) nsys=$2 ;;
    --ncu) ncu=$2 ;;
    --max) max=$2 ;;
    *) sed -n '2,10p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
run=${1:?the folder of a run}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
field() { python3 -c 'import functools, json, sys
value = functools.reduce(lambda at, key: at[key], sys.argv[2:], json.load(open(sys.argv[1])))
print("\n".join(map(str, value)) if isinstance(value, list) else value)' "$@"; }
seconds_in_run() { # seconds_in_run STEP
  python3 - "$run/progress.jsonl" "$1" <<'PY'
import datetime, json, sys
at = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
events = [event for event in map(json.loads, open(sys.argv[1])) if event.get("event") == "step"]
steps = [event["step"] for event in events if event["step"]["step"] == sys.argv[2]]
ended = [step for step in steps if step["ended_at"] and step["state"] == "succeeded"]
seconds = [(at(step["ended_at"]) - at(step["started_at"])).total_seconds() for step in ended]
print(seconds[-1] if seconds else "")
PY
}
gpu=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("gpu") or "")' \
  "$run/baseline/request.json")
[ -z "$gpu" ] || export CUDA_VISIBLE_DEVICES=$gpu

setting() { field "$run/spec.json" subject passes profiling "$@"; }

unprofiled() { "$runner" run --request "$run/baseline/request.json" --out "$work/unprofiled"; }
timeline() {
  local on=trace graph=()
  [ -n "$gpu" ] && graph=("--cuda-graph-trace=$(setting nsys cuda_graph_trace)") || on=trace_on_cpu
  "$nsys" profile --trace "$(setting nsys "$on" | paste -sd,)" \
    "--sample=$(setting nsys sample)" "--cpuctxsw=$(setting nsys cpuctxsw)" \
    "${graph[@]}" --wait=primary --stats=false --force-overwrite=true --output "$work/nsys/run" \
    "$runner" run --request "$run/nsys/request.json" --out "$work/nsys" &&
  "$nsys" export --type sqlite --quiet=true --force-overwrite=true \
    --output "$work/nsys/run.sqlite" "$work/nsys/run.nsys-rep"
}
counters() { # the processes of the run, over the kernels that it chose, then the raw page
  local folder name names ranges sections=() metrics
  while read -r section; do sections+=(--section "$section"); done < <(setting ncu sections)
  metrics=$("$ncu" --query-metrics | awk '{print $1}' | grep -xF -f <(setting ncu metrics) |
    sed 's/$/.sum/' | paste -sd, || true)
  mapfile -t ranges < <(python3 -c 'import json, sys
for stage in json.load(open(sys.argv[1]))["stages"]:
    print("--nvtx-include", stage["range"] or "LLM@" + stage["stage"] + "/", sep="\n")' \
    "$run/ncu/choice.json")
  for folder in "$run"/ncu/process-*/; do
    name=$(basename "$folder")
    mkdir -p "$work/ncu/$name"
    names=$(python3 -c 'import json, re, sys
process = json.load(open(sys.argv[1]))["processes"][int(sys.argv[2]) - 1]
print("|".join(map(re.escape, process["kernels"])))' \
      "$run/ncu/choice.json" "${name#process-}")
    "$ncu" --target-processes all --graph-profiling node \
      --clock-control "$(setting ncu clock_control)" --nvtx "${ranges[@]}" \
      --kernel-name-base function --kernel-name "regex:^($names)\$" \
      --filter-mode per-launch-config --launch-count 1 "${sections[@]}" \
      ${metrics:+--metrics "$metrics"} \
      --force-overwrite --export "$work/ncu/$name/run.ncu-rep" \
      "$runner" run --request "$folder/request.json" --out "$work/ncu/$name" || return
    "$ncu" --import "$work/ncu/$name/run.ncu-rep" --csv --page raw --print-units base \
      >"$work/ncu/$name/raw.csv" || return
  done
}
products() {
  local folder pass
  for folder in "$run"/gemm_log/*/; do
    pass=$(basename "$folder")
    mkdir -p "$work/gemm_log/$pass"
    CUBLAS_LOGINFO_DBG=1 CUBLAS_LOGDEST_DBG=$work/gemm_log/$pass/cublas.log \
      CUBLASLT_LOG_LEVEL=5 CUBLASLT_LOG_FILE=$work/gemm_log/$pass/cublaslt.log \
      "$runner" run --request "$folder/request.json" --out "$work/gemm_log/$pass" || return
  done
}

rows=''
measure() { # measure STEP FUNCTION
  local inside start by_hand
  inside=$(seconds_in_run "$1")
  [ -n "$inside" ] || return 0
  mkdir -p "$work/unprofiled" "$work/nsys" "$work/ncu" "$work/gemm_log"
  start=$(date +%s.%N)
  "$2" >"$work/$1.log" 2>&1 || {
    echo "$1 by hand failed:" >&2
    tail -n 20 "$work/$1.log" >&2
    exit 1
  }
  by_hand=$(python3 -c 'import sys, time; print(time.time() - float(sys.argv[1]))' "$start")
  rows+="$1 $by_hand $inside"$'\n'
}
measure baseline unprofiled
measure nsys timeline
measure ncu counters
measure gemm_log products
python3 - "$max" <<PY
import sys
rows = map(str.split, """$rows""".splitlines())
rows = [(name, float(hand), float(inside)) for name, hand, inside in rows]
rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
print(f"{'pass':<10} {'by hand s':>10} {'in the run s':>13} {'longer %':>9}")
for name, hand, inside in rows:
    print(f"{name:<10} {hand:>10.2f} {inside:>13.2f} {100 * (inside / hand - 1):>9.1f}")
sys.exit(rows[-1][2] > rows[-1][1] * (1 + float(sys.argv[1]) / 100))
PY
