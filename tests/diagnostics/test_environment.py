"""Switches, weights, hooks and seeds: each fault has its reason, each healthy oddity passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_environment, diagnose
from diagnostics._hooks import measure_hooks
from diagnostics._result import CheckResult
from diagnostics._suite import _raised
from diagnostics.environment import measure_environment, render_environment
from tests.diagnostics.tiny import Bigram, HFStyle, MixtureOfExperts, Recurrent, TinyGPT


def _judge(model: nn.Module | None = None, **parts: Any) -> CheckResult:
    pipeline = Pipeline(TinyGPT(19) if model is None else model, **parts)
    return diagnose(pipeline, only=["environment"])["environment"]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _anomaly() -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield


@pytest.mark.parametrize(
    "model", [TinyGPT(19), Bigram(7), Recurrent(), HFStyle(), MixtureOfExperts(shut=True)]
)
def test_a_healthy_model_passes_and_names_its_device(model: nn.Module) -> None:
    """The claim carries versions and the device that would be chosen."""
    result = _judge(model, labels="same" if isinstance(model, HFStyle) else "next")
    assert (result.status, result.reason) == (Status.PASS, "environment.ok")
    assert torch.__version__ in result.claim
    assert f"device {measure_environment()['device']}" in result.claim
    assert "the model is on cpu" in result.claim


def test_without_a_model_the_globals_are_judged() -> None:
    """check_environment() alone."""
    assert check_environment().status is Status.PASS
    with torch.no_grad():
        assert check_environment().reason == "environment.grad_disabled"


@pytest.mark.parametrize(
    ("switch", "status", "reason"),
    [
        (torch.no_grad, Status.FAIL, "grad_disabled"),
        (torch.inference_mode, Status.FAIL, "inference_mode"),
        (lambda: _default_dtype(torch.float16), Status.FAIL, "default_dtype"),
        (lambda: _default_dtype(torch.bfloat16), Status.WARN, "default_dtype"),
        (lambda: _default_dtype(torch.float64), Status.WARN, "default_dtype"),
        (lambda: torch.autocast("cpu", torch.bfloat16), Status.WARN, "autocast_on"),
        (_anomaly, Status.WARN, "anomaly_mode"),
        (nullcontext, Status.PASS, "ok"),
    ],
)
def test_each_switch_is_read_as_it_was(
    switch: Callable[[], AbstractContextManager[Any]], status: Status, reason: str
) -> None:
    """Through `diagnose` and through the direct check; the switch is as before afterwards."""
    model = TinyGPT(19)
    with switch():
        before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        results = [_judge(model), check_environment(model)]
        assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    for result in results:
        assert (result.status, result.reason) == (status, f"environment.{reason}")


@pytest.mark.parametrize(
    "switch", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_the_other_checks_run_as_if_the_switch_were_not_there(
    switch: Callable[[], AbstractContextManager[Any]],
) -> None:
    """One headline: a causal model stays causal under a switch that was left on."""
    model = TinyGPT(19)
    with switch():
        report = diagnose(Pipeline(model), only=["causal_independence"])
    assert report["causal_independence"].status is Status.PASS


def test_weights_on_the_meta_device_fail() -> None:
    """A shape and no values."""
    model = TinyGPT(19)
    model.norm = nn.LayerNorm(16, device="meta")
    result = _judge(model)
    assert (result.status, result.reason) == (Status.FAIL, "environment.meta_weights")
    assert "2 of " in result.claim
    assert result.measured.startswith("2 of ")
    assert result.where == "first is norm.weight"


def test_weights_made_in_inference_mode_fail() -> None:
    """They can never get a gradient."""
    with torch.inference_mode():
        model = Bigram(7)
    result = _judge(model)
    assert (result.status, result.reason) == (Status.FAIL, "environment.inference_weights")
    assert result.claim.startswith("1 of 1 weight is made in inference mode")
    assert model.table.weight.is_inference()


class _Converting(nn.Module):
    """bfloat16 matrix beside a float32 norm, with the conversion written out."""

    def __init__(self, *, converts: bool) -> None:
        super().__init__()
        self.vocab_size, self.converts = 9, converts
        self.embedding = nn.Embedding(9, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 9, dtype=torch.bfloat16)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x = self.norm(self.embedding(ids))
        return self.head(x.bfloat16() if self.converts else x).float()


def test_mixed_types_pass_when_they_run_and_fail_when_they_do_not() -> None:
    """The forward pass decides, not the mixture."""
    assert _judge(_Converting(converts=True)).status is Status.PASS
    result = _judge(_Converting(converts=False))
    assert (result.status, result.reason) == (Status.FAIL, "environment.mixed_dtypes")
    assert "head.weight" in result.claim
    assert result.numbers["counts"] == {"float32": 3, "bfloat16": 2}


def test_bfloat16_weights_pass_and_float16_weights_warn() -> None:
    """Training in bfloat16 is a design; in float16, Adam's epsilon is 0."""
    assert _judge(TinyGPT(19).bfloat16()).status is Status.PASS
    result = _judge(Bigram(7).half())
    assert (result.status, result.reason) == (Status.WARN, "environment.float16_weights")
    frozen = Bigram(7).half().requires_grad_(False)
    assert _judge(frozen).status is Status.PASS


