#!/usr/bin/env python3
"""Writes a trace by the profiler of PyTorch of a given size: a real one, repeated.

    bench/kineto.py SOURCE.json[.gz] BYTES OUT.json

Each repeat is shifted in time by the length of the source, and its correlation ids, external ids,
flows and Python ids continue those of the repeat before, so that no id occurs twice. Events are
written as the profiler writes them, with three decimals of a microsecond, one key per line.
"""
import gzip
import json
import sys

# Fields whose numbers are ids of the trace.
IDS = (
    "External id",
    "correlation",
    "Record function id",
    "Ev Idx",
    "Python id",
    "Python parent id",
)


def read(path):
    """The trace, with its numbers as text: a float would lose digits of the times."""
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with opened as file:
        return json.load(file, parse_float=Decimals)


class Decimals(str):
    """The text of a number with decimals."""


def nanoseconds(value):
    whole, _, fraction = str(value).partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def written(value):
    """JSON text of a value; numbers with decimals as they were read."""
    if isinstance(value, Decimals):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(item) for item in value) + "]"
    return json.dumps(value)


def template(event):
    """An event as pieces of text, with a time or an id between each two."""
    event, values = dict(event), []
    if isinstance(event.get("args"), dict):
        event["args"] = dict(event["args"])
    # Numbers are taken out in the order of the text.
    for key, value in list(event.items()):
        if key == "ts":
            values.append(("ts", nanoseconds(value)))
            event[key] = Decimals("\0")
        elif key == "id" and event.get("ph") in ("s", "f"):
            values.append(("id", value))
            event[key] = Decimals("\0")
        elif key == "args" and isinstance(value, dict):
            for name, number in value.items():
                if name in IDS and isinstance(number, int) and number > 0:
                    values.append(("id", number))
                    event[key][name] = Decimals("\0")
    pieces = written(event).split("\0")
    assert len(pieces) == len(values) + 1, event
    return pieces, values


def main():
    source, size, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    trace = read(source)
    events = trace.pop("traceEvents")
    head = [event for event in events if event.get("ph") == "M"]
    body = [event for event in events if event.get("ph") in ("X", "s", "f")]
    times = [nanoseconds(event["ts"]) for event in body if "ts" in event]
    last = [nanoseconds(e["ts"]) + nanoseconds(e.get("dur", 0)) for e in body if "ts" in e]
    span = max(last) - min(times) + 1_000_000
    templates = [template(event) for event in body]
    ids = max(n for _, values in templates for kind, n in values if kind == "id")
    with open(out, "w", buffering=1 << 20) as file:
        file.write("{" + ", ".join(f"{json.dumps(k)}: {written(v)}" for k, v in trace.items()))
        file.write(', "traceEvents": [\n' + ",\n".join(written(event) for event in head))
        repeat = 0
        while file.tell() < size:
            for parts, filled in templates:
                file.write(",\n" + parts[0])
                for part, (kind, number) in zip(parts[1:], filled):
                    if kind == "ts":
                        ns = number + repeat * span
                        file.write(f"{ns // 1000}.{ns % 1000:03}")
                    else:
                        file.write(str(number + repeat * ids))
                    file.write(part)
            repeat += 1
        file.write("\n]}\n")
    kernels = sum(event.get("cat") == "kernel" for event in body)
    print(f"{repeat} repeats, {repeat * len(body)} events, {repeat * kernels} kernels")


if __name__ == "__main__":
    main()
