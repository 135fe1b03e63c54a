#!/usr/bin/env python3
"""Generates the fixtures that compare the model runner with Hugging Face transformers.

Small models with random weights from a fixed seed. Each fixture is a folder as published, `NAME/`
with its description and `model.safetensors`, and `NAME.safetensors` with inputs and the outputs of
transformers, on the CPU in f32. The runner's own code is never called. README.md has the commands.
"""

import json
import os
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SamVisionConfig,
)
from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as ocr_config
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as ocr
from transformers.models.sam.modeling_sam import SamVisionEncoder

FIXTURES = Path(__file__).resolve().parent / "fixtures"
SEED = 20
PROMPT, STEPS = 23, 9
# Experts closer than this at the border of the choice may be chosen differently by another order of
# summation.
MARGIN = 1e-4
# One entry, because safetensors writes several unordered: the same versions give the same bytes.
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"
METADATA = {
    "made_by": f"tests/reference/make.py, seed {SEED}, {VERSIONS}, f32 on the CPU"
}


def fill(model):
    """Random weights at which every part matters.

    Sharp attention, norms away from one, biases and positions away from zero.
    """
    random = torch.Generator().manual_seed(SEED)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random)
        if "pos" in name or name.endswith("class_embedding"):
            values *= 0.5
        elif weight.dim() == 1 and name.endswith("weight"):
            values = 1.0 + 0.25 * values
        elif weight.dim() == 1:
            values *= 0.25
        elif "embed_tokens" not in name:
            # The input is the last dimension of a stack of experts, all but the first of a
            # convolution.
            inputs = weight.shape[-1] if weight.dim() == 3 else weight[0].numel()
            values *= 1.5 / inputs**0.5
        weight.data.copy_(values)
    return model.eval()


def save(name, weights, expected, description):
    """Writes a fixture; `description` is the text of its config.json, or our own dimensions."""
    folder = FIXTURES / name
    folder.mkdir(parents=True)
    contiguous = lambda tensors: {
        key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()
    }
    save_file(contiguous(weights), folder / "model.safetensors", METADATA)
    save_file(contiguous(expected), FIXTURES / f"{name}.safetensors", METADATA)
    file, text = description
    (folder / file).write_text(text.rstrip() + "\n")


# The language side.


def logits(hidden_of, head, vocab):
    """Tokens, and the logits after the prompt and after each further token, read with a cache."""
    tokens = torch.randint(
        0, vocab, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(SEED + 1)
    )
    cache, rows = DynamicCache(), []
    parts = [tokens[:, :PROMPT], *tokens[:, PROMPT:].split(1, dim=1)]
    for part in parts:
        hidden = hidden_of(part, cache)
        rows.append(head(hidden[:, -1]))
    whole = head(hidden_of(tokens, DynamicCache())[:, -1])
    assert torch.allclose(
        whole, rows[-1], atol=1e-4
    ), "transformers with a cache disagrees with itself without"
    return {"tokens": tokens[0].to(torch.uint32), "logits": torch.cat(rows)}


def causal(name, kind, config):
    model = fill(kind(config))
    tied = config.tie_word_embeddings
    weights = {
        key: value
        for key, value in model.state_dict().items()
        if not (tied and key == "lm_head.weight")
    }
    read = lambda part, cache: model.model(
        input_ids=part, past_key_values=cache, use_cache=True
    ).last_hidden_state
    config.architectures = [kind.__name__]
    save(
        name,
        weights,
        logits(read, model.lm_head, config.vocab_size),
        ("config.json", config.to_json_string()),
    )


SMALL = dict(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    attn_implementation="eager",
    dtype="float32",
)


def dense():
    causal(
        "llama", LlamaForCausalLM, LlamaConfig(**SMALL, rms_norm_eps=1e-5, tie_word_embeddings=True)
    )
    # By wavelength, one of the eight frequencies is kept (below 16), one is blended, and six are
    # divided (above 64).
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    causal(
        "llama3", LlamaForCausalLM, LlamaConfig(**SMALL, rms_norm_eps=1e-5, rope_parameters=llama3)
    )
    million = {"rope_type": "default", "rope_theta": 1000000.0}
    causal(
        "qwen2", Qwen2ForCausalLM, Qwen2Config(**{**SMALL, "head_dim": 8}, rope_parameters=million)
    )
    causal(
        "qwen3",
        Qwen3ForCausalLM,
        Qwen3Config(**SMALL, tie_word_embeddings=True, rope_parameters=million),
    )


