#!/usr/bin/env python3
"""Loads a service as many users, bad ones among them, and checks that nothing is lost or grows.

    bench/soak.py LLMPROF [--minutes 60] [--followers 500] [--downloads 200] [--seed 1]

Starts `LLMPROF serve` on an empty folder (model-runner next to it, nsys where it is installed), and
for the given time submits, cancels, pins and deletes runs, imports captures, follows events,
downloads bundles slowly, reads pages and tables, and sends hostile uploads and requests. Every
minute it prints memory, descriptors, threads and files of the service. Then the load ends, the
queue runs empty, and it checks that every run that was acknowledged exists or was deleted by
request, that memory and descriptors are back, and that `llmprof check` is clean. Exits with 1 if
not. The standard library, and a file tests/fixtures/captures/hf-llama-attention-mock.sqlite.zst.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

PORT = 18492
CAPTURES = pathlib.Path(__file__).parent / "../tests/fixtures/captures"
CAPTURE = CAPTURES / "hf-llama-attention-mock.sqlite.zst"


class Soak:
    def __init__(self, options, data):
        self.options, self.data = options, pathlib.Path(data)
        self.random = random.Random(options.seed)
        self.counts = collections.Counter()
        # Acknowledged runs, and those whose deletion was.
        self.runs, self.deleted = [], set()
        self.capture = CAPTURE.read_bytes()
        self.bomb = subprocess.run(
            ["sh", "-c", "(printf 'SQLite format 3'; head -c 3G /dev/zero) | zstd -q -1 -c"],
            capture_output=True, check=True,
        ).stdout
        self.end = time.monotonic() + options.minutes * 60
        environment = {
            **os.environ,
            "LLMPROF_LOG": "warn,llmprof::tasks=info",
            "LLMPROF__ACCESS__TOKENS": "off",
            "LLMPROF__ACCESS__QUEUED_RUNS_PER_OWNER": "0",
            "LLMPROF__RETENTION__MAX_RUNS": "150",
            "LLMPROF__RETENTION__INTERVAL_S": "60",
            "LLMPROF__WORKER__DEVICES": '["cpu"]',
            "LLMPROF__WORKER__BACKGROUND_WAIT_S": "20",
        }
        self.log = open(self.data / "log", "wb")
        self.service = subprocess.Popen(
            [options.llmprof, "serve", "--listen", f"127.0.0.1:{PORT}",
             "--data", self.data / "state"],
            env=environment, stdout=subprocess.DEVNULL, stderr=self.log,
        )

    # ---- HTTP, by hand: the clients break the protocol on purpose

    async def request(self, method, path, body=b"", headers=(), timeout=60):
        """Status and body of one request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        try:
            lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close",
                     f"content-length: {len(body)}", *headers]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            answer = await asyncio.wait_for(reader.read(), timeout)
            head, _, rest = answer.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 "):
                return 0, b""
            if b"transfer-encoding: chunked" in head.lower():
                rest = b"".join(rest.split(b"\r\n")[1::2])
            return int(head[9:12]), rest
        finally:
            writer.close()

    async def call(self, name, method, path, body=None, headers=()):
        data = json.dumps(body).encode() if body is not None else b""
        kind = ["content-type: application/json"] if body is not None else []
        try:
            status, answer = await self.request(method, path, data, [*kind, *headers])
        except (OSError, asyncio.TimeoutError):
            self.counts[f"{name} failed"] += 1
            return 0, b""
        self.counts[f"{name} {status}"] += 1
        if status >= 500 and status != 503:
            print(f"{name}: {method} {path} {status} {answer[:300]!r}", flush=True)
        return status, answer

    # ---- users

    def keep(self, answer):
        run = json.loads(answer)["run_id"]
        if run not in self.runs:
            self.runs.append(run)

    async def submit(self):
        while time.monotonic() < self.end:
            status, answer = await self.call("queue", "GET", "/runs?state=queued&limit=20")
            if status == 200 and answer.count(b'"run_id"') < 10:
                request = {"model": "deepseek-ocr-tiny", "device": "cpu",
                           "mode": self.random.choice(["basic", "light"]), "max_new_tokens": 4}
                key = f"idempotency-key: {self.random.random()}"
                for _ in range(self.random.choice([1, 1, 2])):
                    status, answer = await self.call("submit", "POST", "/runs", request, [key])
                    if status in (200, 202):
                        self.keep(answer)
            await asyncio.sleep(self.random.uniform(0.2, 2))

    async def change(self):
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.5, 4))
            if not self.runs:
                continue
            run, action = self.random.choice(self.runs), self.random.random()
            if action < 0.2:
                await self.call("cancel", "POST", f"/runs/{run}/cancel")
            elif action < 0.5:
                await self.call("pin", self.random.choice(["POST", "DELETE"]), f"/runs/{run}/pin")
            elif action < 0.8:
                status, _ = await self.call("delete", "DELETE", f"/runs/{run}")
                if status == 204:
                    self.deleted.add(run)

    async def import_captures(self):
        while time.monotonic() < self.end:
            path = "/captures?name=mock.sqlite.zst"
            status, answer = await self.call_bytes("import", path, self.capture)
            if status in (200, 202):
                self.keep(answer)
            await asyncio.sleep(self.random.uniform(15, 40))

    async def call_bytes(self, name, path, body):
        try:
            head = ["content-type: application/octet-stream"]
            status, answer = await self.request("POST", path, body, head, timeout=120)
        except (OSError, asyncio.TimeoutError):
            status, answer = 0, b""
        self.counts[f"{name} {status}"] += 1
        return status, answer

    async def send_hostile(self):
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(1, 6))
            kind = self.random.randrange(6)
            if kind == 0:
                await self.call_bytes("bomb", "/captures?name=bomb.sqlite.zst", self.bomb)
            elif kind == 1:
                damaged = bytearray(self.capture)
                for _ in range(50):
                    damaged[self.random.randrange(len(damaged))] = self.random.randrange(256)
                path = "/captures?name=damaged.sqlite.zst"
                await self.call_bytes("damaged", path, bytes(damaged))
            elif kind == 2:
                await self.break_off()
            elif kind == 3:
                await self.call("nonsense", "POST", "/runs", {"model": "[" * 50_000})
            elif kind == 4:
                await self.call("path", "GET", "/runs/" + "%2e%2e%2f" * 200)
            else:
                await self.send_raw(bytes(self.random.randrange(256) for _ in range(4000)))

    async def break_off(self):
        """An upload that ends at a random byte."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            head = ("POST /captures?name=x.sqlite.zst HTTP/1.1\r\nhost: localhost\r\n"
                    f"content-length: {len(self.capture)}\r\n"
                    "content-type: application/octet-stream\r\n\r\n")
            writer.write(head.encode() + self.capture[: self.random.randrange(len(self.capture))])
            await asyncio.wait_for(writer.drain(), 30)
            writer.transport.abort()
            self.counts["broken off"] += 1
        except (OSError, asyncio.TimeoutError):
            self.counts["broken off, refused"] += 1

    async def send_raw(self, bytes_):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            writer.write(bytes_)
            await asyncio.wait_for(reader.read(1000), 20)
            writer.close()
            self.counts["raw"] += 1
        except (OSError, asyncio.TimeoutError):
            self.counts["raw, cut off"] += 1

    async def follow(self):
        """Follows the events of a recent run until they end, again and again."""
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.5, 10))
            if not self.runs:
                continue
            run = self.random.choice(self.runs[-20:])
            await self.read_slowly("follow", f"/runs/{run}/events", 65536, 0)

    async def download(self):
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.5, 10))
            if not self.runs:
                continue
            run = self.random.choice(self.runs[-60:])
            await self.read_slowly("download", f"/runs/{run}/bundle", 2048, 1)

    async def read_slowly(self, name, path, size, pause):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT, limit=4096)
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            first = True
            while time.monotonic() < self.end:
                block = await asyncio.wait_for(reader.read(size), 90)
                if first:
                    self.counts[f"{name} {block[9:12].decode(errors='replace')}"] += 1
                    first = False
                if not block:
                    break
                await asyncio.sleep(pause)
            writer.transport.abort()
        except (OSError, asyncio.TimeoutError) as error:
            self.counts[f"{name} {type(error).__name__}"] += 1

    async def browse(self):
        fixed = ["/", "/runs", "/queue", "/metrics", "/devices", "/models", "/retention",
                 "/alignments", "/readyz", "/openapi.json", "/runs?limit=200", "/ui/storage"]
        while time.monotonic() < self.end:
            await asyncio.sleep(self.random.uniform(0.1, 1))
            paths = list(fixed)
            if self.runs:
                run = self.random.choice(self.runs)
                paths += [f"/runs/{run}", f"/runs/{run}/report", f"/runs/{run}/tables",
                          f"/runs/{run}/tables/stages?format=csv", f"/runs/{run}/artifacts"]
            await self.call("read", "GET", self.random.choice(paths), headers=["accept: text/html"])

    # ---- measurement

    def figures(self):
        process = pathlib.Path(f"/proc/{self.service.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        files = sum(len(names) for _, _, names in os.walk(self.data / "state"))
        return {"rss": int(status["VmRSS"].split()[0]) / 1024,
                "descriptors": len(os.listdir(process / "fd")),
                "threads": int(status["Threads"]), "files": files}

    def show(self, label):
        it = self.figures()
        print(f"{label:>14} {it['rss']:8.1f} MiB {it['descriptors']:6} descriptors "
              f"{it['threads']:4} threads {it['files']:7} files  "
              f"{len(self.runs):6} runs acknowledged", flush=True)
        return it

    async def measure(self):
        started = time.monotonic()
        while time.monotonic() < self.end:
            await asyncio.sleep(60)
            self.show(f"{(time.monotonic() - started) / 60:.0f} min")

    async def active(self):
        count = 0
        for state in ("queued", "running"):
            status, answer = await self.call("drain", "GET", f"/runs?state={state}&limit=200")
            count += answer.count(b'"run_id"') if status == 200 else 1
        return count

    async def run(self):
        while (await self.call("start", "GET", "/readyz"))[0] != 200:
            assert self.service.poll() is None, "the service ended"
            await asyncio.sleep(0.2)
        await asyncio.sleep(3)
        first = self.show("start")
        options = self.options
        users = [self.submit() for _ in range(2)]
        users += [self.change(), self.import_captures(), self.measure()]
        users += [self.send_hostile() for _ in range(3)] + [self.browse() for _ in range(8)]
        users += [self.follow() for _ in range(options.followers)]
        users += [self.download() for _ in range(options.downloads)]
        results = await asyncio.gather(*users, return_exceptions=True)
        problems = [f"a client failed: {it!r}" for it in results if it is not None]
        print("load ends; the queue runs empty", flush=True)
        while await self.active():
            assert self.service.poll() is None, "the service ended"
            await asyncio.sleep(1)
        await asyncio.sleep(90)
        last = self.show("90 s later")
        if last["descriptors"] > first["descriptors"] + 8:
            problems.append("descriptors stay open")
        if last["rss"] > 1.5 * first["rss"] + 16:
            problems.append("memory has grown")
        return problems + await self.lost()

    async def lost(self):
        """Acknowledged runs that neither exist nor were removed by request or by retention."""
        states, removed, problems = collections.Counter(), 0, []
        for run in self.runs:
            status, answer = await self.call("verify", "GET", f"/runs/{run}")
            if status == 200:
                states[json.loads(answer)["state"]] += 1
            elif status == 404:
                removed += run not in self.deleted
            else:
                problems.append(f"{run}: {status}")
        log = (self.data / "log").read_text(errors="replace")
        by_retention = log.count("removed an old run")
        print(f"runs: {dict(states)}, deleted by request {len(self.deleted)}, "
              f"by retention {by_retention}")
        if removed > by_retention:
            problems.append(f"{removed - by_retention} acknowledged runs are lost")
        if states["running"] or states["queued"]:
            problems.append("a run did not end")
        return problems

    def stop(self):
        self.service.terminate()
        code = self.service.wait(60)
        check = subprocess.run([self.options.llmprof, "check", "--data", self.data / "state"],
                               capture_output=True, text=True)
        print(f"SIGTERM: exit {code}; llmprof check: exit {check.returncode}")
        log = (self.data / "log").read_text(errors="replace")
        errors = [line for line in log.splitlines() if "ERROR" in line]
        for line in errors[:10]:
            print(line)
        problems = [f"the service ended with {code}"] if code else []
        problems += [f"check: {check.stdout}{check.stderr}"] if check.returncode else []
        return problems + ([f"{len(errors)} errors logged"] if errors else [])


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("llmprof")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--followers", type=int, default=500)
    parser.add_argument("--downloads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        soak = Soak(options, data)
        try:
            problems = asyncio.run(soak.run())
            problems += soak.stop()
        finally:
            soak.service.kill()
        for name, count in sorted(soak.counts.items()):
            print(f"  {name:28} {count:8}")
        for problem in problems:
            print(f"PROBLEM {problem}")
        sys.exit(1 if problems else 0)


main()
