#!/usr/bin/env python3
"""Compare what llmprof reads from traces of PyTorch with the sums of their JSON.

    scripts/check-traces.py FOLDER [LLMPROF]

For each .json and .json.gz file of FOLDER: number and time of the kernels by Python's JSON parser
and by `llmprof analyze`, which must be equal. Exit code 1 if one differs.
"""
import csv
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile


def expected(path):
    """Kernels and their time in microseconds; None for other JSON."""
    text = path.read_bytes()
    trace = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if events is None:
        return None
    complete = [it for it in events if it.get("ph") == "X"]
    kernels = [it for it in complete if str(it.get("cat")).lower() == "kernel"]
    return len(kernels), sum(float(it["dur"]) for it in kernels)


def found(path, llmprof):
    """The same by llmprof; None where it refuses the file."""
    with tempfile.TemporaryDirectory() as out:
        command = [llmprof, "analyze", path, "--out", out]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        with open(pathlib.Path(out) / "kernels_full.csv", newline="", encoding="utf-8") as rows:
            rows = list(csv.DictReader(rows))
    return sum(int(it["calls"]) for it in rows), sum(float(it["total_ms"]) for it in rows) * 1e3


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    llmprof = sys.argv[2] if len(sys.argv) == 3 else "llmprof"
    paths = sorted(it for it in pathlib.Path(sys.argv[1]).rglob("*.json*") if it.is_file())
    differ = 0
    print(f"{'kernels':>9} {'time, us':>14}  trace")
    for path in paths:
        want, got = expected(path), found(path, llmprof)
        equal = want == got or (
            want and got and want[0] == got[0] and abs(want[1] - got[1]) <= 1e-6 * want[1] + 1e-3
        )
        differ += not equal
        count, time = want or ("-", 0.0)
        print(f"{count:>9} {time:>14.3f}  {path.name}{'' if equal else f'  DIFFERS: {got}'}")
    print(f"{len(paths)} traces, {differ} differ")
    sys.exit(differ > 0 or not paths)


main()
