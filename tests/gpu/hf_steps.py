#!/usr/bin/env python3
"""Checks the steps that llmprof infers from captures of transformers without ranges.

    tests/gpu/hf_steps.py LLMPROF [--python PYTHON] [--out DIR]

Records a small random Llama in each way in which programs run transformers: with a growing cache,
with a static cache whose decode is compiled into a CUDA graph, with continuous batching, with
beams, and with an assistant model whose drafts are rejected, or accepted. Compares the steps of
`llmprof analyze` with the forwards that the program counted. Prints a row for each way, and ends
with 1 if a step is wrong; missing steps are only counted. PYTHON (default: this one) needs PyTorch
and transformers; nsys has to be on PATH. `--out` keeps the exports.
"""

import collections
import json
import pathlib
import subprocess
import sys

WAYS = ["growing", "static", "continuous", "beams", "rejected", "accepted"]
NEW_TOKENS, PASSES, PROMPT = 48, 3, 512
REQUESTS, REQUEST_TOKENS = 24, 40


def run(way, truth):
    import random

    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    forwards = []

    def llama(layers, hidden, name):
        model = LlamaForCausalLM(LlamaConfig(
            hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers,
            num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, vocab_size=4096,
            max_position_embeddings=4096, bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )).to("cuda", torch.bfloat16).eval()
        if way != "static":
            # A hook would be a part of the compiled forward.
            model.model.embed_tokens.register_forward_pre_hook(
                lambda _, given: forwards.append((name, given[0].numel())))
        return model

    model = llama(16, 2048, "model")
    options = dict(max_new_tokens=NEW_TOKENS, do_sample=False)
    batch = 4 if way == "static" else 1
    options |= {"static": {"cache_implementation": "static"}, "beams": {"num_beams": 4},
                "growing": {"do_sample": True, "top_k": 50}}.get(way, {})
    if way == "rejected":
        options["assistant_model"] = llama(4, 512, "assistant")
    if way == "accepted":
        # The layers that the assistant lacks add nothing.
        assistant = llama(4, 2048, "assistant")
        for layer in model.model.layers[4:]:
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()
        assistant.load_state_dict(model.state_dict(), strict=False)
        options["assistant_model"] = assistant
    ids = torch.randint(3, 4000, (batch, PROMPT), device="cuda")
    chosen = random.Random(0)
    prompts = [[chosen.randrange(3, 4000) for _ in range(chosen.choice([32, 64, 200, 700]))]
               for _ in range(REQUESTS)]

    def once():
        if way == "continuous":
            config = GenerationConfig(max_new_tokens=REQUEST_TOKENS, do_sample=False,
                                      eos_token_id=-1, pad_token_id=0)
            model.generate_batch(inputs=prompts, generation_config=config)
        else:
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        torch.cuda.synchronize()

    passes = 1 if way == "continuous" else PASSES
    if way == "continuous":
        model.set_attn_implementation("paged|sdpa")
    for _ in range(3 if way == "static" else 1):
        once()
    forwards.clear()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(passes):
        once()
    torch.cuda.cudart().cudaProfilerStop()
    if way == "static":
        forwards = ([("model", batch * PROMPT)] + [("model", batch)] * (NEW_TOKENS - 1)) * passes
    pathlib.Path(truth).write_text(json.dumps(forwards))


def known(way, forwards):
    """Classes of the steps; of continuous batching, steps of as many rows as requests. A forward of the
    model verifies the drafts before it, and is a step with them."""
    steps = collections.Counter()
    for name, rows in forwards:
        if way == "continuous":
            steps["decode" if rows <= REQUESTS else "prefill or mixed"] += 1
        elif name == "model":
            steps["decode" if rows < PROMPT else "prefill"] += 1
    return steps


def classes(tables):
    """Classes of all steps of a report."""
    for line in pathlib.Path(tables).read_text().splitlines():
        table = json.loads(line)
        if table["name"] == "engine_steps":
            at = table["columns"].index("class")
            return [row[at] or "no class" for row in table["rows"]]
    return []


def main():
    import claims

    args = claims.arguments()
    here = pathlib.Path(__file__).resolve()
    failed = 0
    print(f"{'way':<12} {'forwards of the program':<42} steps found")
    for way in WAYS:
        base = args.work / way
        truth = f"{base}.truth"
        recorded = subprocess.run(
            ["nsys", "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-f", "true",
             "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
             "-o", f"{base}.nsys-rep", args.python, str(here), "--run", way, truth],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not pathlib.Path(truth).exists():
            sys.exit(f"{way}: the program failed: {recorded.stdout[-2000:]}")
        subprocess.run(["nsys", "export", "--type", "sqlite", "-f", "true", "-o", f"{base}.sqlite",
                        f"{base}.nsys-rep"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        subprocess.run([args.llmprof, "analyze", f"{base}.sqlite", "--out", f"{base}-report"],
                       check=True, stdout=subprocess.DEVNULL)
        steps = known(way, json.loads(pathlib.Path(truth).read_text()))
        found = collections.Counter(classes(f"{base}-report/tables.jsonl"))
        wrong = [it for it in found if it != "no class" and found[it] > steps[it]]
        failed += bool(wrong)
        text = lambda counts: ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{way:<12} {text(steps):<42} {text(found) or 'none'}{'  WRONG' if wrong else ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:])
    else:
        main()
