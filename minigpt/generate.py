"""Continue a prompt, token by token: the function `generate`, and the command of that name.

Each step reads the last block_size tokens, takes the logits of the last position and draws one
token. While everything fits into one block, keys and values of the tokens already read are kept,
so that each token is read once. Beyond the block that is over: positions are learned and absolute,
so when the window slides every kept token gets another position and the keys of all of them
change. The window is then computed anew, because a cache with old positions would be another,
wrong model.

How often the window slides is a choice. By one token, as everybody does it, every new token costs
a whole block. By half a block, it costs one every block_size / 2 tokens, and the model sees between
half a block and a whole one before each token; its predictions for that context are exact.

Shapes: B batch, T0 prompt tokens, n new tokens, V vocabulary.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is imported where it is needed: `--help` must not wait for it
    import torch
    from torch import Tensor

    from minigpt.model import KeyValueCache, MiniGPT


def generate(
    model: MiniGPT,
    token_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    greedy: bool = False,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    slide_by: int = 1,
    known_ids: int | None = None,
) -> Tensor:
    """Return the prompt and max_new_tokens more: (B, T0 + n), int64.

    token_ids: (B, T0) whole numbers in 0..V-1, T0 >= 1, on the model's device; a prompt longer
        than the block is cropped to its end for reading and returned whole.
    temperature, top_k, top_p: see `next_token_probabilities`. temperature 0 or greedy=True takes
        the most probable token.
    repetition_penalty: see `apply_repetition_penalty`; it looks at the whole row, prompt included.
    generator: where random numbers come from, torch's global one if None. With a generator, or
        when nothing is drawn, the global random state stays as it was.
    use_cache: False runs a full forward for every token, for a model whose forward takes no cache.
    slide_by: how many of the oldest tokens the window drops when a block is full, in 1..block_size.
        1 always keeps the last block_size tokens; s keeps block_size - s + 1 to block_size of them,
        and is faster beyond the block by a factor that grows with s.
    known_ids: only ids below it are drawn, all V if None; a vocabulary padded to a round number
        has ids that no tokenizer can decode. top_k is then at most this number.
    Computes in eval mode and without gradients; every submodule gets its own mode back.
    Raises ValueError for input or settings out of range, FloatingPointError for NaN logits.
    """
    import torch

    from minigpt.evaluate import evaluation_mode
    from minigpt.sampling import apply_repetition_penalty, next_token_probabilities

    temperature = 0.0 if greedy else temperature
    _require_input(token_ids, max_new_tokens, model.config.vocab_size)
    known_ids = _known_ids(known_ids, model.config.vocab_size)
    _require_settings(temperature, top_k, top_p, repetition_penalty, known_ids)
    _require_slide(slide_by, model.config.block_size)
    B, T0 = token_ids.shape
    ids = torch.empty((B, T0 + max_new_tokens), dtype=torch.int64, device=token_ids.device)
    ids[:, :T0] = token_ids
    start = max(0, T0 - model.config.block_size)  # of the window that is read
    cache = _make_cache(model, ids[:, start:T0]) if use_cache else None
    with torch.no_grad(), evaluation_mode(model):
        for end in range(T0, T0 + max_new_tokens):
            if end - start > model.config.block_size:
                start += slide_by
                cache = _make_cache(model, ids[:, start:end]) if use_cache else None
            logits = _last_logits(model, ids[:, start:end], cache)  # (B, V)
            logits = apply_repetition_penalty(logits, ids[:, :end], repetition_penalty)
            logits = logits[:, :known_ids]
            probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
            if temperature == 0:  # nothing to draw, so no generator moves
                ids[:, end] = probabilities.argmax(dim=-1)
            else:
                ids[:, end] = _draw(probabilities, generator)
    return ids


def _make_cache(model: MiniGPT, window: Tensor) -> KeyValueCache | None:
    """Return an empty cache, or None when the window fills the block: the next token moves it."""
    from minigpt.model import KeyValueCache

    B, T = window.shape
    if model.config.block_size <= T:
        return None
    dtype = next(model.parameters()).dtype
    return KeyValueCache(model.config, B, device=window.device, dtype=dtype)


def _last_logits(model: MiniGPT, window: Tensor, cache: KeyValueCache | None) -> Tensor:
    """Return (B, V): the logits after the last token of a window (B, T), T <= block_size."""
    if cache is None:
        logits, _ = model(window)
    else:
        logits, _ = model(window[:, cache.length :], cache=cache)
    return logits[:, -1]


def _draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw one token per row of (B, V) -> (B,); on the generator's device, if there is one."""
    import torch

    if generator is not None:  # a CPU generator gives the same text with a model on any device
        probabilities = probabilities.to(generator.device)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)


def _require_input(token_ids: Tensor, max_new_tokens: int, vocab_size: int) -> None:
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            "token_ids must have shape (B, T0) with B >= 1 and T0 >= 1, "
            f"got {tuple(token_ids.shape)}"
        )
    if token_ids.is_floating_point() or token_ids.is_complex():
        raise ValueError(f"token_ids must be whole numbers, got {token_ids.dtype}")
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"token_ids must lie in 0..{vocab_size - 1}, got {low}..{high}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be >= 0, got {max_new_tokens}")


def _require_settings(
    temperature: float, top_k: int | None, top_p: float | None, penalty: float, vocab_size: int
) -> None:
    from minigpt.sampling import require_sampling_settings

    require_sampling_settings(temperature, top_k, top_p, penalty, vocab_size=vocab_size)


def _known_ids(known_ids: int | None, vocab_size: int) -> int:
    if known_ids is None:
        return vocab_size
    if not 1 <= known_ids <= vocab_size:
        raise ValueError(f"known_ids must be in 1..{vocab_size}, got {known_ids}")
    return known_ids


def _require_slide(slide_by: int, block_size: int) -> None:
    if not 1 <= slide_by <= block_size:
        raise ValueError(f"slide_by must be in 1..{block_size}, the block size, got {slide_by}")


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return generate(*args, **kwargs)


# `minigpt.generate` names this module and the function above, and which of the two the package
# attribute holds depends on what was imported first. Each therefore answers for the other: the
# module can be called, and the function has itself as the attribute `generate`.
sys.modules[__name__].__class__ = _CallableModule
vars(generate)["generate"] = generate

if __name__ == "__main__":
    from minigpt._cli import run_command
    from minigpt._generate_command import main

    raise SystemExit(run_command(main))
