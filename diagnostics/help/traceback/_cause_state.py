"""Causes of weights that do not fit the model: prefixes, layers, vocabulary, width, block."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnostics._text import say
from diagnostics.help.traceback._cause_sizes import CONFIGURATION, Mismatch, explain_sizes
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, numbers, quoted, rule

_LOADING = "Error(s) in loading state_dict for"
_KEYS = r"key\(s\) in state_dict: (.*?)(?:\.\s*$|\.\s*\n|\Z)"
_MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape "
    r"(?:torch\.Size\()?(\[[\d, ]*\])\)? "
    r"from checkpoint, the shape in current model is (?:torch\.Size\()?(\[[\d, ]*\])"
)
_REPORTED = re.compile(  # the table that transformers prints before it raises
    r"^(\S+) +\| MISMATCH \|.*?ckpt: torch\.Size\((\[[\d, ]*\])\) vs "
    r"model:torch\.Size\((\[[\d, ]*\])\)",
    re.MULTILINE,
)
_WRAPPERS = {
    "module.": ("nn.DataParallel or DistributedDataParallel", "module"),
    "_orig_mod.": ("torch.compile", "_orig_mod"),
}
_WHOLE = frozenset(
    {"model_state_dict", "state_dict", "model", "optimizer_state_dict", "optimizer", "optim"}
)
_LAYER = re.compile(r"^(.*?)\.?(\d+)\.")


def _state(clues: Clues) -> Explanation | None:
    if _LOADING not in clues.trace.message:
        return None
    missing, unexpected = (
        _names("Missing", clues.trace.message),
        _names("Unexpected", clues.trace.message),
    )
    mismatches = [
        Mismatch(m[1], tuple(numbers(m[2])), tuple(numbers(m[3])))
        for m in _MISMATCH.finditer(clues.trace.message)
    ]
    return (
        _from_keys(missing, unexpected, clues)
        or explain_sizes(mismatches)
        or _unclear(missing, unexpected)
    )


def _from_keys(
    missing: Sequence[str], unexpected: Sequence[str], clues: Clues
) -> Explanation | None:
    if not unexpected and not missing:
        return None
    whole = _WHOLE.intersection(unexpected)
    if whole and missing:
        key = next(
            k for k in ("model_state_dict", "state_dict", "model", *sorted(whole)) if k in whole
        )
        return Explanation(
            name="state.whole_checkpoint",
            cause=say(
                "the whole checkpoint was given where its weights were wanted: it holds "
                "them under a name of their own"
            ),
            evidence=_keys_evidence("unexpected", unexpected),
            next_step=say('model.load_state_dict(checkpoint["{key}"])', key=key),
        )
    adapters = [
        name for name in unexpected if "lora_" in name or name.startswith("base_model.model.")
    ]
    if adapters:
        return Explanation(
            name="state.adapter",
            cause=say("the file holds a LoRA adapter, which the model does not have"),
            evidence=_keys_evidence("unexpected", adapters),
            next_step=say(
                "wrap the model with the same adapter before loading, or merge the adapter "
                "into the weights where they were saved"
            ),
        )
    return _from_prefix(missing, unexpected) or _from_layers(missing, unexpected)


def _from_prefix(missing: Sequence[str], unexpected: Sequence[str]) -> Explanation | None:
    """One prefix before every name turns the missing names into the unexpected ones."""
    if not missing or not unexpected:
        return None
    for mine, theirs, is_stored in ((missing, unexpected, True), (unexpected, missing, False)):
        shortest = min(mine, key=len)
        carrier = next((name for name in theirs if name.endswith("." + shortest)), None)
        if carrier is None:
            continue
        prefix = carrier[: -len(shortest)]
        if not re.fullmatch(r"[\w.]+", prefix):  # it stands in a line that is to be copied
            continue
        if {prefix + name for name in mine} & set(theirs) != {prefix + name for name in mine}:
            continue
        return _prefixed(prefix, unexpected if is_stored else missing, is_stored)
    return None


def _prefixed(prefix: str, names: Sequence[str], is_stored: bool) -> Explanation:
    wrapper = _WRAPPERS.get(prefix)
    if wrapper and is_stored:
        cause = say(
            "the weights were saved from a model inside {wrapper}, which puts "
            "`{prefix}` before every name",
            wrapper=wrapper[0],
            prefix=prefix,
        )
    elif wrapper:
        cause = say(
            "the model is inside {wrapper}, which puts `{prefix}` before every name; "
            "the file's names are without it",
            wrapper=wrapper[0],
            prefix=prefix,
        )
    elif is_stored:
        cause = say(
            "every name in the file has `{prefix}` before it: the weights were saved "
            "from a module that held this one",
            prefix=prefix,
        )
    else:
        cause = say(
            "every name of the model has `{prefix}` before it, and the file's names have not",
            prefix=prefix,
        )
    if is_stored:
        step = say(
            'model.load_state_dict({{name.removeprefix("{prefix}"): weight for name, '
            "weight in state.items()}})",
            prefix=prefix,
        )
    else:
        step = say("model.{inner}.load_state_dict(state)", inner=prefix.rstrip("."))
    return Explanation(
        name="state.prefix." + (wrapper[1] if wrapper else "other"),
        cause=cause,
        evidence=_keys_evidence("unexpected" if is_stored else "missing", names),
        next_step=step,
    )


def _from_layers(missing: Sequence[str], unexpected: Sequence[str]) -> Explanation | None:
    """Only numbered layers are too many, or too few."""
    names = missing or unexpected
    if bool(missing) == bool(unexpected):
        return None
    layers = [_LAYER.match(name) for name in names]
    if not all(layers) or len({layer[1] for layer in layers if layer}) != 1:
        return None
    found = sorted({int(layer[2][:6]) for layer in layers if layer})
    if found != list(range(found[0], found[0] + len(found))) or found[0] == 0:
        return None
    stored, wanted = (found[0], found[-1] + 1) if missing else (found[-1] + 1, found[0])
    return Explanation(
        name="state.layers",
        cause=say(
            "the weights are of a model with {stored:layer|layers}, this model has {wanted}",
            stored=stored,
            wanted=wanted,
        ),
        evidence=_keys_evidence("missing" if missing else "unexpected", names),
        next_step=say(CONFIGURATION),
    )


def _unclear(missing: Sequence[str], unexpected: Sequence[str]) -> Explanation:
    return Explanation(
        name="state.other_model",
        cause=say(
            "the file and the model name their weights differently: {missing:name "
            "is|names are} missing, {unexpected} unexpected; the names do not point to "
            "one cause",
            missing=len(missing),
            unexpected=len(unexpected),
        ),
        evidence=_keys_evidence("missing" if missing else "unexpected", missing or unexpected),
        next_step=say("print(list(state)[:5], list(model.state_dict())[:5])"),
    )


def _reported(clues: Clues) -> Explanation | None:
    """Here the library raises without the sizes, and prints them in a table before."""
    if "`ignore_mismatched_sizes` to `False`" not in clues.message:
        return None
    mismatches = [
        Mismatch(m[1], tuple(numbers(m[2])), tuple(numbers(m[3])))
        for m in _REPORTED.finditer(clues.text)
    ]
    return explain_sizes(mismatches)


def _names(which: str, message: str) -> list[str]:
    match = re.search(which + " " + _KEYS, message, re.DOTALL)
    return re.findall(r'"([^"\n]{1,300})"', match[1]) if match else []


def _keys_evidence(which: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:2])
    return say(
        "{which} {count:name|names}: {shown}",
        count=len(names),
        which=which,
        shown=quoted(shown + (", ..." if len(names) > 2 else ""))[1:-1],
    )


RULES: tuple[Rule, ...] = (
    _state,
    _reported,
    rule(
        "state.not_a_dict",
        "TypeError",
        r"Expected state_dict to be dict-like, got <class '(?P<got>[\w.]+)'>",
        "load_state_dict got a {got}, and takes the dictionary of weights",
        "pass its weights: model.load_state_dict(other.state_dict())",
    ),
)
