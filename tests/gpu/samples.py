#!/usr/bin/env python3
"""Profiles 20 pages as samples over HTTP alone, on a GPU host, and checks what is promised.

    tests/gpu/samples.py [--bin DIR] [--device auto|cpu] [--model NAME] [--tokens N] [--pages N]

Starts the service of DIR (default target/release) on loopback with a temporary data folder, uploads
pages that were never seen before, breaks other uploads off at random bytes, and submits a light run
of all pages. Kills the service in the traced pass of a second run and starts it again: the
unprofiled pass is used again. Uploads the inputs of the first run's files to a second service and
compares the tokens of every page. Prints one table; exits with 1 if a check failed. --device cpu
tries the script without a GPU. The standard library is enough.
"""

import argparse
import io
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bin", default="target/release")
parser.add_argument("--device", default="auto")
parser.add_argument("--model", default="deepseek-ocr")
parser.add_argument("--tokens", type=int, default=32)
parser.add_argument("--pages", type=int, default=20)
parser.add_argument("--breaks", type=int, default=40, help="uploads that break off")
options = parser.parse_args()
BEGAN = time.monotonic()
BIN = pathlib.Path(options.bin).resolve()
TAR = {"content-type": "application/x-tar"}
JSON = {"content-type": "application/json"}
rows, failed = [], []


def check(what, passed, found):
    rows.append((what, found))
    if not passed:
        failed.append(what)


