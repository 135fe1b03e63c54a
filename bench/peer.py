"""Times DeepSeek-OCR's text decoder in Hugging Face transformers, the peer of the model runner.

    python3 bench/peer.py [--prompt 918] [--tokens 64] [--repeats 5]

Random bf16 weights at the published dimensions, on the first GPU: a prefill, then tokens one by
one, chosen by argmax on the device. Measures each implementation of experts in transformers, eager
and compiled (`torch.compile(mode="reduce-overhead")` over a static cache: replayed CUDA graphs).
Prints one row each: medians of wall time, the device synchronised before each reading of the clock.
An implementation that is not available in this version gets a row with the error. With --stages it
is a target for profilers instead: the first implementation, eager, with the NVTX ranges `warmup`,
`prefill` and `decode_all`, once; with --no-ranges too, without any range. Needs torch with CUDA and
transformers 5 with `deepseek_ocr2`; independent of llmprof.
"""

import argparse
import contextlib
import statistics
import time

import torch
import transformers
from transformers import StaticCache
from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configuration
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as modeling

arguments = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
arguments.add_argument("--prompt", type=int, default=918)
arguments.add_argument("--tokens", type=int, default=64)
arguments.add_argument("--repeats", type=int, default=5)
arguments.add_argument("--experts", default="grouped_mm,batched_mm,eager")
arguments.add_argument("--stages", action="store_true")
arguments.add_argument("--no-ranges", action="store_true")
arguments = arguments.parse_args()
LAYERS, DEVICE = 12, torch.device("cuda:0")


def nvtx(name):
    return contextlib.nullcontext() if arguments.no_ranges else torch.cuda.nvtx.range(name)


def decoder(experts):
    config = configuration.DeepseekOcr2TextConfig(
        vocab_size=129280,
        hidden_size=1280,
        intermediate_size=6848,
        num_hidden_layers=LAYERS,
        num_attention_heads=10,
        num_key_value_heads=10,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        bos_token_id=0,
        eos_token_id=1,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=896,
        topk_method="greedy",
        mlp_layer_types=["dense"] + ["sparse"] * (LAYERS - 1),
        attn_implementation="sdpa",
        experts_implementation=experts,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = modeling.DeepseekOcr2TextModel(config).to(torch.bfloat16).eval()
        head = torch.nn.Linear(
            config.hidden_size, config.vocab_size, bias=False, dtype=torch.bfloat16
        )
    for name, weight in model.named_parameters():
        (
            torch.nn.init.ones_(weight)
            if "norm" in name
            else torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        )
    return config, model, head


def clock():
    torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def once(config, model, step, head, cache):
    """Milliseconds of one prefill, and of one token after it."""
    cache.reset()
    prompt = torch.randint(2, config.vocab_size, (1, arguments.prompt), device=DEVICE)
    start = clock()
    with nvtx("prefill"):
        hidden = model(input_ids=prompt, past_key_values=cache, use_cache=True).last_hidden_state
        token = head(hidden[:, -1]).argmax(-1, keepdim=True)
        read = clock()
    with nvtx("decode_all"):
        for at in range(arguments.tokens):
            position = torch.full((1, 1), arguments.prompt + at, device=DEVICE)
            token = step(token, position, cache).clone()
        end = clock()
    return (read - start) * 1e3, (end - read) * 1e3 / arguments.tokens


def row(experts, compiled, repeats):
    config, model, head = decoder(experts)

    def step(token, position, cache):
        hidden = model(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return head(hidden[:, -1]).argmax(-1, keepdim=True)

    step = torch.compile(step, mode="reduce-overhead", fullgraph=True) if compiled else step
    cache = StaticCache(config=config, max_cache_len=arguments.prompt + arguments.tokens + 2)
    with nvtx("warmup"):
        for _ in range(2):
            once(config, model, step, head, cache)
    times = [once(config, model, step, head, cache) for _ in range(repeats)]
    prefill, token = (statistics.median(column) for column in zip(*times))
    return f"{prefill:>10.2f} {token:>10.3f}"


print(f"transformers {transformers.__version__}, torch {torch.__version__}", end=", ")
print(torch.cuda.get_device_name(0))
if arguments.stages:
    print(row(arguments.experts.split(",")[0], False, 1))
    raise SystemExit
print(f"prompt {arguments.prompt}, {arguments.tokens} tokens, median of {arguments.repeats}")
print(f"{'experts':<12} {'mode':<10} {'prefill ms':>10} {'token ms':>10}")
for experts in arguments.experts.split(","):
    for compiled in (False, True):
        try:
            figures = row(experts, compiled, arguments.repeats)
        except Exception as error:  # a row in place of figures
            reason = str(error).splitlines()[0][:100] if str(error) else ""
            figures = f"  failed: {type(error).__name__}: {reason}"
        print(f"{experts:<12} {'compiled' if compiled else 'eager':<10} {figures}", flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
