#!/usr/bin/env python3
"""Checks that a range which a window of nsys cuts has no time in llmprof's pages.

    tests/gpu/windows.py LLMPROF [--python PYTHON] [--out DIR]

Records windows_program.py in each kind of window that nsys has, and compares every range of the export,
and what `llmprof analyze` states, with the clock of the program. Prints
how nsys ends the ranges that are open at the end of a window, and a row for each check; ends with 1 if
one fails. PYTHON (default: this one) needs PyTorch; nsys has to be on PATH. `--out` keeps the exports
and pages.
"""

import json
import pathlib
import sqlite3
import subprocess
import sys
import time

import claims
from claims import check

here = pathlib.Path(__file__).resolve().parent
args = claims.arguments()
work = args.work
QUIET = ["-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true"]
# A range of the export is that of the program which starts this close to it.
SAME_NS = 9e6
# Both clocks read within this of each other.
NEAR_NS = 2e5


def program(name, mark="none"):
    return [args.python, str(here / "windows_program.py"), str(work / f"{name}.truth"), mark]


def quiet(*command, check=True):
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def profile(name, *options, mark="none"):
    # With --kill, nsys ends with the status of the program.
    quiet("nsys", "profile", *QUIET, "-o", str(work / f"{name}.nsys-rep"), *options,
          *program(name, mark), check=False)


def session(name):
    """`nsys start` and `nsys stop` around a part of a program that `nsys launch` started."""
    launched = subprocess.Popen(
        ["nsys", "launch", "--session-new", name, "-t", "cuda,nvtx", *program(name)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    truth = work / f"{name}.truth"
    while not (truth.exists() and "decode_all" in truth.read_text()):
        if launched.poll() is not None:
            sys.exit("the program ended before its window")
        time.sleep(0.01)
    quiet("nsys", "start", "--session", name, "--sample=none", "--cpuctxsw=none", "-f", "true",
          "-o", str(work / f"{name}.nsys-rep"))
    time.sleep(1.5)
    quiet("nsys", "stop", "--session", name)
    launched.wait()


def truth_of(name):
    lines = (work / f"{name}.truth").read_text().splitlines()
    return [(it[0], int(it[1]), int(it[2])) for it in map(str.split, lines)]


def ranges_of(export):
    connection = sqlite3.connect(export)
    [(epoch,)] = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    [(duration,)] = connection.execute("SELECT duration FROM ANALYSIS_DETAILS")
    rows = connection.execute(
        "SELECT coalesce(text, value), start, end FROM NVTX_EVENTS "
        "LEFT JOIN StringIds ON StringIds.id = textId WHERE eventType = 59 ORDER BY start"
    ).fetchall()
    return epoch, duration, rows


def of_clock(truth, name, unix):
    """The duration of a range by the program's clock; absent if the program was killed inside of it."""
    near = [it for it in truth if it[0] == name and abs(it[1] - unix) < SAME_NS]
    return min(near, key=lambda it: abs(it[1] - unix))[2] if near else None


def whole_and_cut(name, kind):
    """The names of the whole ranges of an export, and of those that its window cuts."""
    export = work / f"{name}.sqlite"
    quiet("nsys", "export", "--type", "sqlite", "-f", "true", "-o", str(export),
          str(work / f"{name}.nsys-rep"))
    truth, (epoch, duration, rows) = truth_of(name), ranges_of(export)
    whole, cut, ends = [], [], {"no end": 0, "end of the recording": 0, "elsewhere": 0}
    for range_name, start, end in rows:
        ns = of_clock(truth, range_name, epoch + start)
        if ns is not None and end is not None and abs(end - start - ns) < NEAR_NS:
            whole.append((range_name, start, end))
            continue
        cut.append(range_name)
        at = "no end" if end is None else "end of the recording" if end == duration else "elsewhere"
        ends[at] += 1
    ends = ", ".join(f"{at} {count}" for at, count in ends.items() if count)
    print(f"{kind}: {len(rows)} ranges, {len(cut)} cut; in the export: {ends or '-'}")
    return export, whole, cut


def check_window(name, kind):
    export, whole, cut = whole_and_cut(name, kind)
    folder = work / f"{name}.pages"
    done = subprocess.run(
        [args.llmprof, "analyze", str(export), "--out", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    report = json.loads((folder / "report.json").read_text())
    check(kind, "the window cuts a range", "some", len(cut), len(cut) > 0)
    found = [it for it in report["findings"] if it["id"] == "range_unclosed"]
    named = found[0]["evidence"].get("stages and steps without an end", "") if found else ""
    check(kind, "stages and steps without an end", ", ".join(sorted(set(cut))), named,
          named == ", ".join(sorted(set(cut))))
    decodes = [(start, end) for it, start, end in whole if it == "decode_all"]
    # Steps count in whole decodes, or all of them if there is none.
    counts = lambda at: not decodes or any(start <= at < end for start, end in decodes)
    steps = sorted((end - at) / 1e6 for it, at, end in whole if it == "decode_step" and counts(at))
    of_decode = (it["ms"] for it in report["step_times"] if it["stage"] == "decode_all")
    stated = next(of_decode, {"min": 0})
    check(kind, "shortest step, ms", f"{steps[0]:.3f}", f"{stated['min']:.3f}",
          abs(stated["min"] - steps[0]) < 1e-3)
    stated = {it["stage"]: it["ms"]["n"] for it in report["stages"]}.get("decode_all", 0)
    check(kind, "whole decodes", len(decodes), stated, stated == len(decodes))
    passes = min(sum(it[0] == stage for it in whole) for stage in ("prefill", "decode_all"))
    stated = (report["aggregates"]["wall_ms"] or {"n": 0})["n"]
    check(kind, "whole passes", passes, stated, stated == passes)


def startup():
    """Seconds until the program opens its first range."""
    started = time.time_ns()
    quiet(*program("plain"))
    return (truth_of("plain")[0][1] - started) / 1e9


until = startup()
profile("duration", f"--duration={until + 2.5:.0f}", "--kill=none")
check_window("duration", "--duration")
profile("killed", f"--duration={until + 2.5:.0f}", "--kill=sigterm")
check_window("killed", "--duration, killed")
profile("delayed", f"--delay={until + 1.5:.0f}", "--duration=2", "--kill=none")
check_window("delayed", "--delay and --duration")
profile("profiler", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", mark="window")
check_window("profiler", "cudaProfilerStop")
session("window")
check_window("window", "nsys start and stop")
sys.exit(claims.print_table())
