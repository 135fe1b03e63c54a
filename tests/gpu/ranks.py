#!/usr/bin/env python3
"""Program of tests/gpu/ranks.sh: one rank of torchrun, or the checks of the reports.

    torchrun --nproc-per-node 2 ranks.py run FOLDER     writes FOLDER/rankN.json and FOLDER/known.json
    ranks.py check FOLDER                               reads FOLDER/torch and FOLDER/nsys

Rank 1 sleeps on its GPU before each operation of the second stage. Needs PyTorch to run.
"""

import csv
import json
import os
import pathlib
import sys

STEPS = 20
WARMUP = 5
# Elements of bf16: sizes of a decode step and of a long prefill.
SIZES = {"prefill": 32 << 20, "decode_all": 64 << 10}
LATE_US = 500.0


def run(folder):
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    world = dist.get_world_size()
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
    arrays = {stage: torch.ones(size, **bf16) for stage, size in SIZES.items()}
    gathered = {stage: torch.empty(world * size, **bf16) for stage, size in SIZES.items()}

    # Cycles of the sleep by the clock of this GPU.
    def timed(cycles):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    timed(1_000_000)
    late = int(LATE_US * 10_000_000 / timed(10_000_000))

    def step(stage):
        if rank == 1 and stage == "decode_all":
            torch.cuda._sleep(late)
        dist.all_reduce(arrays[stage])
        dist.all_gather_into_tensor(gathered[stage], arrays[stage])
        # Ranks start each step together, but for the sleep.
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    def steps(count, ranged):
        for stage in SIZES:
            for _ in range(count):
                if ranged:
                    torch.cuda.nvtx.range_push(stage)
                    with record_function(stage):
                        step(stage)
                    torch.cuda.nvtx.range_pop()
                else:
                    step(stage)

    steps(WARMUP, False)
    if os.environ.get("LLMPROF_RANKS_PROFILER") == "torch":
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, record_shapes=True) as trace:
            steps(STEPS, True)
        trace.export_chrome_trace(str(folder / f"rank{rank}.json"))
    else:
        steps(STEPS, True)
    if rank == 0:
        known = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                 "late_us": timed(late), "world": world, "gpu": torch.cuda.get_device_name()}
        (folder / "known.json").write_text(json.dumps(known))
    dist.destroy_process_group()


def check(folder):
    known = json.loads((folder / "known.json").read_text())
    world, late = known["world"], known["late_us"]
    print(f"{known['gpu']} x {world}, PyTorch {known['torch']}, NCCL {known['nccl']}, sleep {late:.1f} us\n")
    failed = []

    def expect(what, passed):
        if not passed:
            failed.append(what)
        return "" if passed else "  FAILED"

    def number(text):
        return float(text) if text else None

    heads = ("capture", "stage", "operation", "size", "joined", "skew us", "wait us",
             "transfer us", "bus GB/s", "slowest")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for capture in "torch", "nsys":
        path = folder / capture / "collectives.csv"
        if capture == "nsys" and not (folder / "nsys.log").exists():
            print("no nsys\n")
            continue
        if not path.exists():
            print(f"| {capture} | no report |" + expect(f"{capture}: no report", False))
            continue
        rows = [row for row in csv.DictReader(path.open()) if row["stage"] in SIZES]
        # A barrier is an all-reduce of one element: in f32, next to the all-reduces of the arrays
        # in bf16.
        for row in rows:
            if row["kind"] == "all_reduce" and row["dtype"] == "Float":
                row["kind"] = "barrier"
        # The host of rank 1 is late by itself as well, as the barrier of the same steps shows.
        host = next((number(row["skew_us"]) for row in rows
                     if row["stage"] == "decode_all" and row["kind"] == "barrier"), 0)
        for row in rows:
            bus = number(row["bus_bytes_per_s"])
            cells = [capture, row["stage"], row["kind"], row["bytes"], f"{row['joined']}/{row['calls']}",
                     row["skew_us"], row["wait_us"], row["transfer_us"],
                     f"{bus / 1e9:.1f}" if bus else "", row["slowest_rank"]]
            bad = expect(f"{capture} {row['kind']}: joined", row["joined"] == row["calls"])
            is_late = row["stage"] == "decode_all" and row["kind"] == "all_reduce"
            if is_late:
                skew = number(row["skew_us"])
                near = skew is not None and late - 0.15 * late - 30 < skew < late + host + 0.15 * late + 30
                bad += expect(f"{capture} skew", near)
                bad += expect(f"{capture} slowest", row["slowest_rank"] == "1")
            if capture == "torch" and row["kind"] != "barrier":
                # Between one GB/s and more than any link.
                if row["stage"] == "prefill":
                    bad += expect(f"{capture} {row['kind']}: bandwidth", bus is not None and 1e9 < bus < 2e12)
                size = SIZES[row["stage"]] * 2 * (world if row["kind"] == "all_gather" else 1)
                bad += expect(f"{capture} {row['kind']}: size", row["bytes"] == str(size))
            print("| " + " | ".join(cells) + " |" + bad)
        for row in csv.DictReader((folder / capture / "ranks.csv").open()):
            if row["wait_ms"]:
                total = number(row["wait_ms"]) + number(row["transfer_ms"])
                if row["joined"] == row["calls"]:
                    expect(f"{capture} rank {row['rank']}: wait and transfer add up",
                           abs(total - number(row["kernel_ms"])) < 1e-6)
        report = json.loads((folder / capture / "report.json").read_text())
        for stage in report.get("ledger_stages", []):
            sum_ns = sum(row["ns"] for row in report["ledger"] if row["stage"] == stage["stage"])
            expect(f"{capture} {stage['stage']}: the ledger adds up", sum_ns == stage["measured_ns"])
        causes = [row for row in report.get("ledger", []) if row["cause"].startswith("collective")]
        print()
        for row in causes:
            print(f"{capture} ledger: {row['stage']} {row['cause']} {row['ns'] / 1e6:.3f} ms")
        for finding in report["findings"]:
            if finding["id"].startswith(("collective", "trace_ranks")):
                print(f"{capture} finding {finding['id']}: {finding['message']}")
        print()
    print("failed: " + ("; ".join(failed) or "nothing"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    command, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    run(folder) if command == "run" else check(folder)