def deepseek_ocr_text():
    """DeepSeek-OCR's decoder.

    Full attention, a dense layer, then mixtures of a softmax router's greedy choice.
    """
    hidden, layers, dense_layers, experts, top_k, shared, width, vocab = 48, 3, 1, 8, 3, 2, 24, 96
    config = ocr_config.DeepseekOcr2TextConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        bos_token_id=0,
        eos_token_id=1,
        n_routed_experts=experts,
        n_shared_experts=shared,
        num_experts_per_tok=top_k,
        moe_intermediate_size=width,
        topk_method="greedy",
        mlp_layer_types=["dense"] * dense_layers + ["sparse"] * (layers - dense_layers),
        attn_implementation="eager",
    )
    model = fill(ocr.DeepseekOcr2TextModel(config))
    random = torch.Generator().manual_seed(SEED + 2)
    head = torch.randn((vocab, hidden), generator=random) / hidden**0.5

    # As published: each expert by itself, under the names of the model's own code.
    weights = {"lm_head.weight": head}
    for key, value in model.state_dict().items():
        if key.endswith("mlp.experts.gate_up_proj"):
            part = "model." + key.removesuffix(".gate_up_proj")
            for expert in range(experts):
                gate, up = value[expert].chunk(2)
                (
                    weights[f"{part}.{expert}.gate_proj.weight"],
                    weights[f"{part}.{expert}.up_proj.weight"],
                ) = (gate, up)
        elif key.endswith("mlp.experts.down_proj"):
            part = "model." + key.removesuffix(".down_proj")
            for expert in range(experts):
                weights[f"{part}.{expert}.down_proj.weight"] = value[expert]
        else:
            weights[f"model.{key}"] = value

    margins, hit = [], set()

    def watch(_module, _inputs, outputs):
        scores = outputs[0].softmax(-1).sort(-1, descending=True)
        margins.append((scores.values[:, top_k - 1] - scores.values[:, top_k]).min().item())
        hit.update(scores.indices[:, :top_k].flatten().tolist())

    for layer in model.layers[dense_layers:]:
        layer.mlp.gate.register_forward_hook(watch)
    read = lambda part, cache: model(
        input_ids=part, past_key_values=cache, use_cache=True
    ).last_hidden_state
    expected = logits(read, lambda hidden: hidden @ head.T, vocab)
    assert (
        min(margins) > MARGIN and len(hit) == experts
    ), f"another seed is needed: {min(margins)}, {sorted(hit)}"

    # transformers has no DeepSeek-OCR, only its successor with the same decoder: its config in the
    # published form is written by hand.
    published = {
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "torch_dtype": "float32",
        "language_config": {
            "architectures": ["DeepseekV2ForCausalLM"],
            "bos_token_id": config.bos_token_id,
            "eos_token_id": config.eos_token_id,
            "first_k_dense_replace": dense_layers,
            "hidden_size": hidden,
            "intermediate_size": config.intermediate_size,
            "kv_lora_rank": None,
            "lm_head": True,
            "max_position_embeddings": config.max_position_embeddings,
            "moe_intermediate_size": width,
            "n_group": 1,
            "n_routed_experts": experts,
            "n_shared_experts": shared,
            "num_attention_heads": config.num_attention_heads,
            "num_experts_per_tok": top_k,
            "num_hidden_layers": layers,
            "num_key_value_heads": config.num_key_value_heads,
            "q_lora_rank": None,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "rm_head": False,
            "topk_group": 1,
            "topk_method": "greedy",
            "torch_dtype": "float32",
            "use_mla": False,
            "v_head_dim": 0,
            "vocab_size": vocab,
        },
    }
    save("deepseek-ocr-text", weights, expected, ("config.json", json.dumps(published, indent=2)))


# The image side.


def resampled(table, side):
    """`[old, old, width]` as the published model resamples it: bicubic and antialiased."""
    table = F.interpolate(
        table.permute(2, 0, 1)[None],
        size=(side, side),
        mode="bicubic",
        antialias=True,
        align_corners=False,
    )
    return table[0].permute(1, 2, 0)


