"""Compares the steps that llmprof found in the runs of engine.sh with the engine's own count.

    engine_check.py FOLDER     reads FOLDER/runs: a line per run, NAME STEPS REPORT EXPORT

STEPS is the engine's count, REPORT a report.json with the table `engine_steps`, EXPORT the export
by nsys of the same run, or `profiled` for a window of PyTorch's profiler. Steps are compared by
their starts, per process. The clocks drift apart by up to 1 ms in 200 ms: launches of graphs, one
per decode step, show the time of the engine at any time of the capture. A step found is wrong if
the engine ran none at its time, if it has another class, or if an earlier one was found in the same
step. Warm-ups that are found as steps are counted apart, and steps that the ends of a window cut are
not counted. Fewer steps than the engine ran are a figure, not a failure. Exits with 1 if a step or
the requests of one are wrong.
"""

import bisect
import collections
import json
import math
import pathlib
import sqlite3
import statistics
import sys

# A step starts this much earlier than the others in their intervals at most, or this part of the
# step before, up to MOST_NS: other threads delay launches, and clocks drift apart.
TOLERANCE_NS, PART, MOST_NS = 500e3, 0.25, 1500e3
# Gaps between launches and between steps that differ by more are of different steps.
FAR_NS = 1e6
HEAD = ("run", "prefill", "found", "decode", "found", "no class", "warm-up", "wrong",
        "requests right", "absent", "wrong")


def recorded(export):
    """First and last event of an export, nanoseconds since the epoch; None if it has none."""
    base = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    known = {name for name, in base.execute("select name from sqlite_master where type = 'table'")}
    ends = []
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        if table in known:
            query = f"select min(start), max(coalesce(end, start)) from {table} where start > 0"
            ends += [it for it in base.execute(query).fetchone() if it is not None]
    if not ends or "TARGET_INFO_SESSION_START_TIME" not in known:
        return None
    zero, = base.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
    return zero + min(ends), zero + max(ends)


def calls(export, process):
    """Starts of the calls of a process, and of those that launch graphs, in the capture's ns."""
    base = sqlite3.connect(f"file:{export}?mode=ro", uri=True)
    rows = base.execute(
        "select start, value like 'cudaGraphLaunch%' from CUPTI_ACTIVITY_KIND_RUNTIME "
        "join StringIds on StringIds.id = nameId where (globalTid >> 24) & 0xffffff = ? "
        "order by start", (process,)).fetchall()
    return [start for start, _ in rows], [start for start, is_graph in rows if is_graph]


def in_capture(found, starts):
    """Starts of the found steps in the capture's ns: each is that of a call; None if unclear."""
    known = set(starts)
    fits = lambda first: sum(first + it in known for it in found)
    first = max(starts, key=fits, default=None)
    return [first + it for it in found] if first is not None and fits(first) == len(found) else None


def on_engine(found, lengths, export, process, steps):
    """Starts of found steps on the engine's clock, by launches of graphs; None if unclear.

    `lengths`: nanoseconds of each step on the host.
    """
    starts, launches = calls(export, process)
    times = in_capture([round(it) for it in found], starts)
    decode = [it["start_ns"] for it in steps if it["class"] == "decode" and it["graph"]]
    count = len(launches)
    if times is None or count < 20 or count > len(decode):
        return None
    gaps = lambda values: [after - before for before, after in zip(values, values[1:])]

    def uneven(at):
        # The time from a launch to the next contains the preparation of the next step: usual gaps
        # may fit better one step off, those around prompts do not.
        apart = [abs(a - b) for a, b in zip(gaps(launches), gaps(decode[at:at + count]))]
        return sum(it > FAR_NS for it in apart), statistics.median(apart)

    at = min(range(len(decode) - count + 1), key=uneven)
    shifts = [launch - start for launch, start in zip(launches, decode[at:])]
    # A step starts before it launches its graph.
    ahead = statistics.median(launches[place] - time for time in times
                              if (place := bisect.bisect_left(launches, time)) < count)
    mapped = []
    for time, length in zip(times, lengths):
        place = bisect.bisect_left(launches, time)
        if place < count and launches[place] < time + length:
            mapped.append(decode[at + place])  # the step that launched this graph
            continue
        around = shifts[max(0, place - 4):place + 5]
        mapped.append(time - statistics.median(around) + ahead)
    return mapped


def lagged(found, first, intervals):
    """Intervals of the found steps if the first starts at `first`, and lags behind their starts."""
    places, lags = [], []
    for step in found:
        time = first + step
        place = bisect.bisect_right(intervals, (time, math.inf)) - 1
        length = intervals[place][1] - intervals[place][0] if place >= 0 else 0
        tolerance = max(TOLERANCE_NS, min(PART * length, MOST_NS))
        place += place + 1 < len(intervals) and intervals[place + 1][0] - time <= tolerance
        inside = place >= 0 and time < intervals[place][1]
        places.append(place if inside else None)
        if inside:
            lags.append(time - intervals[place][0])
    return places, lags


