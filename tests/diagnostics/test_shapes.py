"""Logits are (B, T, V), the loss is one number, rows stay in their places, on one device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_shapes, diagnose
from minigpt import MiniGPT, MiniGPTConfig
from tests.diagnostics.architectures import Llama, SineGPT, alibi_mix
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
)

V, C, BLOCK = 19, 16, 12


class Odd(TinyGPT):
    """A TinyGPT whose output a test rewrites: finish(logits, loss) -> what forward returns."""

    def __init__(self, finish: Callable[[Tensor, Tensor | None], Any], **parts: Any) -> None:
        super().__init__(V, C=C, block=BLOCK, **parts)
        self.finish = finish

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        """Return whatever `finish` makes of (logits, loss or None)."""
        return self.finish(*super().forward(ids, targets))


class LastOnly(TinyGPT):
    """NanoGPT's way: without targets only the last position is scored."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss) or (logits (B, 1, V), None)."""
        logits, loss = super().forward(ids, targets)
        return (logits[:, [-1]], None) if targets is None else (logits, loss)


class PaddedVocabulary(nn.Module):
    """64 columns for 19 tokens, the rest closed with -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=V, block_size=BLOCK)
        self.table = nn.Embedding(V, 64)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        """Return {"logits": (B, T, 64)}."""
        closed = torch.arange(64, device=ids.device) >= V
        return {"logits": self.table(ids).masked_fill(closed, -torch.inf)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: MiniGPT(MiniGPTConfig.debug(65)),
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT(positions=False, block=BLOCK + 30),
        lambda: TinyGPT(std=0.0),
        lambda: TinyGPT().bfloat16(),
        Bigram,
        Recurrent,
        Convolution,
        HFStyle,
        LastOnly,
        PaddedVocabulary,
        lambda: MixtureOfExperts(shut=True),
        lambda: Odd(lambda logits, loss: SimpleNamespace(logits=logits, loss=loss)),
        lambda: Odd(lambda logits, loss: {"loss": loss, "logits": logits}),
        lambda: Odd(lambda logits, loss: (loss, logits)),
        lambda: Odd(lambda logits, loss: (30 * torch.tanh(logits / 30), loss)),
    ],
)
def test_healthy_designs_do_not_fail(make: Callable[[], nn.Module]) -> None:
    """Every usual output style passes, rows beyond the block without a table of positions too."""
    result = check_shapes(make())
    assert (result.status, result.reason) == (Status.PASS, "shapes.ok"), str(result)


def test_pass_counts_its_calls() -> None:
    """B in 1, 2, 3 times T in 1, 2, 7, 12, with and without targets: 24 calls."""
    result = check_shapes(TinyGPT(V, block=BLOCK))
    assert (result.status, result.reason) == (Status.PASS, "shapes.ok")
    assert result.numbers == {"calls": 24, "width": V, "vocab_size": V}
    assert "24 calls with B up to 3 and T up to 12" in result.claim


def flat_with_targets(logits: Tensor, loss: Tensor | None) -> Any:
    """Overwrite the logits by their flattened view when targets are given."""
    return (logits if loss is None else logits.flatten(0, 1)), loss


def last_always(logits: Tensor, loss: Tensor | None) -> Any:
    """Take the generation shortcut in training too."""
    return logits[:, [-1]], loss


@pytest.mark.parametrize(
    ("finish", "reason", "shape"),
    [
        (lambda x, loss: (x.transpose(1, 2), loss), "transposed", [2, V, 1]),
        (lambda x, loss: (x.transpose(0, 1), loss), "time_first", [1, 2, V]),
        (lambda x, loss: (x.flatten(0, 1), loss), "flattened", [2, V]),
        (flat_with_targets, "flattened", [2, V]),
        (last_always, "last_only", [1, 1, V]),
        (lambda x, loss: (x.squeeze(), loss), "squeezed", [2, V]),
        (lambda x, loss: (x.squeeze(0), loss), "squeezed", [2, V]),
        (lambda x, loss: (x[..., :7], loss), "too_narrow", None),
        (lambda x, loss: (x[:, 1:] if x.shape[1] > 2 else x, loss), "truncated", [3, 6, V]),
    ],
)
def test_layouts_are_named(finish: Any, reason: str, shape: list[int] | None) -> None:
    """Each wrong layout has its own name; the first size at which B, T and V differ is shown."""
    result = check_shapes(Odd(finish))
    assert (result.status, result.reason) == (Status.FAIL, f"shapes.{reason}"), str(result)
    if shape is not None:
        assert result.numbers["shape"] == shape


def test_flattened_only_with_targets_counts_half_of_the_calls() -> None:
    """24 calls, 12 of them with targets, all flattened there and nowhere else."""
    result = check_shapes(Odd(flat_with_targets))
    assert len(result.numbers["calls"]) == 12
    assert all(name.endswith("with targets") for name in result.numbers["calls"])


def test_unreadable_shapes_are_shown() -> None:
    """A mean over the batch leaves (T, V): no order of (B, T, V) fits, and no cause is offered."""
    result = check_shapes(Odd(lambda x, loss: x.mean(0)))
    assert (result.status, result.reason) == (Status.FAIL, "shapes.unreadable")
    assert result.numbers["shapes"] == [[7, V]]
    assert result.causes == ()


def test_predictions_are_not_logits() -> None:
    """Whole numbers (B, T) are ids: argmax happened inside."""
    result = check_shapes(Odd(lambda x, loss: x.argmax(-1)))
    assert (result.status, result.reason) == (Status.FAIL, "shapes.predictions")
    assert "int64 of shape (3, 12)" in result.measured


def test_probabilities_are_a_warning() -> None:
    """Rows that sum to 1 are probabilities; log-probabilities are harmless and pass."""
    result = check_shapes(Odd(lambda x, loss: (x.softmax(-1), loss)))
    assert (result.status, result.reason) == (Status.WARN, "shapes.probabilities")
    harmless = check_shapes(Odd(lambda x, loss: (x.log_softmax(-1), loss)))
    assert harmless.reason == "shapes.ok"


@pytest.mark.parametrize("flat", [True, False])
def test_unreduced_loss(flat: bool) -> None:
    """One loss per token, as (B*T,) or (B, T), is not a scalar; the cause is the reduction."""

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return each if flat else each.view(targets.shape)

    result = check_shapes(TinyGPT(V, loss_of=loss_of))
    assert (result.status, result.reason) == (Status.FAIL, "shapes.loss_not_scalar")
    assert 'reduction="none"' in result.causes[0]


def test_nan_in_a_weight_is_left_to_forward_hooks() -> None:
    """One bad row is hit by some sizes only, yet the size is not the cause."""
    model = TinyGPT(V)
    with torch.no_grad():
        model.tokens.weight[0] = math.nan
    report = diagnose(Pipeline(model), only=("shapes", "forward_hooks"))
    assert report["shapes"].status is Status.SKIP
    assert report.first_failure is not None
    assert report.first_failure.reason == "forward_hooks.bad_weight"


class StateKeeper(nn.Module):
    """Returns (logits, hidden state), as an RNN does; the state has three axes, and is no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, V)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.rnn(self.embed(ids), state)
        return self.head(hidden), state


