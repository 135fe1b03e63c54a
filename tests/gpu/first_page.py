#!/usr/bin/env python3
"""Compares first pages with what the profiled program itself measured.

    tests/gpu/first_page.py LLMPROF [--python PYTHON] [--out DIR]

Records first_page_program.py with nsys and with the profiler of PyTorch, as it is, with two delayed
steps, and with waits between its steps (with names of an engine's steps, or without), and checks the
sentences of `llmprof analyze` against the clock of the program. Then
makes faults in a copy of the export of nsys: a clock of the GPU that is late, early or drifts,
kernels without a time, a kernel that outlasts its successors. Each has to be named, and the times of
stages have to equal the times in the export without the fault, or be absent. Prints a row for each check and
ends with 1 if one fails. PYTHON (default: this one) needs PyTorch; nsys has to be on PATH.
`--out` keeps the exports and pages.
"""

import json
import pathlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys

import claims
from claims import check, near

here = pathlib.Path(__file__).resolve().parent
args = claims.arguments()
work = args.work


def program(name, *extra, prefix=()):
    out = work / f"{name}.truth.json"
    command = [*prefix, args.python, str(here / "first_page_program.py"), str(out), *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def by_nsys(name, *extra):
    report = work / f"{name}.nsys-rep"
    prefix = ["nsys", "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true"]
    truth = program(name, *extra, prefix=[*prefix, "-o", str(report)])
    export = report.with_suffix(".sqlite")
    export.unlink(missing_ok=True)
    command = ["nsys", "export", "--type", "sqlite", "-o", str(export), str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return truth, export


def by_pytorch(name, *extra):
    trace = work / f"{name}.json.gz"
    return program(name, "--trace", str(trace), *extra), trace


def page(capture):
    """The text before the first section, and the report."""
    folder = work / f"{capture.name}.pages"
    command = [args.llmprof, "analyze", str(capture), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{capture}: {done.stderr}")
    text = (folder / "report.md").read_text()
    first = re.split(r"^## ", text, flags=re.M)[0]
    return first.replace("\\", ""), json.loads((folder / "report.json").read_text())


def number(pattern, text):
    found = re.search(pattern, text)
    return float(found.group(1).replace(",", "")) if found else None


def step_ms(text):
    return number(r"A decode step takes ([\d.,]+) ms", text) or number(
        r"Decode takes ([\d.,]+) ms per", text
    )


def check_steps(recording, truth, text, report):
    median = statistics.median(truth["steps_ms"])
    outliers = sum(it > 2 * median for it in truth["steps_ms"])
    steps = next((it for it in report.get("step_times", []) if it["stage"] == "decode_all"), None)
    found = steps and steps["p50_ms"]
    check(recording, "median step, ms", f"{median:.3f}", f"{found or 0:.3f}", near(found, median, 0.05))
    check(recording, "steps above twice the median", outliers, steps and steps["outliers"],
          steps and steps["outliers"] == outliers)
    shown = number(r"A decode step takes ([\d.,]+) ms: the median", text)
    if outliers:
        check(recording, "the first page states the median", f"{median:.3f}", shown, near(shown, median, 0.05))


def check_cause(recording, truth, text, name):
    sentence = re.search(r"In (?:\w+ of )?them the GPU idles while the host launches nothing, in [^\n*]*", text)
    sentence = sentence.group(0) if sentence else "-"
    check(recording, "the call in them", name, sentence.rsplit(", in ", 1)[-1], name in sentence)
    times = sorted(float(it.replace(",", "")) for it in re.findall(r"([\d.,]+) ms", sentence))
    calls = sorted(truth["calls_ms"])
    is_right = len(times) == len(calls) and all(near(a, b, 0.1) for a, b in zip(times, calls))
    check(recording, "time of these calls, ms", [round(it, 1) for it in calls], times, is_right)


truth, export = by_nsys("plain")
text, plain = page(export)
check_steps("nsys", truth, text, plain)
truth, delayed = by_nsys("pinned", "--delay", "pinned")
text, report = page(delayed)
check_steps("nsys, 2 pinned allocations", truth, text, report)
check_cause("nsys, 2 pinned allocations", truth, text, "cudaHostAlloc")
truth, trace = by_pytorch("trace")
text, report = page(trace)
check_steps("PyTorch", truth, text, report)
truth, trace = by_pytorch("svd", "--delay", "svd")
text, report = page(trace)
check_steps("PyTorch, 2 products on the CPU", truth, text, report)
check_cause("PyTorch, 2 products on the CPU", truth, text, "svd")

def check_waits(recording, truth, text, report):
    """The largest reason is the wait of the host, with its time."""
    first = re.search(r"^1\. \*\*(.*?)\*\*", text, re.M)
    first = first.group(1) if first else "-"
    stages = {it["stage"]: it for it in report.get("ledger_stages", [])}
    stage = next((it for it in ("between steps", "") if it in stages), None)
    check(recording, "largest reason", "the GPU idles while the host ...", first,
          stage is not None and "the GPU idles while the host" in first)
    if stage is None:
        return
    causes = [it for it in report["ledger"] if it["stage"] == stage]
    measured = stages[stage]["measured_ns"]
    check(recording, "causes add up, ns", measured, sum(it["ns"] for it in causes),
          measured == sum(it["ns"] for it in causes))
    idle = sum(it["ns"] for it in causes if it["cause"] in ("gap_host", "gap_sync")) / 1e6
    want = statistics.mean(truth["waits_ms"]) if stage else sum(truth["waits_ms"])
    allowed = 0.1 * want if stage else 0.1 * want + sum(truth["steps_ms"])
    check(recording, "idle time of the GPU by the host, ms", f"{want:.3f}", f"{idle:.3f}",
          -0.05 * want <= idle - want <= allowed)


for tool, record in (("nsys", by_nsys), ("PyTorch", by_pytorch)):
    for names in ("steps", "none"):
        truth, capture = record(f"waits-{names}", "--names", names, "--wait-ms", "3")
        text, report = page(capture)
        check_waits(f"{tool}, 3 ms between steps, names: {names}", truth, text, report)

DEVICE = ["KERNEL", "MEMCPY", "MEMSET"]


def changed(name, *statements):
    path = work / f"{name}.sqlite"
    shutil.copy(export, path)
    database = sqlite3.connect(path)
    have = {row[0] for row in database.execute("select name from sqlite_master")}
    for statement in statements:
        for kind in DEVICE if "{table}" in statement else [""]:
            table = f"CUPTI_ACTIVITY_KIND_{kind}"
            if not kind or table in have:
                database.execute(statement.format(table=table))
    database.commit()
    database.close()
    return path


def gaps(report):
    """Gap causes of decode, ms."""
    return {
        it["cause"]: it["ns"] / 1e6
        for it in report.get("ledger", [])
        if it["stage"] == "decode_all" and it["cause"].startswith("gap_")
    }


def same_gaps(report):
    want, found = gaps(plain), gaps(report)
    all_ms = max(sum(want.values()), 1e-9)
    apart = sum(abs(want.get(it, 0) - found.get(it, 0)) for it in {*want, *found}) / all_ms
    return apart


span = sqlite3.connect(export).execute(
    "select min(start), max(start) from CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
MOVED = 'update {{table}} set start = start + {by}, "end" = "end" + {by}'
for name, by, ms in (
    ("GPU clock 2 ms late", "2000000", 2.0),
    ("GPU clock 2 ms early", "-2000000", -2.0),
    ("GPU clock 50 us late", "50000", 0.05),
):
    text, report = page(changed(name.replace(" ", "-"), MOVED.format(by=by)))
    finding = next((it for it in report.get("findings", []) if it["id"] == "device_clock_differs"), None)
    said = finding["message"] if finding else "-"
    check(name, "named, on the first page", f"{abs(ms)} ms", said[:110],
          finding is not None and finding["message"] in text)
    check(name, "gaps of decode differ by", "at most 5 %", f"{100 * same_gaps(report):.1f} %",
          same_gaps(report) <= 0.05)
    want = next(it["p50_ms"] for it in plain.get("step_times", []) if it["stage"] == "decode_all")
    found = next((it["p50_ms"] for it in report.get("step_times", []) if it["stage"] == "decode_all"), None)
    check(name, "median step, ms", f"{want:.3f}", f"{found or 0:.3f}", near(found, want, 0.01))
name = "GPU clock drifts by 0.1 %"
drift = f"(start - {span[0]}) / 1000"
text, report = page(changed("drift", f'update {{table}} set "end" = "end" + {drift}, start = start + {drift}'))
finding = next((it for it in report.get("findings", []) if it["id"] == "device_clock_differs"), None)
check(name, "named, on the first page", "drift", (finding or {"message": "-"})["message"][:110],
      finding is not None and finding["message"] in text)
check(name, "gaps of decode differ by", "at most 5 %, or absent",
      f"{100 * same_gaps(report):.1f} %" if gaps(report) else "absent",
      not gaps(report) or same_gaps(report) <= 0.05)
name = "a quarter of kernels at 0"
text, report = page(changed("zeros", 'update CUPTI_ACTIVITY_KIND_KERNEL set start = 0, "end" = 0 '
                            "where rowid % 4 = 0"))
finding = next((it for it in report.get("findings", []) if it["id"] == "work_untimed"), None)
check(name, "named, on the first page", "work_untimed", (finding or {"message": "-"})["message"][:110],
      finding is not None and finding["message"] in text)
check(name, "no causes", 0, len(gaps(report)), not gaps(report))
name = "a kernel of 1 s"
middle = "(select rowid from CUPTI_ACTIVITY_KIND_KERNEL order by start limit 1 offset 1500)"
text, report = page(changed("long", f'update CUPTI_ACTIVITY_KIND_KERNEL set "end" = start + 1000000000 '
                            f"where rowid = {middle}"))
finding = next((it for it in report.get("findings", []) if it["id"] == "work_untimed"), None)
check(name, "named, on the first page", "work_untimed", (finding or {"message": "-"})["message"][:110],
      finding is not None and finding["message"] in text)
check(name, "gaps of decode differ by", "at most 5 %", f"{100 * same_gaps(report):.1f} %",
      same_gaps(report) <= 0.05)

sys.exit(claims.print_table())
