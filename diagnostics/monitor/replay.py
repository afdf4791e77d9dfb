"""Where a number stopped being finite: the step is run again with everything in it watched.

The forward pass comes first: the first module that read finite numbers and gave others, and inside
it the first operation that did so. If the loss is finite, the backward pass follows: the first
module that was given a finite gradient and passed on another, and the first parameter whose
gradient is not finite, in the order of the backward pass.

An operation is at fault when it gives NaN and read none, or infinity and read neither; -inf written
by a mask is its design. Gradients are asked for as values, so that nothing is added to `.grad` and
no other process is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from diagnostics._guard import untouched
from diagnostics._trace import tensors_in, user_place
from diagnostics.monitor.calls import Forward, call, loss_of, unwrapped, words_of
from diagnostics.monitor.finding import SELF, Finding

# what writes -inf on purpose, or hands out memory that was never written
_MASKS = ("masked_fill", "where", "fill", "full", "scalar_tensor", "triu", "tril", "index_put")
FAULTS_MAX = 100  # operations that are kept; infinities that are hidden again are no fault
_BLANK = ("empty", "resize", "set_")


def replay(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    forward: Forward | None = None,
    *,
    random_state: Tensor | None = None,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Finding:
    """Run one step again, forward and backward, and return where it stops being finite.

    random_state: of torch on the CPU, as it was before the step.    precision: see the monitor.
    The model comes back as it was: weights, buffers, modes, gradients, hooks, random states.
    """
    inner = unwrapped(model)
    watch = _Watch(inner)
    try:
        with untouched([inner]), torch.inference_mode(False), torch.enable_grad():
            if random_state is not None:
                torch.set_rng_state(random_state)
            with watch.listening():
                with precision():
                    raw = call(inner, inputs, targets, forward)
                    loss = loss_of(raw, targets)
                watch.finding.loss_is_ours = loss is not None and loss_of(raw, None) is None
                number = None if loss is None else float(loss.detach())
                watch.finding.loss = number
                if number is not None and not math.isfinite(number):
                    watch.note_loss()
                elif loss is not None and loss.requires_grad and not watch.finding.phase:
                    watch.backward(loss)
    except Exception as error:  # any: the user's model; what was seen until then still counts
        watch.finding.trouble = words_of(error)
    return watch.finding


def non_finite(named: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that hold NaN or infinity; the device is waited for once."""
    names = [name for name, tensor in named.items() if tensor.is_floating_point()]
    if not names:
        return []
    home = named[names[0]].device
    flags = torch.stack([named[n].detach().isfinite().all().to(home) for n in names]).tolist()
    return [name for name, fine in zip(names, flags, strict=True) if not fine]


