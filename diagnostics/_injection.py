"""What an injected bug is, and the tools with which it is put into a copy of a pipeline.

A bug is put where the user's own code meets it: around a part that the pipeline brings, or into
modules of an independent copy of the model. The pipeline that is given is never changed.

Shapes: B batch, T time, C channels, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._clone import clone
from diagnostics._guard import same_bytes
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._result import CheckResult
from diagnostics._text import Text, say

Inject = Callable[[Pipeline], Pipeline]
Change = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (module, its first input, x) -> new x


class CannotInject(Exception):  # noqa: N818 - not an error: the bug has no place in this pipeline
    """The bug has no place in this pipeline; the message says why, `unlock` what would give one."""

    def __init__(self, why: Text, *, unlock: Text | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.unlock = unlock


@dataclass(frozen=True)
class Injection:
    """One bug, and the verdict that must name it.

    id: unique; begins with the check that must see it, as in "shift.identical".
    title: one sentence of what is done.    inject: (pipeline) -> a changed copy, or CannotInject.
    needs: parts of the pipeline without which the bug has no place.
    reasons: the reason ids that are right; none given: the id itself.
    """

    id: str
    title: str
    inject: Inject
    needs: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def check(self) -> str:
        """The check that must see it."""
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        """The id without its check."""
        return self.id.partition(".")[2]

    def apply(self, pipeline: Pipeline) -> Pipeline:
        """Return a changed copy of the pipeline. Raises CannotInject."""
        missing = [part for part in self.needs if not _has(pipeline, part)]
        if missing:
            names = ", ".join(missing)
            raise CannotInject(
                say("the pipeline brings no {names}", names=names),
                unlock=say("give Pipeline {names}", names=names),
            )
        return self.inject(pipeline)

    def is_named_by(self, result: CheckResult) -> bool:
        """Whether a verdict names this bug."""
        return result.reason in (self.reasons or (self.id,))


def _has(pipeline: Pipeline, part: str) -> bool:
    value = getattr(pipeline, part)
    return value is not None and value != ()


# ---- parts -----------------------------------------------------------------------------------


def replaced(**changes: Callable[[Pipeline], Any]) -> Inject:
    """Return the injection that replaces parts: each is made from the healthy pipeline."""

    def inject(pipeline: Pipeline) -> Pipeline:
        made = {name: make(pipeline) for name, make in changes.items()}
        return dataclasses.replace(pipeline, **made)

    return inject


@contextmanager
def patched(owner: Any, **methods: Any) -> Iterator[None]:
    """Put methods on one object, and take them off again."""
    before = {name: vars(owner)[name] for name in methods if name in vars(owner)}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name in methods:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


# ---- what the model returns ------------------------------------------------------------------

Outcome = tuple[Tensor, Tensor]  # logits (B, T, W), loss


def changed_output(
    change: Callable[[Tensor, Tensor, Tensor], Any], *, with_loss: bool = False
) -> Inject:
    """Change what a forward call returns: change(logits, loss, inputs) -> what comes instead.

    with_loss: the bug is about the loss, so the model, or Pipeline forward, has to return one.
    """

    def inject(pipeline: Pipeline) -> Pipeline:
        call = caller(pipeline, with_loss=with_loss)

        def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
            logits, loss = call(model, inputs, targets)
            return change(logits, loss, inputs)

        return dataclasses.replace(pipeline, forward=forward)

    return inject


def changed_loss(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Inject:
    """Change how the loss is computed: formula(logits (B, T, V), targets (B, T), loss) -> loss.

    logits and targets are aligned, also where the model shifts inside.
    """

    def inject(pipeline: Pipeline) -> Pipeline:
        call = caller(pipeline, with_loss=True)
        inside = pipeline.labels == "same"

        def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> Outcome:
            logits, loss = call(model, inputs, targets)
            if inside:
                return logits, formula(logits[:, :-1], targets[:, 1:], loss)
            return logits, formula(logits, targets, loss)

        return dataclasses.replace(pipeline, forward=forward)

    return inject


def caller(
    pipeline: Pipeline, *, with_loss: bool = False
) -> Callable[[nn.Module, Tensor, Tensor], Outcome]:
    """Return (model, inputs, targets) -> (logits, loss), as the healthy pipeline calls."""
    adapter = Probe(pipeline).adapter
    if with_loss and not adapter.has_loss:
        raise CannotInject(
            say("the model returns no loss"),
            unlock=say("give Pipeline forward, which returns (logits, loss)"),
        )

    def call(model: nn.Module, inputs: Tensor, targets: Tensor) -> Outcome:
        return adapter.loss(model, inputs, targets)

    return call


# ---- modules of the model --------------------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """A module without children, as one forward call used it."""

    path: str
    module: nn.Module
    given: Tensor | None  # its first argument
    output: Tensor  # the first tensor that it returned


def changed_model(
    edit: Callable[[Probe, nn.Module], None], *, visible: bool = True, fresh: bool = True
) -> Inject:
    """Edit an independent copy of the model in place, and every model that make_model gives.

    visible: an edit that moves no prediction is no bug in this model: CannotInject.
    fresh: False: what make_model gives stays as it is.
    """

    def inject(pipeline: Pipeline) -> Pipeline:
        probe = Probe(pipeline)
        model = independent_copy(probe)
        edit(probe, model)
        make = pipeline.make_model

        def make_model() -> nn.Module:
            assert make is not None
            fresh = make()
            if fresh is pipeline.model:
                return model
            edit(probe, fresh)
            return fresh

        changed = dataclasses.replace(
            pipeline, model=model, make_model=make_model if make is not None and fresh else make
        )
        if visible and _predicts_the_same(probe, Probe(changed)):
            raise CannotInject(say("it moves no prediction of this model"))
        return changed

    return inject


def changed_module(
    find: Callable[[Probe, nn.Module], nn.Module], change: Change, *, visible: bool = True
) -> Inject:
    """Change the output of one module of the copy, in both modes."""

    def edit(probe: Probe, model: nn.Module) -> None:
        change_output(find(probe, model), change)

    return changed_model(edit, visible=visible)


def change_output(module: nn.Module, change: Change) -> None:
    """Hook a module: its first output tensor x becomes change(module, its first input, x)."""

    def hook(module: nn.Module, given: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return change(module, given[0], output)
        return (change(module, given[0], output[0]), *output[1:])

    module.register_forward_hook(hook)


def independent_copy(probe: Probe) -> nn.Module:
    """Return a copy of the model that computes with weights of its own."""
    pipeline = probe.pipeline
    if probe.copies_are_independent:
        return clone(pipeline.model)
    if pipeline.make_model is not None:
        with probe.seeded("make_model"):
            fresh = pipeline.make_model().to(probe.device)
        if fresh is not pipeline.model:
            with torch.no_grad():
                try:
                    fresh.load_state_dict(pipeline.model.state_dict())
                except RuntimeError as error:
                    raise CannotInject(
                        say("make_model gives a model of another shape, and no copy is possible")
                    ) from error
            return fresh
    raise CannotInject(
        say("the model cannot be copied into one that computes with weights of its own"),
        unlock=say("give Pipeline make_model"),
    )


def called_modules(probe: Probe, model: nn.Module) -> tuple[Tensor, list[Called]]:
    """Return the ids (B, T) of one forward call, and the leaf modules in the order of their use."""
    found: list[Called] = []
    handles = []
    for path, module in model.named_modules():
        if any(True for _ in module.children()):
            continue

        def hook(module: nn.Module, given: Any, output: Any, path: str = path) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor) and first.is_floating_point():
                argument = given[0] if given and isinstance(given[0], Tensor) else None
                found.append(Called(path, module, argument, first.detach()))

        handles.append(module.register_forward_hook(hook))
    # B = 3 and T = 5 occur in no usual width, so that (B, T, C) is recognised
    tokens = probe.tokens(3, min(5, probe.probe_length), "places") % probe.usable_vocab_size
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        probe._raw_call(model, tokens)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return tokens, found


def token_embedding(probe: Probe, model: nn.Module) -> nn.Module:
    """Return the module that turns the ids (B, T) into vectors (B, T, C)."""
    tokens, calls = called_modules(probe, model)
    for call in calls:
        if call.given is not None and call.output.shape[:-1] == tokens.shape:
            given = call.given
            if not given.is_floating_point() and torch.equal(given.cpu(), tokens.cpu()):
                return call.module
    raise CannotInject(say("no module of the model is called with the token ids"))


def middle_module(probe: Probe, model: nn.Module) -> nn.Module:
    """Return a module between the embedding and the logits that gives (B, T, C) once a call."""
    tokens, calls = called_modules(probe, model)
    paths = [call.path for call in calls]
    inside = [
        call.module
        for call in calls
        if call.output.shape[:-1] == tokens.shape
        and paths.count(call.path) == 1
        and (call.given is None or call.given.is_floating_point())
    ][:-1]  # the last one gives the logits
    if not inside:
        raise CannotInject(say("the model has no module between its embedding and its logits"))
    return inside[len(inside) // 2]


def _predicts_the_same(healthy: Probe, changed: Probe) -> bool:
    """Whether two models agree bit for bit, in both modes, on a row with a pad and on one token."""
    tokens = healthy.tokens(3, healthy.probe_length, "visible") % healthy.usable_vocab_size
    if healthy.pipeline.pad_id is not None:
        tokens[0, -1] = healthy.pipeline.pad_id
    return all(
        same_bytes(a, b)
        for train in (False, True)
        for a, b in zip(
            _predictions(healthy, tokens, train), _predictions(changed, tokens, train), strict=True
        )
    )


def _predictions(probe: Probe, tokens: Tensor, train: bool) -> list[Tensor]:
    with probe.model(jitter=JITTER_STD, train=train) as model, torch.no_grad():
        return [tensor for x in (tokens, tokens[:, :1]) for tensor in probe._raw_call(model, x)]


def rebuilt(raw: Any, inputs: Tensor, targets: Tensor) -> Any:
    """Return a raw batch, a pair or a dictionary, with other inputs and targets."""
    if not isinstance(raw, Mapping):
        return (inputs, targets, *raw[2:])
    names = {"inputs": ("input_ids", "inputs", "x"), "targets": ("labels", "targets", "y")}
    found = {kind: next(n for n in options if n in raw) for kind, options in names.items()}
    return {**raw, found["inputs"]: inputs, found["targets"]: targets}
