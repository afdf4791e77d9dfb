"""Causes in the language itself: names, arguments, None, recursion, interrupts."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_TENSOR_NAMES = frozenset(
    {"argmax", "backward", "detach", "flatten", "item", "logits", "loss", "mean", "reshape"}
    | {"shape", "size", "softmax", "view"}
)


def _tuple_attribute(clues: Clues) -> Explanation | None:
    match = re.search(r"'tuple' object has no attribute '(\w+)'", clues.message)
    code = clues.own.code if clues.own else ""
    if match is None or "AttributeError" not in clues.kinds:
        return None
    if match[1] not in _TENSOR_NAMES:
        return None
    if match[1] != "backward" and not re.search(r"model|logits|loss|net\b|\bout", code):
        return None
    if re.search(r"model|logits|loss|net\b", code) or not code:
        step = say("take it apart: logits, loss = model(inputs, targets)")
    else:
        step = say("take it apart where it is made, as in: out, _ = attention(x, x, x)")
    return Explanation(
        name="output.tuple",
        cause=say(
            "a tuple is used as a tensor: what was called returns several values, as a model "
            "that returns (logits, loss), nn.LSTM and nn.MultiheadAttention do"
        ),
        evidence=quoted(match.group()) + (f" at {quoted(code)}" if code else ""),
        next_step=step,
    )


def _none(clues: Clues) -> Explanation | None:
    match = re.search(
        r"'NoneType' object (?:has no attribute '(\w+)'|is not (subscriptable"
        r"|callable|iterable))",
        clues.message,
    )
    if match is None:
        return None
    code = clues.own.code if clues.own else ""
    others: tuple[str, ...] = ()
    if match[1] == "backward" or (match[1] == "item" and "loss" in code):
        cause = say("the loss is None")
        others = (
            say("a model that is called without targets (labels) returns no loss"),
            say("a function that computes the loss has no return"),
        )
        step = say("print what the call that makes the loss returns, on the line after it")
    elif re.search(r"(?<!autograd)\.grad(?=[.\[])", code):
        cause = say("the .grad is None")
        others = (
            say("backward() has not run yet, or zero_grad() has run since"),
            say("the parameter took no part in the loss, or is frozen"),
            say("it is no parameter but a computed tensor, which keeps no gradient"),
        )
        step = say("read .grad between backward() and zero_grad(), where it is not None")
    else:
        cause = say("something on this line is None; a function without a return gives None")
        step = say("print the parts of the line above, one by one, on the line before")
    return Explanation(
        name="python.none",
        cause=cause,
        others=others,
        others_are=say("the text does not say which of these it is") if others else "",
        evidence=quoted(match.group()),
        next_step=step,
    )


def _key(clues: Clues) -> Explanation | None:
    """A character tokenizer's lookup: one character as key, and code that encodes text."""
    match = re.fullmatch(r"(['\"])(\\?.|\\x\w\w|\\u\w{4}|\\U\w{8})\1", clues.message.strip())
    if clues.kind != "KeyError" or match is None or clues.own is None:
        return None
    places = [f"{frame.function} {frame.code}" for frame in clues.trace.frames if frame.is_own][-2:]
    if re.search(
        rf"\[{re.escape(match.group())}\]|\[['\"]{re.escape(match[2])}['\"]\]", places[-1]
    ):
        return None  # the key is written in the code: a field of a row, no character of a text
    if not re.search(r"stoi|char_to_i|encode|char2id|tokeniz|_id_of|token_to_id", " ".join(places)):
        return None
    return Explanation(
        name="tokenizer.unknown",
        cause=say(
            "the text holds the character {key}, which the tokenizer's vocabulary has not",
            key=match.group(),
        ),
        evidence=f"KeyError of one character at {quoted(clues.own.code or clues.own.function)}",
        next_step=say("python -m diagnostics --only roundtrip fingerprint"),
    )


def _keyword(clues: Clues) -> Explanation | None:
    match = re.search(r"([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'", clues.message)
    if match is None or "TypeError" not in clues.kinds:
        return None
    called, name = match[1], match[2]
    suggested = re.search(r"Did you mean '(\w+)'\?", clues.message)
    if called.endswith("forward"):
        cause = say(
            "the model's forward has no parameter `{name}`: a batch or a trainer hands "
            "over more than it takes, or under another name",
            name=name,
        )
    elif re.search(r"Config(?:\.__init__)?$", called):
        cause = say(
            "this configuration has no field `{name}`: it was saved for another class "
            "or by another version",
            name=name,
        )
    else:
        cause = say(
            "{called} has no parameter `{name}` in the version that runs here",
            called=called,
            name=name,
        )
    step = (
        say("call it with `{right}` in the place of `{name}`", right=suggested[1], name=name)
        if suggested
        else say(
            "print the parameters that it takes: help({called})",
            called=called.removesuffix(".__init__"),
        )
    )
    return Explanation(
        name="python.keyword", cause=cause, evidence=quoted(match.group()), next_step=step
    )


