#!/usr/bin/env python3
"""Checks change points and gates of simulated series, and measures large ones:
bench/series.py LLMPROF [RUNS]

Starts `llmprof serve` paused on an empty folder, submits one run, and copies its row as ended runs
with simulated figures: 200 runs with a noise of 1 % and changes of 3, 5 and 10 %, one run of a new
build with each change, ten more of the last build, and a series of RUNS (10,000). The service then
computes the change points. Prints them; the exit codes of `llmprof gate` for each change, which
must be 1, and for the ten reruns, which must be 0; and median and p99 of each endpoint in ms.
Standard library only.
"""

import hashlib
import http.client
import json
import os
import pathlib
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

llmprof, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
port, calls, planted = 18492, 100, {60: 1.03, 110: 1.05, 150: 1.10}
noise = random.Random(21)
servers = []


def call(path, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 202), (path, answer.status, text)
    return json.loads(text)


def start(data):
    env = {
        **os.environ,
        "LLMPROF__WORKER__PAUSED": "true",
        "LLMPROF_LOG": "error",
        "LLMPROF__ACCESS__REQUESTS_PER_S_PER_ADDRESS": "0",
    }
    server = subprocess.Popen(
        [llmprof, "serve", "--listen", f"127.0.0.1:{port}", "--data", data],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    server.stdout.readline()
    servers.append(server)
    return server


def stop(server):
    server.terminate()
    server.wait()


class Folder:
    """The database of a stopped service, to which simulated runs are added."""

    def __init__(self, path):
        self.db = sqlite3.connect(path)
        self.columns = [row[1] for row in self.db.execute("pragma table_info(runs)")]
        self.row = dict(zip(self.columns, self.db.execute("select * from runs").fetchone()))
        self.at = self.row["queued_at"]

    def series(self, name):
        identity = json.dumps({"device": "simulated", "name": name}, separators=(",", ":"))
        series = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self.db.execute(
            "insert into series (id, identity, name, device) values (?, ?, ?, 'simulated')",
            (series, identity, name),
        )
        return series

    def run(self, series, revision, level):
        """Adds an ended run of this build; returns its id."""
        self.at += 1000
        number = self.at << 80 | noise.getrandbits(80)
        number = number & ~(0xF << 76) | 7 << 76
        number = number & ~(0x3 << 62) | 0x2 << 62
        run = uuid.UUID(int=number)
        spec = json.loads(self.row["spec"])
        spec["common"]["revision"] = revision
        values = {
            **self.row,
            "id": run.bytes,
            "state": "succeeded",
            "spec": json.dumps(spec),
            "queued_at": self.at,
            "started_at": self.at,
            "ended_at": self.at + 900,
        }
        marks = ",".join("?" * len(self.columns))
        self.db.execute(f"insert into runs values ({marks})", [values[it] for it in self.columns])
        draw = lambda mean: mean * (1 + 0.01 * noise.gauss(0, 1))
        tpot = draw(level)
        self.db.execute(
            "insert into points (run_id, series, revision, build, device, ttft, tpot, wall,"
            " tokens_per_s, gpu_busy, mfu, energy, savings)"
            " values (?,?,?,'0.1.0','simulated',?,?,?,?,?,?,?,'{}')",
            (run.bytes, series, revision, draw(40.0), tpot, draw(700.0), draw(1500.0), draw(88.0),
             draw(31.0), draw(0.4)),
        )
        return str(run)


def gate(candidates, threshold):
    """The exit code and the output of a gate of these runs."""
    arguments = [it for run in candidates for it in ("--run", run)]
    command = [llmprof, "gate", "--baseline", "main", "--server", f"http://127.0.0.1:{port}",
               "--fail-on", threshold, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def decided(candidates):
    """The runs of a candidate that a gate needs, added one by one as repeats."""
    for count in range(1, 6):
        body = {"baseline": "main", "runs": candidates[:count], "fail_on": {"tpot": 3}}
        if not call("/gates", "POST", json.dumps(body))["more_runs"]:
            break
    return candidates[:count]


def main(data):
    server = start(data)
    call("/runs", "POST", json.dumps({"model": "llama-tiny", "mode": "basic"}))
    stop(server)
    folder = Folder(pathlib.Path(data) / "llmprof.db")
    planted_series, level, ids = folder.series("planted"), 10.0, []
    for at in range(200):
        level *= planted.get(at, 1.0)
        ids.append(folder.run(planted_series, f"r{at // 5}", level))
    slower = {pct: [folder.run(planted_series, f"slow{pct}", level * (1 + pct / 100))
                    for _ in range(5)] for pct in (3, 5, 10)}
    reruns = [[folder.run(planted_series, "r39", level) for _ in range(5)] for _ in range(10)]
    large = folder.series("large")
    for at in range(runs):
        folder.run(large, f"r{at // 5}", 10.0)
    folder.db.execute("delete from runs where state = 'queued'")
    folder.db.commit()
    server = start(data)
    deadline = time.monotonic() + 120
    while folder.db.execute("select count(*) from series where stale").fetchone()[0]:
        assert time.monotonic() < deadline, "the change points are not computed"
        time.sleep(0.2)
    folder.db.close()
    report(ids, planted_series, slower, reruns, large)


def report(ids, planted_series, slower, reruns, large):
    found = call(f"/series/{planted_series}")["change_points"]
    places = {run: at for at, run in enumerate(ids)}
    print("planted changes of tpot at runs", ", ".join(map(str, planted)))
    for it in found:
        if it["figure"] == "tpot":
            at = places.get(it["run_id"], "after 200")
            print(f"  found at run {at}: {it['change_pct']:+.2f} %, p {it['p']:.1e}")
    call("/baselines", "POST", json.dumps({"name": "main", "run_id": ids[-1]}))
    for pct, candidates in slower.items():
        code, text = gate(candidates, "tpot=2%")
        print(f"gate of +{pct} %: exit code {code}", text.splitlines()[1].strip())
        assert code == 1, text
    codes = [gate(decided(again), "tpot=3%")[0] for again in reruns]
    print("exit codes of ten reruns of the same code:", codes)
    assert codes == [0] * 10, codes
    print(f"\n| endpoint, {runs} runs | p50 ms | p99 ms |\n|---|---:|---:|")
    for path in ["/series", f"/series/{large}", f"/series/{large}?limit=1000", "/runs?limit=200",
                 "/runs?sort=tpot&limit=200", f"/runs?series={large}&limit=200",
                 f"/ui/series/{large}"]:
        times = []
        for _ in range(calls):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            before = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, path
            times.append((time.perf_counter() - before) * 1000)
        name = path.replace(large, "{id}")
        p99 = sorted(times)[int(0.99 * calls) - 1]
        print(f"| `{name}` | {statistics.median(times):.1f} | {p99:.1f} |")


with tempfile.TemporaryDirectory() as data:
    try:
        main(data)
    finally:
        for server in servers:
            stop(server)
