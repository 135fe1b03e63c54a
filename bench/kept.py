#!/usr/bin/env python3
"""Measures the endpoints that plan retention: bench/kept.py LLMPROF [RUNS]

Starts the given `llmprof serve` paused on an empty folder, submits one run, copies its row RUNS
times as ended runs of 40 files each, a third of them labelled, and starts it again with a budget of
as many runs: all are considered, and none is due. Then calls each endpoint 200 times, one request
at a time, and prints one row each: median and p99 in ms. Standard library only.
"""

import http.client
import json
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

llmprof, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
port, calls, files = 18491, 200, 40


def call(path, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 202), (path, answer.status, text)
    return text


def start(data, max_runs):
    env = {
        **os.environ,
        "LLMPROF__WORKER__PAUSED": "true",
        "LLMPROF_LOG": "error",
        "LLMPROF__ACCESS__REQUESTS_PER_S_PER_ADDRESS": "0",
        "LLMPROF__RETENTION__MAX_RUNS": str(max_runs),
        "LLMPROF__RETENTION__INTERVAL_S": "86400",
    }
    server = subprocess.Popen(
        [llmprof, "serve", "--listen", f"127.0.0.1:{port}", "--data", data],
        env=env,
        stdout=subprocess.PIPE,
    )
    server.stdout.readline()
    return server


def stop(server):
    server.terminate()
    server.wait()


def fill(database):
    with sqlite3.connect(database) as db:
        columns = [row[1] for row in db.execute("pragma table_info(runs)")]
        row = dict(zip(columns, db.execute(f"select {', '.join(columns)} from runs").fetchone()))
        insert = f"insert into runs ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
        ids = [uuid.uuid4() for _ in range(runs)]
        for number, id in enumerate(ids):
            at = row["queued_at"] + number
            changed = {"id": id.bytes, "state": "succeeded", "attempts": 1}
            changed |= {"started_at": at, "ended_at": at + 9000, "packed_at": at}
            db.execute(insert, list({**row, **changed}.values()))
            columns_of_files = "run_id, path, bytes, sha256, media_type"
            left = range(files)
            left = [(id.bytes, f"tables/table_{file}.csv", 1000 + file, "0" * 64) for file in left]
            db.executemany(
                f"insert into artifacts ({columns_of_files}) values (?, ?, ?, ?, 'text/csv')", left
            )
            if number % 3 == 0:
                label = (f"team-{number % 50}", id.bytes)
                db.execute("insert into labels (label, run_id) values (?, ?)", label)
    return ids[0]


with tempfile.TemporaryDirectory() as data:
    server = start(data, 0)
    try:
        call("/runs", "POST", json.dumps({"model": "deepseek-ocr-tiny", "mode": "basic"}))
        stop(server)
        first = fill(pathlib.Path(data) / "llmprof.db")
        server = start(data, runs)
        paths = {
            "plan of retention": "/retention",
            "page of storage": "/ui/storage",
            "page of runs": "/",
            "page of a run": f"/ui/runs/{first}",
            "metrics": "/metrics",
        }
        for name, path in paths.items():
            times = []
            for _ in range(calls):
                start_s = time.perf_counter()
                call(path)
                times.append((time.perf_counter() - start_s) * 1e3)
            times.sort()
            print(
                f"| {name} | {statistics.median(times):.1f} | {times[int(calls * 0.99) - 1]:.1f} |"
            )
    finally:
        stop(server)
