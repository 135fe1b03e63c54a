#!/usr/bin/env python3
"""Writes an nsys export with many nested NVTX ranges.

    bench/ranges.py OUT.sqlite [--ranges 4000000] [--depth 50] [--names 200000] [--threads 4]
        [--kernels 100000] [--name-bytes 40] [--unclosed 0] [--equal-times]

Each thread opens ranges in groups, each inside the one before, `--depth` deep, and closes them
from the inside out. Kernels are launched inside the innermost range of groups, evenly spread over
the capture. `--names` of N gives range number i the name number i mod N. `--unclosed` ranges at the
end have no end. With `--equal-times` all ranges of a group start and end together. Names are
registered strings, as nvtxDomainRegisterString makes them.
"""
import argparse
import os
import sqlite3

TABLES = """
create table StringIds (id integer primary key, value text not null);
create table META_DATA_EXPORT (name text, value text);
create table NVTX_EVENTS (start integer not null, end integer, eventType integer not null,
    text text, globalTid integer, textId integer, domainId integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer not null, end integer not null,
    eventClass integer not null, globalTid integer, correlationId integer,
    nameId integer not null, returnValue integer not null);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer not null, end integer not null,
    deviceId integer not null, contextId integer not null, streamId integer not null,
    correlationId integer, globalPid integer, demangledName integer not null,
    shortName integer not null, registersPerThread integer not null, gridX integer not null,
    gridY integer not null, gridZ integer not null, blockX integer not null,
    blockY integer not null, blockZ integer not null);
insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'),
    ('EXPORT_SCHEMA_VERSION', '3.20.3');
insert into StringIds values (1, 'cudaLaunchKernel'), (2, 'gemm'),
    (3, 'void gemm<float>(float *)');
"""
PROCESS = 1 << 24
FIRST_NAME = 10
# Time between two starts, and length of a call and of a kernel, nanoseconds.
STEP = 100
CALL = 40
KERNEL = 5_000


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    for name, default in (
        ("ranges", 4_000_000),
        ("depth", 50),
        ("names", 200_000),
        ("threads", 4),
        ("kernels", 100_000),
        ("name-bytes", 40),
        ("unclosed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--equal-times", action="store_true")
    return parser.parse_args()


def names(asked):
    for at in range(min(asked.names, asked.ranges)):
        yield FIRST_NAME + at, f"range_{at}".ljust(asked.name_bytes, "_")


def ranges(asked):
    """Rows of ranges, in the order of their starts on each thread."""
    depth, threads = asked.depth, asked.threads
    each = -(-asked.ranges // threads)
    length = (2 * depth + 2) * STEP
    for at in range(asked.ranges):
        thread, number = at // each, at % each
        group, level = divmod(number, depth)
        levels = min(depth, each - group * depth)
        start = group * length + STEP
        first, last = (0, 2 * levels) if asked.equal_times else (level, 2 * levels - level)
        end = None if at >= asked.ranges - asked.unclosed else start + last * STEP
        name = FIRST_NAME + at % min(asked.names, asked.ranges)
        yield start + first * STEP, end, 59, PROCESS + thread + 1, name, 0


def launches(asked):
    """Times and threads of the launches, inside the innermost ranges of groups."""
    threads = asked.threads
    each = -(-asked.ranges // threads)
    groups = -(-each // asked.depth)
    length = (2 * asked.depth + 2) * STEP
    for at in range(asked.kernels):
        thread, number = at % threads, at // threads
        of = -(-asked.kernels // threads)
        group = number * groups // of
        levels = min(asked.depth, each - group * asked.depth)
        yield group * length + STEP + levels * STEP - STEP // 2, PROCESS + thread + 1


def main():
    asked = arguments()
    if os.path.exists(asked.out):
        os.remove(asked.out)
    db = sqlite3.connect(asked.out)
    db.execute("pragma journal_mode = off")
    db.execute("pragma synchronous = off")
    db.executescript(TABLES)
    db.executemany("insert into StringIds values (?, ?)", names(asked))
    db.executemany(
        "insert into NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId)"
        " values (?, ?, ?, ?, ?, ?)",
        ranges(asked),
    )
    free, calls, kernels = 0, [], []
    for at, (start, thread) in enumerate(launches(asked), 1):
        calls.append((start, start + CALL, 0, thread, at, 1, 0))
        begin = max(free, start + CALL)
        free = begin + KERNEL
        kernels.append((begin, free, 0, 1, 7, at, PROCESS, 3, 2, 32, 1, 1, 1, 128, 1, 1))
    places = ", ".join("?" * 7)
    db.executemany(f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values ({places})", calls)
    places = ", ".join("?" * 16)
    db.executemany(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({places})", kernels)
    db.commit()
    size = os.path.getsize(asked.out)
    print(f"{asked.ranges:,} ranges, {asked.kernels:,} kernels, {size:,} bytes")


if __name__ == "__main__":
    main()
