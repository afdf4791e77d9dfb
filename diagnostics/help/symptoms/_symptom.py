"""The form of the table of symptoms: what is seen, and the suspects in the order of looking."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One thing that may be wrong, how it is measured, and what to do if it is that one.

    name: its key in the table.    what: a noun phrase for people.
    checks: of the catalogue; all of them passing strikes the suspect. Empty: none measures it.
    reasons: the ids with which those checks name this suspect; empty means any of theirs.
    also: reasons of further checks that name it, too: such a failure keeps it from being struck,
    and they need not have run. Past an evaluation that leaves eval mode on, a step is in eval mode.
    judged: "fresh" or "trained" where `initial_loss` speaks of it for such weights only.
    settled: False where a pass does not strike it, because the checks see a part of it only: five
    steps of a run, one process of several, the weights of one moment.
    look: further commands, and sentences for a person where no command will do.
    action: what to do if it is this one.    exercise: the exercise that shows it, or "".
    """

    name: str
    what: str
    action: str
    checks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    judged: str = ""
    settled: bool = True
    look: tuple[str, ...] = ()
    exercise: str = ""

    @property
    def command(self) -> str:
        """The command that runs its checks and no others; "" where no check measures it."""
        return f"python -m diagnostics --only {' '.join(self.checks)}" if self.checks else ""


@dataclass(frozen=True)
class Lead:
    """A suspect of one symptom, by name, and the evidence that tells it from the others there.

    settled: here a pass does strike a suspect that it does not strike in general, because this
    evidence is the very thing that its checks measure.
    """

    suspect: str
    evidence: str
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What a person sees, and where to look.

    name: its key.    title: one line.    looks: what exactly is seen, with numbers, so that one of
    several symptoms can be chosen.
    phrases: how people say it; words are compared by meaning, see `_phrases`.
    leads: the suspects in the order of looking: what contaminates the others comes first.
    note: what to know before looking, or "".
    about: "uniform" where the number that a person gives may be ln V, "low" where a small loss is
    part of what is seen, else "".
    """

    name: str
    title: str
    looks: str
    phrases: tuple[str, ...]
    leads: tuple[Lead, ...]
    note: str = ""
    about: str = ""
