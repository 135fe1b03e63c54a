"""Writes a small random Llama as GGUF: python model.py FILE.

Two layers of width 64: under a megabyte, and quick on any CPU. The weights depend on a fixed seed.
Bytes and special tokens are never generated, so each step has text.
"""

import sys

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 128, 4096

tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
kinds += [gguf.TokenType.BYTE] * 256
SILENT = len(tokens)
syllables = [first + vowel for first in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
tokens += syllables + ["\u2581" + syllable for syllable in syllables]
kinds += [gguf.TokenType.NORMAL] * 2 * len(syllables)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(FEED_FORWARD)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(len(tokens))
writer.add_tokenizer_model("llama")
writer.add_token_list(tokens)
writer.add_token_scores([0.0] * len(tokens))
writer.add_token_types(kinds)
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_unk_token_id(0)
writer.add_add_bos_token(True)
writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")

numbers = np.random.default_rng(0)


def matrix(name, rows, columns, silent=0):
    values = numbers.standard_normal((rows, columns)) / np.sqrt(columns)
    values[:silent] = 0
    writer.add_tensor(name, values.astype(np.float32))


def norm(name):
    writer.add_tensor(name, np.ones(WIDTH, dtype=np.float32))


matrix("token_embd.weight", len(tokens), WIDTH)
for layer in range(LAYERS):
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix(f"blk.{layer}.{part}.weight", WIDTH, WIDTH)
    for part in ("ffn_gate", "ffn_up"):
        matrix(f"blk.{layer}.{part}.weight", FEED_FORWARD, WIDTH)
    matrix(f"blk.{layer}.ffn_down.weight", WIDTH, FEED_FORWARD)
    norm(f"blk.{layer}.attn_norm.weight")
    norm(f"blk.{layer}.ffn_norm.weight")
norm("output_norm.weight")
matrix("output.weight", len(tokens), WIDTH, SILENT)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
