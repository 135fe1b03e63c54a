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
IDS = ("External id", "correlation", "Record function id", "Ev Idx", "Python id", "Python parent id")


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


def template(event, span_ids):
    """An event as a format with the places of its time and ids."""
    parts, values = [], []
    event = dict(event)
    if "ts" in event:
        values.append(("ts", nanoseconds(event["ts"])))
        event["ts"] = Decimals("\0")
    if "id" in event and event.get("ph") in "sf":
        values.append(("id", event["id"]))
        event["id"] = Decimals("\0")
    if isinstance(event.get("args"), dict):
        args = dict(event["args"])
        for key in IDS:
            if isinstance(args.get(key), int) and args[key] > 0:
                values.append(("id", args[key]))
                args[key] = Decimals("\0")
        # Places are filled in the order of the text.
        event["args"] = args
    text = written(event)
    order, found = [], 0
    for key, value in list(event.items()) + list((event.get("args") or {}).items()):
        if value == "\0":
            order.append(key)
    by_key = {}
    for kind, number in values:
        by_key.setdefault(kind, []).append(number)
    filled = []
    for key in order:
        kind = "ts" if key == "ts" else "id"
        filled.append((kind, by_key[kind].pop(0)))
        found += 1
    parts = text.split("\0")
    assert len(parts) == found + 1, text
    span_ids[0] = max([span_ids[0]] + [number for kind, number in filled if kind == "id"])
    return parts, filled


def main():
    source, size, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    trace = read(source)
    events = trace.pop("traceEvents")
    head = [event for event in events if event.get("ph") == "M"]
    body = [event for event in events if event.get("ph") == "X" or event.get("ph") in ("s", "f")]
    times = [nanoseconds(event["ts"]) for event in body if "ts" in event]
    last = [nanoseconds(e["ts"]) + nanoseconds(e.get("dur", 0)) for e in body if "ts" in e]
    span, ids = max(last) - min(times) + 1_000_000, [0]
    templates = [template(event, ids) for event in body]
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
                        file.write(str(number + repeat * ids[0]))
                    file.write(part)
            repeat += 1
        file.write("\n]}\n")
    kernels = sum(event.get("cat") == "kernel" for event in body)
    print(f"{repeat} repeats, {repeat * len(body)} events, {repeat * kernels} kernels")


if __name__ == "__main__":
    main()
