#!/usr/bin/env python3
"""Compares sampled metrics with ncu and with known work, on a GPU host.

    tests/gpu/metrics.py [--bin DIR] [--model NAME] [--tokens N] [--steps N] [--rates HZ,HZ]
                         [--keep DIR]
    tests/gpu/metrics.py --kept DIR [--bin DIR]

Starts the service of DIR (default target/release) on loopback with a temporary data folder and
submits a deep run with sampled metrics. Profiles up to eight launches of each launch configuration
of its prefill and of its first decode steps with ncu, without emptying caches, in one pass that
replays nothing, and compares values: ncu's percentage times its duration over the traced duration,
of kernels whose duration varies by less than 15 %. Where PyTorch is installed, also copies known
bytes and multiplies matrices of known FLOPs. Prints one table; exits with 1 if a goal was missed.
--keep stores the capture and ncu's values in DIR; --kept analyses and compares them again, without
a GPU. The standard library is enough.
"""

import argparse
import csv
import datetime
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bin", default="target/release")
parser.add_argument("--model", default="deepseek-ocr")
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--steps", type=int, default=2, help="decode steps under ncu")
parser.add_argument("--rates", default="20000", help="samples per second")
parser.add_argument("--keep", type=pathlib.Path, help="folder for the capture and ncu's values")
parser.add_argument("--kept", type=pathlib.Path, help="folder of --keep: compares these again")
options = parser.parse_args()
BIN = pathlib.Path(options.bin).resolve()
NCU = os.environ.get("LLMPROF__TOOLS__NCU") or shutil.which("ncu")
NSYS = os.environ.get("LLMPROF__TOOLS__NSYS") or shutil.which("nsys")
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
READS = "dram__bytes_read.sum.pct_of_peak_sustained_elapsed"
WRITES = "dram__bytes_write.sum.pct_of_peak_sustained_elapsed"
TIME = "gpu__time_duration.sum"
STAGES = ("prefill", "decode_all")
METRICS = {"tensor_active": TENSOR, "dram_read": READS, "dram_write": WRITES}
# Launches of each launch configuration, whose kernels ncu does not distinguish.
LAUNCHES = 8
# FLOPs of a GEMM in bf16 per SM and clock of Hopper, dense.
FLOPS_PER_CLOCK = 4096
rows, failed, missed = [], [], []


def check(what, passed, found):
    rows.append((what, found))
    if not passed:
        failed.append(what)


def seconds(step):
    times = [datetime.datetime.fromisoformat(step[it]) for it in ("started_at", "ended_at")]
    return (times[1] - times[0]).total_seconds()


