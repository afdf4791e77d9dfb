"""Scaled dot-product attention: the one place where positions read each other.

torch has a kernel for it, and that is what runs almost everywhere. Written out in three lines it
is the same function; the model takes that form where it was measured to train faster.

Shapes: B batch, H heads, T queries, S keys, D head size. The queries are the last T of S positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

# Where torch hands products of CPU tensors to oneDNN: bfloat16 ones, and float32 ones under
# `set_float32_matmul_precision("medium")`. Chips without AVX-512 never do, whatever the setting.
HAS_AVX512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
SHORT = 64  # keys; the longest context at which the kernel lost to the written form in float32


def attend(queries: Tensor, keys: Tensor, values: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Return (B, H, T, D): for each query the mean of the values up to its own position.

    queries: (B, H, T, D). keys, values: (B, H, S, D) with S >= T. dropout: of the weights.
    """
    if written_out_is_faster(queries, keys):
        return attend_written_out(queries, keys, values, dropout=dropout)
    T, S = queries.shape[2], keys.shape[2]
    # With a cache the first query is not the first key: `is_causal` aligns both at 0, so it is
    # right only when nothing was read before; one new token may read everything. A branch, since
    # torch.compile may make symbols of sizes, and a comparison of them is no bool to the kernel.
    if 1 < T == S:
        return functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
    mask = readable(T, S, queries.device) if T > 1 else None
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, dropout_p=dropout
    )


def attend_written_out(
    queries: Tensor, keys: Tensor, values: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """Return what `attend` returns, by the formula of Attention Is All You Need, section 3.2.1."""
    (T, D), S = queries.shape[2:], keys.shape[2]
    future = ~readable(T, S, queries.device)  # (T, S)
    scores = queries @ keys.transpose(2, 3) / math.sqrt(D)  # (B, H, T, S)
    # exp(-inf) is exactly 0, and each query reads at least itself, so no row is empty.
    weights = scores.masked_fill(future, -math.inf).softmax(dim=3)
    return functional.dropout(weights, dropout) @ values  # (B, H, T, D)


def written_out_is_faster(queries: Tensor, keys: Tensor) -> bool:
    """Return whether to write attention out, from sizes and settings alone.

    Never from the mode or from whether gradients are on: training and evaluation, before and
    after a resume, have to compute the same bits. The kernel calls oneDNN once per small block
    in its backward pass, which took 2.2 times as long at T = 32 on an AVX-512 chip; written out,
    bfloat16 training took 0.42 and 0.30 of nanoGPT's float32 time at T = 64 and 256.
    """
    # A compiler fuses the kernel's surroundings anyway, and cannot trace the questions below.
    if torch.compiler.is_compiling() or not HAS_AVX512 or queries.device.type != "cpu":
        return False
    if queries.shape[2] == 1:  # generation: one query, no backward pass
        return False
    if queries.dtype == torch.bfloat16:
        return True
    onednn = torch.get_float32_matmul_precision() == "medium"
    return onednn and queries.dtype == torch.float32 and keys.shape[2] <= SHORT


def readable(query_count: int, key_count: int, device: torch.device) -> Tensor:
    """Return (T, S) bool: True where one of T queries may read one of S keys."""
    queries = torch.arange(key_count - query_count, key_count, device=device)
    return torch.arange(key_count, device=device) <= queries[:, None]
