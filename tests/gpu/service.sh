# For the scripts beside it, which source it: a service of "$bin" on loopback with a temporary data folder, on "$device" (auto or cpu).
# Leaves its address in $base and its folder in $data; both are gone when the script ends. Needs bash, curl and python3.
bin=$(cd "$bin" && pwd)
for program in llmprof model-runner; do
  [ -x "$bin/$program" ] || { echo "$bin/$program is no program: name the folder of the binaries by --bin" >&2; exit 2; }
done

data=$(mktemp -d) service=''
trap 'kill "$service" 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
[ "$device" != cpu ] || export LLMPROF__WORKER__DEVICES='["cpu"]'
export LLMPROF__TOOLS__MODEL_RUNNER=${LLMPROF__TOOLS__MODEL_RUNNER:-$bin/model-runner}
"$bin/llmprof" serve --listen 127.0.0.1:0 --data "$data" >"$data/service.out" 2>"$data/service.log" & service=$!
base=''
for _ in $(seq 300); do
  base=$(sed -n 's/^listening on //p' "$data/service.out")
  [ -z "$base" ] || ! curl -sf "$base/readyz" >/dev/null || break
  kill -0 "$service" 2>/dev/null || { cat "$data/service.log" >&2; exit 1; }
  sleep 0.1
done
curl -sf "$base/readyz" >/dev/null || { echo "the service did not become ready" >&2; cat "$data/service.log" >&2; exit 1; }

# follow NAME BODY: queues one run, follows its events to the end, keeps what was told in $data/NAME.*, and leaves its id in $id.
follow() {
  id=$(curl -sS -X POST "$base/runs" -H 'content-type: application/json' -d "$2" |
    python3 -c 'import json, sys; answer = json.load(sys.stdin); print(answer.get("run_id") or sys.exit(answer["error"]["message"]))')
  echo "$1: run $id" >&2
  curl -sN --max-time 1900 "$base/runs/$id/events" >"$data/$1.events"
  curl -sf "$base/runs/$id" >"$data/$1.run.json"
}
