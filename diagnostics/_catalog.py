"""The catalogue: every check in the order in which a report shows it. Imports no torch."""

from __future__ import annotations

import ast
import difflib
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

STAGES = (
    "environment",
    "files",
    "tokenizer",
    "ids",
    "batches",
    "shapes",
    "loss",
    "causality",
    "gradients",
    "optimizer",
    "validation",
    "checkpoint",
    "generation",
    "overfit",
)

FAMILIES = ("correctness", "numerical", "optimisation", "evaluation")


@dataclass(frozen=True)
class Row:
    """One check: its stage, its family of failure, and the later checks its failure explains.

    learns: it trains a model for many steps.    forks: it starts processes.
    `--fast` leaves out both kinds.
    """

    name: str
    stage: str
    family: str
    question: str
    explains: tuple[str, ...] = ()
    learns: bool = False
    forks: bool = False

    @property
    def path(self) -> Path:
        """The file that holds the check."""
        return Path(__file__).with_name(f"{self.name}.py")


# An explained check is marked as a consequence when both fail: mend the first one first.
_ROWS = (
    Row(
        "environment",
        "environment",
        "correctness",
        "Can this Python, this torch and these global switches train the model at all?",
        explains=("batches", "modes", "shapes", "gradients", "optimizer", "overfit", "honesty"),
    ),
    Row(
        "files",
        "files",
        "correctness",
        "Are the files that the pipeline reads there, whole and current?",
        explains=("roundtrip", "fingerprint", "range", "text", "split"),
    ),
    Row(
        "roundtrip",
        "tokenizer",
        "correctness",
        "Does decode(encode(text)) give the text back, character by character?",
        explains=("fingerprint", "range", "text"),
    ),
    Row(
        "fingerprint",
        "tokenizer",
        "correctness",
        "Is this the very tokenizer that the checkpoint and the ids were made with?",
        explains=("range", "text", "initial_loss"),
    ),
    Row(
        "range",
        "ids",
        "correctness",
        "Is every token id a whole number from 0 to V - 1?",
        explains=(
            "text",
            "split",
            "batches",
            "shapes",
            "loss",
            "initial_loss",
            "gradients",
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "text",
        "ids",
        "correctness",
        "Do the ids decode to readable text, and to the text that they were made from?",
        explains=("split",),
    ),
    Row(
        "split",
        "ids",
        "evaluation",
        "Is the validation text long enough, and text that is never trained on?",
        explains=("batches", "evaluation"),
    ),
    Row(
        "shift",
        "batches",
        "correctness",
        "Is every target the token right after its input, the last one included?",
        explains=("batches", "loss", "overfit", "honesty"),
    ),
    Row(
        "batches",
        "batches",
        "correctness",
        "Do batches have the right shape, type and device, and do they vary and cover the data?",
        explains=("shapes", "loss", "overfit", "honesty"),
    ),
    Row(
        "modes",
        "shapes",
        "evaluation",
        "Is eval mode repeatable, and does train mode differ from it by dropout only?",
        explains=(
            "causal_independence",
            "checkpoint",
            "resume",
            "evaluation",
            "generation",
            "loss",
            "optimizer",
            "training_step",
            "accumulation",
            "distributed",
        ),
    ),
    Row(
        "shapes",
        "shapes",
        "correctness",
        "Are the logits (B, T, V) for every batch size and length, with targets and without?",
        explains=(
            "loss",
            "initial_loss",
            "batch_independence",
            "causal_independence",
            "prefix",
            "positions",
            "context",
            "padding",
            "gradients",
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "forward_hooks",
        "shapes",
        "numerical",
        "Is every module's output finite and of a sane size, from the first to the last?",
        explains=(
            "loss",
            "initial_loss",
            "batch_independence",
            "causal_independence",
            "prefix",
            "positions",
            "context",
            "padding",
            "gradients",
            "optimizer",
            "training_step",
            "evaluation",
            "generation",
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "loss",
        "loss",
        "correctness",
        "Is the reported loss the cross-entropy of these logits with these targets?",
        explains=("initial_loss", "gradients", "overfit", "honesty"),
    ),
    Row(
        "initial_loss",
        "loss",
        "numerical",
        "Does a fresh model start at ln V, and a trained one clearly below?",
        explains=(
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "batch_independence",
        "causality",
        "correctness",
        "Does each row of a batch predict the same whatever the other rows hold?",
        explains=(
            "causal_independence",
            "prefix",
            "positions",
            "context",
            "padding",
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "causal_independence",
        "causality",
        "correctness",
        "Does what position t predicts depend on tokens 0 to t only?",
        explains=("prefix", "context", "padding", "overfit", "honesty"),
    ),
    Row(
        "prefix",
        "causality",
        "correctness",
        "Are the logits of a cut row the first logits of the whole row?",
        explains=("positions", "context", "padding"),
    ),
    Row(
        "positions",
        "causality",
        "correctness",
        "Does every position get a place of its own, and is the order of tokens used?",
        explains=("context", "padding"),
    ),
    Row(
        "context",
        "causality",
        "correctness",
        "Does what position t predicts depend on token t and on tokens before it?",
        explains=("padding", "overfit", "honesty"),
    ),
    Row(
        "padding",
        "causality",
        "correctness",
        "Does a row predict the same alone as in a padded batch, left or right?",
    ),
    Row(
        "gradients",
        "gradients",
        "optimisation",
        "Does every trainable parameter get a finite gradient that is not zero?",
        explains=("optimizer", "training_step", "distributed", "overfit", "honesty"),
    ),
    Row(
        "optimizer",
        "optimizer",
        "optimisation",
        "Does one step move every trainable parameter, by a sane amount?",
        explains=(
            "overfit",
            "honesty",
        ),
    ),
    Row(
        "training_step",
        "optimizer",
        "optimisation",
        "Does each step use the gradient of its own batch, once, in train mode?",
        explains=("accumulation", "distributed", "schedule", "resume"),
    ),
    Row(
        "accumulation",
        "optimizer",
        "optimisation",
        "Is one step over micro-batches one step on all their tokens?",
        explains=("distributed",),
    ),
    Row(
        "distributed",
        "optimizer",
        "correctness",
        "Do many processes, each with rows of its own, train as one process would?",
        forks=True,
    ),
    Row(
        "schedule",
        "optimizer",
        "optimisation",
        "Does the learning rate rise, decay over the run, and reach every group?",
    ),
    Row(
        "evaluation",
        "validation",
        "evaluation",
        "Is the reported loss the mean nats per token, in eval mode, leaving all as it was?",
    ),
    Row(
        "checkpoint",
        "checkpoint",
        "evaluation",
        "Does a saved and loaded model give the same logits, bit for bit?",
        explains=("resume",),
    ),
    Row(
        "resume",
        "checkpoint",
        "optimisation",
        "Does a run that is stopped and loaded go on as if it had never stopped?",
    ),
    Row(
        "generation",
        "generation",
        "evaluation",
        "Is greedy text what the model's own forward calls say, also beyond the block?",
    ),
    Row(
        "sampling",
        "generation",
        "evaluation",
        "Do temperature, top-k and nucleus give the distribution of their definition?",
    ),
    Row(
        "overfit",
        "overfit",
        "optimisation",
        "Can the model memorise one batch, down to the floor that the batch allows?",
        learns=True,
    ),
    Row(
        "honesty",
        "overfit",
        "correctness",
        "Does the loss stay above the entropy of tokens that nobody can predict?",
        learns=True,
    ),
)

CATALOG: dict[str, Row] = {row.name: row for row in _ROWS}


def explain(name: str) -> str:
    """Return the check's own text: why it matters, how it is measured, what it cannot see."""
    require_names([name])
    if name not in CATALOG:
        raise ValueError(
            f"{name} is a stage; explain one of its checks: {', '.join(_expand([name]))}"
        )
    docstring = ast.get_docstring(ast.parse(CATALOG[name].path.read_text(encoding="utf-8"))) or ""
    return "\n".join(_wrap_paragraphs(docstring.splitlines()))


def select(
    only: Iterable[str] | None = None, skip: Iterable[str] = (), *, fast: bool = False
) -> list[str]:
    """Return the names to run, in the catalogue's order; both arguments take checks and stages.

    A word that names both, such as `shapes`, means the check. fast: without those that learn
    or fork, unless `only` asks for them.

    Raises ValueError for a name that is neither, with the closest ones.
    """
    wanted = None if only is None else _expand(only)
    unwanted = _expand(skip)
    if fast and wanted is None:
        unwanted |= {row.name for row in _ROWS if row.learns or row.forks}
    return [name for name in CATALOG if (wanted is None or name in wanted) and name not in unwanted]


def require_names(names: Iterable[str]) -> None:
    """Raise ValueError when a name is neither a check nor a stage."""
    known = [*CATALOG, *STAGES]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(CATALOG)}"
            raise ValueError(f"there is no check or stage named {name!r}; {hint}")


def _wrap_paragraphs(lines: list[str]) -> Iterator[str]:
    """Wrap text that was written for 100 columns to a terminal's 80; indents stay."""

    def indent_of(line: str) -> str:
        return line[: len(line) - len(line.lstrip())]

    for indent, paragraph in itertools.groupby(lines, indent_of):
        for blank, group in itertools.groupby(paragraph, lambda line: not line.strip()):
            if blank:
                yield from group
            else:
                text = " ".join(line.strip() for line in group)
                yield from textwrap.wrap(
                    text,
                    80,
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_on_hyphens=False,
                )


def _expand(names: Iterable[str]) -> set[str]:
    names = [names] if isinstance(names, str) else list(names)
    require_names(names)
    stages = {name for name in names if name not in CATALOG}  # `shapes` means the check alone
    return {row.name for row in _ROWS if row.name in names or row.stage in stages}
