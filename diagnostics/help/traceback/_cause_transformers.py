"""Causes that transformers names: configurations, models and files that it does not know (T4)."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_SHOWN = 4


def _configuration(clues: Clues) -> Explanation | None:
    match = re.search(
        r"Unrecognized configuration class <class '([\w.]+)'> for this kind of AutoModel: (\w+)",
        clues.message,
    )
    if match is None:
        return None
    given, auto = match[1].rpartition(".")[2], match[2]
    listed = re.search(r"Model type should be one of ([\w, \n]+)", clues.message)
    known = re.findall(r"\w+Config\b", listed[1]) if listed else []
    fitting = ", ".join(known[:_SHOWN])
    cause = say("{given} has no model of the kind {auto}", given=given, auto=auto)
    if known:
        cause = say(
            "{cause}; {count:class|classes} would fit, such as {fitting}",
            cause=cause,
            count=len(known),
            fitting=fitting,
        )
    return Explanation(
        name="transformers.configuration",
        cause=cause,
        evidence=quoted(match.group()),
        next_step=say(
            "load it with the class of its own task, or "
            "AutoModel.from_pretrained(path), which takes any"
        ),
    )


def _offline(clues: Clues) -> Explanation | None:
    match = re.search(
        r"We couldn't connect to '[^']+'[^\n]{0,120}|Cannot find the requested "
        r"files in the (?:disk|local) cache"
        r"|Repo id must [^\n]{0,200}|is not a local folder and is not a valid model identifier",
        clues.message,
    )
    if match is None:
        return None
    if match.group().startswith("Repo id"):
        cause = say(
            "no folder of that name is here, and it is no name of a model on the hub either"
        )
        step = say("print the names that are there: print(os.listdir())")
    else:
        cause = say("the files are not on this machine, and the hub was not reached")
        step = say("download them where there is a connection, and give from_pretrained the folder")
    return Explanation(
        name="transformers.files",
        cause=cause,
        evidence=quoted(match.group()),
        next_step=step,
    )


RULES: tuple[Rule, ...] = (
    _configuration,
    _offline,
    rule(
        "transformers.model_type",
        "ValueError KeyError",
        r"model type `(?P<type>[^`\n]{1,60})` but Transformers does not recognize "
        r"this architecture",
        "the config.json names the model type {type}, which this version of transformers has not",
        'python -c "import transformers; print(transformers.__version__)"',
    ),
    rule(
        "transformers.no_loss",
        "ValueError",
        r"The model did not return a loss from the inputs, only the following keys: [\w, ]+"
        r"\. For reference, the inputs it received are (?P<inputs>[\w, ]{1,80})",
        "the model got no labels it knows, and computes no loss without them; it got {inputs}",
        "give each row labels, or a collator that makes them: "
        "DataCollatorForLanguageModeling(tokenizer, mlm=False)",
    ),
    rule(
        "transformers.no_model_type",
        "ValueError",
        r"Unrecognized model in (?P<place>\S+)\. Should have a `model_type` key",
        "{place} holds no config.json that names a model_type: it is another folder, or of a "
        "model that transformers did not save",
        "print the names in that folder: print(os.listdir(path))",
    ),
    rule(
        "transformers.max_length",
        "ValueError",
        r"Input length of input_ids is (?P<have>\d+), but `max_length` is set to (?P<most>\d+)",
        "the prompt has {have} tokens, and max_length={most} counts the prompt too",
        "generate(..., max_new_tokens=50) in the place of max_length",
    ),
)
