"""Choices by measurement: what decides, what is left as it was, and what is said when it fails."""

from collections.abc import Callable

import pytest
import torch

from minigpt import speed
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.speed import (
    MatmulTrial,
    bfloat16_seconds_ratio,
    compile_model,
    compile_problem,
    matmul_precision,
    try_matmul_precision,
)

CONFIG = MiniGPTConfig.debug(11)


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, seconds_ratio: float, error_ratio: float, bits: bool = True
) -> None:
    """Make medium take and err that much relative to highest."""
    product = torch.ones(2)

    def fake(precision: str) -> tuple[torch.Tensor, float]:
        medium = precision == "medium"
        return product * 2 if medium and bits else product, 1e-7 * (error_ratio if medium else 1)

    monkeypatch.setattr(speed, "_product_and_error", fake)
    monkeypatch.setattr(speed, "_paired_ratio", lambda run, other: seconds_ratio)


@pytest.mark.parametrize(
    ("seconds_ratio", "error_ratio", "expected"),
    [
        (0.6, 2.6, "medium"),  # oneDNN's float32 where MKL is slow
        (0.3, 10_000.0, "highest"),  # bfloat16 in disguise
        (0.3, 1_000.0, "highest"),  # TF32
        (0.95, 1.0, "highest"),  # noise
        (float("nan"), 1.0, "highest"),
        (0.6, float("nan"), "highest"),
    ],
)
def test_medium_must_be_faster_and_as_accurate(
    seconds_ratio: float, error_ratio: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, seconds_ratio=seconds_ratio, error_ratio=error_ratio)
    trial = try_matmul_precision(CONFIG, 64)
    assert (trial.precision, trial.changes_bits) == (expected, True)


def test_where_medium_changes_nothing_it_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal products on this chip: the plain setting, whatever a clock would say."""
    pretend(monkeypatch, seconds_ratio=0.1, error_ratio=1.0, bits=False)
    assert try_matmul_precision(CONFIG, 64) == MatmulTrial(
        precision="highest", changes_bits=False, seconds_ratio=1.0, error_ratio=1.0
    )


def test_a_trial_leaves_settings_and_random_states_alone() -> None:
    """The real trials, of a tiny layer: ratios are positive, torch is as before."""
    state, before = torch.get_rng_state(), torch.get_float32_matmul_precision()
    trial = try_matmul_precision(CONFIG, 8)
    assert trial.seconds_ratio > 0
    assert trial.error_ratio > 0
    assert bfloat16_seconds_ratio(CONFIG, 8) > 0
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_trial_runs_in_what_it_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of the pair is under medium, the second under highest, backward included."""
    seen: list[str] = []
    grad: Callable[..., object] = torch.autograd.grad

    def note(*args: object) -> object:
        seen.append(torch.get_float32_matmul_precision())
        return grad(*args)

    def once(run: Callable[[], None], other: Callable[[], None]) -> float:
        run()
        other()
        return 0.5

    pretend(monkeypatch, seconds_ratio=0.5, error_ratio=1.0)
    monkeypatch.setattr(speed, "_paired_ratio", once)
    monkeypatch.setattr(torch.autograd, "grad", note)
    try_matmul_precision(CONFIG, 8)
    assert seen == ["medium", "highest"]


def test_the_median_of_paired_ratios_forgives_an_outlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of 2/1, 90/1, 2/1 seconds are a ratio of 2."""
    seconds = iter([2.0, 1.0, 90.0, 1.0, 2.0, 1.0])
    monkeypatch.setattr(speed, "_seconds", lambda run: next(seconds))
    monkeypatch.setattr(speed, "ROUNDS_MAX", 3)
    assert speed._paired_ratio(lambda: None, lambda: None) == 2.0


def test_the_precision_is_given_back_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(KeyError), matmul_precision("medium"):
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


def test_why_compiling_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line that says something, cut; or the class, where nothing is said."""

    def fail_with(message: str) -> None:
        def compile_nothing(*args: object, **kwargs: object) -> object:
            raise RuntimeError(message)

        monkeypatch.setattr(torch, "compile", compile_nothing)

    fail_with("\n  no g++ was found\nlong trace")
    assert compile_problem(torch.device("cpu")) == "no g++ was found"
    fail_with("backend='inductor' raised:\nInvalidCxxCompiler: no C++ compiler\n\nSet TORCH")
    assert compile_problem(torch.device("cpu")) == "InvalidCxxCompiler: no C++ compiler"
    fail_with("x" * 1000)
    assert compile_problem(torch.device("cpu")) == "x" * 150
    fail_with("")
    assert compile_problem(torch.device("cpu")) == "RuntimeError"


def test_no_problem_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert compile_problem(torch.device("cpu")) is None


def test_a_compiled_model_shares_its_parameters() -> None:
    """Nothing is compiled before the first call; names of the plain model stay plain."""
    model = MiniGPT(CONFIG)
    compiled = compile_model(model)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert "token_embedding.weight" in model.state_dict()
