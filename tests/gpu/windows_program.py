"""The profiled program of windows.py.

    windows_program.py OUT MARK    passes of a prefill and a decode of steps, until MARK ends: `window`
                                   makes a window of cudaProfilerStart and Stop that ends inside a step;
                                   `none` makes none

Writes the start (Unix time) and the duration of each range to OUT, in nanoseconds, a line each.
"""

import sys
import time

import torch

PASSES, STEPS, STEP_S = 8, 40, 0.02
out, mark = open(sys.argv[1], "w"), sys.argv[2]
a = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)


def work(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()


class Range:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.unix, self.started = time.time_ns(), time.perf_counter_ns()
        torch.cuda.nvtx.range_push(self.name)

    def __exit__(self, *_):
        torch.cuda.nvtx.range_pop()
        print(self.name, self.unix, time.perf_counter_ns() - self.started, file=out, flush=True)


work(0.2)
for at in range(PASSES):
    if mark == "window" and at == 1:
        torch.cuda.profiler.start()
    with Range("prefill"):
        work(0.2)
    with Range("decode_all"):
        for step in range(STEPS):
            with Range("decode_step"):
                work(STEP_S / 2)
                if mark == "window" and (at, step) == (2, STEPS // 2):
                    torch.cuda.profiler.stop()
                work(STEP_S / 2)
