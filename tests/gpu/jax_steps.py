"""A program for command.sh: a small decoder in JAX without ranges, one prompt and tokens after it.

    python3 tests/gpu/jax_steps.py TOKENS
"""

import sys

import jax
import jax.numpy as jnp

TOKENS, PROMPT, LAYERS, HEADS, WIDTH, WORDS = int(sys.argv[1]), 256, 8, 8, 1024, 8192
LENGTH, HEAD = PROMPT + TOKENS, WIDTH // HEADS


def weights(key):
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH),
              "down": (4 * WIDTH, WIDTH)}
    layers = [
        {
            name: jax.random.normal(jax.random.fold_in(key, 8 * layer + at), shape, jnp.bfloat16)
            * shape[0] ** -0.5
            for at, (name, shape) in enumerate(shapes.items())
        }
        for layer in range(LAYERS)
    ]
    return layers, jax.random.normal(key, (WORDS, WIDTH), jnp.bfloat16)


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-6)


def forward(layers, words, cache, ids, position):
    """The next token after `ids`, of which the first is at `position`, and the cache."""
    x = words[ids]
    rows = position + jnp.arange(ids.shape[0])
    mask = jnp.arange(LENGTH)[None, :] <= rows[:, None]
    kept = []
    for layer, (keys, values) in zip(layers, cache):
        query, key, value = jnp.split(norm(x).astype(jnp.bfloat16) @ layer["qkv"], 3, -1)
        keys = jax.lax.dynamic_update_slice(keys, key, (position, 0))
        values = jax.lax.dynamic_update_slice(values, value, (position, 0))
        kept.append((keys, values))
        heads = [it.reshape(-1, HEADS, HEAD) for it in (query, keys, values)]
        scores = jnp.einsum("qhd,khd->hqk", heads[0], heads[1]) * HEAD**-0.5
        shares = jax.nn.softmax(jnp.where(mask[None], scores, -1e9), -1).astype(jnp.bfloat16)
        mixed = jnp.einsum("hqk,khd->qhd", shares, heads[2]).reshape(-1, WIDTH)
        x = x + mixed @ layer["out"]
        x = x + jax.nn.silu(norm(x).astype(jnp.bfloat16) @ layer["up"]) @ layer["down"]
    return jnp.argmax(norm(x[-1]).astype(jnp.bfloat16) @ words.T), kept


layers, words = weights(jax.random.key(0))
step = jax.jit(forward, donate_argnums=2)
prompt = jax.random.randint(jax.random.key(1), (PROMPT,), 0, WORDS)
for turn in range(2):
    cache = [(jnp.zeros((LENGTH, WIDTH), jnp.bfloat16),) * 2 for _ in layers]
    cache = [(jnp.copy(keys), jnp.copy(values)) for keys, values in cache]
    token, cache = step(layers, words, cache, prompt, jnp.int32(0))
    token.block_until_ready()
    for at in range(TOKENS):
        token, cache = step(layers, words, cache, token[None], jnp.int32(PROMPT + at))
        token.block_until_ready()
print(int(token))
