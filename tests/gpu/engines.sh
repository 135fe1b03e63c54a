#!/usr/bin/env bash
# tests/gpu/engines.sh LLMPROF [PYTHON]: a real engine in a session, with three windows under load.
#
# A server is started once (POST /sessions); three runs on it each record a window in the middle of
# four concurrent requests. Checks that each window has kernels and requests, that stages, steps,
# ledger and request percentiles of the three agree, and that no process is left. The server is
# `transformers serve` with a small random model, which is written here: PYTHON needs torch and
# transformers with its serving dependencies. ENGINE=llama-cpp uses the server that
# scripts/install-llm-server.sh installs, on the CPU. CPU=1 runs transformers on the CPU.
# KEEP=DIR keeps the export of the first window.
set -euo pipefail
llmprof=$(realpath "$1") python=${2:-python3} engine=${ENGINE:-transformers}
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
mode=${MODE:-light} gpus=1 service=''
[ -z "${CPU:-}" ] && [ "$engine" = transformers ] || gpus=0
trap 'echo "took $SECONDS s"; kill "$service" 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT

write_model() {
    "$python" - "$folder/model" <<'PYTHON'
import sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
                     num_attention_heads=8, vocab_size=512, max_position_embeddings=2048,
                     bos_token_id=1, eos_token_id=2)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
words = {f"w{at}": at for at in range(3, 512)} | {"<unk>": 0, "<s>": 1, "</s>": 2}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                               unk_token="<unk>")
fast.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
fast.save_pretrained(sys.argv[1])
PYTHON
}

if [ "$engine" = transformers ]; then
    write_model
    program=$(dirname "$(command -v "$python")")/transformers
    args="\"serve\", \"$folder/model\", \"--host\", \"127.0.0.1\", \"--port\", \"{port}\""
    load="model = \"$folder/model\"" requests=16 tokens=64
else
    installed=${LLMPROF_LLM_SERVER:-$HOME/.cache/llmprof/llm-server}
    program=$installed/bin/python
    args="\"$here/llm-server/serve.py\", \"$installed/random-llama.gguf\", \"{port}\", \"4\""
    load='body = { ignore_eos = true }' requests=8 tokens=8
fi
cat >"$folder/targets.toml" <<TOML
[commands.engine]
description = "a real engine"
kind = "server"
program = "$program"
args = [$args]
gpus = $gpus
ready = { url = "http://127.0.0.1:{port}/health", within_s = 300 }
[commands.engine.load]
$load
concurrency = 4
requests = $requests
new_tokens = $tokens
prompt_tokens = 64
TOML
[ "$gpus" = 1 ] || export LLMPROF__WORKER__DEVICES='["cpu"]'
. "$here/gpu/serve.sh"
LLMPROF__SERVER__TARGETS=$folder/targets.toml serve "$llmprof" "$folder" "$folder/data"
json=(-H 'content-type: application/json')
# field NAME: prints a field of the JSON object on standard input, or fails with its error.
field() {
    python3 -c 'import json, sys
it = json.load(sys.stdin)
print(it[sys.argv[1]] if sys.argv[1] in it else sys.exit(it["error"]["message"]))' "$1"
}

# profile NAME TARGET MODE: a run to its end, and its report.
profile() {
    local id
    id=$(curl -sS -X POST "$base/runs" "${json[@]}" \
        -d "{\"target\": $2, \"mode\": \"$3\", \"repeats\": 1, \"warmup\": 1}" | field run_id)
    curl -sN "$base/runs/$id/events" >/dev/null
    curl -sf "$base/runs/$id" >"$folder/run-$1.json"
    curl -sf "$base/runs/$id/report" -H 'accept: application/json' >"$folder/report-$1.json" ||
        { cat "$folder/run-$1.json" >&2; exit 1; }
}
# The same server and load without a session, for the cost of an idle one.
profile alone '{"command": "engine"}' basic

session=$(curl -sS -X POST "$base/sessions" "${json[@]}" \
    -d "{\"command\": \"engine\", \"mode\": \"$mode\"}" | field session_id)