class Service:
    """A service on loopback with its own data folder."""

    def __init__(self, data):
        environment = dict(os.environ, LLMPROF_LOG="warn")
        environment.setdefault("LLMPROF__TOOLS__MODEL_RUNNER", str(BIN / "model-runner"))
        self.log = open(data / "log", "wb")
        self.process = subprocess.Popen(
            [BIN / "llmprof", "serve", "--listen", "127.0.0.1:0", "--data", data / "state"],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
        )
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.base = line.removeprefix("listening on ").strip()
                return
        sys.exit((data / "log").read_text())

    def call(self, method, path, body=None):
        body = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "accept": "application/json"}
        request = urllib.request.Request(self.base + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.code} {error.read().decode()}")

    def run(self, body):
        run = self.call("POST", "/runs", body)["run_id"]
        while True:
            found = self.call("GET", f"/runs/{run}")
            if found["ended_at"]:
                return run, found
            time.sleep(0.2)

    def table(self, run, name):
        return self.call("GET", f"/runs/{run}/tables/{name}?limit=10000")["rows"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def size(text):
    return tuple(int(it) for it in re.findall(r"\d+", str(text)))


def number(text):
    return float(text.replace(",", ""))


def ncu(place, stage, metrics, folder):
    """Values and durations of launches of a stage, by kernel, grid and block. The paths in the
    request at `place` are relative to its folder."""
    request = dict(json.loads(place.read_text()), repeats=1, warmup=0, ceilings=False)
    # Grids of attention follow the size of the KV cache.
    request["cache_tokens"] = request.get("cache_tokens") or request["max_new_tokens"]
    request["max_new_tokens"] = 0 if stage == "prefill" else options.steps
    changed = place.with_name("ncu-request.json")
    changed.write_text(json.dumps(request))
    report = folder / "run.ncu-rep"
    command = [
        NCU, "--target-processes", "all", "--graph-profiling", "node", "--clock-control", "none",
        "--cache-control", "none", "--nvtx", "--nvtx-include", f"LLM@{stage}/",
        "--filter-mode", "per-launch-config", "--launch-count", str(LAUNCHES), "--metrics",
        ",".join([TIME, *metrics]), "--force-overwrite", "--export", report,
        BIN / "model-runner", "run", "--request", changed, "--out", folder,
    ]
    environment = dict(os.environ)
    if request.get("gpu"):
        environment["CUDA_VISIBLE_DEVICES"] = request["gpu"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode != 0 or not report.exists():
        sys.exit(f"ncu failed: {(ran.stdout + ran.stderr)[-2000:]}")
    replayed = {int(it) for it in re.findall(r"(\d+) passes?", ran.stdout)} - {1}
    if replayed:
        sys.exit(f"ncu replayed launches {replayed} times: their caches are not those of the run")
    page = subprocess.run(
        [NCU, "--import", report, "--csv", "--page", "raw", "--print-units", "base",
         "--print-kernel-base", "function"], capture_output=True, text=True, check=True,
    ).stdout
    start = page.index('"ID"')
    launches = {}
    for row in list(csv.DictReader(io.StringIO(page[start:])))[1:]:
        key = (row["Kernel Name"], size(row["Grid Size"]), size(row["Block Size"]))
        values = [number(row[it]) for it in [TIME, *metrics]]
        launches.setdefault(key, []).append(values)
    return launches


def like(row, sampled, launches):
    """The launches under ncu of the kernel of a row whose duration is nearest to its launches': short
    and long launches have rows of their own."""
    key = lambda it: (it["kernel_name"], tuple(it["grid"] or ()), tuple(it["block"] or ()))
    mean = lambda it: it["total_ms"] * 1e6 / it["calls"]
    rows = [it for it in sampled if it["stage"] == row["stage"] and key(it) == key(row)]
    nearest = lambda ns: min(rows, key=lambda it: abs(math.log(ns / mean(it))))
    return [it for it in launches.get(key(row), []) if nearest(it[0]) is row]


def compare(stage, metric, sampled, launches):
    """Counts of values, of those inside their interval, of long ones and of those within 5."""
    groups = {}
    for row in sampled:
        if row["stage"] != stage or row[f"metrics.{metric}.pct"] is None:
            continue
        is_mean = row[f"metrics.{metric}.is_group_mean"]
        key = row[f"metrics.{metric}.group"] if is_mean else None
        place = ("group", key) if is_mean else ("kernel", id(row))
        groups.setdefault(place, []).append(row)
    for (kind, key), members in list(groups.items()):
        if kind == "group":  # members with a value of their own belong to the mean as well
            groups[(kind, key)] = [
                it for it in sampled
                if it["stage"] == stage and it[f"metrics.{metric}.group"] == key
            ]
    counted = inside = long = near = 0
    for (kind, _), members in groups.items():
        total = truth = 0.0
        for row in members:
            found = like(row, sampled, launches)
            if not found:
                break
            times = [it[0] for it in found]
            if len(times) > 1 and statistics.pstdev(times) > 0.15 * statistics.mean(times):
                break
            moved = statistics.mean(it[0] * it[1] for it in found)
            traced = row["total_ms"] * 1e6 / row["calls"]
            truth += moved / traced * row["total_ms"]
            total += row["total_ms"]
        else:
            if not total:
                continue
            mean = next((it for it in members if it[f"metrics.{metric}.is_group_mean"]), members[0])
            value, width = mean[f"metrics.{metric}.pct"], mean[f"metrics.{metric}.half_width"]
            truth = min(truth / total, 100)
            counted += 1
            inside += abs(value - truth) <= width
            if abs(value - truth) > width:
                names = " + ".join(it["kernel_name"] for it in members)
                calls, time = (sum(it[key] for it in members) for key in ("calls", "total_ms"))
                missed.append(f"{stage} {metric} of {names} ({calls} calls, {time:.2f} ms): "
                              f"sampled {value:.1f} +- {width:.1f}, ncu {truth:.1f}")
            if kind == "kernel" and mean["total_ms"] / mean["calls"] >= 0.02:
                long += 1
                near += abs(value - truth) <= 5
    return counted, inside, long, near


def described(counted, inside, long, near):
    return (f"{inside} of {counted} inside ({100 * inside / max(counted, 1):.0f} %), "
            f"{near} of {long} long ones within 5")


KNOWN = """
import torch
bytes = 4 << 30
a = torch.empty(bytes, dtype=torch.uint8, device="cuda")
b = torch.empty_like(a)
m = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
for turn in range(2):
    torch.cuda.nvtx.range_push("warmup" if turn == 0 else "known")
    torch.cuda.nvtx.range_push("prefill")
    for _ in range(20): b.copy_(a)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_push("decode_all")
    for _ in range(30): m @ m
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_pop()
"""


def known_work(folder, rate):
    """Samples a copy of 4 GiB and a GEMM of 8192^3, and compares them with their time."""
    script = folder / "known.py"
    script.write_text(KNOWN)
    stem = folder / "known"
    subprocess.run(
        [NSYS, "profile", "--trace", "cuda,nvtx", "--sample=none", "--cpuctxsw=none",
         "--gpu-metrics-devices=cuda-visible", f"--gpu-metrics-frequency={rate}",
         "--force-overwrite=true", "--output", stem, sys.executable, script],
        check=True, capture_output=True,
    )
    subprocess.run([NSYS, "export", "--type", "sqlite", "--force-overwrite=true", "--output",
                    f"{stem}.sqlite", f"{stem}.nsys-rep"], check=True, capture_output=True)
    report = json.loads(subprocess.run(
        [BIN / "llmprof", "analyze", f"{stem}.sqlite", "--format", "json"],
        check=True, capture_output=True, text=True).stdout)
    stages = {it["stage"]: it for it in report["sampled_stages"]}
    kernels = report["sampled_metrics"]
    gpu = report["environment"]["gpus"][0]
    gemm = max((it for it in kernels if it["stage"] == "decode_all"), key=lambda it: it["total_ms"])
    clock = stages["decode_all"]["sm_clock_mhz"] * 1e6
    rate = 2 * 8192**3 * gemm["calls"] / (gemm["total_ms"] / 1e3)
    expected = 100 * rate / (FLOPS_PER_CLOCK * (gpu.get("sm_count") or 132) * clock)
    value = gemm["metrics"]["tensor_active"]
    check("known GEMM: tensor within 5 of its FLOPs", abs(value["pct"] - expected) <= 5,
          f"{value['pct']:.1f} +- {value['half_width']:.1f}, expected {expected:.1f}")
    copy = stages.get("prefill")
    if copy:  # a copy of a device to itself is no kernel: its stage has reads and writes
        reads, writes = (copy["metrics"].get(it, {}).get("pct") for it in ("dram_read", "dram_write"))
        check("known copy: reads and writes within 5 of each other",
              reads is not None and abs(reads - writes) <= 5, f"{reads} and {writes}")


def compare_stages(sampled, launches):
    """Compares the values of all stages and metrics, and checks the goals over all of them."""
    agreed = {}
    for stage in STAGES:
        for index, metric in enumerate(METRICS):
            of_metric = {key: [(it[0], it[1 + index]) for it in found]
                         for key, found in launches[stage].items()}
            found = compare(stage, metric, sampled, of_metric)
            rows.append((f"{stage} {metric} against ncu", described(*found)))
            totals = agreed.setdefault(metric.split("_")[0], [0] * 4)
            agreed[metric.split("_")[0]] = [a + b for a, b in zip(totals, found)]
    for unit, (counted, inside, long, near) in agreed.items():
        inside_share = 100 * inside / max(counted, 1)
        check(f"{unit} against ncu: 90 % inside", inside_share >= 90,
              f"{inside} of {counted} inside ({inside_share:.0f} %)")
        check(f"{unit} of 20 us and longer: within 5 of ncu", near == long, f"{near} of {long}")


def keep(capture, launches):
    """Stores the capture of the first rate, compressed, and ncu's values."""
    options.keep.mkdir(parents=True, exist_ok=True)
    subprocess.run([NSYS, "export", "--type", "sqlite", "--force-overwrite=true", "--output",
                    options.keep / "run.sqlite", capture / "run.nsys-rep"],
                   check=True, capture_output=True)
    subprocess.run(["xz", "-T0", "-f", options.keep / "run.sqlite"], check=True)
    rows = {stage: [[list(key), values] for key, values in found.items()]
            for stage, found in launches.items()}
    (options.keep / "ncu.json").write_text(json.dumps(rows))


def flat(row):
    """A row of the report as one of the table: `metrics.tensor_active.pct`."""
    plain = {key: value for key, value in row.items() if key != "metrics"}
    fields = ("pct", "half_width", "group", "is_group_mean")
    for metric in METRICS:
        value = row["metrics"].get(metric, {})
        plain |= {f"metrics.{metric}.{field}": value.get(field) for field in fields}
    return plain


def kept(folder):
    """Analyses a kept capture again and compares it with ncu's kept values."""
    subprocess.run(["xz", "-dkf", options.kept / "run.sqlite.xz"], check=True)
    report = json.loads(subprocess.run(
        [BIN / "llmprof", "analyze", options.kept / "run.sqlite", "--format", "json"],
        check=True, capture_output=True, text=True).stdout)
    stored = json.loads((options.kept / "ncu.json").read_text())
    launches = {stage: {(key[0], tuple(key[1]), tuple(key[2])): values for key, values in found}
                for stage, found in stored.items()}
    for stage in report["sampled_stages"]:
        for metric in METRICS:
            value = stage["metrics"].get(metric)
            shares = [value[f"{it}_pct"] for it in ("alone", "grouped")] if value else [0, 0]
            check(f"{stage['stage']} {metric}: 90 % resolved", sum(shares) >= 90,
                  f"{shares[0]:.1f} % alone, {shares[1]:.1f} % in groups")
    compare_stages([flat(it) for it in report["sampled_metrics"]], launches)


def main(folder):
    rates = [int(it) for it in options.rates.split(",")]
    service = Service(folder)
    try:
        profiling = {"gpu_metrics": {"enabled": True, "rates_hz": rates},
                     "ncu": {"enabled": False}, "gemm_log": {"enabled": False}}
        run, found = service.run({"model": options.model, "mode": "deep", "profiling": profiling,
                                  "max_new_tokens": options.tokens})
        step = next((it for it in found["steps"] if it["step"] == "gpu_metrics"), None)
        passed = step is not None and step["state"] == "succeeded"
        check("step gpu_metrics", passed, step and (step["message"] or step["state"]))
        if not passed:
            return
        check("seconds of the step, at most 12 for each rate", seconds(step) <= 12 * len(rates),
              f"{seconds(step):.1f}")
        sampled = service.table(run, "sampled_metrics")
        for row in service.table(run, "gpu_sample_coverage"):
            check(f"{row['stage']} spanned at {row['rate_hz']} Hz", row["is_spanned"],
                  f"{row['samples']} of {row['expected']} samples, {row['gaps']} gaps")
        for stage in service.table(run, "sampled_stages"):
            for metric in METRICS:
                shares = [stage[f"metrics.{metric}.{it}_pct"] for it in ("alone", "grouped")]
                check(f"{stage['stage']} {metric}: 90 % resolved", sum(shares) >= 90,
                      f"{shares[0]:.1f} % alone, {shares[1]:.1f} % in groups")
        place = folder / "state/runs" / run / "gpu_metrics" / f"rate-{rates[0]}" / "request.json"
        if NCU:
            launches = {}
            for stage in STAGES:
                out = folder / f"ncu-{stage}"
                out.mkdir()
                launches[stage] = ncu(place, stage, list(METRICS.values()), out)
            if options.keep:
                keep(place.parent, launches)
            compare_stages(sampled, launches)
    finally:
        service.stop()
    if NSYS and importlib.util.find_spec("torch"):
        known_work(folder, rates[0])
    else:
        rows.append(("known work", "skipped: PyTorch or nsys is not installed"))


with tempfile.TemporaryDirectory() as folder:
    (kept if options.kept else main)(pathlib.Path(folder))
width = max(len(what) for what, _ in rows)
for what, found in rows:
    print(f"{what:{width}}  {'MISSED ' if what in failed else ''}{found}")
if missed:
    print("Intervals without ncu's value:", *missed, sep="\n  ")
sys.exit(1 if failed else 0)
