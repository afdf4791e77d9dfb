"""Loss: each usual wrong formula is named by its number; what is meant so only warns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_loss, diagnose
from diagnostics._loss_readings import Case, Reading, find_readings
from diagnostics._probe import MissingPartError
from tests.diagnostics.tiny import (
    Bigram,
    HFStyle,
    LossOf,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    random_pair,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _ce(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    width = logits.shape[-1]
    return functional.cross_entropy(logits.reshape(-1, width), targets.reshape(-1), **options)


def _nll(logits: Tensor, targets: Tensor) -> Tensor:
    return _ce(logits, targets, reduction="none")


def _mean_scored(losses: Tensor, targets: Tensor) -> Tensor:
    return losses.sum() / (targets != -100).sum()


def _one_hot(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.one_hot(targets.clamp(min=0), logits.shape[-1]).to(logits)


def _naive(logits: Tensor, targets: Tensor) -> Tensor:
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return -p.log().gather(-1, targets.clamp(min=0)[..., None]).mean()


def _floored(logits: Tensor, targets: Tensor) -> Tensor:
    p = logits.softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -(p[targets != -100] + 1e-6).log().mean()


def _in_chunks(size: int) -> LossOf:
    """The mean over full chunks of the flattened targets; what fills none is lost."""

    def loss_of(z: Tensor, y: Tensor) -> Tensor:
        kept = y.numel() - y.numel() % min(size, y.numel())
        return _ce(z.flatten(0, 1)[:kept], y.flatten()[:kept])

    return loss_of


WRONG: dict[str, tuple[LossOf, str]] = {
    "softmax first": (lambda z, y: _ce(z.softmax(-1), y), "double_softmax"),
    "sum": (lambda z, y: _ce(z, y, reduction="sum"), "summed"),
    "sum / B": (lambda z, y: _ce(z, y, reduction="sum") / len(y), "summed_over_time"),
    "sum / T": (lambda z, y: _ce(z, y, reduction="sum") / y.shape[1], "summed_over_rows"),
    "none": (_nll, "not_scalar"),
    "last only": (lambda z, y: _ce(z[:, -1], y[:, -1]), "last_position_only"),
    "first only": (lambda z, y: _ce(z[:, 0], y[:, 0]), "first_position_only"),
    "shifted again": (lambda z, y: _ce(z[:, :-1], y[:, 1:]), "shifted_twice"),
    "own input": (lambda z, y: _ce(z[:, 1:], y[:, :-1]), "not_shifted"),
    "backward": (lambda z, y: _ce(z[:, 2:], y[:, :-2]), "shifted_backward"),
    "last dropped": (lambda z, y: _ce(z[:, :-1], y[:, :-1]), "last_target_dropped"),
    "first dropped": (lambda z, y: _ce(z[:, 1:], y[:, 1:]), "first_target_dropped"),
    "rolled": (lambda z, y: _ce(z, y.roll(-1, 1)), "wrapped_target"),
    "B and T exchanged": (lambda z, y: _ce(z.transpose(0, 1), y), "flattened_in_another_order"),
    "targets exchanged": (lambda z, y: _ce(z, y.T), "flattened_in_another_order"),
    "V and T exchanged": (
        lambda z, y: _ce(z.transpose(1, 2).reshape(z.shape), y),
        "flattened_in_another_order",
    ),
    "row means": (
        lambda z, y: torch.stack([_ce(a, b) for a, b in zip(z, y, strict=True)]).mean(),
        "mean_of_row_means",
    ),
    "all positions": (lambda z, y: _nll(z, y).mean(), "denominator_counts_ignored"),
    "id 0 ignored": (
        lambda z, y: _ce(z, y.masked_fill(y == -100, 0), ignore_index=0),
        "ignores_real_token",
    ),
    "divided": (lambda z, y: _ce(z, y) / 4, "divided"),
    "multiplied": (lambda z, y: _ce(z, y) * 1.5, "multiplied"),
    "sign": (lambda z, y: -_ce(z, y), "sign_flipped"),
    "bits": (lambda z, y: _ce(z, y) / math.log(2), "base_two"),
    "perplexity": (lambda z, y: _ce(z, y).exp(), "perplexity"),
    "clamped mean": (lambda z, y: _ce(z, y).clamp(max=4), "clamped"),
    "clamped tokens": (lambda z, y: _mean_scored(_nll(z, y).clamp(max=3), y), "clamped"),
    "temperature": (lambda z, y: _ce(z / 1.5, y), "temperature"),
    "mse": (lambda z, y: (z - _one_hot(z, y)).square().mean(), "squared_error"),
    "error rate": (lambda z, y: (z.argmax(-1) != y).double().mean(), "error_rate"),
    "binary": (
        lambda z, y: functional.binary_cross_entropy_with_logits(z, _one_hot(z, y)),
        "binary",
    ),
    "no log": (
        lambda z, y: functional.nll_loss(z.softmax(-1).flatten(0, 1), y.flatten()),
        "no_log",
    ),
    "raw": (lambda z, y: functional.nll_loss(z.flatten(0, 1), y.flatten()), "not_normalised"),
    "swapped": (
        lambda z, y: -(z.softmax(-1) * _one_hot(z, y).log_softmax(-1)).sum(-1).mean(),
        "arguments_swapped",
    ),
    "soft one-hot": (
        lambda z, y: -(_one_hot(z, y).softmax(-1) * z.log_softmax(-1)).sum(-1).mean(),
        "arguments_swapped",
    ),
    "log of softmax": (_naive, "not_finite"),
    "no targets": (lambda z, y: z.logsumexp(-1).mean(), "ignores_targets"),
    "item": (lambda z, y: torch.tensor(_ce(z, y).item()), "detached"),
    "half detached": (lambda z, y: (_ce(z, y) + _ce(z, y).detach()) / 2, "wrong_gradient"),
    "over time": (
        lambda z, y: functional.nll_loss(z.log_softmax(1).flatten(0, 1), y.flatten()),
        "softmax_over_another_axis",
    ),
    "over rows": (
        lambda z, y: functional.nll_loss(z.log_softmax(0).flatten(0, 1), y.flatten()),
        "softmax_over_another_axis",
    ),
    "over time and again": (lambda z, y: _ce(z.log_softmax(1), y), "softmax_over_another_axis"),
    "over positions": (
        lambda z, y: functional.nll_loss(z.flatten(0, 1).log_softmax(0), y.flatten()),
        "softmax_over_another_axis",
    ),
    "viewed": (
        lambda z, y: functional.cross_entropy(z.reshape(len(z), z.shape[2], -1), y),
        "flattened_in_another_order",
    ),
    "mean over V": (lambda z, y: _ce(z, y) / z.shape[-1], "averaged_over_vocabulary"),
    "every other row": (lambda z, y: _ce(z[::2], y[::2]), "targets_dropped"),
    "chunks, rest lost": (_in_chunks(7), "remainder_dropped"),
    "power": (lambda z, y: _ce(z, y) ** 1.1, "mismatch"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_formula_is_named(name: str) -> None:
    """The reading is the same for a transformer and for a table with a larger vocabulary."""
    loss_of, reason = WRONG[name]
    for model in (TinyGPT(19, loss_of=loss_of), Bigram(70, loss_of=loss_of)):
        result = check_loss(model)
        assert (result.status, result.reason) == (Status.FAIL, f"loss.{reason}")
        assert result.next_step


def test_a_rest_that_fills_no_chunk_is_found_where_the_first_batch_has_none() -> None:
    """The first batch, 3 rows of 12, is one chunk of 36; the second, 5 rows of 9, loses 9 of 45."""
    result = check_loss(TinyGPT(19, loss_of=_in_chunks(36)))
    assert (result.status, result.reason) == (Status.FAIL, "loss.remainder_dropped")
    assert result.numbers["parameter"] == pytest.approx(9 / 45)
    assert "9 of 45 targets of random tokens" in result.where


def test_an_added_term_is_measured_where_it_shows() -> None:
    """A term for rows of fewer than 12 tokens is 0 in the first batch, and 0.25 in the second."""
    result = check_loss(TinyGPT(19, loss_of=lambda z, y: _ce(z, y) + 0.25 * (z.shape[1] < 12)))
    assert (result.status, result.reason) == (Status.WARN, "loss.extra_term")
    assert result.numbers["parameter"] == pytest.approx(0.25, rel=1e-4)


MEANT: dict[str, tuple[LossOf, str, float | None]] = {
    "smoothing": (lambda z, y: _ce(z, y, label_smoothing=0.1), "label_smoothing", 0.1),
    "z-loss": (lambda z, y: _ce(z, y) + 1e-3 * z.logsumexp(-1).square().mean(), "z_loss", 1e-3),
    "constant": (lambda z, y: _ce(z, y) + 0.25, "extra_term", 0.25),
    "floor": (_floored, "probability_floor", -math.log(1e-6)),
}


@pytest.mark.parametrize("name", MEANT)
def test_what_may_be_meant_warns_with_its_number(name: str) -> None:
    """The coefficient is solved from one batch and proved on the others."""
    loss_of, reason, parameter = MEANT[name]
    result = check_loss(TinyGPT(19, loss_of=loss_of))
    assert (result.status, result.reason) == (Status.WARN, f"loss.{reason}")
    assert result.numbers["parameter"] == pytest.approx(parameter, rel=1e-4)


def test_a_z_loss_with_the_wrong_sign_is_no_design() -> None:
    """It pays for a growing normaliser: the sign in the number convicts it."""
    loss_of = lambda z, y: _ce(z, y) - 1e-3 * z.logsumexp(-1).square().mean()  # noqa: E731
    result = check_loss(TinyGPT(19, loss_of=loss_of))
    assert (result.status, result.reason) == (Status.FAIL, "loss.z_loss_sign")
    assert result.numbers["parameter"] == pytest.approx(-1e-3, rel=1e-4)


class _Padded(TinyGPT):
    """Vocabulary of 16 in a head of 19; the extra columns are shut."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.hidden(ids)).clone()
        logits[..., 16:] = -math.inf
        return logits, None if targets is None else _ce(logits, targets)


