"""Causes of optimizers: what they are given, and a state of another model."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._cause_sizes import CONFIGURATION
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule


def _optimizer_sizes(clues: Clues) -> Explanation | None:
    """The optimizer's step combines its state, a gradient and a weight entry by entry."""
    match = re.search(
        r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", clues.message
    )
    if match is None or not clues.trace.frames:
        return None
    if "/torch/optim/" not in clues.trace.frames[-1].file.replace("\\", "/"):
        return None
    return Explanation(
        name="state.optimizer_sizes",
        cause=say(
            "the optimizer's state and a parameter have other sizes ({a} and {b}): the state is "
            "of another model, or the parameter was resized after it",
            a=match[1],
            b=match[2],
        ),
        evidence=quoted(match.group()),
        next_step=say(CONFIGURATION),
    )


def _not_parameters(clues: Clues) -> Explanation | None:
    match = re.search(r"'(\w+)' object is not iterable", clues.message)
    if match is None or clues.kind != "TypeError" or not clues.trace.frames:
        return None
    if "/torch/optim/" not in clues.trace.frames[-1].file.replace("\\", "/"):
        return None
    if match[1] == "method":
        cause = say("the optimizer was given a method where it takes parameters: () is missing")
    else:
        cause = say("the optimizer was given a {kind} where it takes parameters", kind=match[1])
    return Explanation(
        name="type.parameters",
        cause=cause,
        evidence=quoted(match.group()),
        next_step=say("give it the parameters: torch.optim.AdamW(model.parameters())"),
    )


RULES: tuple[Rule, ...] = (
    _optimizer_sizes,
    _not_parameters,
    rule(
        "state.optimizer_groups",
        "ValueError",
        r"loaded state dict (?:has a different number of parameter groups|contains "
        r"a parameter group that doesn't match the size of optimizer's group)",
        "the optimizer's stored state has other parameter groups than this "
        "optimizer: the groups are made differently, or the model has other "
        "parameters",
        "make the optimizer exactly as for the saved run, before its load_state_dict",
    ),
    rule(
        "python.empty_optimizer",
        "ValueError",
        r"optimizer got an empty parameter list",
        "the optimizer was given no parameters: all are frozen, the layers are in a plain list "
        "and not nn.ModuleList, or the generator that parameters() returns was used up before",
        "python -m diagnostics --only gradients optimizer",
    ),
)
