#!/usr/bin/env bash
# tests/gpu/engines.sh LLMPROF [PYTHON]: a real engine as a server under a load, with three windows.
#
# `transformers serve` with a small random model (written here), as a command of targets.toml: three
# runs, each with a window in the middle of four concurrent requests. Checks that each window has
# kernels, percentiles of the loads before, within and after it, and that no process is left. Not yet
# run on a GPU. PYTHON needs torch and transformers with its serving dependencies. CPU=1 runs the
# same on the CPU, without the check of kernels.
set -euo pipefail
llmprof=$1 python=${2:-python3}
folder=$(mktemp -d)
mode=${MODE:-light} gpus=1
[ -z "${CPU:-}" ] || gpus=0
trap 'kill "$service" 2>/dev/null || true; rm -rf "$folder"' EXIT
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
transformers=$(dirname "$(command -v "$python")")/transformers
cat >"$folder/targets.toml" <<TOML
[commands.transformers]
description = "transformers serve"
kind = "server"
program = "$transformers"
args = ["serve", "$folder/model", "--host", "127.0.0.1", "--port", "{port}"]
gpus = $gpus
ready = { url = "http://127.0.0.1:{port}/health", within_s = 300 }
[commands.transformers.load]
model = "$folder/model"
concurrency = 4
requests = 16
new_tokens = 64
prompt_tokens = 64
TOML
LLMPROF__SERVER__TARGETS=$folder/targets.toml "$llmprof" serve --listen 127.0.0.1:18588 \
    --data "$folder/data" >"$folder/log" 2>&1 &
service=$!
base=http://127.0.0.1:18588
curl -sf --retry 50 --retry-connrefused --retry-delay 1 "$base/healthz" >/dev/null
for window in 1 2 3; do
    id=$(curl -sf -X POST "$base/runs" -H 'content-type: application/json' \
        -d "{\"target\":{\"command\":\"transformers\"},\"mode\":\"$mode\",\"repeats\":1}" |
        sed -E 's/.*"run_id": ?"([^"]+)".*/\1/')
    curl -sN "$base/runs/$id/events" >/dev/null
    curl -sf "$base/runs/$id" >"$folder/run.json"
    curl -sf "$base/runs/$id/tables/request_latency?format=csv"
    curl -sf "$base/runs/$id/report" -H 'accept: application/json' >"$folder/report.json"
    "$python" - "$folder" "$gpus" "$window" <<'PYTHON'
import json, sys
folder, gpus, window = sys.argv[1:]
run = json.load(open(f"{folder}/run.json"))
report = json.load(open(f"{folder}/report.json"))
assert run["state"] in ("succeeded", "partial"), run
passes = {row["pass"] for row in report["request_latency"]}
assert passes == {"unprofiled", "before_window", "traced", "after_window"}, passes
assert gpus == "0" or report["kernels_total"] > 0, "no kernels in the window"
for finding in report["findings"]:
    if finding["id"].startswith("window"):
        print(f"window {window}: {finding['id']}: {finding['message']} {finding['evidence']}")
PYTHON
done
if pgrep -f "$folder/model" >/dev/null; then echo "a process of the server is left" >&2; exit 1; fi
