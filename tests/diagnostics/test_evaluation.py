"""Evaluation: the value is the mean nats per token of what was read, and nothing is left behind."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_evaluation, diagnose
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.evaluate import evaluate
from tests.diagnostics.tiny import Bigram, HFStyle, MixtureOfExperts, Recurrent, TinyGPT

T = 12  # block of the tiny models
Losses = list[float]
Counts = list[int]
Summary = Callable[[Losses, Counts], float]
Evaluate = Callable[[nn.Module, Tensor], float]


def token_mean(losses: Losses, counts: Counts) -> float:
    return sum(loss * n for loss, n in zip(losses, counts, strict=True)) / sum(counts)


def windows(ids: Tensor, rows: int, *, keep_rest: bool = True) -> list[tuple[Tensor, Tensor]]:
    """Cut ids into windows of T, `rows` a batch, and the rest into a shorter one."""
    count = (len(ids) - 1) // T
    parts = [*ids[: count * T + 1].unfold(0, T + 1, T).split(rows)]
    if keep_rest and len(ids) - count * T > 1:
        parts.append(ids[None, count * T :])
    return [(part[:, :-1], part[:, 1:]) for part in parts]


def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    output = model(inputs)
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


def build(
    summary: Summary = token_mean,
    *,
    rows: int = 16,
    keep_rest: bool = True,
    eval_mode: bool = True,
    restore: bool = True,
    shift: int = 0,
) -> Evaluate:
    """Return an evaluation that computes cross-entropy itself; a test changes one part."""

    @torch.no_grad()
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        modes = [(module, module.training) for module in model.modules()]
        if eval_mode:
            model.eval()
        losses, counts = [], []
        for inputs, targets in windows(ids, rows, keep_rest=keep_rest):
            scored = targets.roll(-shift, 1) if shift else targets
            logits = logits_of(model, inputs)
            losses.append(functional.cross_entropy(logits.flatten(0, 1).float(), scored.flatten()))
            counts.append(targets.numel())
        if restore:
            for module, training in modes:
                module.training = training
        return summary([float(loss) for loss in losses], counts)

    return evaluation


class Dropping(nn.Module):
    """A bigram table with dropout of which a test chooses the probability."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.vocab_size = 17
        self.table = nn.Embedding(17, 17)
        self.dropout = nn.Dropout(p)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.dropout(self.table(ids))