def aligned(found, intervals):
    """For each found step the interval of the engine at its start, or None.

    `engine_steps` counts from the first step of the table, so the shift between both clocks is
    unknown. Of the shifts that put most starts inside intervals, the best has the most even lags.
    """
    def score(first, steps):
        lags = lagged(steps, first, intervals)[1]
        middle = statistics.median(lags) if lags else 0
        return len(lags), -statistics.median(abs(it - middle) for it in lags) if lags else 0

    def best(firsts, steps, count):
        scores = [(score(first, steps), first) for first in firsts]
        enough = 0.8 * max(inside for (inside, _), _ in scores)
        scores = [(evenness, first) for (inside, evenness), first in scores if inside >= enough]
        return [first for _, first in sorted(scores, reverse=True)[:count]]

    some = found[::max(1, len(found) // 60)]
    anchors = found[::max(1, len(found) // 6)]
    firsts = best([start - anchor for anchor in anchors for start, _ in intervals], some, 20)
    first = best(firsts, found, 1)[0]
    lags = lagged(found, first, intervals)[1]
    return lagged(found, first - (statistics.median(lags) if lags else 0), intervals)[0]


def compared(count, table, export):
    """Figures of one run, and its failures."""
    figures, failures = collections.Counter(), []
    ranks = {it["pid"]: it for it in [count, *count["other_ranks"]]}
    bounds = None if export == "profiled" else recorded(export)

    def is_expected(step):
        if export == "profiled":
            return step["profiled"]
        return not bounds or (
            bounds[0] - 1e6 <= step["start_ns"] and step["end_ns"] <= bounds[1] + 1e6)

    for rank in ranks.values():
        figures.update(it["class"] for it in rank["steps"] if is_expected(it))
    processes = collections.defaultdict(list)
    for row in table:
        processes[row["process"]].append(row)
    if not set(processes) & set(ranks):
        # Ids of another namespace.
        ranks = dict(zip(sorted(processes), ranks.values()))
    for process, rows in processes.items():
        if process not in ranks:
            failures.append(f"{len(rows)} steps in process {process}, which is not a rank")
            continue
        every = ranks[process]["preparations"] + ranks[process]["steps"]
        every.sort(key=lambda it: it["start_ns"])
        found = [(row["start_ms"] - rows[0]["start_ms"]) * 1e6 for row in rows]
        intervals = [(it["start_ns"], it["end_ns"]) for it in every]
        lengths = [row["host_ms"] * 1e6 for row in rows]
        times = None if export == "profiled" else on_engine(
            found, lengths, export, process, ranks[process]["steps"])
        places = aligned(found, intervals) if times is None else lagged(times, 0, intervals)[0]
        seen = set()
        for row, place in zip(rows, places):
            it = every[place] if place is not None else None
            wrong = None
            if row["class"] is None:
                figures["no class"] += 1
                continue
            if it is None:
                wrong = "the engine ran nothing"
            elif place in seen:
                wrong = "found twice"
            elif it.get("kind") == "warmup":
                figures["warm-up"] += 1
            elif it.get("kind"):
                wrong = f"the engine ran a {it['kind']}"
            elif it["class"] != row["class"]:
                wrong = f"the engine ran a {it['class']}"
            seen.add(place)
            if wrong:
                figures["wrong"] += 1
                failures.append(f"step {row['step']}, {row['class']}: {wrong}")
            elif is_expected(it):
                figures[f"{row['class']} found"] += 1
                requests = row[f"{row['class']}_requests"]
                right = "absent" if requests is None else requests == it["requests"]
                figures[f"requests {right}"] += 1
                if right is False:
                    failures.append(f"step {row['step']}, {row['class']}: {requests} requests, "
                                    f"the engine had {it['requests']}")
    return figures, failures


def main():
    folder = pathlib.Path(sys.argv[1])
    rows, failed = [HEAD], False
    for line in (folder / "runs").read_text().splitlines():
        name, steps, report, export = line.split("\t")
        count = json.loads(pathlib.Path(steps).read_text())
        table = json.loads(pathlib.Path(report).read_text()).get("engine_steps") or []
        figures, failures = compared(count, table, export)
        rows.append((name, *(str(figures[it]) for it in (
            "prefill", "prefill found", "decode", "decode found", "no class", "warm-up", "wrong",
            "requests True", "requests absent", "requests False"))))
        for failure in failures[:5]:
            print(f"{name}: {failure}")
        failed |= bool(failures)
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    for row in rows:
        cells = (cell.rjust(width) if at else cell.ljust(width)
                 for at, (cell, width) in enumerate(zip(row, widths)))
        print("  ".join(cells).rstrip())
    print("FAIL" if failed else "PASS")
    sys.exit(failed)


if __name__ == "__main__":
    main()
