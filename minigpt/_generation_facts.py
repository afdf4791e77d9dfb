"""What generation with the usual settings looks like, as numbers for a checklist."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minigpt._generate_command import PRESETS, REPETITION_LENGTH, compare_prompts
from minigpt.generate import generate
from minigpt.model import MiniGPT
from minigpt.sampling import repetition_rate
from minigpt.tokenizer import CharTokenizer

SAMPLE_TOKENS = 300  # enough for a rate: 293 runs of 8 characters


def measure_generation(
    model: MiniGPT, tokenizer: CharTokenizer, ids: Tensor, *, seed: int = 42
) -> dict[str, Any]:
    """Return the settings of `python -m minigpt.generate` and what they give on this model.

    ids: (N,) of the text that prompts are taken from, N >= 1.
    Returns temperature, top_k (None: off), vocab_size, repetition_rate (0 to 1, of runs of eight
    characters), prompt_nats, the mean KL of the predictions after a rich prompt from those after
    its last token alone, and prompt_changed, at how many of them the most probable token differs;
    both None where there is only one token.
    """
    sampling = PRESETS["balanced"]
    vocab_size = tokenizer.vocab_size
    top_k = sampling.top_k if sampling.top_k and sampling.top_k <= vocab_size else None
    device = next(model.parameters()).device
    prompt = ids[: model.config.block_size // 2][None].to(device)  # (1, T0)
    written = generate(
        model,
        prompt,
        SAMPLE_TOKENS,
        temperature=sampling.temperature,
        top_k=top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        generator=torch.Generator().manual_seed(seed),
        known_ids=vocab_size,
    )[0, prompt.shape[1] :]
    nats = changed = None
    if prompt.shape[1] > 1:
        _, nats, changed, _ = compare_prompts(model, prompt[:, -1:], prompt, known_ids=vocab_size)
    return {
        "temperature": sampling.temperature,
        "top_k": top_k,
        "vocab_size": vocab_size,
        "repetition_rate": repetition_rate(tokenizer.decode(written.cpu()), REPETITION_LENGTH),
        "prompt_nats": nats,
        "prompt_changed": changed,
    }
