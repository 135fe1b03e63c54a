"""Repeats a capture along the time axis: repeat.py FROM.sqlite TO.sqlite TIMES

Each repetition is moved by the capture's length, and its correlation ids by their maximum, so that
kernels join their own calls. Samples of GPU metrics are moved alike. Strings, domains and
information about the tool are unchanged.
"""

import shutil
import sqlite3
import sys

source, target, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
shutil.copy(source, target)
db = sqlite3.connect(target)
db.execute("pragma journal_mode = off")
db.execute("pragma synchronous = off")
names = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
tables = [
    t
    for t in (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "NVTX_EVENTS",
        "GPU_METRICS",
    )
    if t in names
]


def span(table):
    start, end = ("timestamp",) * 2 if table == "GPU_METRICS" else ("start", "coalesce(end, start)")
    return db.execute(f"select min({start}), max({end}) from {table} where {start} > 0").fetchone()


spans = [span(t) for t in tables]
length = max(end for _, end in spans) - min(start for start, _ in spans) + 1_000_000
ids = db.execute("select max(correlationId) from CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0] + 1
moved = {column: f"{column} + :t" for column in ("start", "end", "timestamp", "rawTimestamp")}
moved["correlationId"] = "correlationId + :c"
for table in tables:
    columns = [row[1] for row in db.execute(f"pragma table_info({table})")]
    select = ", ".join(f"{moved.get(c, chr(34) + c + chr(34))}" for c in columns)
    only = " where eventType in (59, 60)" if table == "NVTX_EVENTS" else ""
    db.execute(f"create temp table once as select * from {table}{only}")
    for n in range(1, repetitions):
        db.execute(
            f"insert into {table} select {select} from once", {"t": n * length, "c": n * ids}
        )
    db.execute("drop table once")
db.commit()
for table in tables:
    print(f"{table}: {db.execute(f'select count(*) from {table}').fetchone()[0]:,} rows")
