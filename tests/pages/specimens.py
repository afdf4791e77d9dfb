"""Reports of every kind, and the pages made of them; each is built once in a process."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Report, diagnose
from diagnostics.page._run_history import RunHistory
from exercises._lab import Lab
from minigpt import MiniGPT, MiniGPTConfig
from tests.diagnostics.tiny import TinyGPT
from tests.pages import hostile, runs

# The size that people train first on a laptop: 6 layers, 384 wide, 256 tokens; 10.8 million.
LARGE = MiniGPTConfig(vocab_size=65, block_size=256, embedding_dim=384, num_heads=6, num_layers=6)

REFRESH_SECONDS = 3600  # of a run page: not while a test looks at it


# ---- reports -------------------------------------------------------------------------------


@functools.cache
def healthy() -> Report:
    """Everything given, everything measured."""
    with Lab() as lab:
        return diagnose(lab.pipeline())


@functools.cache
def failing() -> Report:
    """One bug at the root, and the failures that follow from it."""
    return _with_bug("break_causal_independence")


@functools.cache
def failing_early() -> Report:
    """An id outside of the vocabulary: upstream of nearly everything."""
    return _with_bug("break_range")


@functools.cache
def raising() -> Report:
    """Parts of the user's that raise: an error is neither good nor bad news about the model."""

    def raise_it(*_arguments: Any) -> Any:
        raise RuntimeError("expected scalar type Float but found Half, in a part of the user's")

    with Lab() as lab:
        return diagnose(lab.pipeline(evaluate=raise_it, generate=raise_it), fast=True)


@functools.cache
def skipping() -> Report:
    """A model and nothing else: most checks have nothing to measure."""
    return diagnose(Pipeline(TinyGPT()), fast=True)


@functools.cache
def hostile_report() -> Report:
    """Modules, text, tokens, messages, environment and notes that would break a page."""
    report = diagnose(_hostile_pipeline(), fast=True)
    results = list(report.results)
    for index, text in enumerate(hostile.TEXTS.values()):  # a check of another author's
        at = index % len(results)
        results[at] = dataclasses.replace(
            results[at],
            claim=f"{results[at].claim} {text}",
            causes=(*results[at].causes, text),
            next_step=f"{results[at].next_step} {text}",
            where=f"{results[at].where} {text}",
        )
    environment = dict.fromkeys(report.environment, hostile.EVERYTHING)
    return dataclasses.replace(
        report,
        results=tuple(results),
        environment=environment | {hostile.EVERYTHING: hostile.TEXTS["long"]},
        notes=(*report.notes, *hostile.TEXTS.values()),
    )


def _with_bug(exercise: str) -> Report:
    bug = importlib.import_module(f"exercises.{exercise}").EXERCISE.bugs[0]
    with Lab() as lab:
        try:
            return diagnose(bug.break_it(lab))
        finally:
            lab.restore()


class _HostileTokenizer:
    """One piece of hostile text to an id."""

    pieces = (*hostile.TEXTS.values(), *"abcdefgh")
    vocab_size = len(pieces)

    def encode(self, text: str) -> list[int]:
        return [max(self.pieces.index(letter), 0) for letter in text if letter in "abcdefgh"]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[int(index)] for index in ids)


def _hostile_pipeline() -> Pipeline:
    tokenizer = _HostileTokenizer()
    ids = torch.randint(tokenizer.vocab_size, (2000,), generator=torch.Generator().manual_seed(0))
    model = TinyGPT(tokenizer.vocab_size, L=3)
    model.blocks = nn.ModuleDict({"0": model.blocks[0], hostile.MODULE_NAME: model.blocks[1]})
    model.forward = functools.partial(_forward, model)  # type: ignore[method-assign]

    def evaluate(_model: nn.Module, _ids: Tensor) -> float:
        raise ValueError(hostile.EVERYTHING)

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        rows = data[: 4 * 12 + 1]
        return rows[:-1].view(4, 12), rows[1:].view(4, 12)

    return Pipeline(
        model,
        tokenizer=tokenizer,
        train_text=hostile.EVERYTHING,
        train_ids=ids[:1800],
        val_ids=ids[1800:],
        get_batch=get_batch,
        evaluate=evaluate,
        files=(f"/nowhere/{hostile.EVERYTHING.replace('/', '')[:200]}",),
    )


