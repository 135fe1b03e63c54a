#!/usr/bin/env bash
# Measures the rate of downloads, next to nginx serving the same file; the time to the first byte of
# a bundle; the memory that 200 slow clients cost.
#
#   bench/downloads.sh [BINARY]      (needs nginx, wrk, python3: apt-get install nginx-light wrk)
#
# BINARY is an llmprof; without it the release build is used. Prints the rows of bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in nginx wrk python3; do
    command -v "$tool" >/dev/null || { echo "needs $tool" >&2; exit 1; }
done
llmprof=${1:-}
if [ -z "$llmprof" ]; then
    cargo build --release --locked --quiet --bin llmprof
    llmprof=${CARGO_TARGET_DIR:-target}/release/llmprof
fi
data=$(mktemp -d)
server= web=
cleanup() { kill $server $web 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$data"; }
trap cleanup EXIT
base=http://127.0.0.1:18091 bytes=1000000000

# A runner that leaves one large file and fails: the file is an artifact of the ended run.
cat >"$data/runner.sh" <<SH
#!/bin/sh
[ "\$1" = run ] || exit 1
while [ "\$1" != --out ]; do shift; done
openssl enc -aes-128-ctr -nosalt -k bench -pbkdf2 </dev/zero 2>/dev/null |
    head -c $bytes >"\$2/events.bin"
exit 1
SH
chmod +x "$data/runner.sh"
serve() {
    env LLMPROF_LOG=warn LLMPROF__TOOLS__NSYS=none LLMPROF__TOOLS__NCU=none \
        LLMPROF__WORKER__DEVICES='["cpu"]' LLMPROF__ACCESS__TOKENS=off "$@" \
        "$llmprof" serve --listen 127.0.0.1:18091 --data "$data/data" >/dev/null & server=$!
    until curl -sf $base/readyz >/dev/null; do kill -0 $server; sleep 0.01; done
}
stop() { kill $server; wait $server || true; server=; }
rss() { awk '/VmRSS/ { printf "%.0f MiB", $2 / 1024 }' /proc/$server/status; }
peak() { awk '/VmHWM/ { printf "%.0f MiB", $2 / 1024 }' /proc/$server/status; }

serve LLMPROF__TOOLS__MODEL_RUNNER="$data/runner.sh"
id=$(curl -s -X POST $base/runs -H 'content-type: application/json' \
    -d '{"model": "deepseek-ocr-tiny", "mode": "basic"}' | sed -E 's/.*"run_id": ?"([^"]+)".*/\1/')
file=baseline/events.bin
until curl -sfI $base/runs/$id/artifacts/$file >/dev/null; do sleep 0.2; done
ls -l "$data/data/runs/$id/$file" | awk '{ print "file: " $5 " bytes" }'

mkdir "$data/nginx"
cat >"$data/nginx/nginx.conf" <<CONF
daemon off; pid $data/nginx/pid; error_log stderr crit; worker_processes auto;
events {}
http {
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path $data/nginx; proxy_temp_path $data/nginx; fastcgi_temp_path $data/nginx;
  uwsgi_temp_path $data/nginx; scgi_temp_path $data/nginx;
  server { listen 127.0.0.1:18092; root $data/data/runs; }
}
CONF
chmod 755 "$data" "$data/data" "$data/data/runs"
nginx -c "$data/nginx/nginx.conf" -g "user root;" & web=$!
until curl -sfI http://127.0.0.1:18092/$id/$file >/dev/null; do kill -0 $web; sleep 0.05; done

rate() { curl -s -o /dev/null -w '%{speed_download}\n' "$1"; }
rate http://127.0.0.1:18092/$id/$file >/dev/null # fills the page cache for both
for round in 1 2 3 4 5; do
    ours=$(rate $base/runs/$id/artifacts/$file) theirs=$(rate http://127.0.0.1:18092/$id/$file)
    awk -v r=$round -v a="$ours" -v b="$theirs" 'BEGIN {
        printf "| download, round %d | %.0f MB/s |", r, a / 1e6
        printf " nginx %.0f MB/s | %.0f %% |\n", b / 1e6, 100 * a / b }'
done
for round in 1 2 3; do
    row="| bundle, round $round | first byte after %{time_starttransfer} s "
    row+="| all after %{time_total} s | %{size_download} bytes |"
    curl -s -o /dev/null -w "$row\n" $base/runs/$id/bundle
done
echo "| memory after that | $(rss), at most $(peak) |"

stop; serve LLMPROF__TOOLS__MODEL_RUNNER="$data/runner.sh"
echo "| memory before the slow clients | $(rss) |"
python3 - $base "$id" <<'PY' &
import asyncio, sys, urllib.parse
base, run = sys.argv[1:]
port = urllib.parse.urlparse(base).port
async def slow():
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    writer.write(f"GET /runs/{run}/bundle HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    while await reader.read(1 << 14):
        await asyncio.sleep(0.1)
async def all():
    await asyncio.wait_for(asyncio.gather(*(slow() for _ in range(200))), 30)
try:
    asyncio.run(all())
except TimeoutError:
    pass
PY
clients=$!
sleep 8
wrk -t1 -c4 -d15s --latency $base/runs/$id |
    awk '/99%/ { print "| other requests while 200 read slowly, p99 | " $2 " |" }'
echo "| memory with 200 slow clients | $(rss), at most $(peak) |"
wait $clients || true
stop
