# Sourced by the scripts in this folder: starts a service of "$bin" on loopback, on "$device" (auto
# or cpu), with a temporary data folder. Sets $base to its address and $data to its folder; both are
# removed when the script ends, which prints its time. Needs bash, curl and python3.
bin=$(cd "$bin" && pwd)
for program in llmprof model-runner; do
  [ -x "$bin/$program" ] || {
    echo "no executable $bin/$program; set the folder of the binaries with --bin" >&2
    exit 2
  }
done

data=$(mktemp -d) service=''
trap 'echo "took $SECONDS s"; kill "$service" 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
[ "$device" != cpu ] || export LLMPROF__WORKER__DEVICES='["cpu"]'
export LLMPROF__TOOLS__MODEL_RUNNER=${LLMPROF__TOOLS__MODEL_RUNNER:-$bin/model-runner}
. "$(dirname "${BASH_SOURCE[0]}")/serve.sh"
serve "$bin/llmprof" "$data" "$data"

# run_id: prints the id in a response to a submission, or fails with its error.
run_id() {
  python3 -c 'import json, sys
response = json.load(sys.stdin)
print(response.get("run_id") or sys.exit(response["error"]["message"]))'
}

# follow NAME BODY: submits one run, follows its events to the end, stores events and run in
# $data/NAME.*, and sets $id.
follow() {
  id=$(curl -sS -X POST "$base/runs" -H 'content-type: application/json' -d "$2" | run_id)
  echo "$1: run $id" >&2
  curl -sN --max-time 1900 "$base/runs/$id/events" >"$data/$1.events"
  curl -sf "$base/runs/$id" >"$data/$1.run.json"
}
