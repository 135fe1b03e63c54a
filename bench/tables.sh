#!/usr/bin/env bash
# Measures the tables of an ended run: each as JSON and as CSV, over one connection, in sequence.
#
#   bench/tables.sh CAPTURE.sqlite      (LLMPROF=path for another build than target/release/llmprof)
#
# The service executes a small run; the tables of the capture, as `llmprof analyze` writes them,
# replace its own.
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
def call(path, method="GET", body=None):
    connection.request(method, path, body, {"content-type": "application/json"} if body else {})
    response = connection.getresponse()
    text = response.read()
    assert response.status < 300, (path, response.status, text)
    return text
request = {"model": "deepseek-ocr-tiny", "mode": "basic"}
request |= {"repeats": 1, "warmup": 0, "max_new_tokens": 2}
run = json.loads(call("/runs", "POST", json.dumps(request)))["run_id"]
while json.loads(call(f"/runs/{run}"))["state"] in ("queued", "running"):
    time.sleep(0.2)
shutil.copy(f"{data}/out/tables.jsonl", f"{data}/data/runs/{run}/tables.jsonl")
tables = json.loads(call(f"/runs/{run}/tables"))["tables"]
paths = [f"/runs/{run}/tables"]
paths += [f"{paths[0]}/{t['name']}?format={form}" for t in tables for form in ("json", "csv")]
times, slowest, largest = [], (0, ""), 0
for _ in range(20):
    for path in paths:
        start = time.perf_counter()
        text = call(path)
        elapsed = (time.perf_counter() - start) * 1e3
        times.append(elapsed)
        slowest, largest = max(slowest, (elapsed, path)), max(largest, len(text))
times.sort()
at = lambda share: times[min(int(len(times) * share), len(times) - 1)]
rows = sum(t["total"] for t in tables)
print(f"{len(tables)} tables, {rows} rows; {len(times)} requests, largest response {largest} bytes")
print(f"p50 {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, slowest {slowest[0]:.2f} ms", end=" ")
print(f"({slowest[1].split('/')[-1]})")
PYTHON
