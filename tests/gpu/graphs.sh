#!/usr/bin/env bash
# Compares decode traced as whole CUDA graphs with the same run traced by node, on a GPU host. Run
# from the repository's root.
#
#   tests/gpu/graphs.sh [--bin DIR] [--model NAME] [--tokens N] [--rounds N] [--out DIR]
#
# Starts the service of DIR (default target/release) on loopback, submits MODEL (default
# deepseek-ocr) in mode light with whole graphs and with cuda_graph_trace = node, in turn, and
# imports one capture of each. Prints one table; exits with 0 if every check passed. --out keeps the
# export of a tiny run with whole graphs as a fixture. Needs bash, curl and python3; compiles
# nothing.
set -euo pipefail
bin=target/release out='' device=auto tokens=64 model=deepseek-ocr rounds=3
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --model) model=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --out) out=$2; shift ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
. "$here/service.sh"

# light NAME MODEL TOKENS TRACE: one light run, with graphs traced as TRACE.
light() {
  follow "$1" "$(printf '{"model": "%s", "mode": "light", "max_new_tokens": %d,
    "profiling": {"nsys": {"cuda_graph_trace": "%s"}}}' "$2" "$3" "$4")"
  echo "$1 $id" >>"$data/submitted"
}
for round in $(seq "$rounds"); do
  light "graph-$round" "$model" "$tokens" graph
  light "node-$round" "$model" "$tokens" node
done

# import NAME ID: imports the run's export as a capture of another program.
import() {
  local id
  id=$(curl -sS -X POST "$base/captures?name=$1.sqlite" \
    -H 'content-type: application/octet-stream' --data-binary @"$data/runs/$2/nsys/run.sqlite" |
    run_id)
  curl -sN --max-time 600 "$base/runs/$id/events" >"$data/$1.events"
  curl -sf "$base/runs/$id" >"$data/$1.run.json"
  echo "$1 $id" >>"$data/submitted"
}
for trace in graph node; do
  import "import-$trace" "$(awk -v name="$trace-1" '$1 == name {print $2}' "$data/submitted")"
done

status=0
python3 "$here/graphs.py" "$data" || status=1
if [ -n "$out" ]; then
  mkdir -p "$out"
  light tiny deepseek-ocr-tiny 4 graph
  cp "$data/runs/$id/nsys/run.sqlite" "$out/whole-graphs.sqlite"
  graph=$(awk '$1 == "graph-1" {print $2}' "$data/submitted")
  cp "$data/runs/$graph/report.html" "$out/light-graph.html"
  cp "$data/runs/$graph/report.md" "$out/light-graph.md"
  import=$(awk '$1 == "import-graph" {print $2}' "$data/submitted")
  cp "$data/runs/$import/report.md" "$out/import-graph.md"
fi
exit "$status"
