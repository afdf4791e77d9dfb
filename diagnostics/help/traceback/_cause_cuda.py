"""Causes of CUDA errors, which say little: the lines that the GPU printed before say more."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

# The kernel's own line: file, kernel, block, thread, and the condition that did not hold.
_ASSERTION = re.compile(
    r"(\w+)\.cuh?:\d+: [^\n`]{0,900}?Assertion `([^\n]{1,300}?)`\s{0,200}failed"
)
_LOOKUP = re.compile(r"srcIndex < srcSelectDimSize|index out of bounds|ind_dim_size|idx_dim")
_LABEL = re.compile(r"(?:t|cur_target) >= 0 && (?:t|cur_target) < n_classes")
_PROBABILITIES = re.compile(r"input_val >= zero && input_val <= one|x >= 0 && x <= 1")
_SAMPLING = re.compile(r"probability tensor contains|cumdist|sum > 0|val >= zero")
_ASYNCHRONOUS = "launches are asynchronous, so that the line above may not be the one at fault"


def _device_assert(clues: Clues) -> Explanation | None:
    if "device-side assert triggered" not in clues.message:
        return None
    matches = list(_ASSERTION.finditer(clues.text)) if ".cu" in clues.text else []
    if not matches:
        return Explanation(
            name="cuda.assert",
            cause=say(
                "a check inside a GPU kernel failed; the text holds no line that says which one"
            ),
            evidence=quoted("device-side assert triggered"),
            others=(
                say("a token id or a position that is not below the rows of its embedding"),
                say("a label that is not below the number of classes"),
            ),
            next_step=rerun_on_cpu(clues),
        )
    first = matches[0]
    name, cause = _meaning(first[2])
    return Explanation(
        name=name,
        cause=cause,
        evidence=say(
            "{assertion}, which the GPU printed {count:time|times} ({file}.cu)",
            assertion=quoted(first[2]),
            count=sum(match[2] == first[2] for match in matches),
            file=first[1],
        ),
        next_step=rerun_on_cpu(clues),
    )


def _meaning(assertion: str) -> tuple[str, str]:
    if _LABEL.search(assertion):
        return "cuda.label", say(
            "a label is negative or not below the number of classes, the width of the logits"
        )
    if _LOOKUP.search(assertion):
        return "cuda.index", say(
            "an index is beyond the table that it reads: a token id that is not below "
            "the vocabulary, or a position that is not below the block"
        )
    if _PROBABILITIES.search(assertion):
        return "cuda.probability", say(
            "binary cross-entropy got values outside 0 to 1: logits instead of "
            "probabilities, or NaN"
        )
    if _SAMPLING.search(assertion):
        return "cuda.sampling", say(
            "sampling got probabilities that are NaN, infinite, negative, or all 0"
        )
    return "cuda.assert", say(
        "a check inside a GPU kernel failed: {assertion}", assertion=assertion
    )


def rerun_on_cpu(clues: Clues) -> str:
    """Return the one action that makes a CUDA error readable: the same run without a GPU."""
    if clues.is_notebook:
        return say(
            "restart the kernel and run first of all: import os; "
            'os.environ["CUDA_VISIBLE_DEVICES"] = ""'
        )
    command = clues.command()
    if command is None:
        return say(
            "run the same command on the CPU, where the error names the real line: "
            'CUDA_VISIBLE_DEVICES="" before it'
        )
    if command.startswith("python -m minigpt."):
        return say("{command} --device cpu", command=command)
    if clues.is_windows:
        return say('$env:CUDA_VISIBLE_DEVICES="-1"; {command}', command=command)
    return say('CUDA_VISIBLE_DEVICES="" {command}', command=command)


def _launch_failure(clues: Clues) -> Explanation | None:
    match = re.search(
        r"CUDA error: (?:an illegal memory access was encountered|unspecified launch failure"
        r"|misaligned address|an illegal instruction was encountered|CUBLAS_STATUS_\w+"
        r"|invalid configuration argument)|cuDNN error: CUDNN_STATUS_\w+",
        clues.message,
    )
    if match is None:
        return None
    return Explanation(
        name="cuda.launch",
        cause=say("the GPU stopped with an error that names no cause; {why}", why=_ASYNCHRONOUS),
        evidence=quoted(match.group()),
        next_step=rerun_on_cpu(clues),
    )


RULES: tuple[Rule, ...] = (
    _device_assert,
    _launch_failure,
    rule(
        "cuda.forked",
        "RuntimeError",
        r"Cannot re-initialize CUDA in forked subprocess",
        "a process was forked after CUDA had been used, and a forked process cannot use it again",
        "start processes anew: torch.multiprocessing.set_start_method('spawn') "
        "under if __name__ == '__main__'",
    ),
)
