"""Rows of the table: train and eval mode, and the numbers that an evaluation reports.

Shapes: B batch, T time, C width, H heads, D head size, V vocabulary, N ids.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from exercises._lab import Lab, retype
from exercises.break_causal_independence import WrittenOutAttention
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.evaluate import evaluation_mode
from minigpt.model import CausalSelfAttention, FeedForward
from tests.catalogue._row import Build, Caught, Row

Summary = Callable[[list[float], list[int]], float]  # (mean nats, targets) of each batch -> value
ROWS_PER_BATCH, PAD = 16, 0


def token_mean(losses: list[float], counts: list[int]) -> float:
    """Weigh each batch by the targets that were scored in it."""
    return sum(loss * n for loss, n in zip(losses, counts, strict=True)) / sum(counts)


def batches(ids: Tensor, T: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut ids (N,) into rows (B, T) and their targets; the last row is shorter."""
    rows = ids[: (len(ids) - 1) // T * T + 1].unfold(0, T + 1, T)
    rest = ids[None, len(rows) * T :]
    for part in (*rows.split(ROWS_PER_BATCH), *([rest] if rest.shape[1] > 1 else [])):
        yield part[:, :-1], part[:, 1:]


def evaluation(
    summary: Summary = token_mean,
    *,
    enter_eval: bool = True,
    back_to_train: bool = True,
    no_grad: bool = True,
    dropout: float = 0.0,
) -> Build:
    """An evaluation as written by hand, each habit of which can be left out."""

    def evaluate(model: Any, ids: Tensor) -> float:
        modes = [(module, module.training) for module in model.modules()]
        if enter_eval:
            model.eval()
        losses, counts = [], []
        with torch.no_grad() if no_grad else contextlib.nullcontext():
            for inputs, targets in batches(ids, model.config.block_size):
                losses.append(float(model(inputs, targets)[1]))
                counts.append(targets.numel())
        if back_to_train:
            for module, training in modes:
                module.training = training
        return summary(losses, counts)

    return with_dropout(dropout, evaluate=evaluate)


def with_dropout(
    dropout: float, edit: Callable[[Any], Any] = lambda model: model, **parts: Any
) -> Build:
    """The lab's pipeline around a model with dropout."""

    def build(lab: Lab) -> Any:
        config = MiniGPTConfig.debug(lab.tokenizer.vocab_size, dropout=dropout)

        def make_model() -> nn.Module:
            return edit(MiniGPT(config))

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            return lab.pipeline(model=make_model(), make_model=make_model, **parts)

    return build


def attention_dropout(*, gated: bool) -> Build:
    """The probability is handed to attention in eval mode too."""

    class Mixing(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            p = self.dropout if self.training or not gated else 0.0
            return functional.scaled_dot_product_attention(
                queries, keys, values, dropout_p=p, is_causal=True
            )

    return with_dropout(0.1, lambda model: retype(model, CausalSelfAttention, Mixing))


def dropout_in_forward(*, registered: bool) -> Build:
    """A dropout that is made anew in every forward call is always in train mode."""

    class Dropping(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            drop = self.output_dropout if registered else nn.Dropout(0.1)
            x = self.output(functional.gelu(self.expand(x)))
            dropped: Tensor = drop(x)
            return dropped

    return with_dropout(0.1, lambda model: retype(model, FeedForward, Dropping))


def mean_of_batch_perplexities(losses: list[float], counts: list[int]) -> float:
    """The exponential of each batch is averaged; its logarithm is what evaluate must give."""
    return math.log(sum(map(math.exp, losses)) / len(losses))


def per_token(*, exp_first: bool, padding_scored: bool = False) -> Build:
    """The nats of every token, the last row padded; exp() before or after the mean."""

    @torch.no_grad()
    def evaluate(model: Any, ids: Tensor) -> float:
        T, nats = model.config.block_size, []
        with evaluation_mode(model):
            for inputs, targets in batches(ids, T):
                missing, known = T - inputs.shape[1], inputs.shape[1]
                logits = model(functional.pad(inputs, (0, missing), value=PAD))[0]
                targets = functional.pad(targets, (0, missing), value=PAD)
                each = functional.cross_entropy(
                    logits.flatten(0, 1), targets.flatten(), reduction="none"
                ).view(-1, T)
                nats.append(each[:, : known + int(padding_scored)].flatten())
        every = torch.cat(nats).double()
        return math.log(float(every.exp().mean())) if exp_first else float(every.mean())

    return lambda lab: lab.pipeline(evaluate=evaluate)


def few_windows(*, seed_globally: bool) -> Build:
    """Windows are drawn under a seed that is set before each evaluation."""

    @torch.no_grad()
    def evaluate(model: Any, ids: Tensor) -> float:
        T, losses = model.config.block_size, []
        generator = torch.Generator().manual_seed(1337)
        if seed_globally:
            generator = torch.manual_seed(1337)
        with evaluation_mode(model):
            for _ in range(5):
                starts = torch.randint(len(ids) - T, (ROWS_PER_BATCH,), generator=generator)
                rows = torch.stack([ids[start : start + T + 1] for start in starts.tolist()])
                losses.append(float(model(rows[:, :-1], rows[:, 1:])[1]))
        return sum(losses) / len(losses)

    return lambda lab: lab.pipeline(evaluate=evaluate)


def labels_inside(*, weight_by_inputs: bool) -> Build:
    """T tokens are read and T - 1 of them scored, as where the model shifts its labels itself."""

    @torch.no_grad()
    def evaluate(model: Any, ids: Tensor) -> float:
        T, total, count = model.config.block_size, 0.0, 0
        with evaluation_mode(model):
            for rows in ids[: len(ids) // T * T].view(-1, T).split(ROWS_PER_BATCH):
                logits = model(rows)[0][:, :-1]
                loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                scored = rows[:, 1:].numel()
                total += float(loss) * (rows.numel() if weight_by_inputs else scored)
                count += scored
        return total / count

    return lambda lab: lab.pipeline(evaluate=evaluate)


ROWS: tuple[Row, ...] = (
    Caught(
        "eval-mode-missing",
        "evaluation",
        "evaluation.train_mode",
        evaluation(enter_eval=False, dropout=0.1),
        healthy=evaluation(dropout=0.1),
    ),
    Caught(
        "train-mode-not-restored",
        "evaluation",
        "evaluation.left_in_eval",
        evaluation(back_to_train=False, dropout=0.1),
        healthy=evaluation(dropout=0.1),
    ),
    Caught(
        "functional-dropout-always-on",
        "modes",
        "modes.eval_random",
        attention_dropout(gated=False),
        healthy=attention_dropout(gated=True),
    ),
    Caught(
        "grad-enabled-in-eval",
        "evaluation",
        "evaluation.records_gradients",
        evaluation(no_grad=False),
        healthy=evaluation(),
        only_warns="the value is right, and an evaluation may need gradients, as for saliency",
    ),
    Caught(
        "unregistered-dropout-survives-eval",
        "modes",
        "modes.eval_random",
        dropout_in_forward(registered=False),
        healthy=dropout_in_forward(registered=True),
    ),
    Caught(
        "ppl-mean-of-batches",
        "evaluation",
        "evaluation.exp_inside_mean",
        evaluation(mean_of_batch_perplexities),
        healthy=evaluation(),
    ),
    Caught(
        "ppl-exp-inside-mean",
        "evaluation",
        "evaluation.exp_inside_mean",
        per_token(exp_first=True),
        healthy=per_token(exp_first=False),
    ),
    Caught(
        "ppl-scores-padding",
        "evaluation",
        "evaluation.padding_counted",
        per_token(exp_first=False, padding_scored=True),
        healthy=per_token(exp_first=False),
    ),
    Caught(
        "eval-on-first-batches-only",
        "evaluation",
        "evaluation.resets_random_state",
        few_windows(seed_globally=True),
        healthy=few_windows(seed_globally=False),
    ),
    Caught(
        "metric-length-off-by-one",
        "evaluation",
        "evaluation.length_off_by_one",
        labels_inside(weight_by_inputs=True),
        healthy=labels_inside(weight_by_inputs=False),
    ),
)