def _forward(
    model: TinyGPT, ids: Tensor, targets: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    x = model.tokens(ids)
    for block in model.blocks.values():
        x = block(x)
    logits = model.head(model.norm(x))
    return logits, None if targets is None else model.loss_of(logits, targets)


# ---- their contents ------------------------------------------------------------------------


def stored_hostile() -> dict[str, Any]:
    """A stored report in which every string is hostile, those that no check writes, too."""
    return hostile.spoil(failing().to_dict(timings=True))


def large() -> dict[str, Any]:
    """The report of a model of 10.8 million parameters, its numbers made up."""
    model = MiniGPT(LARGE)
    names = [name for name, _ in model.named_parameters()]
    modules = [name for name, _ in model.named_modules() if name]
    content = healthy().to_dict(timings=True)
    numbers = {result["check"]: result["numbers"] for result in content["results"]}
    by_name = {name: 0.1 + 0.37 * math.sin(index) ** 2 for index, name in enumerate(names)}
    numbers["gradients"]["norms"] = by_name
    numbers["gradients"]["norm_by_layer"] = {f"blocks.{layer}": 0.1 * layer for layer in range(6)}
    numbers["optimizer"]["update_to_weight_by_name"] = by_name
    numbers["optimizer"]["adam_first_step"] = by_name
    numbers["forward_hooks"]["rms"] = {name: 1.0 + len(name) / 7 for name in modules}
    numbers["causal_independence"]["influence"] = {
        "length": 256,
        "step": 4,
        "rows": [
            [float(f"{math.exp(b - a) / 7:.3g}") if b <= a else 0.0 for b in range(64)]
            for a in range(64)
        ],
    }
    numbers["range"]["histogram"] = {
        "vocab_size": 50257,
        "bins": [[393 * k, 393 * k + 392, 10**6 // (k + 1)] for k in range(128)],
        "unused": 1234,
        "top": [[k, 10**5 // (k + 1)] for k in range(10)],
    }
    return content


def large_measured() -> dict[str, Any]:
    """The same, really measured; takes minutes."""
    ids = torch.randint(65, (20_000,), generator=torch.Generator().manual_seed(0))

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - 256, (4,))
        rows = torch.stack([data[start : start + 257] for start in starts.tolist()])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    pipeline = Pipeline(
        MiniGPT(LARGE),
        train_ids=ids,
        get_batch=get_batch,
        make_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        fresh=True,
    )
    measured = ("range", "shift", "forward_hooks", "causal_independence", "gradients", "optimizer")
    return diagnose(pipeline, only=measured).to_dict(timings=True)


CONTENTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "healthy": lambda: healthy().to_dict(timings=True),
    "failing": lambda: failing().to_dict(timings=True),
    "failing-early": lambda: failing_early().to_dict(),
    "raising": lambda: raising().to_dict(timings=True),
    "skipping": lambda: skipping().to_dict(),
    "hostile": lambda: hostile_report().to_dict(timings=True),
    "hostile-stored": stored_hostile,
    "large": large,
}


# ---- pages ---------------------------------------------------------------------------------


@functools.cache
def page(name: str) -> str:
    """Return the specimen of this name as a whole page of HTML."""
    return PAGES[name]()


def _report_page(name: str) -> str:
    from diagnostics.page._report_page import render_report_page

    return render_report_page(CONTENTS[name]())


def _notebook(report: Report) -> str:
    """A page such as a notebook is, around what it shows of a report."""
    fragment: str = report._repr_html_()  # type: ignore[attr-defined]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A notebook</title>'
        '<meta name="viewport" content="width=device-width"></head>'
        f"<body><main><h1>A notebook</h1><h2>A cell</h2>{fragment}</main></body></html>"
    )


def _run_page(make: Callable[[], RunHistory]) -> str:
    from diagnostics.page._run_page import render_run_page

    return render_run_page(make(), refresh_seconds=REFRESH_SECONDS)


PAGES: Mapping[str, Callable[[], str]] = {
    **{name: functools.partial(_report_page, name) for name in CONTENTS},
    "notebook-healthy": lambda: _notebook(healthy()),
    "notebook-failing": lambda: _notebook(failing()),
    "notebook-hostile": lambda: _notebook(hostile_report()),
    "run-begun": lambda: _run_page(runs.begun),
    "run-running": lambda: _run_page(runs.running),
    "run-finished": lambda: _run_page(runs.finished),
    "run-failed": lambda: _run_page(runs.failed),
    "run-hostile": lambda: _run_page(runs.hostile_run),
}
