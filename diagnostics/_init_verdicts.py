"""What `initial_loss` says about weights: patterns, copies, sharing, and what was declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from diagnostics._init_weights import CORNER, PATTERN_RANK_MAX, Spread, Tie
from diagnostics._result import CheckResult, Status
from diagnostics._text import say

DOUBLE_STEP_MIN = 1.5  # times one step; Adam and SGD move numbers with two parameters 2 times


def patterned(patterns: list[str], numbers: dict[str, Any]) -> CheckResult:
    """Matrices that a rule fills, in place of a draw."""
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL,
        reason="initial_loss.patterned_weights",
        claim=say(
            "{name} is filled by a rule in place of random numbers, so that its units start alike",
            name=patterns[0],
        ),
        measured=say(
            "rank of at most {rank} in a corner of {corner} x {corner}",
            rank=PATTERN_RANK_MAX,
            corner=CORNER,
        ),
        expected=say("full rank"),
        where=say(
            "{count:matrix|matrices}; first is {name}", count=len(patterns), name=patterns[0]
        ),
        causes=(say("a constant fill or a placeholder stands in for the initialisation"),),
        next_step=say("draw the weights: nn.init.normal_(weight, std=0.02)"),
        numbers=numbers,
    )


def identical(
    pairs: list[tuple[str, str]], by_torch: tuple[str, ...], numbers: dict[str, Any]
) -> CheckResult:
    """Layers that torch's own stacks copied are a known weakness; others are a mistake."""
    first, second = pairs[0]
    known = all(name.startswith(by_torch) for pair in pairs for name in pair) if by_torch else False
    return CheckResult(
        check="initial_loss",
        status=Status.WARN if known else Status.FAIL,
        reason="initial_loss.identical_layers",
        claim=say("{second} starts as an exact copy of {first}", first=first, second=second),
        measured=say(
            "{count:pair of matrices is|pairs of matrices are} equal bit for bit", count=len(pairs)
        ),
        expected=say("0, because two draws never agree"),
        causes=(say("nn.TransformerEncoder copies its first layer"),)
        if known
        else (
            say("layers are made with copy.deepcopy of one layer"),
            say("the seed is set again before each layer is made"),
        ),
        next_step=say("draw the matrices of each layer again after the model is built")
        if known
        else say("build each layer with its own constructor call"),
        numbers=numbers,
    )


def spread_mistaken(spread: Spread, numbers: dict[str, Any]) -> CheckResult:
    squared = spread.power > 1
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL,
        reason="initial_loss.std_and_variance",
        claim=say(
            "weights are drawn with a standard deviation of {measured}, {what} the {wanted} that "
            "{setting} = {declared} asks for",
            what="the square of" if squared else "the root of",
            **asdict(spread),
        ),
        measured=say("standard deviation {measured} of the embedding", measured=spread.measured),
        expected=say("{wanted}", wanted=spread.wanted),
        causes=(
            say("normal_ and randn take a standard deviation, and were given a variance")
            if squared
            else say("the root is taken of a number that is a standard deviation already"),
        ),
        next_step=say("nn.init.normal_(weight, std={wanted})", wanted=spread.wanted),
        numbers={**numbers, **asdict(spread)},
    )


def tie_differs(tie: Tie) -> CheckResult:
    """A tie that is declared and missing is a fault; one that is only there may be the code's."""
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL if tie.declared else Status.WARN,
        reason="initial_loss.not_tied" if tie.declared else "initial_loss.tied",
        claim=say(
            "the configuration says {setting} = True, and {head} and {table} are two tensors"
            if tie.declared
            else "the configuration says {setting} = False, and {head} and {table} are one tensor",
            **asdict(tie),
        ),
        measured=say("two storages") if tie.declared else say("one storage"),
        expected=say("one storage, which both read and train")
        if tie.declared
        else say("a tensor of its own for each"),
        causes=(say("the line that ties them is missing, or one of the two was replaced after it"),)
        if tie.declared
        else (),
        next_step=say(
            "model.{head}.weight = model.{table}.weight at the end of __init__, and after every "
            "replacement",
            **asdict(tie),
        )
        if tie.declared
        else say("bring {setting} and the code together", setting=tie.setting),
        numbers=asdict(tie),
    )


def equal_head(table: str, head: str, numbers: Mapping[str, Any]) -> CheckResult:
    """A tie that was broken, unless the head was meant to start as a copy."""
    return CheckResult(
        check="initial_loss",
        status=Status.WARN,
        reason="initial_loss.equal_not_tied",
        claim=say(
            "{head} and {table} hold the same numbers in two tensors, which training moves apart",
            head=head,
            table=table,
        ),
        measured=say("equal bit for bit, in two storages"),
        expected=say("one tensor, or numbers of its own for each"),
        causes=(say("they were tied, and one was replaced: by a copy, by loading or by .to()"),),
        next_step=say(
            "tie them again: model.{head}.weight = model.{table}.weight", head=head, table=table
        ),
        numbers=dict(numbers),
    )


def one_memory(
    pairs: list[tuple[str, str]], times: float | None, numbers: Mapping[str, Any]
) -> CheckResult:
    """Two parameters over the same numbers: a tie that holds the values and not the gradient.

    times: how much further a step of the own optimizer moves them than one of them; None: unknown.
    """
    first, second = pairs[0]
    harm = times is not None and times >= DOUBLE_STEP_MIN
    facts = {"first": first, "second": second}
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL if harm else Status.WARN,
        reason="initial_loss.one_memory",
        claim=say(
            "{first} and {second} are two parameters over the same numbers: each has a gradient of "
            "its own, and one step of the optimizer moves the numbers {times} times as far",
            times=times,
            **facts,
        )
        if harm
        else say(
            "{first} and {second} are two parameters over the same numbers: each has a gradient of "
            "its own, and a step moves the numbers twice",
            **facts,
        )
        if times is None
        else say(
            "{first} and {second} are two parameters over the same numbers, and each has a "
            "gradient of its own",
            **facts,
        ),
        measured=say("{count:pair|pairs} of parameters share memory", count=len(pairs)),
        expected=say("one parameter under two names"),
        causes=(say("they were tied by .data, which shares numbers and not the parameter"),),
        next_step=say("assign the parameter itself: {first} = {second}", **facts),
        numbers={
            **numbers,
            "one_memory": [list(pair) for pair in pairs],
            "moves_times": times,
        },
    )


def layers_shared(pairs: list[tuple[str, str]], numbers: Mapping[str, Any]) -> CheckResult:
    first, second = pairs[0]
    return CheckResult(
        check="initial_loss",
        status=Status.WARN,
        reason="initial_loss.layers_share_weights",
        claim=say("{second} is the very tensor of {first}", first=first, second=second),
        measured=say(
            "{count:parameter stands|parameters stand} in several layers", count=len(pairs)
        ),
        expected=say("0, unless layers are shared by design, as in ALBERT"),
        where=say("first is {first}", first=first),
        causes=(
            say("[layer] * n puts one object in every place, and so does a module as a default"),
        ),
        next_step=say("nn.ModuleList(Block(...) for _ in range(n)) makes a new one each time"),
        numbers={**numbers, "shared_parameters": len(pairs)},
    )
