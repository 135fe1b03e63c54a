#!/usr/bin/env bash
# Time of an upload of 20 pages (40 MB), of the same upload again, and of a page of a list of 10,000
# stored inputs.
#   bench/inputs.sh [LLMPROF]     the program to measure; target/release/llmprof by default
set -euo pipefail
cd "$(dirname "$0")/.."
llmprof=${1:-target/release/llmprof}
work=$(mktemp -d)
trap 'kill "$service" 2>/dev/null || true; rm -rf "$work"' EXIT

# 20 pages of 1240 x 1754 pixels, 2 MB each: text-like rows, and noise that does not compress.
python3 - "$work" <<'PY'
import random, struct, sys, zlib

WIDTH, HEIGHT, NOISE = 1240, 1754, 2_000_000 // (1754 * 3)
random.seed(7)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


for page in range(20):
    rows = bytearray()
    for y in range(HEIGHT):
        text = b"\xff" * (3 * (WIDTH - NOISE)) if y % 24 < 12 else b"\x20\x20\x20\xff\xff\xff" * (
            (WIDTH - NOISE) // 2) + b"\xff" * (3 * ((WIDTH - NOISE) % 2))
        rows += b"\0" + text + random.randbytes(3 * NOISE)
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    with open(f"{sys.argv[1]}/page-{page:02}.png", "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
                   + chunk(b"IDAT", zlib.compress(bytes(rows), 6)) + chunk(b"IEND", b""))
PY
echo "pages: $(cat "$work"/page-*.png | wc -c) bytes"

touch "$work/out"
LLMPROF_LOG=warn "$llmprof" serve --listen 127.0.0.1:0 --data "$work/data" > "$work/out" &
service=$!
until base=$(sed -n 's/^listening on //p' "$work/out") && [ -n "$base" ]; do sleep 0.1; done

files=()
for page in "$work"/page-*.png; do files+=(-F "image=@$page"); done
upload() {
    curl -s -o "$work/answer" -w '%{http_code} %{time_total} s' "$base/inputs" "${files[@]}" \
        -F prompt=x
}
for attempt in 1 2 3; do
    echo "upload $attempt, stored: $(upload)"
    echo "the same again: $(upload)"
    id=$(sed -E 's/.*"inputs_id": ?"([^"]+)".*/\1/' "$work/answer")
    curl -s -o /dev/null -X DELETE "$base/inputs/$id"
done

# 10,000 sets of a prompt, over one connection.
for number in $(seq 10000); do
    [ "$number" = 1 ] || echo next
    printf 'url = "%s/inputs"\nform = "prompt=number %s"\nsilent\noutput = /dev/null\n' \
        "$base" "$number"
done > "$work/many"
curl -K "$work/many"
stored=0 cursor=
while :; do
    page=$(curl -s "$base/inputs?limit=200${cursor:+&cursor=$cursor}")
    stored=$((stored + $(grep -o '"inputs_id"' <<< "$page" | wc -l)))
    cursor=$(sed -nE 's/.*"next_cursor": ?"([^"]+)".*/\1/p' <<< "$page")
    [ -n "$cursor" ] || break
done
echo "stored inputs: $stored"
for attempt in 1 2 3; do
    curl -s -o "$work/list" -w "a page of 200 of 10,000: %{time_total} s\n" "$base/inputs?limit=200"
done