class _Flat(TinyGPT):
    """Logits come back flattened when targets are given."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.hidden(ids))
        if targets is None:
            return logits, None
        return logits.flatten(0, 1), _ce(logits, targets)


class _AsDict(TinyGPT):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits, loss = super().forward(input_ids, labels)
        return {"logits": logits, "loss": loss}


def _indexed(logits: Tensor, targets: Tensor) -> Tensor:
    picked = logits.log_softmax(-1).flatten(0, 1)[torch.arange(targets.numel()), targets.flatten()]
    return -picked.mean()


HEALTHY: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt": lambda: (TinyGPT(), {}),
    "table": lambda: (Bigram(), {}),
    "log-softmax first": lambda: (TinyGPT(loss_of=lambda z, y: _ce(z.log_softmax(-1), y)), {}),
    "hugging face": lambda: (HFStyle(), {"labels": "same"}),
    "dict": lambda: (_AsDict(), {}),
    "padded, shut": lambda: (_Padded(), {"vocab_size": 16}),
    "padded, open": lambda: (TinyGPT(), {"vocab_size": 16}),
    "padded, cut": lambda: (
        TinyGPT(loss_of=lambda z, y: _ce(z[..., :16], y)),
        {"vocab_size": 16},
    ),
    "flat": lambda: (_Flat(), {}),
    "bfloat16": lambda: (TinyGPT().bfloat16(), {}),
    "loss in bfloat16": lambda: (TinyGPT(loss_of=lambda z, y: _ce(z.bfloat16(), y)), {}),
    "ignore -1": lambda: (
        TinyGPT(loss_of=lambda z, y: _ce(z, y, ignore_index=-1)),
        {"ignore_index": -1},
    ),
    "never ignores": lambda: (TinyGPT(loss_of=_indexed), {}),
    "pad ignored": lambda: (
        TinyGPT(loss_of=lambda z, y: _ce(z, y.masked_fill(y == -100, 0), ignore_index=0)),
        {"pad_id": 0},
    ),
    "sum over tokens": lambda: (
        TinyGPT(loss_of=lambda z, y: _mean_scored(_nll(z, y), y)),
        {},
    ),
    "experts": lambda: (MixtureOfExperts(), {}),
    "forward": lambda: (Recurrent(), {"forward": lambda m, x, y: (m(x), _ce(m(x), y))}),
    "soft cap": lambda: (TinyGPT(loss_of=lambda z, y: _ce(z, y)), {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_losses_pass(name: str) -> None:
    """None of them differs from the cross-entropy by more than rounding."""
    model, parts = HEALTHY[name]()
    result = check_loss(model, **parts)
    assert (result.status, result.reason) == (Status.PASS, "loss.ok")
    assert len(result.numbers["cases"]) >= 5


def test_first_case_is_cross_entropy_by_hand() -> None:
    """Uniform logits over 8 tokens cost ln 8 = 2.0794 nats in every place."""
    table = Bigram(8)
    nn.init.zeros_(table.table.weight)
    logits, targets = torch.zeros(2, 3, 8).double(), torch.zeros(2, 3, dtype=torch.int64)
    case = Case("by hand", logits, targets, targets, math.log(8), 0.0)
    assert case.reference == pytest.approx(2.0794415, abs=1e-6)
    assert case.fits(case.reference)
    assert not case.fits(math.nan)


def test_readings_give_the_parameter_by_hand() -> None:
    """A loss of ln 8 / 4 on uniform logits and on others is a division by 4."""
    ids = torch.arange(6).view(2, 3)
    cases = []
    for scale in (0.0, 1.0):
        logits = scale * torch.arange(48, dtype=torch.float64).view(2, 3, 8).sin()
        case = Case("by hand", logits, ids, ids, 0.0, 0.0)
        cases.append(Case("by hand", logits, ids, ids, case.reference / 4, 0.0))
    assert find_readings(cases) == [Reading("loss.divided", 4)]


def test_load_balancing_term_warns() -> None:
    """An auxiliary loss differs from batch to batch and does not depend on the targets."""
    result = check_loss(MixtureOfExperts(aux=0.1))
    assert (result.status, result.reason) == (Status.WARN, "loss.extra_term")


def test_shift_inside_and_outside_is_told_from_a_contract() -> None:
    """The same model is right with labels="same", and shifts twice without."""
    result = check_loss(HFStyle())
    assert result.reason == "loss.shifted_twice"
    assert 'labels="same"' in result.causes[0]


@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (lambda z, y: _ce(z, y), "loss.not_shifted"),
        (lambda z, y: _ce(z[:, :-2], y[:, 2:]), "loss.shifted_twice"),
        (lambda z, y: _ce(z[:, 1:], y[:, :-1]), "loss.shifted_backward"),
        (lambda z, y: _ce(z, y.roll(-1, 1)), "loss.wrapped_target"),
        (lambda z, y: _ce(z[:, :-2], y[:, 1:-1]), "loss.last_target_dropped"),
    ],
)
def test_shift_inside_the_model_is_judged(loss_of: LossOf, reason: str) -> None:
    """With labels="same" the model must pair logits t with label t + 1, each once."""
    assert check_loss(TinyGPT(loss_of=loss_of), labels="same").reason == reason


def test_probabilities_in_place_of_logits() -> None:
    """Softmax as the last layer: wrong for cross_entropy, right for its own logarithm."""

    class Softmax(TinyGPT):
        take_log = False

        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            p = self.head(self.hidden(ids)).softmax(-1)
            scores = p.log() if self.take_log else p
            return p, None if targets is None else _ce(scores, targets)

    assert check_loss(Softmax()).reason == "loss.double_softmax"
    honest = Softmax()
    honest.take_log = True
    result = check_loss(honest)
    assert (result.status, result.reason) == (Status.WARN, "loss.probabilities_returned")


def test_python_float_is_a_detached_loss() -> None:
    """`return logits, loss.item()` has no graph at all."""

    class Item(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            logits, loss = super().forward(ids, targets)
            return logits, None if loss is None else loss.item()

    assert check_loss(Item()).reason == "loss.detached"


def test_ignored_targets_that_count_fail_only_where_the_data_ignore_some() -> None:
    """A hand-written loss reads index -100 from the end: harmless until a target is ignored."""
    model = Bigram(150, loss_of=_indexed)
    inputs, targets = random_pair(150)
    assert check_loss(model, inputs, targets).status is Status.WARN
    targets[0, 3:] = -100
    result = check_loss(model, inputs, targets)
    assert (result.status, result.reason) == (Status.FAIL, "loss.ignored_counted")


def test_mark_that_the_loss_does_not_know_is_named() -> None:
    """-1 in the data, -100 in the loss; with ignore_index=-1 on both sides all is well."""
    inputs, targets = random_pair(19)
    targets[2, 7:] = -1
    result = check_loss(TinyGPT(), inputs, targets)
    assert (result.status, result.reason) == (Status.FAIL, "loss.unknown_mark")
    assert result.where == "first is row 2, position 7"
    known = TinyGPT(loss_of=lambda z, y: _ce(z, y, ignore_index=-1))
    assert check_loss(known, inputs, targets, ignore_index=-1).reason == "loss.ok"


def test_padding_that_is_scored_is_counted() -> None:
    """Two rows with 4 and 2 pads: 3 + 1 = 4 targets are padding after padding."""
    inputs, targets = random_pair(18, B=2, T=8)
    inputs, targets = inputs + 1, targets + 1
    for row, real in ((0, 4), (1, 6)):
        inputs[row, real:] = 0
        targets[row, real - 1 :] = 0
    result = check_loss(TinyGPT(19), inputs, targets, pad_id=0)
    assert result.reason == "loss.padding_counted"
    assert result.numbers["parameter"] == 4 + 2
    masked = targets.masked_fill(inputs == 0, -100)
    assert check_loss(TinyGPT(19), inputs, masked, pad_id=0).reason == "loss.ok"


def test_attention_mask_tells_padding_without_a_pad_id() -> None:
    """Labels = input_ids with a mask: the classic that scores every pad."""
    ids = random_pair(19, B=3, T=8)[0]
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    batch = {"input_ids": ids, "labels": ids.clone(), "attention_mask": mask}
    result = check_loss(HFStyle(), labels="same", batch=batch)
    assert result.reason == "loss.padding_counted"
    assert result.numbers["parameter"] == 2
    batch["labels"] = ids.masked_fill(mask == 0, -100)
    assert check_loss(HFStyle(), labels="same", batch=batch).reason == "loss.ok"


def test_id_that_is_never_scored_is_named_wherever_it_lies() -> None:
    """Any id of the vocabulary can be the one that is ignored."""
    for token in (3, 18):
        loss_of = lambda z, y, token=token: _ce(  # noqa: E731
            z, y.masked_fill(y == -100, token), ignore_index=token
        )
        result = check_loss(TinyGPT(19, loss_of=loss_of))
        assert result.reason == "loss.ignores_real_token"
        assert result.numbers["parameter"] == token


def test_logits_only_is_skipped_and_names_forward() -> None:
    """There is nothing to compare with."""
    with pytest.raises(MissingPartError):
        check_loss(Recurrent())
    result = diagnose(Pipeline(Recurrent()), only=["loss"])["loss"]
    assert result.status is Status.SKIP
    assert "forward" in result.next_step


def test_declared_design_becomes_a_warning() -> None:
    """A loss of another form is accepted when it is declared."""
    pipeline = Pipeline(TinyGPT(loss_of=WRONG["power"][0]), allow=("loss.mismatch",))
    assert diagnose(pipeline, only=["loss"])["loss"].status is Status.WARN


def test_nan_logits_are_not_a_pass() -> None:
    """NaN fits no formula."""
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    assert check_loss(model).reason == "loss.logits_not_finite"


def test_model_and_batch_come_back_untouched() -> None:
    """Weights, mode, gradients, batch and random state are as before."""
    model = TinyGPT().train()
    before = copy.deepcopy(model.state_dict())
    inputs, targets = random_pair(19)
    kept = targets.clone()
    state = torch.get_rng_state()
    check_loss(model, inputs, targets)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(targets, kept)
    assert torch.equal(torch.get_rng_state(), state)


class _TwoBranches(TinyGPT):
    """One formula in eval mode, another one in train mode."""

    def __init__(self, training_loss: LossOf) -> None:
        super().__init__()
        self.training_loss = training_loss

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, loss = super().forward(ids, targets)
        if targets is None or not self.training:
            return logits, loss
        return logits, self.training_loss(logits, targets)


@pytest.mark.parametrize(
    ("training_loss", "reason"),
    [
        (lambda z, y: _ce(z, y.clamp(min=0)), "ignored_counted"),
        (lambda z, y: _nll(z, y).mean(), "denominator_counts_ignored"),
        (lambda z, y: _ce(z.softmax(-1), y), "double_softmax"),
        (lambda z, y: _ce(z[:, :-1], y[:, 1:]), "shifted_twice"),
    ],
)
def test_a_branch_for_training_is_read_too(training_loss: LossOf, reason: str) -> None:
    inputs, targets = random_pair(19)
    targets[:, 8:] = -100
    result = check_loss(_TwoBranches(training_loss), inputs, targets)
    assert (result.status, result.reason) == (Status.FAIL, f"loss.{reason}")
    assert result.claim.startswith("in train mode")


@pytest.mark.parametrize(
    "training_loss",
    [
        lambda z, y: _ce(z, y, label_smoothing=0.1),
        lambda z, y: _ce(z, y) + 1e-3 * z.logsumexp(-1).square().mean(),
        lambda z, y: _ce(z, y) + 0.3 * z.std(),  # a term of the author's own
        lambda z, y: _ce(functional.dropout(z, 0.1), y),
    ],
)
def test_what_acts_in_training_only_on_purpose_passes(training_loss: LossOf) -> None:
    """Smoothing and further terms belong to the objective, and not to what eval reports."""
    inputs, targets = random_pair(19)
    targets[:, 8:] = -100
    assert check_loss(_TwoBranches(training_loss), inputs, targets).reason == "loss.ok"


END, MARK = 18, 17  # ids that the rows below do not hold otherwise


class _Ending:
    """A tokenizer that knows how a text ends."""

    eos_token_id = END
    vocab_size = 19


def _ended(*, masked: bool, own_pad: bool = False) -> dict[str, Tensor]:
    """Five texts of 4 to 8 tokens and their end, padded to 10; labels as the model shifts them."""
    ids = torch.full((5, 10), 0 if own_pad else END)
    mask = torch.zeros_like(ids)
    for row in range(5):
        ids[row, : 4 + row] = torch.randint(1, MARK, (4 + row,))
        ids[row, 4 + row] = END
        mask[row, : 5 + row] = 1
    labels = ids.masked_fill(mask == 0, -100)
    return {
        "input_ids": ids,
        "labels": labels.masked_fill(ids == END, -100) if masked else labels,
        "attention_mask": mask,
    }


def test_an_end_that_is_never_scored_is_named() -> None:
    """Pad = end and masked by value; with the mask left out, a run of pads may have no end."""

    def check(batch: Any, **parts: Any) -> Any:
        return check_loss(HFStyle(), batch=batch, labels="same", **parts)

    fault = check(_ended(masked=True), pad_id=END)
    assert (fault.status, fault.reason) == (Status.FAIL, "loss.end_never_scored")
    assert fault.numbers["ends"] == 5
    assert check(_ended(masked=False), pad_id=END).reason == "loss.ok"
    own_pad = check(_ended(masked=True, own_pad=True), pad_id=0, tokenizer=_Ending())
    assert (own_pad.status, own_pad.reason) == (Status.FAIL, "loss.end_never_scored")
    unknown = check(_ended(masked=True, own_pad=True), pad_id=0)  # no tokenizer says what it is
    assert (unknown.status, unknown.reason) == (Status.WARN, "loss.last_tokens_not_scored")

    unsure = _ended(masked=True)
    pair = (unsure["input_ids"], unsure["labels"])
    doubtful = check(pair, pad_id=END, tokenizer=_Ending())
    assert (doubtful.status, doubtful.reason) == (Status.WARN, "loss.end_never_scored")
    assert check(pair, pad_id=END).reason == "loss.ok"


def _answers(*, late: int, marked: bool = True) -> tuple[Tensor, Tensor]:
    """Six rows: four tokens of prompt, a marker, five of answer that begin differently."""
    rows = torch.randint(0, MARK, (6, 10))
    rows[:, 5] = torch.arange(6)
    if marked:
        rows[:, 4] = MARK
    targets = rows.clone()
    targets[:, : 5 + late] = -100
    return rows[:, :-1].contiguous(), targets[:, 1:].contiguous()


def test_answers_that_start_one_token_late_warn() -> None:
    """The marker stands one place before the last token that is ignored, in every row."""
    late = check_loss(TinyGPT(), *_answers(late=1))
    assert (late.status, late.reason) == (Status.WARN, "loss.answer_starts_late")
    assert check_loss(TinyGPT(), *_answers(late=0)).reason == "loss.ok"
    assert check_loss(TinyGPT(), *_answers(late=0, marked=False)).reason == "loss.ok"
    assert check_loss(TinyGPT(), *_answers(late=1, marked=False)).reason == "loss.ok"


def test_last_tokens_that_are_read_and_never_scored_warn() -> None:
    """An inverted mask scores the prompts; pads at the end are not read, and pass."""
    inputs, targets = _answers(late=0)
    inverted = torch.full_like(targets, -100)
    inverted[:, :3] = inputs[:, 1:4]
    result = check_loss(TinyGPT(), inputs, inverted, pad_id=18)
    assert (result.status, result.reason) == (Status.WARN, "loss.last_tokens_not_scored")
    assert result.numbers["lost"] == [5] * 6
    assert check_loss(TinyGPT(), inputs, inverted).reason == "loss.ok"  # they may be pads
    inputs[:, 6:], targets[:, 5:] = 18, -100
    assert check_loss(TinyGPT(), inputs, targets, pad_id=18).reason == "loss.ok"


def test_a_token_that_is_masked_by_its_value_is_named() -> None:
    """Marks that fall on any token are no such thing, nor is a pad that was declared."""
    inputs, targets = random_pair(19, B=8, T=12)
    inputs[:, 1::4], targets[:, ::4] = 7, 7
    by_value = targets.masked_fill(targets == 7, -100)
    result = check_loss(TinyGPT(), inputs, by_value)
    assert (result.status, result.reason) == (Status.FAIL, "loss.token_never_scored")
    assert result.numbers["tokens"] == [7]
    assert check_loss(TinyGPT(), inputs, by_value, pad_id=7).reason == "loss.ok"
    anywhere = targets.masked_fill(torch.rand(targets.shape) < 0.5, -100)
    assert check_loss(TinyGPT(), inputs, anywhere).reason == "loss.ok"


def test_a_rare_token_that_is_masked_by_its_value_is_named() -> None:
    """In 8 rows it stands two or three times, in 256 rows about ninety times, two in a row."""
    ids = torch.randint(18, (4000,), generator=torch.Generator().manual_seed(0))
    ids[::70], ids[1::70] = 18, 18

    def drawn(mask: Any, train_ids: Tensor = ids, **parts: Any) -> Any:
        def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
            rows = data[torch.randint(len(data) - 12, (8, 1)) + torch.arange(13)]
            x, y = rows[:, :-1], rows[:, 1:]
            return x, y.masked_fill(mask(x, y), -100)

        return check_loss(TinyGPT(), get_batch=get_batch, train_ids=train_ids, **parts)

    result = drawn(lambda x, y: y == 18)
    assert (result.status, result.reason) == (Status.FAIL, "loss.token_never_scored")
    assert result.numbers["tokens"] == [18]
    assert drawn(lambda x, y: x == 18).reason == "loss.ok"  # what follows an end is not learnt
    filled = ids.clone()
    for k in range(5):
        filled[k::70] = 18
    assert drawn(lambda x, y: y == 18, filled).reason == "loss.ok"  # five in a row: padding
    started = torch.randint(17, (4000,), generator=torch.Generator().manual_seed(0))
    started[::70], started[1::70] = 17, 18
    assert drawn(lambda x, y: y == 18, started).reason == "loss.ok"  # a start after each end
    assert drawn(lambda x, y: y == 17, started).reason == "loss.token_never_scored"


def test_rows_without_a_scored_target_warn() -> None:
    inputs, targets = _answers(late=0)
    targets[2] = -100
    result = check_loss(TinyGPT(), inputs, targets)
    assert (result.status, result.reason) == (Status.WARN, "loss.rows_not_scored")
    assert result.numbers["rows"] == [2]


def test_a_gradient_of_nothing_is_told() -> None:
    """The number is right; what keeps the graph alive is multiplied by 0."""
    model = TinyGPT(loss_of=lambda z, y: torch.tensor(_ce(z, y).item()) + 0 * z.sum())
    result = check_loss(model)
    assert (result.status, result.reason) == (Status.FAIL, "loss.wrong_gradient")
    assert "is 0" in result.claim


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_in_16_bits_is_named(dtype: torch.dtype) -> None:
    """Logits of 32 bits, cross-entropy of 16: not a loss that ignores its targets, or overflows."""

    def narrow(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).to(dtype), targets.flatten()).float()

    result = check_loss(TinyGPT(loss_of=narrow))
    assert (result.reason, result.status) == ("loss.low_precision", Status.FAIL), str(result)


def test_a_pad_id_that_stands_in_the_text_is_no_padding() -> None:
    """Two newlines in a row are an empty line, as long as the data hold no longer run of them."""
    ids = (1 + torch.arange(2400) % 7).view(-1, 12)
    ids[:, 3] = 0
    ids[::2, 4] = 0
    inputs, targets = ids[:8].clone(), ids[:8].roll(-1, 1)
    parts: dict[str, Any] = {"vocab_size": 19, "pad_id": 0}
    assert check_loss(TinyGPT(19), inputs, targets, train_ids=ids.flatten(), **parts).status is (
        Status.PASS
    )
    assert check_loss(TinyGPT(19), inputs, targets, **parts).reason == "loss.padding_counted"
    inputs[:, 8:], targets[:, 7:] = 0, 0  # padding that is longer than an empty line
    result = check_loss(TinyGPT(19), inputs, targets, train_ids=ids.flatten(), **parts)
    assert result.reason == "loss.padding_counted"