started=$SECONDS
while state=$(curl -sS "$base/sessions/$session" | field state); [ "$state" != ready ]; do
    case $state in
    starting) sleep 1 ;;
    *) curl -sS "$base/sessions/$session" >&2; exit 1 ;;
    esac
done
echo "session $session: ready after $((SECONDS - started)) s"
for window in 1 2 3; do
    profile "$window" "{\"command\": \"engine\", \"session\": \"$session\"}" "$mode"
done
if [ -n "${KEEP:-}" ]; then
    find "$folder/data/runs" -name '*.sqlite*' -size +0 | sort | head -n 1 |
        while read -r export; do xz -T0 -1 -c "$export" >"$KEEP/window.sqlite.xz"; done
fi
curl -sf "$base/sessions/$session" >"$folder/session.json"
curl -sS -X DELETE "$base/sessions/$session" >/dev/null
while [ "$(curl -sS "$base/sessions/$session" | field state)" != ended ]; do sleep 0.2; done

python3 - "$folder" "$gpus" <<'PYTHON'
import json, sys

folder, gpus = sys.argv[1], sys.argv[2] == "1"
load = lambda name: json.load(open(f"{folder}/{name}.json"))
session = load("session")
assert session["state"] in ("ready", "busy") and session["runs"] == 3, session
PASSES = {"unprofiled", "before_window", "traced", "after_window"}
seen = []
for window in (1, 2, 3):
    run, report = load(f"run-{window}"), load(f"report-{window}")
    assert run["state"] in ("succeeded", "partial"), run
    latency = {(row["pass"], row["metric"]): row["p50_ms"] for row in report["request_latency"]}
    assert {name for name, _ in latency} == PASSES, latency
    kernels = report.get("kernels_total") or 0
    assert kernels > 0 or not gpus, "no kernels in the window"
    figures = {f"requests, {name}, end to end, p50 ms": latency[name, "end_to_end"]
               for name in sorted(PASSES)}
    for stage, ms in dict(report["aggregates"]["stage_ms"]).items():
        if ms:
            figures[f"stage {stage}, mean ms"] = ms["mean"]
    steps = report.get("engine_steps") or []
    for name in sorted({str(it.get("class")) for it in steps}):
        figures[f"steps {name}"] = sum(str(it.get("class")) == name for it in steps)
    for row in report.get("ledger") or []:
        if (row["share_pct"] or 0) >= 20:
            figures[f"ledger {row['stage']}, {row['cause']}, %"] = row["share_pct"]
    seen.append(figures)
    for finding in report["findings"]:
        if finding["id"].startswith(("window", "session")):
            evidence = ", ".join(f"{name} {value}" for name, value in finding["evidence"].items())
            print(f"window {window}: {finding['id']}: {finding['message']} ({evidence})")

for row in load("report-alone")["request_latency"]:
    if row["metric"] == "end_to_end":
        print(f"requests without a session, {row['pass']}, end to end, p50 ms: {row['p50_ms']:.3f}")
apart = []
for name in sorted(set.intersection(*(set(it) for it in seen))):
    values = [it[name] for it in seen]
    print(f"{name}: " + ", ".join(f"{value:.3f}" for value in values))
    # Loads of a shared host differ, and more so without a GPU; the server and its work do not.
    if min(values) <= 0 or max(values) > (2 if gpus else 6) * min(values):
        apart.append(name)
assert not apart, f"the windows differ: {apart}"
stages = [sorted(name for name in it if name.startswith("stage ")) for it in seen]
assert stages[0] == stages[1] == stages[2], f"the windows have other stages: {stages}"
assert not gpus or stages[0], "no stage was found in the windows"
PYTHON
if grep -lzs "LLMPROF_RUN_ID=$session" /proc/[0-9]*/environ | grep . >/dev/null; then
    echo "a process of the session is left" >&2
    exit 1
fi
echo "three windows on one session agree, and nothing is left"
