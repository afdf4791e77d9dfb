"""Causes of arguments of another kind: a tuple for a tensor, a float for a size."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_TO_TENSOR = {
    "numpy.ndarray": "make a tensor of it: torch.from_numpy(array)",
    "list": "make a tensor of it: torch.tensor(values)",
    "tuple": "take it apart where it is made, as in: out, _ = lstm(x)",
    "NoneType": "print the parts of the line above, one by one, on the line before",
}


def _not_a_tensor(clues: Clues) -> Explanation | None:
    match = re.search(
        r"(\w+)\(\): argument '(\w+)' \(position \d+\) must be Tensor, not ([\w.]+)", clues.message
    )
    if match is None or "TypeError" not in clues.kinds:
        return None
    cause = say(
        "{function} takes a tensor as its {argument}, and got a {kind}",
        function=match[1],
        argument=match[2],
        kind=match[3],
    )
    if match[3] == "tuple":
        cause = say("{cause}; nn.LSTM and nn.MultiheadAttention return one", cause=cause)
    step = _TO_TENSOR.get(match[3], "print the type of what is handed over, on the line before")
    return Explanation(
        name="type.not_tensor", cause=cause, evidence=quoted(match.group()), next_step=say(step)
    )


def _moved_batch(clues: Clues) -> Explanation | None:
    match = re.search(r"'(list|tuple|dict)' object has no attribute '(to|cuda)'", clues.message)
    if match is None or "AttributeError" not in clues.kinds:
        return None
    if match[1] == "dict":
        step = say(
            "move its parts: batch = {{name: part.to(device) for name, part in batch.items()}}"
        )
    else:
        step = say("move its parts: batch = [part.to(device) for part in batch]")
    return Explanation(
        name="batch.parts",
        cause=say(
            "a {kind} has no .{name}(), its tensors have; a DataLoader's batch is one where a row "
            "has several parts",
            kind=match[1],
            name=match[2],
        ),
        evidence=quoted(match.group()),
        next_step=step,
    )


RULES: tuple[Rule, ...] = (
    _not_a_tensor,
    _moved_batch,
    rule(
        "type.float_size",
        "TypeError",
        r"must be tuple of ints, ?but got float"
        r"|'float' object cannot be interpreted as an integer",
        "a size or a count is a floating point number; the operator / always gives one",
        "divide with // where a size is computed",
    ),
    rule(
        "batch.none",
        "TypeError",
        r"default_collate: batch must contain [^;]{1,90}; found <class 'NoneType'>",
        "a row of the data set is None, or holds None; a __getitem__ without a return gives it",
        "print(dataset[0]) before the DataLoader is made",
    ),
)