def _recursion(clues: Clues) -> Explanation | None:
    if "RecursionError" not in clues.kinds:
        return None
    own = clues.own
    frames = clues.trace.frames
    if own is None or (own.repeats < 3 and sum(f == own for f in frames[-60:]) < 3):
        return None  # it came inside a library, or through several functions
    return Explanation(
        name="python.recursion",
        cause=say(
            "{function} calls itself, at {place}, and nothing ends it",
            function=own.function or "the code",
            place=own.place,
        ),
        evidence=quoted("RecursionError" + (f": {clues.message}" if clues.message else "")),
        next_step=say(
            "give {function} the case in which it returns without calling itself",
            function=own.function or "it",
        ),
    )


def _interrupted(clues: Clues) -> Explanation | None:
    """Vague: the interrupt may have come while an error of the program was being handled."""
    if clues.kind != "KeyboardInterrupt":
        return None
    is_training = clues.has_file("minigpt/train/")
    return Explanation(
        name="python.interrupted",
        cause=say("Ctrl-C ended the run: this is no error; the place is where it happened to be"),
        evidence=quoted(clues.message or clues.kind),
        next_step=say(
            "python -m minigpt.train --resume" if is_training else "run the same command again"
        ),
        is_vague=True,
    )


def _pipe(clues: Clues) -> Explanation | None:
    """Output that nobody reads, or a process that ended while it was sent its parts."""
    if clues.kind != "BrokenPipeError":
        return None
    if clues.has_file("popen_spawn", "/multiprocessing/"):
        cause = say(
            "a process ended while this one sent to it; on Windows a script without a "
            "main guard does this"
        )
        step = say("put what runs as a script under if __name__ == '__main__':")
    else:
        cause = say(
            "nobody reads the output any more, as after `| head`; the program itself did not fail"
        )
        step = say("write to a file in the place of the pipe: > log.txt")
    return Explanation(name="python.pipe", cause=cause, evidence=quoted(clues.kind), next_step=step)


RULES: tuple[Rule, ...] = (
    _tuple_attribute,
    _none,
    _key,
    _keyword,
    _recursion,
    _interrupted,
    _pipe,
    rule(
        "python.missing_argument",
        "TypeError",
        r"(?P<called>[\w.]*forward)\(\) missing (?P<count>\d+) required positional "
        r"arguments?: (?P<names>'[^\n]{1,120})",
        "{called} was called without {names}",
        "call the model with {names}",
    ),
    rule(
        "python.no_init",
        "AttributeError",
        r"cannot assign (?P<what>\w+) before Module\.__init__\(\) call",
        "a module's __init__ sets a {what} before super().__init__()",
        "make super().__init__() the first line of that __init__",
    ),
    rule(
        "python.attribute",
        "AttributeError",
        r"'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'\. Did you mean: "
        r"'(?P<right>\w+)'",
        "{owner} has no `{name}`; the interpreter knows a `{right}`",
        "write {right} in the place of {name}, if that is meant",
    ),
    rule(
        "python.name",
        "NameError",
        r"name '(?P<name>\w+)' is not defined(?:\. Did you (?:mean: "
        r"'(?P<right>\w+)'|forget to import '(?P<module>\w+)'))?",
        "nothing is called `{name}` at this place: a misspelling, a missing "
        "import, or a cell that was not run",
        "define or import {name} before this line",
    ),
    rule(
        "python.unbound",
        "UnboundLocalError",
        r"(?:cannot access local variable|local variable) '(?P<name>\w+)' (?:where it is not "
        r"associated with a value|referenced before assignment)",
        "`{name}` has no value yet: the line that sets it did not run before this one, as in a "
        "loop of no rounds or a branch that was not taken",
        "give {name} a value before that loop or branch",
    ),
    rule(
        "python.syntax",
        "SyntaxError IndentationError TabError",
        r"(?P<what>[^\n]+)",
        "Python could not read the file: {what}; the fault is at the marked place "
        "or just before it",
        "correct the marked line or the one before it",
    ),
)
