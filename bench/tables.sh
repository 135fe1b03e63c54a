#!/usr/bin/env bash
# How fast the tables of an ended run are answered: every table as JSON and as CSV, over one connection, one after another.
#
#   bench/tables.sh CAPTURE.sqlite      (LLMPROF=path to try another build than target/release/llmprof)
#
# A small run is made by the service; the tables of the capture, as `llmprof analyze` writes them, take the place of its own.
set -euo pipefail
capture=$1
llmprof=${LLMPROF:-target/release/llmprof}
data=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
"$llmprof" analyze "$capture" --out "$data/out" --format json >/dev/null
"$llmprof" serve --listen 127.0.0.1:18081 --data "$data/data" 2>"$data/log" & server=$!
until curl -sf http://127.0.0.1:18081/readyz >/dev/null; do kill -0 "$server"; sleep 0.1; done
python3 - "$data" <<'PYTHON'
import http.client, json, shutil, sys, time
data = sys.argv[1]
connection = http.client.HTTPConnection("127.0.0.1", 18081)
def ask(path, method="GET", body=None):
    connection.request(method, path, body, {"content-type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 300, (path, answer.status, text)
    return text
run = json.loads(ask("/runs", "POST", json.dumps({"model": "deepseek-ocr-tiny", "mode": "basic", "repeats": 1, "warmup": 0, "max_new_tokens": 2})))["run_id"]
while json.loads(ask(f"/runs/{run}"))["state"] in ("queued", "running"):
    time.sleep(0.2)
shutil.copy(f"{data}/out/tables.jsonl", f"{data}/data/runs/{run}/tables.jsonl")
tables = json.loads(ask(f"/runs/{run}/tables"))["tables"]
times, slowest, largest = [], (0, ""), 0
for _ in range(20):
    for path in [f"/runs/{run}/tables"] + [f"/runs/{run}/tables/{t['name']}?format={form}" for t in tables for form in ("json", "csv")]:
        start = time.perf_counter()
        text = ask(path)
        took = (time.perf_counter() - start) * 1e3
        times.append(took)
        slowest, largest = max(slowest, (took, path)), max(largest, len(text))
times.sort()
at = lambda share: times[min(int(len(times) * share), len(times) - 1)]
print(f"{len(tables)} tables, {sum(t['total'] for t in tables)} rows; {len(times)} requests, the largest answer {largest} bytes")
print(f"p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, slowest {slowest[0]:.2f} ms ({slowest[1].split('/')[-1]})")
PYTHON
