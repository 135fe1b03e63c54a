"""Writes a copy of a trace by torch.profiler with a regression in it.

All later events are shifted by the time that is added, as if the program had run so: what did not
overlap before does not overlap afterwards.

usage: plant.py SOURCE TARGET kernel NAME FACTOR | gap NAME US
  kernel: each launch of the kernel takes FACTOR times as long
  gap: the host does nothing for US microseconds before it launches the kernel
"""

import bisect
import gzip
import json
import sys
from pathlib import Path


def delays(events: list, kind: str, name: str, size: float) -> list[tuple[float, float]]:
    """The added times: each with the moment at which it is added."""
    kernels = [e for e in events if e.get("cat") == "kernel" and name in e["name"]]
    assert kernels, f"no kernel {name}"
    if kind == "kernel":
        return sorted((e["ts"] + e["dur"], e["dur"] * (size - 1)) for e in kernels)
    launched = {e["args"]["correlation"] for e in kernels}
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    return sorted((e["ts"], size) for e in calls if e["args"]["correlation"] in launched)


def plant(source: str, target: str, kind: str, name: str, size: float) -> int:
    """Writes the copy; returns the number of added times."""
    trace = json.loads(gzip.decompress(Path(source).read_bytes()))
    events = trace["traceEvents"]
    added = delays(events, kind, name, size)
    moments, sums = [at for at, _ in added], [0.0]
    for _, delay in added:
        sums.append(sums[-1] + delay)

    def moved(at: float, is_start: bool) -> float:
        # A launch starts after its gap; a kernel ends after its added time.
        is_after = is_start == (kind == "gap")
        find = bisect.bisect_right if is_after else bisect.bisect_left
        return at + sums[find(moments, at)]

    for event in events:
        if not isinstance(event.get("ts"), (int, float)):
            continue
        start = event["ts"]
        event["ts"] = round(moved(start, True), 3)
        if "dur" in event:
            event["dur"] = round(moved(start + event["dur"], False) - event["ts"], 3)
    Path(target).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return len(added)


if __name__ == "__main__":
    _, source, target, kind, name, size = sys.argv
    print(plant(source, target, kind, name, float(size)), "times added")