class _Watch(TorchDispatchMode):
    """Hooks and a dispatch mode around one forward and one backward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.finding = Finding()
        self.names = {id(m): n or SELF for n, m in self.model.named_modules()}
        # running modules: whether they read well, autograd's count, operations at fault so far
        self.stack: list[tuple[nn.Module, bool, int, int]] = []
        self.spans: list[tuple[int, int, str]] = []  # autograd's counts while a module ran
        self.faults: list[tuple[str, str | None, str]] = []  # operation, user's line, module
        self.going_back = False
        self.quiet = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Put the hooks on and switch the mode on; both are gone afterwards."""
        handles: list[Any] = []
        for module in self.model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                handles.append(module.register_forward_hook(self._leave))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, and keep it when it gives what it did not read."""
        kwargs = kwargs or {}
        if self.quiet or len(self.faults) >= FAULTS_MAX:
            return func(*args, **kwargs)
        self.quiet = True
        try:
            read = _state((args, kwargs))
            result = func(*args, **kwargs)
            name = str(func).removeprefix("aten.")
            gave = _state(result)
            masks = any(word in name for word in _MASKS) and not gave[0]
            fresh = (gave[0] and not read[0]) or (gave[1] and not read[0] and not read[1])
            if fresh and not masks and not any(word in name for word in _BLANK):
                place = None if self.going_back else user_place()
                self.faults.append((str(func), place or None, self._running()))
        finally:
            self.quiet = False
        return result

    # ---- forward -----------------------------------------------------------------------------

    def _running(self) -> str:
        if self.going_back:
            current = getattr(torch._C, "_current_autograd_node", None)
            return self._made_in(None if current is None else current())
        return self.names[id(self.stack[-1][0])] if self.stack else SELF

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.stack.append(
            (module, not any(self._look((args, kwargs))), _sequence(), len(self.faults))
        )

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        _, read_well, start, known = self.stack.pop()
        self.spans.append((start, _sequence(), self.names[id(module)]))
        if self.finding.phase or self.going_back or not read_well:
            return  # known, or handed on from elsewhere
        nan, infinite = self._look(output)
        if nan or (infinite and self.faults[known:]):  # without an operation at fault: a mask
            self._found("forward", module, output, self.faults[known:])

    def note_loss(self) -> None:
        """The loss is not finite although no module's output was the first: made after them."""
        if not self.finding.phase:
            self._found("forward", self.model, None, self.faults[-1:])

    def _found(
        self,
        phase: str,
        module: nn.Module,
        output: Any,
        faults: list[tuple[str, str | None, str]],
    ) -> None:
        found = self.finding
        found.phase, found.module, found.kind = phase, self.names[id(module)], type(module).__name__
        found.inputs_finite = True
        self.quiet, was = True, self.quiet
        for tensor in tensors_in(output):
            if tensor.is_floating_point():
                found.nan += int(tensor.isnan().sum())
                found.infinite += int(tensor.isinf().sum())
                found.total += tensor.numel()
        self.quiet = was
        if faults:
            found.operation, found.place, inside = faults[0]
            found.module = inside  # the innermost module that was running
            found.kind = next(
                type(m).__name__ for m in self.model.modules() if self.names[id(m)] == inside
            )

    def _look(self, value: Any) -> tuple[bool, bool]:
        self.quiet, was = True, self.quiet
        try:
            return _state(value)
        finally:
            self.quiet = was

    # ---- backward ----------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Ask for the gradient of every parameter, and keep the first that is not finite."""
        self.going_back = True
        self.faults.clear()
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        order: list[str] = []
        handles = [p.register_hook(self._arrived(n, order)) for n, p in parameters.items()]
        try:
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        bad = [
            name
            for name, g in zip(parameters, gradients, strict=True)
            if g is not None and any(self._look(g))
        ]
        if not bad:
            return
        first = next((name for name in order if name in bad), bad[-1])
        path = first.rpartition(".")[0]
        self.finding.parameter = first
        module = dict(self.model.named_modules()).get(path, self.model)
        self._found("backward", module, [g for g in gradients if g is not None], self.faults)

    def _made_in(self, node: Any) -> str:
        """Return the innermost module that was running when a node of the graph was made."""
        if node is None or not hasattr(node, "_sequence_nr"):
            return SELF
        number = node._sequence_nr()
        around = [span for span in self.spans if span[0] <= number < span[1]]
        return min(around, key=lambda span: span[1] - span[0])[2] if around else SELF

    def _arrived(self, name: str, order: list[str]) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            order.append(name)

        return hook


def _sequence() -> int:
    """Return autograd's count of nodes so far; 0 in a torch that does not tell it."""
    count = getattr(torch.autograd, "_get_sequence_nr", None)
    return int(count()) if count is not None else 0


def _state(value: Any) -> tuple[bool, bool]:
    """Return (whether NaN is in there, whether infinity is)."""
    nan = infinite = False
    for tensor in tensors_in(value):
        if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.is_meta:
            continue
        if not bool(tensor.isfinite().all()):
            has_nan = bool(tensor.isnan().any())
            nan |= has_nan
            infinite |= bool(tensor.isinf().any())
    return nan, infinite