def _observe(module: nn.Module, inputs: Any, output: Any) -> None:
    output.abs().max()


def _detach(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.detach()


def _double(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * 2


def _write(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output.data[..., 0] = 0


def _before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * 0.5,)


class _Callable:
    """A hook with state, as observers of libraries are."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.seen.append(float(output.mean()))
        return output + 1


@pytest.mark.parametrize("hook", [_detach, _double, _write, _Callable()])
def test_a_hook_that_replaces_the_output_fails_with_its_module(hook: Any) -> None:
    """Detached, doubled or written into: the module and the hook are named."""
    model = TinyGPT(19)
    model.norm.register_forward_hook(_observe)
    model.get_submodule("blocks.1.mlp.0").register_forward_hook(hook)
    result = _judge(model)
    assert (result.status, result.reason) == (Status.FAIL, "environment.hook_changes_output")
    assert "blocks.1.mlp.0" in result.claim
    assert getattr(hook, "__qualname__", "_Callable") in result.claim
    assert ("gradients" if hook is _detach else "logits") in result.claim


def test_a_pre_hook_is_judged_too() -> None:
    """It replaces the input."""
    model = TinyGPT(19)
    model.head.register_forward_pre_hook(_before)
    result = _judge(model)
    assert result.reason == "environment.hook_changes_output"
    assert "_forward_pre_hooks" in result.where


def test_an_observing_hook_passes_once_and_warns_when_it_piles_up() -> None:
    """Three equal hooks on one module were registered in a loop."""
    model = TinyGPT(19)
    model.norm.register_forward_hook(_observe)
    model.head.register_forward_hook(_observe)
    assert _judge(model).status is Status.PASS
    for _ in range(2):
        model.norm.register_forward_hook(_observe)
    result = _judge(model)
    assert (result.status, result.reason) == (Status.WARN, "environment.hooks_piled_up")
    assert "norm carries the same hook 3 times" in result.claim


def test_hooks_of_the_design_pass() -> None:
    """The model's own method, torch's weight norm, and what every fresh model is born with."""

    class _Scaled(TinyGPT):
        def __init__(self) -> None:
            super().__init__(19)
            self.norm.register_forward_hook(self._scale)

        def _scale(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            return output * 2

    def born() -> nn.Module:
        model = TinyGPT(19)
        model.norm.register_forward_hook(_double)
        return model

    assert _judge(_Scaled()).status is Status.PASS
    assert _judge(born(), make_model=born).status is Status.PASS
    assert _judge(born()).failed  # nothing says that it belongs to the design


def test_hooks_can_be_declared() -> None:
    """Allow turns the failure into a warning."""
    model = TinyGPT(19)
    model.norm.register_forward_hook(_double)
    result = _judge(model, allow="environment.hook_changes_output")
    assert result.status is Status.WARN


def test_hooks_and_weights_come_back_untouched() -> None:
    """Same hooks, same weights, same gradients, same mode."""
    model = TinyGPT(19).train()
    model.norm.register_forward_hook(_double)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    hooks = measure_hooks(model)
    _judge(model)
    assert measure_hooks(model) == hooks
    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


def test_a_hook_on_all_modules_warns() -> None:
    """Torch has one table for the whole program."""
    handle = torch.nn.modules.module.register_module_forward_hook(_observe)
    try:
        result = _judge(Bigram(7))
    finally:
        handle.remove()
    assert (result.status, result.reason) == (Status.WARN, "environment.global_hooks")


def _optimizer_with_state(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = change(torch.zeros_like(parameter))
        return optimizer

    return make


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (lambda state: state, Status.PASS, "ok"),
        (lambda state: state.double(), Status.PASS, "ok"),
        (lambda state: state.to(torch.uint8), Status.PASS, "ok"),
        (lambda state: state.bfloat16(), Status.WARN, "optimizer_state_dtype"),
        (lambda state: state.half(), Status.FAIL, "optimizer_state_dtype"),
        (lambda state: state.to("meta"), Status.FAIL, "optimizer_state_device"),
    ],
)
def test_the_state_of_the_optimizer_lies_with_its_parameter(
    change: Callable[[Tensor], Tensor], status: Status, reason: str
) -> None:
    """A wider state and 8-bit states are designs; another device never is."""
    result = _judge(Bigram(7), make_optimizer=_optimizer_with_state(change))
    assert (result.status, result.reason) == (status, f"environment.{reason}")
    if reason != "ok":
        assert "momentum_buffer of table.weight" in result.claim


DATA = torch.randint(19, (500,), generator=torch.Generator().manual_seed(3))


def _windows(data: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    places = starts[:, None] + torch.arange(8)
    return data[places], data[places + 1]


def _global_loader(data: Tensor) -> tuple[Tensor, Tensor]:
    return _windows(data, torch.randint(len(data) - 8, (4,)))


class _OwnGenerator:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, data: Tensor) -> tuple[Tensor, Tensor]:
        return _windows(data, torch.randint(len(data) - 8, (4,), generator=self.generator))


class _InOrder:
    """Reads on from where it was: `stride` tokens per row."""

    def __init__(self, stride: int) -> None:
        self.place, self.stride = 0, stride

    def __call__(self, data: Tensor) -> tuple[Tensor, Tensor]:
        starts = self.place + self.stride * torch.arange(4)
        self.place += 4 * self.stride
        return _windows(data, starts)


@pytest.mark.parametrize(
    ("loader", "status"),
    [
        (_global_loader, Status.PASS),
        (_OwnGenerator(), Status.WARN),
        (_InOrder(8), Status.PASS),
        (_InOrder(9), Status.PASS),
    ],
)
def test_a_loader_is_called_twice_after_the_same_seeding(loader: Any, status: Status) -> None:
    """A generator of its own goes on from call to call; reading in order is a design."""
    parts: list[dict[str, Any]] = [{"get_batch": loader, "train_ids": DATA}]
    if not isinstance(loader, _InOrder):  # bound to its data, its order cannot be seen
        parts.append({"batch": lambda split: loader(DATA)})
    for given in parts:
        result = _judge(**given)
        assert result.status is status
        if status is Status.WARN:
            assert result.reason == "environment.not_reproducible"
            assert next(iter(given)) in result.claim


class _Epochs:
    """Non-overlapping windows in shuffled order, each once; reads on from call to call."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.queue: list[int] = []
        self.size, self.generator = 0, generator

    def __call__(self, data: Tensor) -> tuple[Tensor, Tensor]:
        starts: list[int] = []
        while len(starts) < 4:
            if not self.queue or self.size != len(data):
                self.size, count = len(data), (len(data) - 1) // 8
                self.queue = (8 * torch.randperm(count, generator=self.generator)).tolist()
            starts.append(self.queue.pop())
        return _windows(data, torch.tensor(starts))


def test_a_loader_that_goes_on_through_a_shuffled_pass_is_a_design() -> None:
    """A new pass under the same seed has the same order, unless its generator is its own."""
    assert _judge(get_batch=_Epochs(), train_ids=DATA).status is Status.PASS
    own = _judge(get_batch=_Epochs(torch.Generator().manual_seed(1)), train_ids=DATA)
    assert (own.status, own.reason) == (Status.WARN, "environment.not_reproducible")
    assert "goes on through a shuffled pass" in own.causes[0]
    drawn = _judge(get_batch=_OwnGenerator(), train_ids=DATA)
    assert not any("shuffled pass" in cause for cause in drawn.causes)


def test_two_models_of_one_seed_must_agree() -> None:
    """A generator of its own gives other weights each time."""
    own = torch.Generator().manual_seed(0)

    def make() -> nn.Module:
        model = Bigram(7)
        nn.init.normal_(model.table.weight, generator=own)
        return model

    result = _judge(make(), make_model=make)
    assert (result.status, result.reason) == (Status.WARN, "environment.not_reproducible")
    assert "table.weight" in result.measured
    assert _judge(Bigram(7), make_model=lambda: Bigram(7)).status is Status.PASS


def test_a_device_side_assert_sends_the_reader_to_the_cpu() -> None:
    """On a GPU neither message nor frame show the place."""
    error = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be")
    result = _raised("shapes", error)
    assert (result.status, result.reason) == (Status.ERROR, "shapes.raised")
    assert "on the CPU" in result.next_step
    assert "on the CPU" not in _raised("shapes", RuntimeError("out of memory")).next_step


def test_the_facts_hold_no_path_and_the_block_shows_each_of_them() -> None:
    """Ready to paste, and comparable between machines."""
    facts = measure_environment()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    block = render_environment()
    assert len(block.splitlines()) == len(facts) + 2
    assert block.isascii()
    assert "/" not in block
    assert max(map(len, block.splitlines())) <= 88
    for name in facts:
        assert name.replace("_", " ") in block


def test_a_default_device_that_is_not_the_model_s_warns() -> None:
    """New tensors would have no values at all."""
    model = Bigram(7)
    with torch.device("meta"):
        result = check_environment(model)
    assert (result.status, result.reason) == (Status.WARN, "environment.default_device")
    assert "made on meta, and the model is on cpu" in result.claim
