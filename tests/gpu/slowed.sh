#!/usr/bin/env bash
# Slows kernels on purpose and checks that the gap ledger attributes the time to that cause. Run from
# the repository's root on a GPU host.
#
#   tests/gpu/slowed.sh [--bin DIR] [--device auto|cpu] [--model NAME] [--tokens N]
#
# DIR (default target/release) has llmprof, model-runner, and model-runner-NAME for each
# tests/gpu/slowed/NAME.patch: `occupancy` (half of the blocks per SM of `expert_up`), `bytes` (the
# weights of the last product read twice) and `sync` (a wait of the host before each step). On a host
# with the CUDA toolkit:
#   git apply tests/gpu/slowed/NAME.patch
#   cargo build --release --package llmprof --no-default-features --features cuda
#   cp target/release/model-runner target/release/model-runner-NAME
#   git apply -R tests/gpu/slowed/NAME.patch
# Profiles the same deep run with each, and prints the difference of each ledger of decode to
# model-runner's. Exits with 0 if the largest change has the cause and the kernel that were slowed.
# Needs bash, curl and python3; compiles nothing.
set -euo pipefail
bin=target/release device=auto model=deepseek-ocr tokens=64
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift ;;
    --device) device=$2; shift ;;
    --model) model=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    *) sed -n '2,19p' "$0" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
links=$(mktemp -d)
ln -s "$(cd "$bin" && pwd)/model-runner" "$links/model-runner"
export LLMPROF__TOOLS__MODEL_RUNNER=$links/model-runner
. "$here/service.sh"

# profile NAME PROGRAM: runs once with this program as the service's model runner.
profile() {
  [ -x "$bin/$2" ] || { echo "no executable $bin/$2; see $0 --help" >&2; exit 2; }
  ln -sfn "$bin/$2" "$links/model-runner"
  follow "$1" "$(printf '{"model": "%s", "mode": "deep", "device": "%s", "max_new_tokens": %d,
    "inputs": {"prompt": "Describe a GPU.", "images": []}, "labels": ["%s"], "profiling": {"runner": {"memory": false},
    "gpu_metrics": {"enabled": false}, "gemm_log": {"enabled": false}, "nvml": {"steady_ms": 0}}}' \
    "$model" "$device" "$tokens" "$1")"
  echo "$1 $id" >>"$data/submitted"
}
profile normal model-runner
for name in occupancy bytes sync; do profile "$name" "model-runner-$name"; done
rm -r "$links"

python3 - "$base" "$data/submitted" <<'P'
import json, sys, urllib.request
base, submitted = sys.argv[1:]
runs = dict(line.split() for line in open(submitted))
EXPECTED = {"occupancy": (("latency",), "expert_up"), "bytes": (("more_bytes",), "gemv"),
            "sync": (("gap_sync", "gap_launch", "gap_host"), "")}
failed = False
for name, (causes, kernel) in EXPECTED.items():
    address = f"{base}/runs/{runs['normal']}/diff/{runs[name]}"
    request = urllib.request.Request(address, headers={"accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        stages = {it["stage"]: it for it in json.load(answer).get("ledger", [])}
    decode = stages.get("decode_all")
    if not decode or not decode["changes"]:
        print(f"{name}: NO LEDGER of decode_all")
        failed = True
        continue
    top = max(decode["changes"], key=lambda it: it["change_ns"])
    matches = top["cause"] in causes and kernel in (top["kernel"] or "")
    failed |= not matches
    print(f"{name}: {'attributed' if matches else 'MISSED'}: {decode['summary']}")
    for it in decode["changes"][:5]:
        place = " ".join(filter(None, (it["operator"], it["kernel"])))
        print(f"  {it['change_ns'] / 1e6:+9.3f} ms  {it['cause']:16} {place}")
sys.exit(failed)
P
