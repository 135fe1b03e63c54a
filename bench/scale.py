#!/usr/bin/env python3
"""Measures the store and the list endpoints with many queued runs: bench/scale.py LLMPROF [RUNS]

Starts the given `llmprof serve` paused on an empty folder, submits RUNS runs (100,000) from 16
connections, then calls each endpoint 200 times, one request at a time: the first page, a deep page,
filters that match much and little, one run, the queue. Prints one row each: median and p99 in ms.
Then the time until a service with all of these runs is ready. A refused submission ends the
measurement. Standard library only.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

llmprof, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
port, clients, calls = 18490, 16, 200


def connect():
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def call(connection, method, path, body=None):
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 202), (path, answer.status, text)
    return json.loads(text)


def submit(part):
    connection = connect()
    for number in range(part, runs, clients):
        model = "llama-tiny" if number % 10 == 0 else "deepseek-ocr-tiny"
        labels = [f"team-{number % 50}", "rare" if number % 10_000 == 0 else "usual"]
        body = {"model": model, "mode": "basic", "priority": number % 3, "labels": labels}
        call(connection, "POST", "/runs", json.dumps(body))


def start(data):
    env = {**os.environ, "LLMPROF__WORKER__PAUSED": "true", "LLMPROF_LOG": "error"}
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


with tempfile.TemporaryDirectory() as data:
    server = start(data)
    try:
        start_s = time.time()
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            list(pool.map(submit, range(clients)))
        elapsed = time.time() - start_s
        size = sum(path.stat().st_size for path in pathlib.Path(data).glob("llmprof.db*"))
        print(
            f"{runs} runs submitted in {elapsed:.1f} s, {runs / elapsed:.0f} per second", end="; "
        )
        print(f"database {size / 1e6:.0f} MB")
        connection = connect()
        first = call(connection, "GET", "/runs?limit=1")["runs"][0]["run_id"]
        deep = first
        for _ in range(min(runs // 400, 250)):
            deep = call(connection, "GET", f"/runs?limit=200&cursor={deep}")["next_cursor"] or deep
        paths = {
            "first page of 50": "/runs",
            "page of 200": "/runs?limit=200",
            "page of 50 in the middle": f"/runs?cursor={deep}",
            "state=queued": "/runs?state=queued",
            "state=failed, none": "/runs?state=failed",
            "model of a tenth": "/runs?model=llama-tiny",
            "label of a fiftieth": "/runs?label=team-7",
            "label of ten runs": "/runs?label=rare",
            "one run with its place in the queue": f"/runs/{first}",
            "the queue": "/queue",
        }
        for name, path in paths.items():
            times = []
            for _ in range(calls):
                start_s = time.perf_counter()
                call(connection, "GET", path)
                times.append((time.perf_counter() - start_s) * 1e3)
            times.sort()
            print(
                f"| {name} | {statistics.median(times):.1f} | {times[int(calls * 0.99) - 1]:.1f} |"
            )
        for line in open(f"/proc/{server.pid}/status"):
            if line.startswith(("VmRSS", "VmHWM")):
                print(line.split(":")[0], f"{int(line.split()[1]) / 1024:.1f} MiB")
        for number in range(3):
            stop(server)
            start_s = time.perf_counter()
            server = start(data)
            call(connect(), "GET", "/readyz")
            ready_ms = (time.perf_counter() - start_s) * 1e3
            print(f"| ready after a start, {number + 1} | {ready_ms:.0f} ms |")
    finally:
        stop(server)