def test_hidden_state_is_not_a_loss() -> None:
    """It comes without targets as well."""
    assert check_shapes(StateKeeper()).reason == "shapes.ok"


def test_loss_as_a_python_number() -> None:
    """.item() inside forward cuts the graph."""
    result = check_shapes(Odd(lambda x, loss: (x, None if loss is None else loss.item())))
    assert (result.status, result.reason) == (Status.FAIL, "shapes.loss_not_tensor")


class Squeezing(TinyGPT):
    """Squeezes every axis of size 1."""

    def hidden(self, ids: Tensor) -> Tensor:
        """Return (B, T, C), or less."""
        x = super().hidden(ids).squeeze()
        assert x.ndim == 3, "wanted three axes"
        return x


def test_squeeze_is_found_and_located() -> None:
    """B=1 and T=1 raise, B=2 with T=2 does not; the user's own line is named."""
    result = check_shapes(Squeezing())
    assert (result.status, result.reason) == (Status.FAIL, "shapes.raises")
    assert "wanted three axes" in result.claim
    assert "test_shapes.py" in result.where
    assert "B=2, T=2, without targets" not in result.numbers["raising"]
    assert "B=1, T=12, without targets" in result.numbers["raising"]
    assert "B=3, T=1, with targets" in result.numbers["raising"]