class Service:
    """A service on loopback with its own data folder."""

    def __init__(self, data):
        self.data = pathlib.Path(data)
        self.start()

    def start(self):
        environment = dict(os.environ, LLMPROF_LOG="warn")
        environment.setdefault("LLMPROF__TOOLS__MODEL_RUNNER", str(BIN / "model-runner"))
        if options.device == "cpu":
            environment["LLMPROF__WORKER__DEVICES"] = '["cpu"]'
        with open(self.data / "log", "ab") as log:
            self.process = subprocess.Popen(
                [BIN / "llmprof", "serve", "--listen", "127.0.0.1:0", "--data",
                 self.data / "state"],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.base = line.removeprefix("listening on ").strip()
                return
        sys.exit((self.data / "log").read_text())

    def call(self, method, path, body=None, headers=JSON):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.code} {error.read().decode()}")
        return json.loads(content)

    def raw(self, path):
        with urllib.request.urlopen(self.base + path, timeout=600) as answer:
            return answer.read()

    def submit(self, **body):
        body = {"model": options.model, "device": options.device,
                "max_new_tokens": options.tokens, "mode": "light", **body}
        return self.call("POST", "/runs", body)["run_id"]

    def wait(self, run, until=lambda it: it["ended_at"]):
        while True:
            found = self.call("GET", f"/runs/{run}")
            if until(found) or found["ended_at"]:
                return found
            time.sleep(0.05)

    def tokens(self, run):
        """Tokens by sample; a set of more than one is a difference between repeats."""
        tokens = {}
        for line in self.raw(f"/runs/{run}/artifacts/predictions.jsonl").decode().splitlines():
            line = json.loads(line)
            tokens.setdefault(line["sample"], set()).add(tuple(line["tokens"]))
        return tokens

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def page(number):
    """A page of random size with dark words on white, PNG."""
    dice = random.Random(f"{options.pages} {number}")
    width, height = dice.randrange(300, 1600), dice.randrange(300, 2000)
    lines = bytearray()
    for y in range(height):
        row = bytearray(b"\xff" * (3 * width))
        if y % 24 >= 12:
            words = random.Random(f"{number} {y // 24}")
            x = words.randrange(10, 60)
            while x + 90 < width:
                length = words.randrange(10, 90)
                row[3 * x:3 * (x + length)] = b"\x20" * (3 * length)
                x += length + words.randrange(6, 30)
        lines += b"\0" + row
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
              (b"IDAT", zlib.compress(bytes(lines), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def archive(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def break_off(service, body, at):
    """Sends the first bytes of an upload and closes the connection."""
    host, port = re.fullmatch(r"http://(.+):(\d+)", service.base).groups()
    head = (f"POST /inputs?prompt=x HTTP/1.1\r\nhost: {host}\r\n"
            f"content-type: application/x-tar\r\ncontent-length: {len(body)}\r\n\r\n").encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall((head + body)[:at])


def stored(service):
    """Files below the folder of inputs."""
    return sorted(it for it in (service.data / "state/inputs").rglob("*") if it.is_file())


with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
    service = Service(first)
    upload = archive([(f"page-{number:02}.png", page(number)) for number in range(options.pages)])

    before = stored(service)
    dice = random.Random(options.breaks)
    for _ in range(options.breaks):
        break_off(service, upload, dice.randrange(1, len(upload)))
    for _ in range(200):
        left = stored(service)
        if left == before:
            break
        time.sleep(0.05)
    listed = [it for it in service.call("GET", "/inputs?limit=100")["inputs"]
              if it.get("inputs_id")]
    check("uploads that broke off", left == before and not listed,
          f"{options.breaks}; {len(left) - len(before)} files and {len(listed)} inputs left")

    started = time.monotonic()
    path = "/inputs?prompt=Convert%20the%20document%20to%20markdown.&each_image=true"
    inputs = service.call("POST", path, upload, TAR)["inputs_id"]
    check("upload", True, f"{len(upload) / 1e6:.1f} MB in {time.monotonic() - started:.2f} s")

    run = service.submit(inputs=inputs, repeats=2)
    state = service.wait(run)
    check("run of all pages", state["state"] == "succeeded", f"{state['state']} {state['message']}")
    report = json.loads(service.raw(f"/runs/{run}/artifacts/report.json"))
    samples = report["samples"]
    check("samples in the report", len(samples) == options.pages, len(samples))
    check("repeats of each", all(it["wall_ms"]["n"] == 2 for it in samples),
          min(it["wall_ms"]["n"] for it in samples))
    for spread in report["sample_spread"]:
        over = spread["over_samples_ms"]
        check(f"{spread['stage']}, ms", over["n"] == options.pages and over["std"] > 0,
              f"{over['mean']:.1f} on average, deviation {over['std']:.2f} over samples and "
              f"{spread['over_repeats_std_ms']:.2f} over repeats; slowest "
              f"{spread['slowest_sample']}")
    tokens = service.tokens(run)
    check("tokens of repeats agree", all(len(it) == 1 for it in tokens.values()), len(tokens))
    traced = report["outputs"]["traced_tokens_equal"]
    check("traced tokens are equal", traced is True, traced)

    resumed = service.submit(inputs=inputs, repeats=2)
    reached = service.wait(resumed, lambda it: any(
        step["step"] == "nsys" and step["state"] == "running" for step in it["steps"]))
    time.sleep(0.5)
    service.process.kill()
    service.process.wait()
    service.start()
    state = service.wait(resumed)
    codes = [finding["id"] for finding in state["findings"]]
    check("killed in the traced pass", not reached["ended_at"], reached["state"])
    check("resumed", state["state"] == "succeeded" and "passes_reused" in codes,
          f"{state['state']} in attempt {state['attempts']}, "
          f"passes reused: {'passes_reused' in codes}")
    check("its tokens", service.tokens(resumed) == tokens, "those of the first run")

    names = [it["path"] for it in service.call("GET", f"/runs/{run}/artifacts")["artifacts"]
             if it["path"].startswith("inputs/")]
    copies = archive([(name.removeprefix("inputs/"), service.raw(f"/runs/{run}/artifacts/{name}"))
                      for name in names])
    service.stop()
    other = Service(second)
    again = other.call("POST", "/inputs", copies, TAR)["inputs_id"]
    run = other.submit(inputs=again, repeats=1, mode="basic")
    state = other.wait(run)
    found = other.tokens(run) if state["state"] == "succeeded" else {}
    equal = sum(found.get(at) == of for at, of in tokens.items())
    check("second service", equal == options.pages,
          f"{state['state']}; equal tokens in {equal} of {options.pages} samples")
    other.stop()

for what, found in rows:
    print(f"{'FAILED ' if what in failed else ''}{what:32} {found}")
print(f"{len(rows) - len(failed)} of {len(rows)} checks passed")
print(f"took {time.monotonic() - BEGAN:.0f} s")
sys.exit(bool(failed))
