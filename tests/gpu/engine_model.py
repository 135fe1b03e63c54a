"""Decoder of tests/gpu/engine.py: Qwen3's layers, random weights, a paged cache of keys and values.

Triton kernels are used on a GPU if `triton` imports, else operators of PyTorch.
"""

import dataclasses
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

EPSILON = 1e-6
# Tokens of a page of the cache. Page 0 is reserved for rows that only pad a batch.
PAGE = 16


@dataclasses.dataclass
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_length: int


@dataclasses.dataclass
class Batch:
    """Inputs of a forward. Prompts have `starts`, and last rows `ends`; decode has `tables`."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor = None
    lengths: torch.Tensor = None
    starts: torch.Tensor = None
    ends: torch.Tensor = None
    bounds: list = None


if triton:

    @triton.jit
    def rms_norm_kernel(out, x, residual, weight, size, eps, ADD: tl.constexpr,
                        BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * size
        at = tl.arange(0, BLOCK)
        valid = at < size
        value = tl.load(x + row + at, mask=valid, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(residual + row + at, mask=valid, other=0.0).to(tl.float32)
            tl.store(residual + row + at, value.to(residual.dtype.element_ty), mask=valid)
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / size + eps)
        value *= scale * tl.load(weight + at, mask=valid, other=0.0).to(tl.float32)
        tl.store(out + row + at, value.to(out.dtype.element_ty), mask=valid)

    # Normalises and rotates the heads of queries and keys in place: a program for each head.
    @triton.jit
    def norm_rotary_kernel(qkv, positions, table, q_weight, k_weight, stride, heads, eps,
                           DIM: tl.constexpr):
        row, head = tl.program_id(0), tl.program_id(1)
        half = tl.arange(0, DIM // 2)
        first = qkv + row.to(tl.int64) * stride + head * DIM + half
        low = tl.load(first).to(tl.float32)
        high = tl.load(first + DIM // 2).to(tl.float32)
        scale = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / DIM + eps)
        weight = q_weight
        if head >= heads:
            weight = k_weight
        low *= scale * tl.load(weight + half).to(tl.float32)
        high *= scale * tl.load(weight + DIM // 2 + half).to(tl.float32)
        angles = table + tl.load(positions + row).to(tl.int64) * DIM + half
        cos, sin = tl.load(angles), tl.load(angles + DIM // 2)
        tl.store(first, (low * cos - high * sin).to(qkv.dtype.element_ty))
        tl.store(first + DIM // 2, (high * cos + low * sin).to(qkv.dtype.element_ty))

    @triton.jit
    def store_kvcache_kernel(k, v, k_cache, v_cache, slots, stride, size, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        at = tl.arange(0, BLOCK)
        valid = at < size
        slot = tl.load(slots + row).to(tl.int64)
        source = row.to(tl.int64) * stride + at
        tl.store(k_cache + slot * size + at, tl.load(k + source, mask=valid), mask=valid)
        tl.store(v_cache + slot * size + at, tl.load(v + source, mask=valid), mask=valid)

    # Decode: a program for each request and head of keys, which reads the pages of the request.
    @triton.jit
    def paged_attention_kernel(out, q, k_cache, v_cache, tables, lengths, scale, q_stride,
                               table_stride, HEADS: tl.constexpr, GROUP: tl.constexpr,
                               DIM: tl.constexpr, TOKENS: tl.constexpr):
        row, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(lengths + row)
        dims, token = tl.arange(0, DIM), tl.arange(0, TOKENS)
        heads = head * GROUP + tl.arange(0, GROUP)
        query = tl.load(q + row.to(tl.int64) * q_stride + heads[:, None] * DIM + dims[None, :])
        query = query.to(tl.float32) * scale
        best = tl.full([GROUP], float("-inf"), tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        result = tl.zeros([GROUP, DIM], tl.float32)
        for page in range(tl.cdiv(length, TOKENS)):
            block = tl.load(tables + row * table_stride + page).to(tl.int64)
            slots = ((block * TOKENS + token) * HEADS + head) * DIM
            valid = page * TOKENS + token < length
            places = slots[:, None] + dims[None, :]
            keys = tl.load(k_cache + places, mask=valid[:, None], other=0.0).to(tl.float32)
            scores = tl.sum(query[:, None, :] * keys[None, :, :], axis=2)
            scores = tl.where(valid[None, :], scores, float("-inf"))
            newest = tl.maximum(best, tl.max(scores, axis=1))
            kept = tl.exp(best - newest)
            weights = tl.exp(scores - newest[:, None])
            values = tl.load(v_cache + places, mask=valid[:, None], other=0.0).to(tl.float32)
            result = result * kept[:, None]
            result += tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
            total = total * kept + tl.sum(weights, axis=1)
            best = newest
        result = result / total[:, None]
        to = out + row.to(tl.int64) * HEADS * GROUP * DIM + heads[:, None] * DIM + dims[None, :]
        tl.store(to, result.to(out.dtype.element_ty))

    @triton.jit
    def silu_and_mul_kernel(out, x, size, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        valid = at < size
        gate = tl.load(x + row * 2 * size + at, mask=valid, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * size + size + at, mask=valid, other=0.0).to(tl.float32)
        value = gate / (1 + tl.exp(-gate)) * up
        tl.store(out + row * size + at, value.to(out.dtype.element_ty), mask=valid)


class Decoder:
    """The share of one rank: its heads, and its rows of the intermediate layer."""

    def __init__(self, shape, device, dtype, pages, seed, rank=0, world=1, kernels="auto"):
        self.shape, self.world = shape, world
        self.triton = kernels == "triton" or (
            kernels == "auto" and triton is not None and device.type == "cuda")
        self.heads, self.kv_heads = shape.heads // world, shape.kv_heads // world
        self.flash = device.type == "cuda"
        generator = torch.Generator(device).manual_seed(seed)

        # Every rank draws whole matrices, so that any number of ranks has the same model.
        def drawn(rows, columns):
            values = torch.randn(rows, columns, generator=generator, device=device, dtype=dtype)
            return values / math.sqrt(columns)

        def ones(size):
            return torch.ones(size, device=device, dtype=dtype)

        def rows(matrix):
            return matrix.chunk(world, 0)[rank]

        def columns(matrix):
            return matrix.chunk(world, 1)[rank].contiguous()

        hidden, dim = shape.hidden, shape.head_dim
        self.embedding = drawn(shape.vocabulary, hidden)
        self.layers = []
        for _ in range(shape.layers):
            query = rows(drawn(shape.heads * dim, hidden))
            key, value = (rows(drawn(shape.kv_heads * dim, hidden)) for _ in range(2))
            gate, up = (rows(drawn(shape.intermediate, hidden)) for _ in range(2))
            self.layers.append({
                "qkv": torch.cat([query, key, value]),
                "output": columns(drawn(hidden, shape.heads * dim)),
                "gate_up": torch.cat([gate, up]),
                "down": columns(drawn(hidden, shape.intermediate)),
                "input_norm": ones(hidden), "mlp_norm": ones(hidden),
                "q_norm": ones(dim), "k_norm": ones(dim),
            })
        self.final_norm = ones(hidden)
        cache = (shape.layers, 2, pages * PAGE, self.kv_heads, dim)
        self.cache = torch.zeros(cache, device=device, dtype=dtype)
        frequency = 1e6 ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
        angles = torch.outer(torch.arange(shape.max_length, device=device), frequency)
        self.rotary = torch.cat([angles.cos(), angles.sin()], 1).contiguous()

    def forward(self, batch):
        hidden, residual = F.embedding(batch.tokens, self.embedding), None
        for layer, cache in zip(self.layers, self.cache):
            normed, residual = self.norm(hidden, residual, layer["input_norm"])
            attended = self.attention(F.linear(normed, layer["qkv"]), layer, cache, batch)
            hidden = self.reduced(F.linear(attended, layer["output"]))
            normed, residual = self.norm(hidden, residual, layer["mlp_norm"])
            gated = self.silu_and_mul(F.linear(normed, layer["gate_up"]))
            hidden = self.reduced(F.linear(gated, layer["down"]))
        return self.norm(hidden, residual, self.final_norm)[0]

    def logits(self, hidden):
        return F.linear(hidden, self.embedding)

    def reduced(self, partial):
        if self.world > 1:
            dist.all_reduce(partial)
        return partial

    def norm(self, hidden, residual, weight):
        """The sum of `hidden` and `residual`, normalised, and the sum itself."""
        if not self.triton:
            summed = hidden if residual is None else hidden + residual
            return F.rms_norm(summed, weight.shape, weight, EPSILON), summed
        out, size = torch.empty_like(hidden), hidden.shape[-1]
        adds = residual is not None
        rms_norm_kernel[(len(hidden),)](
            out, hidden, residual if adds else hidden, weight, size, EPSILON, ADD=adds,
            BLOCK=triton.next_power_of_2(size))
        return out, residual if adds else hidden

    def silu_and_mul(self, gate_up):
        if not self.triton:
            gate, up = gate_up.chunk(2, -1)
            return F.silu(gate) * up
        rows, size = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        silu_and_mul_kernel[(rows, triton.cdiv(size, 1024))](out, gate_up, size, BLOCK=1024)
        return out

    def attention(self, qkv, layer, cache, batch):
        count, dim = len(qkv), self.shape.head_dim
        q_size, kv_size = self.heads * dim, self.kv_heads * dim
        if self.triton:
            norm_rotary_kernel[(count, self.heads + self.kv_heads)](
                qkv, batch.positions, self.rotary, layer["q_norm"], layer["k_norm"],
                qkv.stride(0), self.heads, EPSILON, DIM=dim)
        q, k, v = qkv.split([q_size, kv_size, kv_size], 1)
        if self.triton:
            store_kvcache_kernel[(count,)](
                k, v, cache[0], cache[1], batch.slots, qkv.stride(0), kv_size,
                BLOCK=triton.next_power_of_2(kv_size))
        q, k, v = q.view(count, -1, dim), k.view(count, -1, dim), v.view(count, -1, dim)
        if not self.triton:
            q = self.rotated(F.rms_norm(q, (dim,), layer["q_norm"], EPSILON), batch.positions)
            k = self.rotated(F.rms_norm(k, (dim,), layer["k_norm"], EPSILON), batch.positions)
            cache[0][batch.slots], cache[1][batch.slots] = k, v
        if batch.starts is not None:
            return self.prompts(q, k, v, batch).reshape(count, q_size)
        return self.paged(q, cache, batch).reshape(count, q_size)

    def rotated(self, heads, positions):
        cos, sin = self.rotary[positions].to(heads.dtype).unsqueeze(1).chunk(2, -1)
        low, high = heads.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def prompts(self, q, k, v, batch):
        """Causal attention within each prompt: one kernel for all where flash attention runs."""
        if self.flash:
            longest = max(end - start for start, end in batch.bounds)
            return torch.ops.aten._flash_attention_forward(
                q, k, v, batch.starts, batch.starts, longest, longest, 0.0, True, False)[0]
        heads = []
        for start, end in batch.bounds:
            one = (it[start:end].transpose(0, 1)[None] for it in (q, k, v))
            found = F.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)
            heads.append(found[0].transpose(0, 1))
        return torch.cat(heads)

    def paged(self, q, cache, batch):
        """Attention of one token of each request to the pages of its table."""
        count, dim = len(q), self.shape.head_dim
        if self.triton:
            out = q.new_empty(count, self.heads, dim)
            paged_attention_kernel[(count, self.kv_heads)](
                out, q, cache[0], cache[1], batch.tables, batch.lengths, dim ** -0.5,
                q.stride(0), batch.tables.stride(0), HEADS=self.kv_heads,
                GROUP=self.heads // self.kv_heads, DIM=dim, TOKENS=PAGE)
            return out
        pages = cache.view(2, -1, PAGE, self.kv_heads, dim)[:, batch.tables.long()]
        keys, values = pages.flatten(2, 3).transpose(2, 3)
        places = torch.arange(keys.shape[2], device=q.device)
        mask = (places[None] < batch.lengths[:, None])[:, None, None]
        return F.scaled_dot_product_attention(
            q.unsqueeze(2), keys, values, attn_mask=mask, enable_gqa=True).squeeze(2)
