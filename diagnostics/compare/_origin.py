"""Where the differences of two reports can come from: seed, environment, weights, ids, or the rest.

A report holds digests of weights and ids and its options, but none of the code. So nothing here
says "the code changed"; it says what is known to differ, what is known to be equal, and what is
left over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._text import Text, say
from diagnostics.compare._subjects import (
    Subjects,
    compare_subjects,
    known_equal,
    suspects,
    told_options,
)

# What can change how a sum is rounded: which kernels run, in which order, in which precision.
_ROUNDS = (
    "torch",
    "numpy",
    "device",
    "cpu_capability",
    "threads",
    "machine",
    "system",
    "cuda_version",
    "cudnn_version",
    "cuda_devices",
    "float32_matmul_precision",
    "deterministic_algorithms",
    "cudnn_benchmark",
)
# What can change more than that: draws of a seed, the type that is computed in, or code that runs.
_REDRAWS = (
    "torch",
    "numpy",
    "device",
    "default_dtype",
    "python",
    "implementation",
    "machine",
    "transformers",
    "tokenizers",
    "tiktoken",
    "sentencepiece",
    "accelerate",
    "lightning",
    "datasets",
    "minigpt_diagnostics",
)
SMALL_MODEL = 1_000_000  # parameters; `diagnostics._suite.ONE_THREAD_MAX` without loading torch
INPUTS = ("tokenizer_fingerprint", "vocabulary_size", "token_range", "batch_shape")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What differs around two reports; each a mapping from a name to (value in A, value in B).

    unknown: names of INPUTS that one of the reports does not have.
    """

    seeds: tuple[Any, Any]
    environment: Mapping[str, tuple[Any, Any]]
    inputs: Mapping[str, tuple[Any, Any]]
    unknown: tuple[str, ...]
    recorded: bool  # both reports name their environment
    subjects: Subjects

    @property
    def same_seed(self) -> bool:
        """True when both reports name one seed."""
        return self.seeds[0] == self.seeds[1] and self.seeds[0] is not None

    @property
    def rounds(self) -> tuple[str, ...]:
        """What differs in the environment and can change how numbers are rounded."""
        return tuple(name for name in self.environment if name in _ROUNDS)

    @property
    def redraws(self) -> tuple[str, ...]:
        """What differs in the environment and can change more than rounding."""
        return tuple(name for name in self.environment if name in _REDRAWS)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much differs: verdicts or reasons, numbers by more than rounding, and by rounding.

    changed: checks that both reports have, and of which anything differs.
    only_a, only_b: checks that the other report does not have.
    """

    verdicts: int
    numbers: int
    rounding: int
    changed: tuple[str, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


def measure_facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> Facts:
    """Return what two reports say about seed, environment, weights, options and inputs."""
    before, after = (_mapping(report, "environment") for report in (a, b))
    # earlier reports name no packages: there, what is not named may have been installed
    complete = all("minigpt_diagnostics" in side for side in (before, after))
    names = [name for name in {**before, **after} if complete or (name in before and name in after)]
    debug = [_mapping(report, "debug") for report in (a, b)]
    inputs = {name: (debug[0].get(name), debug[1].get(name)) for name in INPUTS}
    return Facts(
        seeds=(a.get("seed"), b.get("seed")),
        environment={
            name: (before.get(name), after.get(name))
            for name in names
            if before.get(name) != after.get(name)
        },
        inputs={n: pair for n, pair in inputs.items() if None not in pair and pair[0] != pair[1]},
        unknown=tuple(name for name, pair in inputs.items() if None in pair),
        recorded=bool(before and after),
        subjects=compare_subjects(_mapping(a, "subject"), _mapping(b, "subject")),
    )


def explain_origin(facts: Facts, counts: Counts) -> tuple[Text, ...]:
    """Return what can explain the differences, one sentence each, only where it is certain."""
    told = [*_told_inputs(facts), *told_options(facts.subjects, counts.only_a, counts.only_b)]
    if not (counts.verdicts or counts.numbers or counts.rounding):
        return (*told, *_nothing_to_explain(facts, counts))
    if not facts.same_seed:
        told.append(_told_seeds(facts))
        if facts.rounds or facts.redraws:
            around = dict.fromkeys([*facts.rounds, *facts.redraws])
            told.append(say("the environment differs too, in {names}", names=_listed(around)))
    elif not facts.recorded:
        told.append(say("a report does not name its environment, so it cannot be ruled out"))
    elif facts.rounds or facts.redraws:
        told += _told_environment(facts, counts)
    else:
        told += _told_rest(facts, counts)
    return tuple(told)


def _told_inputs(facts: Facts) -> list[Text]:
    subjects = facts.subjects
    same = [name for name in INPUTS if name not in facts.inputs and name not in facts.unknown]
    same = [*subjects.names(subjects.same), *same]
    differing = [*subjects.named, *facts.inputs]
    unknown = [*subjects.names(subjects.unknown), *facts.unknown]
    told = []
    if differing:
        told.append(
            say(
                "not the same in both: {names}; numbers that depend on them can differ for that "
                "reason alone",
                names=_listed(differing),
            )
        )
    if same:
        told.append(say("the same in both: {names}", names=_listed(same)))
    if unknown:
        told.append(say("not known for both: {names}", names=_listed(unknown)))
    return told


def _nothing_to_explain(facts: Facts, counts: Counts) -> list[Text]:
    around = [*(["the seed"] if not facts.same_seed else []), *facts.environment]
    around += facts.subjects.named
    if not (counts.only_a or counts.only_b):
        around += [f"the option {name}" for name in facts.subjects.options]
    if not around:
        return []
    return [say("nothing that was measured follows what differs: {names}", names=_listed(around))]


def _told_seeds(facts: Facts) -> Text:
    if None in facts.seeds:
        return say("a report does not name its seed, so other draws cannot be ruled out")
    return say(
        "the seeds differ ({a} and {b}), so the draws do: for that reason alone numbers differ, "
        "and a verdict near its limit can; run both with --seed {a} to leave the draws out",
        a=facts.seeds[0],
        b=facts.seeds[1],
    )


def _told_environment(facts: Facts, counts: Counts) -> list[Text]:
    """Connect the environment with what has the size of rounding, and with no more than that."""
    around = _listed(dict.fromkeys([*facts.rounds, *facts.redraws]))
    told = []
    possible = _listed(suspects(facts.subjects, list(facts.inputs), counts.changed))
    if "threads" in facts.rounds:
        told.append(
            say(
                "threads matter for a model of {count} parameters or more: a smaller one is "
                "checked on one thread",
                count=f"{SMALL_MODEL:,}",
            )
        )
    if not (counts.verdicts or counts.numbers):
        told.append(
            say(
                "the seed is the same, and every difference has the size of rounding, which a "
                "difference in {around} can give; no other cause is needed",
                around=around,
            )
        )
        return told
    changed = [
        *([say("{n:verdict|verdicts}", n=counts.verdicts)] if counts.verdicts else []),
        *([say("{n:number|numbers}", n=counts.numbers)] if counts.numbers else []),
    ]
    told.append(
        say(
            "the seed is the same; a difference in {around} can change rounding, and {changed} "
            "changed by more than that",
            around=around,
            changed=" and ".join(changed),
        )
    )
    if facts.redraws:
        told.append(
            say(
                "another {names} can also change draws, types or code, so the environment stays "
                "possible beside {possible}: run both in one environment",
                names=_listed(facts.redraws),
                possible=possible,
            )
        )
    else:
        told.append(
            say(
                "so look at {possible} first; a run of both in one environment settles it",
                possible=possible,
            )
        )
    return told


def _told_rest(facts: Facts, counts: Counts) -> list[Text]:
    around = say("the environment")
    if facts.environment:
        around = say(
            "the environment (but for {names}, which is not known to change a number here)",
            names=_listed(facts.environment),
        )
    same = ["the seed", around, *known_equal(facts.subjects)]
    left = [
        *suspects(facts.subjects, list(facts.inputs), counts.changed),
        "a part that does not repeat itself",
    ]
    return [
        say(
            "{same} are the same; where nothing else differs, a run repeats itself bit for bit, "
            "so what differs comes from {left}",
            same=_listed(same),
            left=_listed(left, "or"),
        ),
        say("the reports hold no digest of code, so they cannot say which"),
    ]


def _listed(names: Sequence[str] | Mapping[str, Any], last: str = "and") -> str:
    words = [str(name).replace("_", " ") for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _mapping(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = report.get(name)
    return found if isinstance(found, Mapping) else {}
