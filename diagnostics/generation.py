"""Generation: greedy text is what the model's own forward calls say, one token after the other.

Why it matters
    A generator can read the wrong position, the wrong end of a long text, or a cache that belongs
    to another prompt, and still write something. The model is then blamed for text that it would
    never have written, and no loss shows it.

How it is measured
    `generate` continues prompts that are shorter than the block, reach its end, cross it and are
    longer, on copies with the user's weights and with shaken ones, whose best token changes at
    every step. Each new token is compared with the argmax of a full forward call on the last
    block of the text before it; equal logits all count as right. Where tokens differ, the usual
    mistakes are tried on the same text, and the one that gives every token is named. Further: the
    same prompt again, after another prompt, and under another seed; two rows; prompts with every
    id of a small vocabulary; train mode; and weights, modes and random states before and after.
    A hook makes the model say every id once: one that ends the text is the stop id, and it must
    end its own row of two, and no other.

What it cannot see
    How much context a generator means to keep, where nothing in the model sets a limit, as in a
    recurrent one: a crop is a warning there, meant or not, and one that is longer than the texts
    written here, about 40 tokens, stays unseen.
    A few tokens that differ where two logits lie within 3 %: half precision in a cache does that,
    and so may a small fault; it is a warning.
    Sampling: only the greedy path is followed; see `sampling`. The quality of the text. Streaming
    or decoding to characters. Stop ids that the tokenizer does not name, in a vocabulary above
    512 or a large model. Positions of a rotary cache beyond the block, where dropping old keys is
    a design of its own: it is a warning.

Break it
    python -m exercises.break_generation
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import Tensor, nn

from diagnostics._generation_corners import judge_corners, judge_train_mode
from diagnostics._generation_trial import Trial
from diagnostics._greedy import Follower
from diagnostics._guard import kept_random_states
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

# Fresh weights give one best token for ever, or one that hangs on the last token alone; measured
# on GPT, GRU and zero-initialised heads, these give 10 to 28 different ones in 96 places.
SHAKEN: dict[str, Any] = {"jitter": 0.2, "scale": 3.0}


def check_generation(
    model: nn.Module,
    generate: Callable[[nn.Module, Tensor, int], Tensor],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    **parts: Any,
) -> CheckResult:
    """Check a greedy generate(model, prompt (1, T0), n) -> (1, T0 + n) against the model itself.

    vocab_size, block_size: None: read from the model.    parts: other fields of Pipeline.
    """
    pipeline = Pipeline(
        model, generate=generate, vocab_size=vocab_size, block_size=block_size, **parts
    )
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Generate with the user's weights and with shaken ones; judge the texts and the traces."""
    if probe.pipeline.generate is None:
        raise MissingPartError("generate", why="there is no generation to look at")
    with kept_random_states():
        return _follow(probe)


def _follow(probe: Probe) -> CheckResult:
    """Ask every question, on shaken weights first; a failure ends it."""
    warnings: list[CheckResult] = []
    followed = 0
    for weights in (SHAKEN, {}):  # on shaken weights mistakes are told apart best
        with probe.model(**weights) as model:
            trial = Trial(probe, model, Follower(probe, model), shaken=bool(weights))
            for finding in chain(trial.findings(), judge_corners(trial)):
                if finding.status is not Status.WARN:
                    return finding
                warnings.append(finding)
            followed += trial.decided
    with probe.model(train=True, **SHAKEN) as model:
        trial = Trial(probe, model, Follower(probe, model), shaken=True)
        for finding in judge_train_mode(trial):
            if finding.status is not Status.WARN:
                return finding
            warnings.append(finding)
    if warnings:
        return warnings[0]
    return verdict(
        Status.PASS,
        "generation.ok",
        say("all {n} greedy tokens are those of full forward calls", n=followed),
        measured=say(
            "0 of {n} differ, below and beyond the block of {block}",
            n=followed,
            block=probe.block_size or "any length",
        ),
        numbers={"tokens": followed},
    )
