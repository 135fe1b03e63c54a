#!/usr/bin/env bash
# bench/load.sh LLMPROF LOAD_SERVER [RATE] [SECONDS]: an open loop of streaming requests on a
# trivial server of the same host. Prints the load's table, CPU time of both, and the error of the
# client's times: from the server's write of the first token to the time recorded for it.
set -euo pipefail
llmprof=$1 server=$2 rate=${3:-2000} seconds=${4:-10} port=18577
folder=$(mktemp -d)
"$server" "$port" 4 >"$folder/sent" &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -rf "$folder"' EXIT
until (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
TIMEFORMAT='client: %U s user, %S s system in %R s'
time "$llmprof" load "http://127.0.0.1:$port" --rate "$rate" --seconds "$seconds" --prompt-tokens 128 \
    --new-tokens 4 --out "$folder/requests.jsonl"
printf 'server: %s ticks of CPU\n' "$(awk '{ print $14 + $15 }' "/proc/$pid/stat")"
kill "$pid"; wait "$pid" 2>/dev/null || true
python3 - "$folder" <<'PYTHON'
import json, sys
folder = sys.argv[1]
sent = dict(map(int, line.split()) for line in open(f"{folder}/sent"))
start, errors = 0, []
for line in map(json.loads, open(f"{folder}/requests.jsonl")):
    if line["kind"] == "load":
        start = line["started_monotonic_ns"]
    elif line["kind"] == "request" and line["first_token_ns"] and line["request"] in sent:
        errors.append((start + line["first_token_ns"] - sent[line["request"]]) / 1e6)
errors.sort()
at = lambda share: errors[min(len(errors) - 1, int(share * len(errors)))]
print(f"first token, recorded after sent, ms: p50 {at(.5):.3f} p90 {at(.9):.3f} "
      f"p99 {at(.99):.3f} max {errors[-1]:.3f} of {len(errors)}")
PYTHON
