#!/usr/bin/env python3
"""Measures imports: bench/imports.py LLMPROF [LLMPROF ...] [--imports 20]

Starts each `llmprof serve` on an empty folder, and uploads one small capture after another to each
in turn, so that the load of the host affects all alike. Prints a row for each program: median and
maximum of the time until the upload is answered, and until the run has ended, and the CPU time of
the service and its children per import, in ms. Standard library only, and the zstd program.
"""

import argparse
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

CAPTURES = pathlib.Path(__file__).parent / "../tests/fixtures/captures"
CAPTURE = CAPTURES / "hf-llama-attention-mock.sqlite.zst"
FIRST_PORT = 18600
TYPE = {"Content-Type": "application/octet-stream"}


class Service:
    def __init__(self, llmprof, port, folder):
        self.port, self.answered, self.ended = port, [], []
        environment = {**os.environ, "LLMPROF__TOOLS__NSYS": "none", "LLMPROF_LOG": "error"}
        listen = f"127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [llmprof, "serve", "--listen", listen, "--data", folder],
            env=environment, stdout=subprocess.DEVNULL,
        )

    def call(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST" if body else "GET", path, body, TYPE if body else {})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}

    def cpu_ms(self):
        """CPU time of the service and of its children that have ended."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        ticks = sum(int(field) for field in stat.rsplit(")", 1)[1].split()[11:15])
        return 1e3 * ticks / os.sysconf("SC_CLK_TCK")

    def wait(self):
        while True:
            try:
                if self.call("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def run_import(self, capture):
        started = time.monotonic()
        status, answer = self.call("/captures?name=mock.sqlite", capture)
        assert status in (201, 202), answer
        self.answered.append(1e3 * (time.monotonic() - started))
        while not self.call(f"/runs/{answer['run_id']}")[1]["ended_at"]:
            time.sleep(0.002)
        self.ended.append(1e3 * (time.monotonic() - started))


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("llmprof", nargs="+")
    parser.add_argument("--imports", type=int, default=20)
    options = parser.parse_args()
    unpacked = subprocess.run(["zstd", "-dqc", CAPTURE], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        services = [
            Service(llmprof, FIRST_PORT + at, f"{folder}/{at}")
            for at, llmprof in enumerate(options.llmprof)
        ]
        try:
            for service in services:
                service.wait()
                service.run_import(unpacked.stdout)
                service.answered.clear()
                service.ended.clear()
                service.cpu = service.cpu_ms()
            for _ in range(options.imports):
                for service in services:
                    service.run_import(unpacked.stdout)
            for service in services:
                service.cpu = (service.cpu_ms() - service.cpu) / options.imports
        finally:
            for service in services:
                service.process.terminate()
                service.process.wait()
    print("| program | answered, median | max | ended, median | max | CPU |")
    print("|---|---|---|---|---|---|")
    for llmprof, service in zip(options.llmprof, services):
        figures = [statistics.median(service.answered), max(service.answered)]
        figures += [statistics.median(service.ended), max(service.ended), service.cpu]
        print(f"| {llmprof} | " + " | ".join(f"{ms:.0f}" for ms in figures) + " |")


if __name__ == "__main__":
    main()