def test_batch_of_one_alone_gets_its_cause() -> None:
    """Only B=1 raises: the batch axis is squeezed away."""

    class SqueezingBatch(TinyGPT):
        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            rows, _ = ids.squeeze(0).shape
            assert rows == ids.shape[0]
            return super().forward(ids, targets)

    result = check_shapes(SqueezingBatch())
    assert result.reason == "shapes.raises"
    assert {name[:3] for name in result.numbers["raising"]} == {"B=1"}
    assert "batch axis" in result.causes[0]


def test_a_table_that_is_read_from_row_two_is_too_short_for_the_block() -> None:
    """Only the block raises, by an IndexError: a short table, or positions that start too late."""

    class FromTwo(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            places = torch.arange(ids.shape[1], device=ids.device) + 2
            return self.norm(self.tokens(ids) + self.positions(places))  # type: ignore[misc]

    result = check_shapes(FromTwo(), block_size=BLOCK)
    assert (result.status, result.reason) == (Status.FAIL, "shapes.raises")
    assert "do not start at 0" in result.causes[1]


def test_model_that_raises_at_every_size() -> None:
    """A model that never answers is still a clear verdict, with its line."""

    class Broken(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            raise RuntimeError("no luck")

    result = check_shapes(Broken())
    assert (result.status, result.reason) == (Status.FAIL, "shapes.raises")
    assert "no luck" in result.claim


def test_nan_at_one_length_only() -> None:
    """A deviation over one position is NaN: only T=1 is named."""

    class Deviating(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x / x.std(dim=1, keepdim=True)

    result = check_shapes(Deviating())
    assert (result.status, result.reason) == (Status.FAIL, "shapes.not_finite")
    assert "T in [1]" in result.where
    assert result.numbers["everywhere"] is False


def test_nan_everywhere_is_left_to_forward_hooks_by_diagnose() -> None:
    """Alone the check fails; in a report it steps back for the check that names the module."""
    model = TinyGPT()
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    assert check_shapes(model).status is Status.FAIL
    report = diagnose(Pipeline(model), only=["shapes"])
    assert (report["shapes"].status, report["shapes"].reason) == (
        Status.SKIP,
        "shapes.not_finite",
    )


class MixedRows(TinyGPT):
    """Brings (T, B, C) back to (B, T, C) by reshape in place of transpose."""

    def hidden(self, ids: Tensor) -> Tensor:
        """Return (B, T, C) with rows and positions mixed."""
        x = super().hidden(ids)
        return x.transpose(0, 1).reshape(x.shape)


def test_mixed_rows() -> None:
    """Shapes are perfect and no row alone is wrong: only the batch shows it."""
    result = check_shapes(MixedRows())
    assert (result.status, result.reason) == (Status.FAIL, "shapes.rows_mixed")
    # reading 3 x 7 as 7 x 3 keeps 1 + gcd(2, 6) = 3 of the 21 places
    assert (result.numbers["misplaced"], result.numbers["places"]) == (18, 21)


def test_rows_that_influence_one_another_are_for_another_check() -> None:
    """Numbers that change are not numbers that moved."""

    class Averaging(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x + x.mean(0, keepdim=True)

    assert check_shapes(Averaging()).status is Status.PASS


@pytest.mark.parametrize("registered", [True, False])
def test_tensor_on_another_device(registered: bool) -> None:
    """A mask that is a plain attribute stays on the CPU when the model moves; a buffer goes."""

    class Masked(TinyGPT):
        def __init__(self) -> None:
            super().__init__()
            ramp = torch.linspace(0, 1, 16)
            if registered:
                self.register_buffer("ramp", ramp)
            else:
                self.ramp = ramp

        def hidden(self, ids: Tensor) -> Tensor:
            return super().hidden(ids) + self.ramp

    result = check_shapes(Masked())
    assert result.reason == ("shapes.ok" if registered else "shapes.wrong_device")


def test_positions_without_a_device() -> None:
    """torch.arange(T) without device= is named by its line, though meta's embedding takes it."""

    class Careless(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))  # type: ignore[misc]
            return self.norm(x)

    result = check_shapes(Careless())
    assert (result.status, result.reason) == (Status.FAIL, "shapes.wrong_device")
    assert "test_shapes.py" in result.where
    assert "in hidden" in result.where


def test_model_that_reads_numbers_is_not_judged_on_meta() -> None:
    """.item() cannot run on meta; that is no fault."""

    class Reading(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            assert int(ids.max()) < V
            return super().hidden(ids)

    assert check_shapes(Reading()).status is Status.PASS


def test_longer_than_the_block() -> None:
    """Positions modulo the block and a silent crop are warnings; raising is right."""

    class Modulo(TinyGPT):
        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            logits = self.head(
                self.tokens(ids)
                + self.positions(  # type: ignore[misc]
                    torch.arange(ids.shape[1], device=ids.device) % BLOCK
                )
            )
            return logits, None if targets is None else cross_entropy(logits, targets)

    class Cropping(TinyGPT):
        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            targets = None if targets is None else targets[:, -BLOCK:]
            return super().forward(ids[:, -BLOCK:], targets)

    class Clamped(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            places = torch.arange(ids.shape[1], device=ids.device).clamp(max=BLOCK - 1)
            return self.norm(self.tokens(ids) + self.positions(places))  # type: ignore[misc]

    for model in (Modulo(V, block=BLOCK), Clamped(V, block=BLOCK)):
        result = check_shapes(model)
        assert (result.status, result.reason) == (Status.WARN, "shapes.overrun")
        assert "reads a row of positions.weight that belongs to an earlier position" in result.claim
    result = check_shapes(Cropping(V, block=BLOCK))
    assert (result.status, result.reason) == (Status.WARN, "shapes.truncated_silently")
    assert result.numbers["shape"] == [1, BLOCK, V]


@pytest.mark.parametrize(
    "make",
    [
        Llama,
        SineGPT,
        lambda: TinyGPT(positions=False, mix=alibi_mix),
        lambda: TinyGPT(positions=False),
    ],
)
def test_positions_that_go_on_may_be_longer_than_the_block(make: Callable[[], nn.Module]) -> None:
    """Rotary, ALiBi, none, and sines with rows to spare: nothing shows that it matters."""
    result = check_shapes(make())
    assert (result.status, result.reason) == (Status.PASS, "shapes.ok"), str(result)


def test_recurrent_model_has_no_last_position() -> None:
    """A block that is declared for it is no limit."""
    assert check_shapes(Recurrent(), block_size=8).reason == "shapes.ok"


def test_longer_rows_that_lose_their_mask_are_a_warning() -> None:
    """Beyond the block a mask that is too small is left out: the block's own logits move."""

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = q.shape[2] <= BLOCK
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    result = check_shapes(TinyGPT(positions=False, mix=mix, block=BLOCK))
    assert (result.status, result.reason) == (Status.WARN, "shapes.overrun")
    assert result.claim.endswith("accepted and predict otherwise within the block")


def test_model_for_one_length_only_is_a_warning() -> None:
    """A fixed-window model that refuses every other length by a ValueError may mean it."""

    class Fixed(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            if ids.shape[1] != BLOCK:
                raise ValueError(f"wanted {BLOCK} tokens, got {ids.shape[1]}")
            return super().hidden(ids)

    result = check_shapes(Fixed(V, block=BLOCK))
    assert result.reason in ("shapes.fixed_length", "shapes.raises")
    assert "wanted 12 tokens" in result.claim


def test_forward_of_the_user_is_called_as_given() -> None:
    """With forward= the check judges what that returns, [B, V, T] included."""
    model = Recurrent()

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs)
        return logits.transpose(1, 2), cross_entropy(logits, targets)

    assert check_shapes(model).reason == "shapes.ok"
    assert check_shapes(model, forward=forward).reason == "shapes.transposed"


def test_sizes_that_coincide_with_the_vocabulary() -> None:
    """V = 7 would hide (B, V, 7): the sweep takes T = 8 in its place."""
    result = check_shapes(Odd7(lambda x, loss: (x.transpose(1, 2), loss)))
    assert result.reason == "shapes.transposed"


class Odd7(Odd):
    """The same with seven tokens."""

    def __init__(self, finish: Any) -> None:
        TinyGPT.__init__(self, 7, block=BLOCK)
        self.finish = finish


def test_the_users_model_comes_back_untouched() -> None:
    """Weights, device, modes and random state stay."""
    model = TinyGPT()
    model.head.eval()
    weights = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    check_shapes(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
