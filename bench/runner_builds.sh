#!/usr/bin/env bash
# Compares builds of the model runner on one GPU, one after the other, and lists the kernels of the
# last: its GPU time by kernel and launch configuration, from nsys.
#
#   bench/runner_builds.sh RUNNER...
#
# RUNNER: executables of
# `cargo build --release --package llmprof --no-default-features --features cuda`. Needs nsys and
# python3. Prints medians by wall clock, stages of the vision part by device time, in ms.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
failed=0

bench() {
  "$runner" bench --device cuda:0 --warmup 2 "$@" 2>"$work/errors" >"$work/bench.json" || {
    failed=1
    echo "FAILED $*: $(tail -n 1 "$work/errors")"
    return
  }
  python3 - "$work/bench.json" "$*" <<'P'
import json, sys
stages = {stage["stage"]: stage for stage in json.load(open(sys.argv[1]))["stages"]}
def median(name, clock="wall_ms"):
    times = stages.get(name, {}).get(clock)
    return "%8.3f" % times["median"] if times else "%8s" % "-"
print("prefill", median("prefill"), " step", median("decode_step"),
      " sam", median("sam", "device_ms"), " clip", median("clip", "device_ms"), " ", sys.argv[2])
P
}
for runner in "$@"; do
  echo "== $runner"
  bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 64 --repeats 10
  bench --model deepseek-ocr --image samples/page.png --max-new-tokens 64 --repeats 5
  bench --model deepseek-ocr --image samples/small.png --max-new-tokens 64 --repeats 5
  bench --model deepseek-ocr --prompt-tokens 8100 --max-new-tokens 64 --repeats 3
  bench --model qwen3-0.6b --prompt-tokens 918 --max-new-tokens 64 --repeats 5
done

echo "== kernels of $runner: a page, warm-up and 3 repeats of 32 tokens"
nsys profile --trace cuda,nvtx --sample none --cpuctxsw none --cuda-graph-trace node \
  --force-overwrite true --output "$work/page" "$runner" bench --device cuda:0 --warmup 1 \
  --model deepseek-ocr --image samples/page.png --max-new-tokens 32 --repeats 3 >/dev/null &&
  nsys export --type sqlite --output "$work/page.sqlite" "$work/page.nsys-rep" >/dev/null || exit 1
python3 - "$work/page.sqlite" <<'P'
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute("""
  select s.value, gridX, gridY, blockX, registersPerThread, count(*), avg(end - start) / 1000.0,
         sum(end - start) / 1e6 as total
  from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.shortName
  group by 1, 2, 3, 4 order by total desc limit 60""")
columns = ("kernel", "grid", "block", "regs", "calls", "mean us", "ms")
print("%-46s %13s %5s %4s %6s %9s %9s" % columns)
for row in rows:
    print("%-46s %6d x%5d %5d %4d %6d %9.2f %9.3f" % row)
P
exit "$failed"
