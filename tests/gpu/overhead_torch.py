#!/usr/bin/env python3
"""Cost of tracing a prefill of transformers that is launched kernel by kernel, by tracer.

    tests/gpu/overhead_torch.py [--python PYTHON] [--rounds N] [--tracers N]

Runs a model of Llama's shape (16 layers, random weights, a prompt of 64 tokens, eager) without a
profiler and under each tracer in turn, or the first N of them, a process each, with two warm-ups and
15 prefills. Hosts are noisy, so the table has the lowest median of the rounds and all medians.
Stages are NVTX ranges.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

NSYS = ["nsys", "profile", "--cuda-graph-trace=node", "--stats=false", "-f", "true"]
QUIET = ["--sample=none", "--cpuctxsw=none"]
TRACERS = {
    "unprofiled": [],
    "ranges of stages alone": [*NSYS, *QUIET, "--trace=nvtx"],
    "ranges, metrics of the GPU at 10 kHz": [
        *NSYS, *QUIET, "--trace=nvtx", "--gpu-metrics-devices=cuda-visible",
        "--gpu-metrics-frequency=10000",
    ],
    "kernels and calls, as llmprof traces": [*NSYS, *QUIET, "--trace=cuda,nvtx"],
    "the same, with calls of the OS": [*NSYS, *QUIET, "--trace=cuda,nvtx,osrt"],
    "the same, with calls of cuBLAS and cuDNN": [*NSYS, *QUIET, "--trace=cuda,nvtx,cublas,cudnn"],
    "the same, with CPU samples and switches": [
        *NSYS, "--sample=process-tree", "--cpuctxsw=process-tree", "--trace=cuda,nvtx",
    ],
    "the same, samples and switches system-wide": [
        *NSYS, "--sample=system-wide", "--cpuctxsw=system-wide", "--trace=cuda,nvtx",
    ],
}


def prefills():
    import torch
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=32000,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(0, 32000, (1, 64), device="cuda")
    times = []
    with torch.inference_mode():
        for at in range(17):
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            torch.cuda.nvtx.range_push("prefill")
            model(tokens)
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            times.append((time.perf_counter_ns() - started) / 1e6)
    print("versions", torch.__version__, transformers.__version__)
    print("median", statistics.median(times[2:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tracers", type=int, default=len(TRACERS))
    args = parser.parse_args()
    began = time.monotonic()
    work = pathlib.Path(tempfile.mkdtemp())
    tracers = dict(list(TRACERS.items())[: args.tracers])
    medians = {name: [] for name in tracers}
    for _ in range(args.rounds):
        for name, tracer in tracers.items():
            output = ["-o", str(work / "report")] if tracer else []
            command = [*tracer, *output, args.python, __file__]
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "PREFILLS": "1"}
            )
            found = [it for it in done.stdout.splitlines() if it.startswith("median ")]
            if len(found) != 1:
                sys.exit(f"{name}: {done.stdout}\n{done.stderr}")
            versions = next(it for it in done.stdout.splitlines() if it.startswith("versions "))
            medians[name].append(float(found[0].split()[1]))
    _, torch, transformers = versions.split()
    print(f"PyTorch {torch}, transformers {transformers}")
    least = min(medians["unprofiled"])
    print(f"{'prefill of 16 layers of transformers':44} lowest ms  overhead %  medians of the rounds, ms")
    for name, values in medians.items():
        rounds = " ".join(f"{value:.2f}" for value in values)
        print(f"{name:44} {min(values):9.2f} {100 * (min(values) / least - 1):11.0f}  {rounds}")
    print(f"took {time.monotonic() - began:.0f} s")


prefills() if os.environ.get("PREFILLS") else main()
