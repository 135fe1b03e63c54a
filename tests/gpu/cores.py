#!/usr/bin/env python3
"""Compares what llmprof states on the host's cores with what the programs themselves measured.

    tests/gpu/cores.py LLMPROF [--python PYTHON] [--out DIR]

Records programs of cores_program.py system-wide with nsys: one whose core another process keeps busy,
one that sleeps between its launches, one that computes between them, and one whose GPU work is that
of a worker which it did not start. Checks the tables `host_cpu` and the findings of `llmprof analyze`
against the clocks of the programs. Prints a row for each check and ends with 1 if one fails. PYTHON
(default: this one) needs PyTorch; nsys has to be on PATH, and may have to run as root. `--out` keeps
the exports and pages.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import claims
from claims import check, near

here = pathlib.Path(__file__).resolve().parent
args = claims.arguments()
work = args.work
program = [args.python, str(here / "cores_program.py")]
cores = sorted(os.sched_getaffinity(0))


def record(name, *command, scope="system-wide"):
    report = work / f"{name}.nsys-rep"
    export = report.with_suffix(".sqlite")
    # The environment of a program is in its report.
    kept = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NSYS_HOME")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    subprocess.run(
        ["nsys", "profile", "-t", "cuda,nvtx", f"--sample={scope}", f"--cpuctxsw={scope}",
         "-f", "true", "-o", str(report), *program, *command],
        check=True, stdout=subprocess.DEVNULL, env=environment,
    )
    export.unlink(missing_ok=True)
    subprocess.run(
        ["nsys", "export", "--type", "sqlite", "-o", str(export), str(report)],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    folder = work / f"{name}.pages"
    done = subprocess.run(
        [args.llmprof, "analyze", str(export), "--out", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    return json.loads((folder / "report.json").read_text())


def steps(name, core, host, scope="system-wide"):
    out = work / f"{name}.truth.json"
    report = record(name, "steps", str(out), str(core), host, scope=scope)
    return json.loads(out.read_text()), report


def of_decode(report, table):
    return [it for it in report["host_cpu"][table] if it["stage"] == "decode_all"]


def found(report, id):
    return [it["message"] for it in report["findings"] if it["id"] == id]


def check_sums(name, truth, report):
    """The parts add up, and are those that the program measured."""
    [stage] = of_decode(report, "stages")
    idle = next(it for it in report["stage_gpu"] if it["stage"] == "decode_all")["idle_host_ms"]
    parts = sum(stage[key] for key in ("on_core_ms", "off_core_ms", "unknown_ms"))
    check(name, "idle time for the host, as stage_gpu has it, ms", f"{idle:.3f}",
          f"{stage['idle_host_ms']:.3f}", near(stage["idle_host_ms"], idle, 1e-6))
    check(name, "its parts add up, ms", f"{idle:.3f}", f"{parts:.3f}", near(parts, idle, 1e-4))
    off = truth["wall_ms"] - truth["on_core_ms"]
    return stage, off


def is_launching(report, thread):
    return any(it["thread"] == thread and it["calls_cuda"] for it in report["host_cpu"]["threads"])


spinner = subprocess.Popen([*program, "spin", str(cores[3])])
try:
    truth, report = steps("displaced", cores[3], "compute")
finally:
    spinner.kill()
stage, off = check_sums("core shared", truth, report)
check("core shared", "the scope is read", True, report["host_cpu"]["is_system_wide"],
      report["host_cpu"]["is_system_wide"] is True)
check("core shared", "the launching thread calls CUDA", True, is_launching(report, truth["thread"]),
      is_launching(report, truth["thread"]))
check("core shared", "thread on no core, ms", f"{off:.1f}", f"{stage['off_core_ms']:.1f}",
      near(stage["off_core_ms"], off, 0.15))
check("core shared", "core taken, ms", f"{off:.1f}", f"{stage['taken_ms']:.1f}",
      near(stage["taken_ms"], off, 0.15))
first = of_decode(report, "takers")[0]
check("core shared", "by process", spinner.pid, first["process"], first["process"] == spinner.pid)
message = found(report, "launching_thread_displaced")
check("core shared", "the finding names it", 1, len(message),
      len(message) == 1 and f"process {spinner.pid}" in message[0])

truth, report = steps("waited", cores[5], "sleep")
stage, off = check_sums("sleeps", truth, report)
check("sleeps", "thread on no core, ms", f"{off:.1f}", f"{stage['off_core_ms']:.1f}",
      near(stage["off_core_ms"], off, 0.1))
check("sleeps", "core taken, ms", "below 20 % of it", f"{stage['taken_ms']:.1f}",
      stage["taken_ms"] < 0.2 * off)
message = found(report, "launching_thread_off_core")
check("sleeps", "the finding says that it waited", 1, len(message), len(message) == 1)
check("sleeps", "none says that it was displaced", 0, found(report, "launching_thread_displaced"),
      not found(report, "launching_thread_displaced"))

truth, report = steps("computes", cores[6], "compute")
stage, off = check_sums("computes", truth, report)
idle = stage["idle_host_ms"]
check("computes", "thread on a core, ms", f"{idle:.1f}", f"{stage['on_core_ms']:.1f}",
      near(stage["on_core_ms"], idle, 0.05))
message = found(report, "gaps_in_function")
check("computes", "the finding names the interpreter", 1, len(message),
      len(message) == 1 and "python" in message[0])
for id in ("launching_thread_displaced", "launching_thread_off_core"):
    check("computes", f"no {id}", 0, found(report, id), not found(report, id))
times = {"system-wide": report}

truth, report = steps("of_tree", cores[6], "compute", scope="process-tree")
check_sums("process tree", truth, report)
check("process tree", "the scope is read", False, report["host_cpu"]["is_system_wide"],
      report["host_cpu"]["is_system_wide"] is False)
times["process-tree"] = report
truth, report = steps("none", cores[6], "compute", scope="none")
check("not sampled", "no table of cores", None, report.get("host_cpu"), "host_cpu" not in report)
times["none"] = report

folder = pathlib.Path(tempfile.mkdtemp())
worker = subprocess.Popen([*program, "worker", str(folder)])
while not (folder / "ready").exists():
    if worker.poll() is not None:
        sys.exit("the worker ended")
    os.sched_yield()
report = record("worker", "ask", str(folder))
worker.wait()
message = found(report, "process_untraced")
check("worker of another process", "the finding names it", 1, len(message),
      len(message) == 1 and f"process {worker.pid}" in message[0])

for scope, report in times.items():
    stage = next(it for it in report["stage_gpu"] if it["stage"] == "decode_all")
    print(f"sampling {scope}: window of decode {stage['window_ms']:.1f} ms, busy {stage['busy_ms']:.2f} ms")
sys.exit(claims.print_table())
