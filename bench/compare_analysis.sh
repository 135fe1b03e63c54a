#!/usr/bin/env bash
# Compares analyses of two builds, in turn: wall time, CPU time and peak memory, medians.
#
#   bench/compare_analysis.sh CAPTURE.sqlite TIMES ROUNDS LLMPROF...
#
# Needs python3; the capture is repeated TIMES times (bench/repeat.py).
set -euo pipefail
capture=$1 times=$2 rounds=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$(dirname "$0")/repeat.py" "$capture" "$work/big.sqlite" "$times" >/dev/null
python3 - "$work" "$rounds" "$@" <<'PY'
import os, statistics, subprocess, sys, time
work, rounds, programs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rows = {program: [] for program in programs}
for _ in range(rounds + 1):
    for program in programs:
        started = time.monotonic()
        command = [program, "analyze", f"{work}/big.sqlite", "--out", f"{work}/out"]
        command += ["--format", "json"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0, program
        cpu = usage.ru_utime + usage.ru_stime
        rows[program].append((time.monotonic() - started, cpu, usage.ru_maxrss / 1024))
for program, all_rows in rows.items():
    # The first round warms the file up.
    wall, cpu, memory = (statistics.median(row[i] for row in all_rows[1:]) for i in range(3))
    print(f"{program:40} wall {wall:6.3f} s  CPU {cpu:6.3f} s  peak {memory:6.0f} MiB")
PY
