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
            question=(
                "The text grows token by token. Which part of it can still change the next token, "
                "and what will the text look like while its first letter stays the same?"
            ),
            hints=(
                (
                    "Look at the logits of one forward call, (1, T, V), and at the position of "
                    "which a token is chosen."
                ),
                (
                    "Run model(ids)[0] on a text of 5 tokens and print the argmax at each of the 5 "
                    "positions. The next token of a healthy generator is the argmax at position 4."
                ),
                (
                    "The logits at position t have read the tokens 0 to t. Take those of the "
                    "newest token, at the end of the time axis."
                ),
            ),
            lesson=(
                "A causal model answers one question per position, and only the last answer is "
                "about the token to come. Whenever a time axis is reduced to one entry, check "
                "which entry that is, with padding on either side too."
            ),
        ),
        Bug(
            name="prompt_lost",
            break_it=break_prompt_lost,
            trips="generation",
            reason="generation.prompt_lost",
            note="A caller that cuts the prompt off itself loses the first new tokens.",
            question=(
                "A caller prints the prompt, then cuts as many tokens off the result as the prompt "
                "has, and prints the rest. What is missing from its text?"
            ),
            hints=(
                "Look at the shape of what is returned, not at the tokens in it.",
                (
                    "Call it with a prompt of 8 tokens and a count of 4. A healthy result has 12 "
                    "tokens, and its first 8 are the prompt."
                ),
                (
                    "The loop itself is right. The last line gives away a part of what the loop "
                    "has built; it must give all of it."
                ),
            ),
            lesson=(
                "Whether a function returns the whole or only what is new is a contract, and both "
                "are in use. A contract that nobody wrote down is tested by comparing shapes and "
                "the first entries."
            ),
        ),
        Bug(
            name="keeps_first_block",
            break_it=break_keeps_first_block,
            trips="generation",
            reason="generation.keeps_first_block",
            level=2,
            note="Short texts are right. Beyond the block one token comes for ever.",
            question=(
                "The block holds 32 tokens. From which new token on, after a prompt of 8, does "
                "this generator differ from a healthy one, and why does it never recover?"
            ),
            hints=(
                (
                    "Let it write more tokens than the block holds, and look at what the model is "
                    "given in each call."
                ),
                (
                    "Print context[0, :3] at every step beyond the block. In a healthy run the "
                    "three tokens move on by one place at each step; here they stand still."
                ),
                (
                    "The window must hold the newest tokens, so count its start from the end of "
                    "the text."
                ),
            ),
            lesson=(
                "A limit is invisible until it is reached. Test every buffer, window and cache "
                "with less than it holds, exactly what it holds, and more."
            ),
            guide="Repetitive text",
        ),
        Bug(
            name="cache_kept",
            break_it=break_cache_kept,
            trips="generation",
            reason="generation.remembers",
            level=2,
            note="The first text of a session is right, and the first is what people look at.",
            question=(
                "The same prompt is continued twice. Which of the two texts is the right one, and "
                "what does the model read before the prompt in the other call?"
            ),
            hints=(
                "Continue one prompt twice in the same session, and look for what outlives a call.",
                (
                    "Print cache.length at the start of each call. Healthy is 0 every time; here "
                    "it is the number of tokens that earlier calls left in it."
                ),
                (
                    "The cache belongs to one text, so it has to be made where a text begins, "
                    "inside the call."
                ),
            ),
            lesson=(
                "State that outlives a call makes the first result right and the second one wrong. "
                "Test everything that caches by calling it twice, with another input in between."
            ),
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
