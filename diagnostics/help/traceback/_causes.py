"""Which rule explains a traceback: the most specific topics first, the language's own last."""

from __future__ import annotations

import itertools
from dataclasses import replace

from diagnostics._text import say
from diagnostics.help.traceback._cause_arguments import RULES as ARGUMENTS
from diagnostics.help.traceback._cause_batches import RULES as BATCHES
from diagnostics.help.traceback._cause_cuda import RULES as CUDA
from diagnostics.help.traceback._cause_devices import RULES as DEVICES
from diagnostics.help.traceback._cause_files import RULES as FILES
from diagnostics.help.traceback._cause_gradients import RULES as GRADIENTS
from diagnostics.help.traceback._cause_imports import RULES as IMPORTS
from diagnostics.help.traceback._cause_index import RULES as INDEX
from diagnostics.help.traceback._cause_json import RULES as JSON
from diagnostics.help.traceback._cause_loss import RULES as LOSS
from diagnostics.help.traceback._cause_memory import RULES as MEMORY
from diagnostics.help.traceback._cause_metrics import RULES as METRICS
from diagnostics.help.traceback._cause_optimizer import RULES as OPTIMIZER
from diagnostics.help.traceback._cause_own import RULES as OWN
from diagnostics.help.traceback._cause_processes import RULES as PROCESSES
from diagnostics.help.traceback._cause_python import RULES as PYTHON
from diagnostics.help.traceback._cause_shapes import RULES as SHAPES
from diagnostics.help.traceback._cause_state import RULES as STATE
from diagnostics.help.traceback._cause_transformers import RULES as TRANSFORMERS
from diagnostics.help.traceback._cause_types import RULES as TYPES
from diagnostics.help.traceback._rules import Clues, Explanation, Rule
from diagnostics.help.traceback._trace import Trace

TARGET = "--target YOUR_FILE.py:build"  # build returns the Pipeline of the person's own model
ASKED_MOST = 8  # exceptions of one chain or group

RULES: tuple[Rule, ...] = (
    *OWN,
    *MEMORY,
    *CUDA,
    *DEVICES,
    *STATE,
    *OPTIMIZER,
    *BATCHES,
    *METRICS,
    *INDEX,
    *LOSS,
    *SHAPES,
    *ARGUMENTS,
    *TYPES,
    *GRADIENTS,
    *TRANSFORMERS,
    *FILES,
    *JSON,
    *PROCESSES,
    *IMPORTS,
    *PYTHON,
)


def explain(trace: Trace, text: str) -> tuple[Trace, Explanation] | None:
    """Return the exception of the chain that a rule explains, and the explanation; or None.

    The last exception goes first. One that it was raised from is asked where the last one has no
    rule or a vague one, and the members of a group after the group itself.
    """
    vague: tuple[Trace, Explanation] | None = None
    members = (leaf for member in trace.members for leaf in _telling(member))
    for told in itertools.islice(itertools.chain(_telling(trace), members), ASKED_MOST):
        explanation = _first(Clues(told, text))
        if explanation is not None and not explanation.is_vague:
            return told, explanation
        if explanation is not None and vague is None:
            vague = told, explanation
    return vague


def _telling(trace: Trace) -> tuple[Trace, ...]:
    """Return the chain up to the report of another process, which only repeats it."""
    for length, told in enumerate(trace.chain, 1):
        if told.joined == "original":
            return trace.chain[:length]
    return trace.chain


def _first(clues: Clues) -> Explanation | None:
    for read in RULES:
        explanation = read(clues)
        if explanation is not None:
            return _of_own_model(explanation, clues)
    return None


def _of_own_model(explanation: Explanation, clues: Clues) -> Explanation:
    """Without a target the checks read a Mini-GPT's checkpoint, which is another model."""
    step = explanation.next_step
    if not step.startswith("python -m diagnostics --only") or clues.is_course:
        return explanation
    return replace(explanation, next_step=say("{step} {target}", step=step, target=TARGET))
