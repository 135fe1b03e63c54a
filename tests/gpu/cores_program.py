"""The profiled programs of cores.py.

    cores_program.py steps OUT CORE HOST    decode steps of a few products; after each, the host
                                            computes (`compute`) or sleeps (`sleep`) for 3 ms
    cores_program.py spin CORE              keeps a core busy
    cores_program.py worker FOLDER          waits for FOLDER/go, uses the GPU, writes FOLDER/done
    cores_program.py ask FOLDER             asks such a worker to work, and waits for it

`steps` writes the time of the host's part, and its time on a core, to OUT.
"""

import json
import os
import pathlib
import sys
import time

STEPS, HOST_S = 80, 0.003


def products(torch, count):
    a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    for _ in range(count):
        a = a @ a * 0
    torch.cuda.synchronize()


def steps(out, core, host):
    import torch

    products(torch, 20)
    os.sched_setaffinity(0, {int(core)})
    wall = on_core = 0
    torch.cuda.nvtx.range_push("decode_all")
    for _ in range(STEPS):
        products(torch, 10)
        started, ran = time.perf_counter_ns(), time.thread_time_ns()
        if host == "sleep":
            time.sleep(HOST_S)
        else:
            while time.thread_time_ns() - ran < HOST_S * 1e9:
                sum(range(2000))
        wall += time.perf_counter_ns() - started
        on_core += time.thread_time_ns() - ran
    torch.cuda.nvtx.range_pop()
    truth = {"wall_ms": wall / 1e6, "on_core_ms": on_core / 1e6, "thread": os.getpid()}
    pathlib.Path(out).write_text(json.dumps(truth))


def spin(core):
    os.sched_setaffinity(0, {int(core)})
    while True:
        pass


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def worker(folder):
    import torch

    products(torch, 20)
    (folder / "ready").touch()
    wait_for(folder / "go")
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        products(torch, 20)
    (folder / "done").touch()


def ask(folder):
    (folder / "go").touch()
    wait_for(folder / "done")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what in ("worker", "ask"):
        rest = [pathlib.Path(rest[0])]
    {"steps": steps, "spin": spin, "worker": worker, "ask": ask}[what](*rest)
