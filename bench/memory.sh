#!/usr/bin/env bash
# Measures the memory that a service keeps: VmRSS after its start, and a minute after ten light runs
# of deepseek-ocr-tiny.
#
#   bench/memory.sh [BINARY]      (needs curl, and nsys for timelines)
#
# BINARY is an llmprof with model-runner next to it; without it the release build is used.
set -euo pipefail
cd "$(dirname "$0")/.."
llmprof=${1:-}
if [ -z "$llmprof" ]; then
    cargo build --release --locked --quiet
    llmprof=${CARGO_TARGET_DIR:-target}/release/llmprof
fi
data=$(mktemp -d) base=http://127.0.0.1:18081 runs=10
trap 'kill "$server" 2>/dev/null; wait 2>/dev/null; rm -rf "$data"' EXIT
"$llmprof" serve --listen "${base#http://}" --data "$data" 2>"$data/log" >/dev/null & server=$!
until curl -sf "$base/readyz" >/dev/null; do kill -0 "$server"; sleep 0.1; done
rss() {
    awk -v name="$1" '/VmRSS/ { rss = $2 } /RssFile/ { file = $2 } END {
        printf "%-28s VmRSS %5.1f MiB, of files %5.1f MiB\n", name, rss / 1024, file / 1024 }' \
        "/proc/$server/status"
}
sleep 3
rss "three seconds after start"
for _ in $(seq "$runs"); do
    curl -sf -X POST "$base/runs" -H 'content-type: application/json' \
        -d '{"model": "deepseek-ocr-tiny", "mode": "light"}' >/dev/null
done
listed() { curl -sf "$base/runs?limit=50&state=$1" | grep -o '"run_id"' | wc -l; }
until [ $(($(listed queued) + $(listed running))) = 0 ]; do sleep 1; done
echo "$(listed succeeded) of $runs runs succeeded"
sleep 60
rss "60 s after $runs light runs"
