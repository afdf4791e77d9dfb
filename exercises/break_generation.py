"""Break generation: write text that the model would never have written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from exercises._symptom import train_briefly
from minigpt.evaluate import evaluation_mode
from minigpt.model import KeyValueCache

SAMPLE_LENGTH = 60


def break_first_position(lab: Lab) -> Pipeline:
    """Choose by the logits of position 0, which has read one token only."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        with evaluation_mode(model):
            for _ in range(count):
                logits = model(ids[:, -lab.config.block_size :])[0]  # (1, T, V)
                last = logits[:, 0]  # BROKEN: was last = logits[:, -1]
                ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids

    return lab.pipeline(generate=generate)


def break_prompt_lost(lab: Lab) -> Pipeline:
    """Return the new tokens without the prompt."""

    @torch.no_grad()
    def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        ids = prompt
        with evaluation_mode(model):
            for _ in range(count):
                last = model(ids[:, -lab.config.block_size :])[0][:, -1]  # (1, V)
                ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids[:, prompt.shape[1] :]  # BROKEN: was return ids

    return lab.pipeline(generate=generate)


def break_keeps_first_block(lab: Lab) -> Pipeline:
    """Crop the wrong end: once the text fills the block, nothing new is read."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        block = lab.config.block_size
        with evaluation_mode(model):
            for _ in range(count):
                context = ids[:, :block]  # BROKEN: was context = ids[:, -block:]
                last = model(context)[0][:, -1]  # (1, V)
                ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids

    return lab.pipeline(generate=generate)


def break_cache_kept(lab: Lab) -> Pipeline:
    """Keep keys and values from call to call: the second prompt is read after the first."""
    kept = _empty_cache(lab)

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        block = lab.config.block_size
        cache = kept  # BROKEN: was cache = _empty_cache(lab)
        with evaluation_mode(model):
            for step in range(count):
                unread = ids[:, -1:] if step else ids
                if cache.length + unread.shape[1] <= block and ids.shape[1] <= block:
                    last = model(unread, cache=cache)[0][:, -1]  # (1, V)
                else:
                    last = model(ids[:, -block:])[0][:, -1]
                ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids

    return lab.pipeline(generate=generate)


def _empty_cache(lab: Lab) -> KeyValueCache:
    return KeyValueCache(lab.config, 1, device=torch.device("cpu"), dtype=torch.float32)


def symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Train briefly; return the training loss and texts: a short one, twice, and a long one."""
    model, losses = train_briefly(lab, pipeline)
    generate = pipeline.generate
    assert generate is not None
    prompt = lab.val_ids[None, :8]
    texts = [
        lab.tokenizer.decode(generate(model, prompt, count)[0].tolist())
        for count in (8, 8, SAMPLE_LENGTH)
    ]
    return {
        "training loss": f"{losses[-10:].mean().item():.3f} nats",
        "8 letters and 8 more": repr(texts[0]),
        "the same once more": repr(texts[1]),
        f"8 letters and {SAMPLE_LENGTH} more": repr(texts[2]),
    }


EXERCISE = Exercise(
    name="break_generation",
    question=(
        "The loss is fine and the text is not. Which lines between logits and text could be at "
        "fault, and how would you show it without judging the text by eye?"
    ),
    bugs=(
        Bug(
            name="first_position",
            break_it=break_first_position,
            trips="generation",
            reason="generation.first_position",
            note="Every token follows from the first one of the context, so text soon repeats.",
        ),
        Bug(
            name="prompt_lost",
            break_it=break_prompt_lost,
            trips="generation",
            reason="generation.prompt_lost",
            note="A caller that cuts the prompt off itself loses the first new tokens.",
        ),
        Bug(
            name="keeps_first_block",
            break_it=break_keeps_first_block,
            trips="generation",
            reason="generation.keeps_first_block",
            level=2,
            note="Short texts are right. Beyond the block one token comes for ever.",
        ),
        Bug(
            name="cache_kept",
            break_it=break_cache_kept,
            trips="generation",
            reason="generation.remembers",
            level=2,
            note="The first text of a session is right, and the first is what people look at.",
        ),
    ),
    hint="Run the model on the whole text before each token, and compare its argmax.",
    lesson=(
        "Greedy text has one right answer: the argmax of a full forward call on the last block, at "
        "every step. Compare token by token, across the block, and after another prompt."
    ),
    symptom=symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
