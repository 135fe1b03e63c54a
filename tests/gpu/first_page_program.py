"""A decoder in PyTorch for first_page.py, which times its own steps.

    python3 first_page_program.py OUT.json [--trace TRACE.json.gz] [--delay none|svd|pinned]
        [--names stages|steps|none] [--wait-ms MS]

Runs a prefill and 40 decode steps, each inside a range and ended by a synchronisation. `--trace`
records the measured part with the profiler of PyTorch. `--delay` makes two of the steps call the
host in their middle: `svd` an operator on the CPU, `pinned` an allocation of pinned memory. The ranges
have names of stages, or of the steps of vLLM, or are not opened; `--wait-ms` sleeps before each decode
step, outside its range. OUT gets the times of the steps, of these calls and of these waits by the clock
of the program, in milliseconds.
"""

import argparse
import contextlib
import json
import time

import torch

STEPS, DELAYED = 40, (15, 30)
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--trace")
parser.add_argument("--delay", choices=("none", "svd", "pinned"), default="none")
parser.add_argument("--names", choices=("stages", "steps", "none"), default="stages")
parser.add_argument("--wait-ms", type=float, default=0)
args = parser.parse_args()
NAMES = {
    "stages": ("prefill", "decode_step"),
    "steps": ("execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_1(1)"),
    "none": (None, None),
}[args.names]
device = torch.device("cuda:0")
layers = [torch.randn(4096, 4096, device=device, dtype=torch.bfloat16) * 0.01 for _ in range(24)]
matrix = torch.randn(400, 400)
calls_ms, waits_ms = [], []


@contextlib.contextmanager
def named(name):
    if name is None:
        yield
        return
    torch.cuda.nvtx.range_push(name)
    with torch.profiler.record_function(name):
        yield
    torch.cuda.nvtx.range_pop()


def delay():
    started = time.perf_counter()
    if args.delay == "svd":
        torch.linalg.svd(matrix)
    elif args.delay == "pinned":
        torch.empty(300_000_000 + len(calls_ms) * 400_000_000, dtype=torch.uint8, pin_memory=True)
    calls_ms.append((time.perf_counter() - started) * 1e3)


def forward(rows, is_delayed=False):
    x = torch.ones(rows, 4096, device=device, dtype=torch.bfloat16)
    for number, weight in enumerate(layers):
        if is_delayed and number == len(layers) // 2:
            torch.cuda.synchronize()
            delay()
        x = torch.nn.functional.silu(x @ weight)
    torch.cuda.synchronize()


def timed(name, rows, is_delayed=False):
    if args.wait_ms and rows == 1:
        started = time.perf_counter()
        time.sleep(args.wait_ms / 1e3)
        waits_ms.append((time.perf_counter() - started) * 1e3)
    started = time.perf_counter()
    with named(name):
        forward(rows, is_delayed)
    return (time.perf_counter() - started) * 1e3


with torch.no_grad():
    for _ in range(3):
        forward(512)
        forward(1)
    torch.linalg.svd(matrix)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=kinds) if args.trace else contextlib.nullcontext()
    with profiler:
        prefill = timed(NAMES[0], 512)
        steps = [
            timed(NAMES[1], 1, args.delay != "none" and at in DELAYED) for at in range(STEPS)
        ]
    if args.trace:
        profiler.export_chrome_trace(args.trace)
with open(args.out, "w") as out:
    times = {"steps_ms": steps, "calls_ms": calls_ms, "waits_ms": waits_ms}
    json.dump({"prefill_ms": prefill, **times}, out)