@pytest.mark.parametrize(
    "model",
    [
        TinyGPT(),
        TinyGPT(tied=True),
        TinyGPT(std=0.0),
        TinyGPT().bfloat16(),
        Bigram(),
        Recurrent(),
        HFStyle(),
        MixtureOfExperts(),
        Dropping(0.3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_healthy_evaluation_passes(model: nn.Module) -> None:
    result = check_evaluation(model, build(), block_size=T)
    assert (result.status, result.reason) == (Status.PASS, "evaluation.ok")
    assert result.numbers["share_read"] == 1.0


def test_minigpt_passes_and_its_subset_is_a_warning() -> None:
    """max_windows reads a fixed part: the value is right, and the share is told."""
    model = MiniGPT(MiniGPTConfig.debug(65, dropout=0.1))
    assert check_evaluation(model, evaluate).reason == "evaluation.ok"  # type: ignore[arg-type]
    result = check_evaluation(
        model,
        lambda model, ids: evaluate(model, ids, max_windows=13),  # type: ignore[arg-type]
    )
    assert (result.status, result.reason) == (Status.WARN, "evaluation.reads_part")
    assert result.numbers["share_read"] == pytest.approx(13 / 131.5, abs=1e-3)


@pytest.mark.parametrize(
    "evaluation",
    [
        build(rows=1),
        build(rows=7),
        build(rows=1000),
        build(keep_rest=False),
        # equal batches: the mean of means is the mean
        build(lambda losses, counts: sum(losses) / len(losses), rows=1, keep_rest=False),
    ],
)
def test_batch_size_and_a_dropped_rest_do_not_matter(evaluation: Evaluate) -> None:
    assert check_evaluation(TinyGPT(), evaluation).reason == "evaluation.ok"


def test_overlapping_windows_that_score_new_tokens_only_are_healthy() -> None:
    """A stride of half a block, where the first half of each window is context."""

    @torch.no_grad()
    def strided(model: nn.Module, ids: Tensor) -> float:
        nats: list[Tensor] = []
        done = 0
        for start in range(0, len(ids) - 1, T // 2):
            window = ids[start : start + T + 1]
            logits = logits_of(model, window[None, :-1])[0]
            each = functional.cross_entropy(logits, window[1:], reduction="none")
            new = max(0, start + len(window) - 1 - done)
            nats.append(each[len(each) - new :])
            done = max(done, start + len(window) - 1)
        return float(torch.cat(nats).mean())

    assert check_evaluation(TinyGPT(), strided).reason == "evaluation.ok"


def test_padding_that_is_ignored_is_healthy_and_counted_padding_is_not() -> None:
    def padded(ignored: int) -> Evaluate:
        @torch.no_grad()
        def evaluation(model: nn.Module, ids: Tensor) -> float:
            rows = [ids[start : start + T + 1] for start in range(0, len(ids) - 1, T)]
            rows = [functional.pad(row, (0, T + 1 - len(row)), value=0) for row in rows]
            block = torch.stack(rows)
            targets = block[:, 1:].clone()
            targets[-1, len(ids) - 1 - (len(rows) - 1) * T :] = ignored
            logits = logits_of(model, block[:, :-1])
            return float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

        return evaluation

    assert check_evaluation(TinyGPT(), padded(-100)).reason == "evaluation.ok"
    assert check_evaluation(TinyGPT(), padded(0)).reason == "evaluation.padding_counted"


def test_seeded_random_windows_are_healthy_and_unseeded_ones_a_warning() -> None:
    def sampled(generator: Callable[[], torch.Generator | None]) -> Evaluate:
        @torch.no_grad()
        def evaluation(model: nn.Module, ids: Tensor) -> float:
            starts = torch.randint(len(ids) - T, (150,), generator=generator())
            rows = ids[starts[:, None] + torch.arange(T + 1)]
            logits = logits_of(model, rows[:, :-1])
            return float(functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))

        return evaluation

    seeded = check_evaluation(TinyGPT(), sampled(lambda: torch.Generator().manual_seed(1)))
    assert seeded.reason == "evaluation.ok"
    unseeded = check_evaluation(TinyGPT(), sampled(lambda: None))
    assert (unseeded.status, unseeded.reason) == (Status.WARN, "evaluation.random_windows")

    reset = check_evaluation(TinyGPT(), sampled(lambda: torch.manual_seed(1) and None))
    assert (reset.status, reset.reason) == (Status.FAIL, "evaluation.resets_random_state")


@pytest.mark.parametrize(
    ("reason", "summary"),
    [
        ("mean_of_means", lambda losses, counts: sum(losses) / len(losses)),
        ("perplexity", lambda losses, counts: math.exp(token_mean(losses, counts))),
        ("perplexity", lambda losses, counts: sum(map(math.exp, losses)) / len(losses)),
        ("sum", lambda losses, counts: sum(losses)),
        ("sum", lambda losses, counts: token_mean(losses, counts) * sum(counts)),
        ("bits", lambda losses, counts: token_mean(losses, counts) / math.log(2)),
        ("sign", lambda losses, counts: -token_mean(losses, counts)),
        ("first_batch_only", lambda losses, counts: losses[0]),
        ("last_batch_only", lambda losses, counts: losses[-1]),
        ("last_batch_dropped", lambda losses, counts: token_mean(losses[:-1], counts[:-1])),
        ("batches_miscounted", lambda losses, counts: sum(losses) / (len(losses) + 1)),
        ("length_off_by_one", lambda losses, counts: token_mean(losses, counts)
            * sum(counts) / (sum(counts) + 1 + sum(counts) // T)),
        ("divided_again", lambda losses, counts: token_mean(losses, counts) / len(losses)),
        ("value", lambda losses, counts: token_mean(losses, counts) * 0.97),
    ],
)  # fmt: skip
def test_each_wrong_formula_is_named(reason: str, summary: Summary) -> None:
    result = check_evaluation(TinyGPT(), build(summary))
    assert (result.status, result.reason) == (Status.FAIL, f"evaluation.{reason}")
    assert result.numbers["token_mean"] != pytest.approx(result.numbers["value"], rel=1e-5)
    assert result.next_step


def test_a_metric_without_shift_is_named() -> None:
    def unshifted(step: int) -> Evaluate:
        @torch.no_grad()
        def evaluation(model: nn.Module, ids: Tensor) -> float:
            rows = ids[: len(ids) // T * T].view(-1, T)
            logits = logits_of(model, rows)[:, : T - step] if step else logits_of(model, rows)
            return float(functional.cross_entropy(logits.flatten(0, 1), rows[:, step:].flatten()))

        return evaluation

    assert check_evaluation(TinyGPT(), unshifted(0)).reason == "evaluation.not_shifted"
    assert check_evaluation(TinyGPT(), unshifted(1)).reason == "evaluation.ok"
    assert check_evaluation(TinyGPT(), unshifted(2)).reason == "evaluation.shifted_twice"


def test_dropout_that_stays_on_fails_and_is_a_warning_where_it_is_zero() -> None:
    on = check_evaluation(Dropping(0.3), build(eval_mode=False), block_size=T)
    assert (on.status, on.reason) == (Status.FAIL, "evaluation.train_mode")
    off = check_evaluation(Dropping(0.0), build(eval_mode=False), block_size=T)
    assert (off.status, off.reason) == (Status.WARN, "evaluation.eval_missing")
    assert check_evaluation(TinyGPT(), build(eval_mode=False)).reason == "evaluation.ok"


def test_a_mode_that_is_not_given_back_is_told() -> None:
    result = check_evaluation(TinyGPT(), build(restore=False))
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.left_in_eval")

    def always_trains(model: nn.Module, ids: Tensor) -> float:
        value = build()(model, ids)
        model.train()
        return value

    result = check_evaluation(TinyGPT(), always_trains)
    assert (result.status, result.reason) == (Status.WARN, "evaluation.left_in_train")


def test_what_is_changed_in_the_model_is_told() -> None:
    def steps(model: nn.Module, ids: Tensor) -> float:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
        return build()(model, ids)

    assert check_evaluation(Bigram(), steps, block_size=T).reason == "evaluation.changes_weights"

    def clears(model: nn.Module, ids: Tensor) -> float:
        model.zero_grad()
        return build()(model, ids)

    assert check_evaluation(Bigram(), clears, block_size=T).reason == "evaluation.changes_gradients"


def test_ids_that_are_ignored_are_traced_to_the_split_that_is_read() -> None:
    train_ids = torch.randint(19, (600,), generator=torch.Generator().manual_seed(7))
    result = check_evaluation(
        TinyGPT(), lambda model, ids: build()(model, train_ids), train_ids=train_ids
    )
    assert result.reason == "evaluation.ignores_ids"
    assert "train_ids" in result.claim


def test_recorded_gradients_are_a_warning() -> None:
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        losses = [model(*pair)[1].detach() * pair[1].numel() for pair in windows(ids, 16)]
        return float(sum(losses)) / (len(ids) - 1)

    result = check_evaluation(TinyGPT(), evaluation)
    assert (result.status, result.reason) == (Status.WARN, "evaluation.records_gradients")


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "not_a_number"), (torch.ones(3), "not_a_number"), (float("nan"), "not_finite")],
)
def test_what_is_no_finite_number_is_a_fault(value: object, reason: str) -> None:
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        build()(model, ids)
        return value  # type: ignore[return-value]

    assert check_evaluation(TinyGPT(), evaluation).reason == f"evaluation.{reason}"


def test_a_model_that_is_not_called_is_judged_from_outside() -> None:
    """A copy whose weights are all 0 has equal logits: ln 11 nats, and its sum over ids is not."""

    def by_hand(scale: float) -> Evaluate:
        @torch.no_grad()
        def evaluation(model: nn.Module, ids: Tensor) -> float:
            logits = model.table.weight[ids[:-1]]  # type: ignore[index,union-attr]
            return scale * float(functional.cross_entropy(logits, ids[1:]))

        return evaluation

    right = check_evaluation(Bigram(11), by_hand(1.0), block_size=T)
    assert right.reason == "evaluation.ok"
    assert "outside" in right.claim
    wrong = check_evaluation(Bigram(11), by_hand(2.0), block_size=T)
    assert wrong.reason == "evaluation.value"
    assert wrong.numbers["uniform"] == pytest.approx(math.log(11))


def test_an_evaluation_that_needs_more_ids_gets_more() -> None:
    """200 windows make its smallest batch: the first, shorter ids raise."""

    def evaluation(model: nn.Module, ids: Tensor) -> float:
        if len(ids) < 200 * T:
            raise ValueError("no full batch")
        return build()(model, ids)

    assert check_evaluation(TinyGPT(), evaluation).reason == "evaluation.ok"


def test_without_the_part_it_is_a_skip_and_the_model_stays_untouched() -> None:
    report = diagnose(Pipeline(Bigram()), only=["evaluation"])
    assert report["evaluation"].status is Status.SKIP
    assert "evaluate" in report["evaluation"].next_step
    model = TinyGPT().train()
    before = copy.deepcopy(model.state_dict())
    check_evaluation(model, build(restore=False))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("shifted", "reason"), [(False, "ok"), (True, "shifted_twice")])
def test_a_loss_of_the_models_own_tells_which_token_it_scores(shifted: bool, reason: str) -> None:
    """A model that shifts inside and is given shifted labels reports the token after the next."""

    @torch.no_grad()
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        losses, counts = [], []
        for inputs, targets in windows(ids, 16):
            labels = targets if shifted else inputs
            losses.append(float(model(inputs, labels=labels).loss))
            counts.append(labels[:, 1:].numel())
        return token_mean(losses, counts)

    result = check_evaluation(HFStyle(), evaluation, labels="same")
    assert result.reason == f"evaluation.{reason}"


def log_of_mean_perplexity(losses: Losses, counts: Counts) -> float:
    return math.log(sum(map(math.exp, losses)) / len(losses))


def test_an_exponential_inside_the_mean_is_named_though_the_value_is_in_nats() -> None:
    """Batches of 5 rows differ, so that the mean of their perplexities is above exp(mean)."""
    result = check_evaluation(TinyGPT(), build(log_of_mean_perplexity, rows=5))
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.exp_inside_mean")
    assert "before averaging" in result.claim


def padded(*, scored_pads: int, own_targets: bool) -> Evaluate:
    """Return an evaluation whose last row is filled up with zeros, some of which are scored."""

    @torch.no_grad()
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        total, count = 0.0, 0
        for inputs, targets in windows(ids, 16):
            known = inputs.shape[1] - own_targets
            row = functional.pad(inputs, (0, T - inputs.shape[1]))
            wanted = torch.cat([row[:, 1:], row[:, :1] * 0], 1)
            if not own_targets:
                wanted = functional.pad(targets, (0, T - targets.shape[1]))
            nats = functional.cross_entropy(
                logits_of(model, row).flatten(0, 1), wanted.flatten(), reduction="none"
            ).view(-1, T)[:, : known + (scored_pads if inputs.shape[1] < T else 0)]
            total, count = total + float(nats.sum()), count + nats.numel()
        return total / count

    return evaluation


@pytest.mark.parametrize("own_targets", [True, False])
def test_one_pad_too_many_in_the_mask_is_named(own_targets: bool) -> None:
    """The targets are the row's own next tokens, or were cut from the ids beside it."""
    torch.manual_seed(0)
    model = TinyGPT()
    right = check_evaluation(model, padded(scored_pads=0, own_targets=own_targets))
    assert right.reason == "evaluation.ok"
    wrong = check_evaluation(model, padded(scored_pads=1, own_targets=own_targets))
    assert (wrong.status, wrong.reason) == (Status.FAIL, "evaluation.padding_counted")
    assert "off by one" in wrong.causes[0]


@pytest.mark.parametrize("fill", ["zero", "last"])
def test_a_last_window_that_is_filled_up_and_scored_in_whole_is_named(fill: str) -> None:
    """Inputs and targets are filled up side by side, with id 0 or with the last id of each."""

    @torch.no_grad()
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        parts = []
        for stream in (ids[:-1], ids[1:]):
            value = 0 if fill == "zero" else int(stream[-1])
            parts.append(functional.pad(stream, (0, -len(stream) % T), value=value).view(-1, T))
        logits = logits_of(model, parts[0])
        return float(functional.cross_entropy(logits.flatten(0, 1), parts[1].flatten()))

    torch.manual_seed(0)
    result = check_evaluation(TinyGPT(), evaluation)
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.padding_counted")


def test_a_sum_made_of_means_with_another_length_is_named() -> None:
    """T - 1 of T tokens are scored, and each mean counts T times: the value is T / (T - 1)."""

    @torch.no_grad()
    def evaluation(model: nn.Module, ids: Tensor) -> float:
        rows = ids[: len(ids) // T * T].view(-1, T)
        logits = logits_of(model, rows)[:, :-1]
        mean = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        return float(mean) * T / (T - 1)

    result = check_evaluation(TinyGPT(), evaluation)
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.length_off_by_one")


def test_an_evaluation_that_calls_train_says_so_and_is_a_warning_without_dropout() -> None:
    def trains(model: nn.Module, ids: Tensor) -> float:
        model.train()
        value = build(eval_mode=False, restore=False)(model, ids)
        model.eval()
        return value

    result = check_evaluation(Dropping(0.3), trains)
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.train_mode")
    assert "model.train() is called" in result.causes[0]
    assert "another seed" in result.measured


class Constant(nn.Module):
    """Logits that no weight makes equal: a fixed table stands behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 11
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("table", torch.randn(11, 11))

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.get_buffer("table")[ids] + self.scale


def test_what_could_not_be_recomputed_is_not_said_to_be_right() -> None:
    """The model is never called, and zero weights do not make its logits equal."""

    def evaluation(model: nn.Module, ids: Tensor) -> float:
        with torch.no_grad():
            logits = model.forward(ids[None, :-1])[0]  # past the hooks that __call__ runs
        return float(functional.cross_entropy(logits, ids[1:]))

    result = check_evaluation(Constant(), evaluation)
    assert (result.status, result.reason) == (Status.WARN, "evaluation.not_recomputed")


def test_a_value_that_is_kept_from_the_first_call_is_told() -> None:
    """The model is run in every call, and its answer to other ids is thrown away."""
    kept: list[float] = []

    def cached(model: nn.Module, ids: Tensor) -> float:
        kept.append(evaluate(model, ids))  # type: ignore[arg-type]
        return kept[0]

    torch.manual_seed(0)
    model = MiniGPT(MiniGPTConfig.debug(19))
    result = check_evaluation(model, cached)
    assert (result.status, result.reason) == (Status.FAIL, "evaluation.ignores_ids")
    assert "whatever ids" in result.claim