def clip():
    """CLIP's vision model; in place of patches, the identity passes SAM's features to it."""
    width, layers, heads, mlp, grid = 32, 2, 4, 64, 4

    def model(side):
        return CLIPVisionModel(
            CLIPVisionConfig(
                hidden_size=width,
                intermediate_size=mlp,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_channels=width,
                image_size=side,
                patch_size=1,
                hidden_act="quick_gelu",
                layer_norm_eps=1e-5,
                attn_implementation="eager",
            )
        )

    learned = fill(model(grid))
    weights = {"embeddings.patch_embedding.weight": torch.zeros(width, 3, 14, 14)}
    for key, value in learned.state_dict().items():
        key = key.replace("encoder.", "transformer.")
        if (
            "patch_embedding" in key
            or "post_layernorm" in key
            or "k_proj" in key
            or "v_proj" in key
        ):
            continue
        if "q_proj" in key:
            parts = [
                learned.state_dict()[key.replace("transformer.", "encoder.").replace("q_proj", p)]
                for p in ("q_proj", "k_proj", "v_proj")
            ]
            key, value = key.replace("q_proj", "qkv_proj"), torch.cat(parts)
        weights[key] = value

    expected = {}
    table = learned.embeddings.position_embedding.weight
    for side in (grid, 3, 6):
        other = model(side)
        state = learned.state_dict()
        state["embeddings.patch_embedding.weight"] = torch.eye(width)[:, :, None, None]
        square = (
            resampled(table[1:].reshape(grid, grid, width), side) if side != grid else table[1:]
        )
        state["embeddings.position_embedding.weight"] = torch.cat(
            [table[:1], square.reshape(side * side, width)]
        )
        other.load_state_dict(state)
        features = torch.randn(
            (2, side * side, width), generator=torch.Generator().manual_seed(SEED + side)
        )
        pixels = features.transpose(1, 2).reshape(2, width, side, side)
        expected[f"input.{side}"] = features
        expected[f"output.{side}"] = other.eval()(pixel_values=pixels).last_hidden_state[:, 1:]
    dimensions = {"width": width, "layers": layers, "heads": heads, "mlp": mlp, "grid": grid}
    save("clip", weights, expected, ("dimensions.json", json.dumps(dimensions, indent=2)))


def sam():
    """SAM's encoder and two strided convolutions.

    For views of other sizes, the encoder of transformers' DeepSeek-OCR 2.
    """
    width, layers, heads, mlp, window, image, patch, neck, downsample = (
        32,
        3,
        2,
        64,
        3,
        32,
        4,
        16,
        [24, 32],
    )
    shared = dict(
        hidden_size=width,
        output_channels=neck,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        image_size=image,
        patch_size=patch,
        window_size=window,
        global_attn_indexes=[1],
        mlp_dim=mlp,
        attn_implementation="eager",
    )
    published = fill(SamVisionEncoder(SamVisionConfig(**shared)))
    random = torch.Generator().manual_seed(SEED + 3)
    net_2, net_3 = (
        torch.randn((outputs, inputs, 3, 3), generator=random) * 1.5 / (9 * inputs) ** 0.5
        for inputs, outputs in zip([neck, downsample[0]], downsample)
    )

    def encode(pixels):
        features = published(pixel_values=pixels).last_hidden_state
        return F.conv2d(F.conv2d(features, net_2, stride=2, padding=1), net_3, stride=2, padding=1)

    sized = ocr.DeepseekOcr2SamVisionEncoder(
        ocr_config.DeepseekOcr2SamVisionConfig(**shared, downsample_channels=downsample)
    )
    sized.load_state_dict(
        {**published.state_dict(), "proj.conv1.weight": net_2, "proj.conv2.weight": net_3}
    )
    sized.eval()

    names = {
        "patch_embed.projection": "patch_embed.proj",
        "neck.conv1": "neck.0",
        "neck.layer_norm1": "neck.1",
    }
    names |= {
        "neck.conv2": "neck.2",
        "neck.layer_norm2": "neck.3",
        "layer_norm1": "norm1",
        "layer_norm2": "norm2",
        "layers.": "blocks.",
    }
    weights = {"net_2.weight": net_2, "net_3.weight": net_3}
    for key, value in published.state_dict().items():
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        weights[key] = value

    expected = {}
    for side in (image, 20, 48):
        pixels = torch.randn(
            (2, 3, side, side), generator=torch.Generator().manual_seed(SEED + side)
        )
        output = sized(pixel_values=pixels).last_hidden_state
        if side == image:
            plain = encode(pixels)
            assert torch.allclose(
                plain, output, atol=1e-5
            ), "transformers' two encoders disagree at the size learned for"
            output = plain
        expected[f"input.{side}"] = pixels
        expected[f"output.{side}"] = output.flatten(2).transpose(1, 2)
    dimensions = {
        "patch": patch,
        "width": width,
        "layers": layers,
        "heads": heads,
        "mlp": mlp,
        "window": window,
        "global_layers": [1],
        "image_px": image,
        "neck": neck,
        "downsample": downsample,
    }
    save("sam", weights, expected, ("dimensions.json", json.dumps(dimensions, indent=2)))


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    shutil.rmtree(FIXTURES, ignore_errors=True)
    dense()
    deepseek_ocr_text()
    clip()
    sam()
    size = sum(os.path.getsize(path) for path in FIXTURES.rglob("*") if path.is_file())
    print(f"{FIXTURES}: {size / 2**20:.2f} MiB, {VERSIONS}")


if __name__ == "__main__":
    main()
