"""`--ask`: a whole request for help in Markdown, from one report, ready to paste.

It holds what a good report of a bug holds: a minimal example, the environment, expected against
actual, a fixed seed, and how to check for the latest version. What only the person knows is
marked FILL IN. Text of the report or of a file stands in code spans and fences only, so that it
cannot become markup or mention anybody; paths are shortened, environment variables are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._stored_subject import subject_facts
from diagnostics._text import show
from diagnostics._versions import render_facts
from diagnostics.help.ask._command import add_flags
from diagnostics.help.ask._findings import (
    expected_and_actual,
    first_failure,
    measured,
    other_findings,
    title,
)
from diagnostics.help.ask._text import FILL_IN, block

_SOURCE_MAX = 20_000  # characters; a forum takes 65,536 in all
_NAMES_MAX = 5


def write_help_request(
    content: Mapping[str, Any],
    *,
    command: str,
    target_source: str | None = None,
    recipe: Sequence[str] = (),
    packages: Mapping[str, str] | None = None,
) -> str:
    """Return the request as Markdown that ends with a line break.

    content: a report as `Report.to_dict` gives it.
    command: what was run; "" where a stored report does not tell.
    target_source: the code of --target, see `read_target_source`.
    recipe: commands to run before, such as those that prepare and train a Mini-GPT.
    packages: versions that the report's environment does not name.
    """
    first = first_failure(content)
    sections = [
        title(content, first),
        f"Lines with {FILL_IN} are for the person who asks. All others come from "
        "`python -m diagnostics --ask`.",
        expected_and_actual(content, first),
        other_findings(content, first),
        measured(content),
        _reproduce(content, command, recipe, first),
        _example(target_source, recipe),
        _environment(content, packages or {}),
        _figures(content),
        _checklist(content, target_source is not None or bool(recipe)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _reproduce(
    content: Mapping[str, Any],
    command: str,
    recipe: Sequence[str],
    first: Mapping[str, Any] | None,
) -> str:
    seed = content["seed"]
    parts = ["## How to reproduce"]
    if not command:
        parts.append(f"{FILL_IN} the command that wrote the report; its seed was {show(seed)}.")
        return "\n\n".join(parts)
    whole = add_flags(command, seed=seed)
    parts.append(block("\n".join([*recipe, whole]), "sh"))
    parts.append(f"The seed, {show(seed)}, fixes every draw of the checks.")
    alone = None if first is None else add_flags(whole, only=first["check"])
    if alone is not None and alone != whole:
        parts.append(f"The first failure alone:\n\n{block(alone, 'sh')}")
    return "\n\n".join(parts)


def _example(source: str | None, recipe: Sequence[str]) -> str:
    parts = ["## Minimal example"]
    if source is not None:
        shown = source if len(source) <= _SOURCE_MAX else source[:_SOURCE_MAX].rpartition("\n")[0]
        parts.append(block(shown, "python"))
        if shown != source:
            parts.append(f"{FILL_IN} the code was cut here; post less of it, or a link to it.")
        parts.append(
            f"{FILL_IN} does it run by itself? Take away what can go while the failure stays, and "
            "add the files of yours that it imports."
        )
    elif recipe:
        parts.append("The commands above are the whole example: a Mini-GPT of this library.")
        parts.append(f"{FILL_IN} the text it was trained on, or a few lines that show the same.")
    else:
        parts.append(f"{FILL_IN} the shortest code and data that still show it.")
    return "\n\n".join(parts)


def _environment(content: Mapping[str, Any], packages: Mapping[str, str]) -> str:
    facts = {**packages, **content["environment"]}
    if not facts:
        return f"## Environment\n\n{FILL_IN} the output of `python -m diagnostics --env`."
    return f"## Environment\n\n{block(render_facts(facts))}"


def _figures(content: Mapping[str, Any]) -> str:
    """Return the ten figures, a long list of names cut, and what they were measured on."""
    shown = {name: _figure(value) for name, value in content["debug"].items()}
    subject = {name: show(value) for name, value in subject_facts(content.get("subject")).items()}
    parts = [block(render_facts(shown))] if shown else []
    parts += [f"Measured on, and how:\n\n{block(render_facts(subject))}"] if subject else []
    return "\n\n".join(["## Figures of the run", *parts]) if parts else ""


def _figure(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, list):
        names = ", ".join(show(item) for item in value[:_NAMES_MAX]) or "none"
        return names + (f" and {len(value) - _NAMES_MAX} more" if len(value) > _NAMES_MAX else "")
    return show(value)


def _checklist(content: Mapping[str, Any], has_example: bool) -> str:
    done = "x" if has_example else " "
    named = "x" if content["environment"] else " "
    first = "x" if first_failure(content) is not None else " "
    return "\n".join(
        [
            "## Before posting",
            "",
            f"- [{done}] a minimal example that others can run",
            f"- [{named}] the environment",
            f"- [{first}] expected against actual",
            f"- [x] the seed is fixed: {show(content.get('seed'))}",
            "- [ ] the latest version: with a network, "
            "`python -m pip list --outdated` names what is old; upgrade it, and run it again",
            f"- [ ] {FILL_IN} what you tried already, and what came of it",
            "- [ ] read it once: it quotes names, numbers and pieces of your text and code. Home "
            "folders and user names in paths are shortened; environment variables are not in it",
        ]
    )
