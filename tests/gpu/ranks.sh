#!/usr/bin/env bash
# Checks waits, transfers and bandwidths of collective operations on a host with two GPUs or more.
#
#   tests/gpu/ranks.sh [--bin DIR] [--python PROGRAM] [--out DIR]
#
# Runs tests/gpu/ranks.py under torchrun on two GPUs, once with PyTorch's profiler in each rank and
# once under nsys, if there is one (LLMPROF__TOOLS__NSYS or PATH), analyses both with the llmprof of
# DIR (default target/release), and prints one table. Rank 1 sleeps 500 us on its GPU before each
# decode step. Exits with 0 if every check passed; ends within 120 s. --out keeps captures and
# reports. Needs bash and a Python with PyTorch and NCCL; compiles nothing.
set -euo pipefail
bin=target/release python=python3 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --python) python=$2; shift ;;
    --out) out=$2; shift ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$bin" && pwd)
data=${out:-$(mktemp -d)}
mkdir -p "$data"
[ -n "$out" ] || trap 'rm -rf "$data"' EXIT
nsys=${LLMPROF__TOOLS__NSYS:-$(command -v nsys || true)}

torchrun=("$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$here/ranks.py" run "$data")
LLMPROF_RANKS_PROFILER=torch timeout -k 5 35 "${torchrun[@]}" >"$data/torch.log" 2>&1 ||
  { tail -20 "$data/torch.log" >&2; exit 1; }
timeout -k 5 10 "$bin/llmprof" analyze "$data/rank0.json" "$data/rank1.json" --out "$data/torch" >/dev/null

if [ -n "$nsys" ]; then
  if timeout -k 5 40 "$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true \
      --output "$data/ranks" "${torchrun[@]}" >"$data/nsys.log" 2>&1 &&
    timeout -k 5 15 "$nsys" export --type sqlite --force-overwrite=true --output "$data/ranks.sqlite" \
      "$data/ranks.nsys-rep" >>"$data/nsys.log" 2>&1; then
    timeout -k 5 10 "$bin/llmprof" analyze "$data/ranks.sqlite" --out "$data/nsys" >/dev/null
    # Columns and a row of NCCL's ranges: their payloads have the sizes, which are not read.
    "$python" - "$data/ranks.sqlite" <<'SQL' || true
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
tables = [name for name, in db.execute("select name from sqlite_master where name like 'NVTX%'")]
print("NVTX tables:", ", ".join(tables))
print("NVTX_EVENTS:", ", ".join(row[1] for row in db.execute("pragma table_info(NVTX_EVENTS)")))
rows = db.execute("select e.*, s.value from NVTX_EVENTS e left join StringIds s on s.id = e.textId"
                  " where coalesce(e.text, s.value) like 'nccl%' limit 2").fetchall()
print("NCCL ranges:", *rows, sep="\n  ")
SQL
  else
    tail -20 "$data/nsys.log" >&2
  fi
else
  echo 'no nsys: set LLMPROF__TOOLS__NSYS' >&2
fi
"$python" "$here/ranks.py" check "$data"
