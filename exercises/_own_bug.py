"""A known bug in a copy of somebody's pipeline: whether it has a place there, and who sees it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from diagnostics import CheckResult, Pipeline, Status, diagnose
from diagnostics._guard import kept_random_states
from diagnostics._injection import CannotInject, Injection
from diagnostics._self_test import INJECTIONS
from diagnostics._text import Text, say
from exercises._figures import describe_error

WHERE_IT_RAISES = "python -m diagnostics --target PLACE shows where the pipeline raises"


class NoPlaceError(Exception):
    """A bug proves nothing in this pipeline; `unlock` says what would give it a place, or ""."""

    def __init__(self, why: str, unlock: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.unlock = unlock


@dataclass(frozen=True)
class Victim:
    """A copy with a bug, and what the bug's own check says about it."""

    injection: Injection
    pipeline: Pipeline
    result: CheckResult

    @property
    def caught(self) -> bool:
        """Whether the check names the bug."""
        return self.injection.is_named_by(self.result)


def by_id() -> dict[str, Injection]:
    """Return every known bug by its id."""
    return {injection.id: injection for injection in INJECTIONS}


def inject(pipeline: Pipeline, injection: Injection) -> Pipeline:
    """Return a copy of the pipeline with the bug. Raises NoPlaceError; changes nothing."""
    try:
        with kept_random_states():
            return injection.apply(pipeline)
    except CannotInject as cannot:
        raise NoPlaceError(cannot.why, cannot.unlock or "") from cannot
    except Exception as error:  # any: it calls the user's own code
        raise NoPlaceError(_raised(error), WHERE_IT_RAISES) from error


def infect(pipeline: Pipeline, injection: Injection, *, seed: int) -> Victim:
    """Inject a bug and run its check. Raises NoPlaceError.

    A check that fails already, or that lacks a part, would prove nothing about the bug.
    """
    check = injection.check
    healthy = diagnose(pipeline, seed=seed, only=[check])[check]
    if healthy.failed or injection.is_named_by(healthy):
        raise NoPlaceError(
            say("{check} says {reason} without it", check=check, reason=healthy.reason),
            healthy.next_step,
        )
    if healthy.status is Status.SKIP:
        raise NoPlaceError(healthy.claim, healthy.next_step)
    broken = inject(pipeline, injection)
    return Victim(injection, broken, diagnose(broken, seed=seed, only=[check])[check])


def infect_blindly(pipeline: Pipeline, draw: int, *, seed: int) -> Victim:
    """Inject a bug that a number draws, among those whose check names them here.

    The same number draws the same bug of the same pipeline. Raises NoPlaceError.
    """
    for injection in _shuffled(draw):
        try:
            victim = infect(pipeline, injection, seed=seed)
        except NoPlaceError:
            continue
        if victim.caught:
            return victim
    raise NoPlaceError(
        say(
            "of {count:known bug|known bugs} none has a place here and is named by its check",
            count=len(INJECTIONS),
        ),
        "python -m diagnostics --self-test says of each what would give it one",
    )


def _shuffled(draw: int) -> Iterator[Injection]:
    """Yield the bugs in a drawn order: first a check, so that many bugs of one weigh no more."""
    generator = random.Random(draw)
    by_check: dict[str, list[Injection]] = {}
    for injection in INJECTIONS:
        by_check.setdefault(injection.check, []).append(injection)
    while by_check:
        check = generator.choice(list(by_check))
        left = by_check[check]
        yield left.pop(generator.randrange(len(left)))
        if not left:
            del by_check[check]


def _raised(error: Exception) -> Text:
    return say("it could not be put in: {what}", what=describe_error(error))
