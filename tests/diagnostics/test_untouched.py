"""All that is the user's comes back: after a whole run, an error, Ctrl-C at any call."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, diagnose
from exercises._lab import Lab
from minigpt import MiniGPT

LEARNING = ("overfit", "honesty")


class Counting(MiniGPT):
    """A Mini-GPT whose calls are counted over all copies; call number `raise_at` raises."""

    calls = 0
    raise_at = -1
    error: type[BaseException] = KeyboardInterrupt

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Count, and raise when it is time."""
        Counting.calls += 1
        if Counting.calls == Counting.raise_at:
            raise Counting.error("on purpose")
        return super().forward(*arguments, **named)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A laboratory, and a fresh count."""
    Counting.calls, Counting.raise_at, Counting.error = 0, -1, KeyboardInterrupt
    with Lab() as made:
        yield made


def make_pipeline(lab: Lab) -> tuple[Pipeline, torch.optim.Optimizer]:
    """A model in the middle of a run: mixed modes, gradients, hooks, moments."""
    model = Counting(lab.config)
    optimizer = lab.make_optimizer(model)
    inputs, targets = lab.get_batch(lab.train_ids)
    _, loss = model(inputs, targets)
    assert loss is not None
    loss.backward()
    optimizer.step()
    model.register_buffer("unused", torch.arange(3.0), persistent=False)
    first = next(module for module in model.modules() if isinstance(module, nn.LayerNorm))
    first.eval()
    first.register_forward_hook(lambda *_: None)
    first.register_full_backward_hook(lambda *_: None)
    return lab.pipeline(model=model), optimizer


def fingerprint(pipeline: Pipeline, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Hash each thing of the user's that a check could have changed."""
    model = pipeline.model
    return {
        "weights": _hash(*model.named_parameters(), *model.named_buffers()),
        "storages": _hash(*(p.data_ptr() for p in model.parameters())),
        "identities": _hash(*map(id, [*model.parameters(), *model.buffers(), *model.modules()])),
        "gradients": _hash(*((name, p.grad) for name, p in model.named_parameters())),
        "frozen": _hash(*(p.requires_grad for p in model.parameters())),
        "modes": _hash(*(module.training for module in model.modules())),
        "hooks": _hash(
            *(
                (key, list(value))
                for module in model.modules()
                for key, value in vars(module).items()
                if "hooks" in key and value is not None and not isinstance(value, bool)
            )
        ),
        "attributes": _hash(*(sorted(vars(module)) for module in model.modules())),
        "optimizer": _hash(optimizer.state_dict()),
        "ids": _hash(pipeline.train_ids, pipeline.val_ids),
        "tokenizer": _hash(pipeline.tokenizer.chars, pipeline.tokenizer.fingerprint),
        "files": _hash(*(path.read_bytes() for path in map(Path, pipeline.files))),
        "python random": _hash(random.getstate()),
        "numpy random": _hash(repr(np.random.get_state())),
        "torch random": _hash(torch.get_rng_state()),
        "switches": _hash(
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_autocast_enabled("cpu"),
        ),
        "process": _hash(Path.cwd(), sorted(os.environ.items()), len(warnings.filters)),
    }


def _hash(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(pickle.dumps(_plain(part)))
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return tensors as their bytes, wherever they lie."""
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes())
    if isinstance(value, dict):
        return [(str(key), _plain(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return repr(value)


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of what is not as it was."""
    return [name for name, value in before.items() if after[name] != value]


def test_after_a_whole_run(lab: Lab) -> None:
    """Every check, the learning ones included, on a pipeline with every part."""
    pipeline, optimizer = make_pipeline(lab)
    before = fingerprint(pipeline, optimizer)
    report = diagnose(pipeline, overfit_steps=20)
    assert changed(before, fingerprint(pipeline, optimizer)) == []
    assert report.errors == ()
    skipped = [r.check for r in report.results if r.status is Status.SKIP]
    assert skipped == [], "a check that did not run proves nothing here"


def test_the_fingerprint_sees_each_kind_of_change(lab: Lab) -> None:
    """One change of each kind, and the name under which it shows; the test above is not blind."""
    pipeline, optimizer = make_pipeline(lab)
    model = pipeline.model
    kinds = {
        "weights": lambda: next(model.parameters()).data.add_(1),
        "gradients": lambda: model.zero_grad(),
        "frozen": lambda: model.requires_grad_(False),
        "modes": lambda: model.eval(),
        "hooks": lambda: model.register_forward_pre_hook(lambda *_: None),
        "attributes": lambda: setattr(model, "left_behind", 1),
        "optimizer": lambda: optimizer.param_groups[0].update(lr=3.0),
        "ids": lambda: pipeline.train_ids.add_(1),  # type: ignore[union-attr]
        "python random": random.random,
        "numpy random": np.random.rand,
        "torch random": lambda: torch.rand(1),
        "files": lambda: Path(pipeline.files[0]).write_text("other"),
    }
    state = random.getstate(), np.random.get_state()
    try:
        for kind, change in kinds.items():
            before = fingerprint(pipeline, optimizer)
            change()
            assert kind in changed(before, fingerprint(pipeline, optimizer))
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_after_an_error_at_any_call_of_the_model(lab: Lab, error: type[BaseException]) -> None:
    """The model raises at its first call and at some later ones."""
    pipeline, optimizer = make_pipeline(lab)
    Counting.calls = 0
    diagnose(pipeline, skip=LEARNING)
    total, Counting.error = Counting.calls, error
    assert total > 100
    before = fingerprint(pipeline, optimizer)
    for raise_at in (1, total // 11, total // 3, 3 * total // 4):
        Counting.calls, Counting.raise_at = 0, raise_at
        try:
            diagnose(pipeline, skip=LEARNING)
        except (KeyboardInterrupt, SystemExit):
            assert error is not RuntimeError, "an error of the model's is a result"
        Counting.raise_at = -1
        assert changed(before, fingerprint(pipeline, optimizer)) == [], f"call {raise_at}"


@pytest.mark.parametrize(
    "part", ["get_batch", "make_optimizer", "train_step", "evaluate", "generate", "save", "load"]
)
def test_after_a_part_that_changes_the_model_and_raises(lab: Lab, part: str) -> None:
    """The part damages the model it gets, or the one it knows, and raises Ctrl-C in the middle."""
    pipeline, optimizer = make_pipeline(lab)
    before = fingerprint(pipeline, optimizer)

    def damaging(*arguments: Any) -> Any:
        for model in [pipeline.model, *(a for a in arguments if isinstance(a, nn.Module))]:
            model.eval()
            with torch.no_grad():
                next(model.parameters()).add_(1.0)
        torch.manual_seed(5)
        raise KeyboardInterrupt

    broken = lab.pipeline(model=pipeline.model, **{part: damaging})
    with pytest.raises(KeyboardInterrupt):
        diagnose(broken, skip=LEARNING)
    assert changed(before, fingerprint(pipeline, optimizer)) == []
