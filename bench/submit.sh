#!/usr/bin/env bash
# Measures submissions: POST /runs from 32 connections, each durable before its answer.
#
#   bench/submit.sh [SECONDS] [BINARY]      (needs wrk and sqlite3: apt-get install wrk sqlite3)
#
# BINARY is an llmprof; without it the release build is used. Prints one row per round: requests per
# second, p50, p99, answers 202, runs in the database; before them the commits per second of SQLite
# alone on this disk, measured in the same minute.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
for tool in wrk sqlite3; do
    command -v "$tool" >/dev/null || { echo "needs $tool" >&2; exit 1; }
done
llmprof=${2:-}
if [ -z "$llmprof" ]; then
    cargo build --release --locked --quiet --bin llmprof
    llmprof=${CARGO_TARGET_DIR:-target}/release/llmprof
fi
data=$(mktemp -d)
trap 'kill "$server" 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT

LLMPROF__WORKER__PAUSED=true "$llmprof" serve --listen 127.0.0.1:18080 --data "$data" \
    2>"$data/log" & server=$!
until curl -sf http://127.0.0.1:18080/readyz >/dev/null; do kill -0 "$server"; sleep 0.1; done

cat >"$data/post.lua" <<'LUA'
wrk.method = "POST"
wrk.body = '{"model": "deepseek-ocr-tiny", "mode": "basic", "labels": ["bench"]}'
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format("RESULT %.0f %.2f %.2f %d %d\n",
    summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, summary.requests,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
LUA

commits=$(python3 - "$data/plain.db" <<'PY'
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.executescript("pragma journal_mode=wal; pragma synchronous=full; create table t(x)")
start, n = time.time(), 0
while time.time() - start < 2:
    db.execute("insert into t values (1)"); n += 1
print(round(n / (time.time() - start)))
PY
)
echo "SQLite commits on this disk: $commits per second"
row='%-6s %12s %8s %8s %10s %8s %12s\n'
printf "$row" round requests/s p50_ms p99_ms answered errors in_database
before=0
for round in 1 2 3; do
  read -r _ rate p50 p99 requests errors < <(wrk -t1 -c32 -d"${seconds}s" --latency \
    -s "$data/post.lua" http://127.0.0.1:18080/runs | grep RESULT)
  total=$(sqlite3 "$data/llmprof.db" 'select count(*) from runs')
  stored=$((total - before))
  printf "$row" "$round" "$rate" "$p50" "$p99" "$requests" "$errors" "$stored"
  # wrk stops with requests under way: up to 32 more may be stored than were answered, never fewer.
  [ "$stored" -ge "$((requests - errors))" ] || { echo "runs were lost" >&2; exit 1; }
  before=$total
done
awk '/VmRSS|VmHWM/ {printf "%s %.1f MiB\n", $1, $2 / 1024}' "/proc/$server/status"
