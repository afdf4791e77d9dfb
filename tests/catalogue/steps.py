"""Rows of the table: the training loop, its clipping, its optimizer, its schedule, its precision.

Shapes: B batch, T time, K micro-batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from diagnostics import Pipeline
from exercises._lab import (
    IGNORE_INDEX,
    LEARNING_RATE,
    WARMUP_STEPS,
    Lab,
    learning_rate,
    retype,
    train_step,
)
from exercises.break_loss import ScoredGPT
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, KeyValueCache
from tests.catalogue._row import Build, Caught, Row, Unseen

# the laboratory's files hold the state of the laboratory's optimizer, and of no scheduler
UNSAVED: dict[str, Any] = {"save_state": None, "load_state": None}
Batches = list[tuple[Tensor, Tensor]]
SCALE = 1024.0  # of the loss in half precision
LIMIT = 1.0  # of the gradient norm


def no_fault(build: Callable[..., Pipeline]) -> Build:
    """Return the same build without its fault."""
    return partial(build, faulty=False)


def divide_gradients(model: nn.Module, divisor: float) -> None:
    """Undo a scale on the loss."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(divisor)


def weighed(batches: Batches) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield micro-batches with their share of the scored tokens, leaving out those without any."""
    counts = [int((targets != IGNORE_INDEX).sum()) for _, targets in batches]
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            yield inputs, targets, count / sum(counts)


# ---- the order of the loop --------------------------------------------------------------------


def without_zero_grad(lab: Lab, faulty: bool = True) -> Pipeline:
    """Nobody clears: the gradients of all steps add up."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        if not faulty:
            optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def zero_grad_before_step(lab: Lab, faulty: bool = True) -> Pipeline:
    """backward, zero_grad, step: only weight decay is left to move anything."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        loss = model(inputs, targets)[1]
        loss.backward()
        if faulty:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return lab.pipeline(train_step=step)


def first_batch_at_every_step(lab: Lab, faulty: bool = True) -> Pipeline:
    """next(iter(loader)) in the loop makes a new iterator, and takes its first batch."""
    T = lab.config.block_size
    loaders: dict[str, DataLoader[tuple[Tensor, ...]]] = {}
    for split, ids in (("train", lab.train_ids), ("val", lab.val_ids)):
        windows = ids[: len(ids) // (T + 1) * (T + 1)].view(-1, T + 1)
        loaders[split] = DataLoader(TensorDataset(windows), batch_size=8, shuffle=False)
    running = {split: itertools.cycle(loader) for split, loader in loaders.items()}

    def batch(split: str) -> tuple[Tensor, Tensor]:
        (rows,) = next(iter(loaders[split]) if faulty else running[split])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return lab.pipeline(get_batch=None, batch=batch)


def printed_loss(lab: Lab, faulty: bool = True) -> Pipeline:
    """The loss that is divided for accumulation is also the one that is printed."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> float:
        model.train()
        optimizer.zero_grad()
        printed = 0.0
        for inputs, targets, share in weighed(batches):
            loss = model(inputs, targets)[1] * share
            loss.backward()
            printed += loss.item() / (len(batches) if faulty else 1)
        optimizer.step()
        return printed

    return lab.pipeline(accumulate=accumulate)


# ---- clipping ---------------------------------------------------------------------------------


def clip_before_unscale(lab: Lab, faulty: bool = True) -> Pipeline:
    """The scaled gradient is clipped, and then divided by the scale."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        (loss * SCALE).backward()
        if faulty:
            clip_grad_norm_(model.parameters(), LIMIT)
        divide_gradients(model, SCALE)
        if not faulty:
            clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def clip_after_step(lab: Lab, faulty: bool = True) -> Pipeline:
    """backward, step, clip: what is cut has been used already, and is set to zeros next."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        loss = model(inputs, targets)[1]
        loss.backward()
        if not faulty:
            clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if faulty:
            clip_grad_norm_(model.parameters(), 0.5)
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return lab.pipeline(train_step=step)


def clip_of_freed_gradients(lab: Lab, faulty: bool = True) -> Pipeline:
    """Hooks step and free each gradient during backward(): the clipping that follows finds none."""

    def make_optimizer(model: nn.Module) -> list[Optimizer]:
        each = {p: AdamW([p], lr=LEARNING_RATE) for p in model.parameters()}

        def step_and_free(parameter: Tensor) -> None:
            each[parameter].step()  # type: ignore[index]
            each[parameter].zero_grad()  # type: ignore[index]

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_and_free)
        return list(each.values())

    def step(model: nn.Module, optimizers: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        loss = model(inputs, targets)[1]
        loss.backward()
        if faulty:
            clip_grad_norm_(model.parameters(), LIMIT)
        return loss.detach()

    parts: dict[str, Any] = {"accumulate": None, "learning_rate": None, **UNSAVED}
    return lab.pipeline(make_optimizer=make_optimizer, train_step=step, **parts)


def clamped_loss(lab: Lab, faulty: bool = True) -> Pipeline:
    """The loss is cut at 3, where its slope is 0: a fresh model at 4.4 never begins to learn."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        if faulty:
            loss = torch.clamp(loss, max=3.0)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


# ---- the arithmetic of the optimizer ----------------------------------------------------------


class HandWrittenAdamW(Optimizer):
    """AdamW as a tutorial writes it, with one fault to choose."""

    def __init__(self, parameters: Iterable[Any], fault: str) -> None:
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
        super().__init__(parameters, defaults)
        self.fault, self.t = fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        self.t += self.fault != "counter"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.t += self.fault == "counter"
                    self._update(parameter, parameter.grad, group)

    def _update(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
        state = self.state[weight]
        if not state:
            state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
        if self.fault == "coupled":
            gradient = gradient + decay * weight
        state["m"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["v"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        one, two = 1 - beta1**self.t, 1 - beta2**self.t
        if self.fault == "raw":
            one = two = 1.0
        eps = group["eps"] * (math.sqrt(two) if self.fault == "eps" else 1.0)
        update = rate * state["m"] / one / ((state["v"] / two).sqrt() + eps)
        if self.fault in ("", "raw", "counter", "eps"):
            weight.mul_(1 - rate * decay)
        elif self.fault == "sign":
            weight.add_(rate * decay * weight)
        weight.sub_(update)
        if self.fault == "after":
            weight.mul_(1 - rate * decay)


def hand_written(fault: str) -> Build:
    """Return a pipeline that trains with the hand-written AdamW."""
    return lambda lab: lab.pipeline(
        make_optimizer=lambda model: HandWrittenAdamW(model.parameters(), fault), **UNSAVED
    )


# ---- groups -----------------------------------------------------------------------------------


def no_decay_by_name(lab: Lab, names: tuple[str, ...]) -> Pipeline:
    """Parameters are left out of the decay by name; the norms of this model are called norm."""

    def make_optimizer(model: nn.Module) -> Optimizer:
        named = list(model.named_parameters())
        kept = [p for n, p in named if not any(word in n for word in names)]
        left = [p for n, p in named if any(word in n for word in names)]
        groups = [{"params": kept, "weight_decay": 0.1}, {"params": left, "weight_decay": 0.0}]
        return AdamW(groups, lr=LEARNING_RATE)

    return lab.pipeline(make_optimizer=make_optimizer, **UNSAVED)


def tied_twice(lab: Lab, faulty: bool = True) -> Pipeline:
    """Groups are built from names, under two of which the tied tensor stands."""

    def tie(model: Any) -> Any:
        model.head.weight = model.token_embedding.weight
        return model

    def make_optimizer(model: nn.Module) -> Optimizer:
        named = list(model.named_parameters(remove_duplicate=not faulty))
        embeddings = [p for n, p in named if "embedding" in n]
        rest = [p for n, p in named if "embedding" not in n]
        groups: list[dict[str, Any]] = [
            {"params": rest},
            {"params": embeddings, "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=LEARNING_RATE)

    return lab.pipeline(edit_model=tie, make_optimizer=make_optimizer, **UNSAVED)


# ---- the schedule -----------------------------------------------------------------------------


def relative_rate(step: int) -> float:
    """The schedule as a factor on the rate of the groups."""
    return learning_rate(step) / LEARNING_RATE


class Schedulers:
    """The scheduler of each optimizer; it begins when it is asked for."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Optimizer, LambdaLR]] = {}

    def of(self, optimizer: Optimizer) -> LambdaLR:
        """Return the scheduler of an optimizer."""
        if id(optimizer) not in self.known:
            self.begin(optimizer, relative_rate)
        return self.known[id(optimizer)][1]

    def begin(self, optimizer: Optimizer, factor: Callable[[int], float]) -> LambdaLR:
        """Give an optimizer a new scheduler."""
        scheduler = LambdaLR(optimizer, factor)
        self.known[id(optimizer)] = optimizer, scheduler
        return scheduler


def scheduler_per_micro_batch(lab: Lab, faulty: bool = True) -> Pipeline:
    """scheduler.step() stands inside the loop over micro-batches."""
    schedulers = Schedulers()

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> float:
        scheduler = schedulers.of(optimizer)
        model.train()
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets, share in weighed(batches):
            loss = model(inputs, targets)[1] * share
            loss.backward()
            total += loss.item()
            if faulty:
                scheduler.step()
        optimizer.step()
        if not faulty:
            scheduler.step()
        return total

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> float:
        return accumulate(model, optimizer, [(inputs, targets)])

    return lab.pipeline(accumulate=accumulate, train_step=step, **UNSAVED)


def zero_rate_at_first(lab: Lab, faulty: bool = True) -> Pipeline:
    """Warm-up as base * it / warmup, with it from 0."""

    def rate(step: int) -> float:
        if step < WARMUP_STEPS:
            return LEARNING_RATE * (step if faulty else step + 1) / WARMUP_STEPS
        return learning_rate(step)

    return lab.pipeline(learning_rate=rate)


def rate_for(lab: Lab, groups: Callable[[Optimizer], list[dict[str, Any]]]) -> Pipeline:
    """Write the rate of each step into the chosen groups, inside the step."""
    numbers: dict[int, int] = {}

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        number = numbers.get(id(model), 0)
        numbers[id(model)] = number + 1
        rate = learning_rate(number)
        for group in groups(optimizer):
            group["lr"] = rate
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step, **UNSAVED)


def resumed(lab: Lab, how: str) -> Pipeline:
    """The scheduler lives beside the optimizer, and is saved, made anew, or given a wrong base."""
    schedulers = Schedulers()

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        scheduler = schedulers.of(optimizer)
        loss = train_step(model, optimizer, inputs, targets)
        scheduler.step()
        return loss

    def save_state(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        lab.save_state(model, optimizer, step, path)
        torch.save(schedulers.of(optimizer).state_dict(), path.with_suffix(".scheduler"))

    def load_state(path: Path) -> tuple[nn.Module, Optimizer, int]:
        model, optimizer, step = lab.load_state(path)
        loaded = optimizer.state_dict()
        if how == "multiplied":  # base = optimizer.param_groups[0]["lr"], which holds the factor
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)
            schedulers.begin(optimizer, lambda later: relative_rate(step + later))
            return model, optimizer, step
        for group in optimizer.param_groups:
            group["initial_lr"] = LEARNING_RATE
        scheduler = schedulers.begin(optimizer, relative_rate)
        if how == "saved":
            scheduler.load_state_dict(torch.load(path.with_suffix(".scheduler")))
            optimizer.load_state_dict(loaded)  # last: making a scheduler has set the rates
        return model, optimizer, step

    parts: dict[str, Any] = {"save_state": save_state, "load_state": load_state}
    return lab.pipeline(train_step=step, learning_rate=None, max_steps=None, **parts)


def counts_skipped_updates(lab: Lab, faulty: bool = True) -> Pipeline:
    """The update is skipped when the gradient overflows; the schedule moves on all the same."""
    schedulers = Schedulers()

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        scheduler = schedulers.of(optimizer)
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        is_finite = bool(clip_grad_norm_(model.parameters(), LIMIT).isfinite())
        if is_finite:
            optimizer.step()
        if faulty or is_finite:
            scheduler.step()
        return loss.detach()

    return lab.pipeline(train_step=step, **UNSAVED)


# ---- mixed precision --------------------------------------------------------------------------


def scale_raised_too_early(lab: Lab, faulty: bool = True) -> Pipeline:
    """The loss scale grows between backward() and the division by it."""
    scale, calls = [SCALE], [0]

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        used = scale[0]
        (loss * used).backward()
        calls[0] += 1
        if calls[0] % 2 == 0:  # the growth interval; 2000 in a real run
            scale[0] *= 2
        divide_gradients(model, scale[0] if faulty else used)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def autocast_around_all(lab: Lab, faulty: bool = True) -> Pipeline:
    """The with block of autocast holds backward() and step() too."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs, targets)[1]
            if faulty:
                loss.backward()
                optimizer.step()
        if not faulty:
            loss.backward()
            optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


class NarrowScores(CausalSelfAttention):
    """Attention scores are products in 16 bits; the scale and the softmax come afterwards."""

    kind = torch.float16  # no number beyond 65504

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        B, T, C = x.shape
        queries, keys, values = (
            part.view(B, T, self.num_heads, -1).transpose(1, 2)
            for part in self.query_key_value(x).split(C, dim=2)
        )
        if cache is not None:
            keys, values = cache.extend(layer, keys, values)
        scores = queries.to(self.kind) @ keys.to(self.kind).transpose(2, 3)  # (B, H, T, past + T)
        scores = scores.to(x.dtype) / math.sqrt(queries.shape[-1])
        past = keys.shape[2] - T
        allowed = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
        mixed = scores.masked_fill(~allowed, -math.inf).softmax(-1) @ values
        return self.output(mixed.transpose(1, 2).reshape(B, T, C))


class WideScores(NarrowScores):
    """The same in 32 bits."""

    kind = torch.float32


def grown_scores(lab: Lab, faulty: bool = True) -> Pipeline:
    """Queries and keys as large as after thousands of steps: products in float16 overflow."""

    def edit(model: nn.Module) -> nn.Module:
        return retype(model, CausalSelfAttention, NarrowScores if faulty else WideScores)

    def grown() -> nn.Module:
        model = MiniGPT(lab.config)
        for name, parameter in model.named_parameters():
            if name.endswith("query_key_value.weight"):
                with torch.no_grad():
                    parameter[: 2 * lab.config.embedding_dim].mul_(1000)
        return edit(model)

    torch.manual_seed(lab.seed)
    return lab.pipeline(edit_model=edit, model=grown(), make_model=grown)


class NarrowLoss(ScoredGPT):
    """Softmax and logarithm of the loss in 16 bits."""

    def score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        narrow = functional.cross_entropy(logits.flatten(0, 1).bfloat16(), targets.flatten())
        return narrow.float()


def narrow_loss(lab: Lab) -> Pipeline:
    """The logits are not cast up before the loss."""
    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, NarrowLoss))


# ---- several processes ------------------------------------------------------------------------


def flag_after_forward(lab: Lab, faulty: bool = True) -> Pipeline:
    """The flag that a wrapper reads in its forward call is set between forward and backward."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for number, (inputs, targets, share) in enumerate(weighed(batches)):
            sends = number == len(batches) - 1
            if not faulty:
                model.require_backward_grad_sync = sends  # type: ignore[assignment]
            loss = model(inputs, targets)[1] * share
            if faulty:
                model.require_backward_grad_sync = sends  # type: ignore[assignment]
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return lab.pipeline(accumulate=accumulate, train_step=None)


def one_replica_renewed(lab: Lab, faulty: bool = True) -> Pipeline:
    """Rank 0 sets up its output layer once more, after the weights were sent around."""

    def replicate(model: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(model)
        if faulty and dist.get_rank() == 0:
            nn.init.normal_(list(model.parameters())[-1])
        return wrapped

    return lab.pipeline(replicate=replicate)


def mean_over_ranks(lab: Lab, faulty: bool = True) -> Pipeline:
    """Each rank takes the mean over its own tokens, and gradients are averaged over the ranks.

    The ranks are the micro-batches of a window, one after the other, as if each had a process.
    """

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> float:
        model.train()
        optimizer.zero_grad()
        ranks = list(weighed(batches))
        total = 0.0
        for inputs, targets, share in ranks:
            loss = model(inputs, targets)[1]
            (loss if faulty else loss * share * len(ranks)).backward()
            total += loss.item() * share
        divide_gradients(model, len(ranks))  # all_reduce with the mean
        optimizer.step()
        return total

    return lab.pipeline(accumulate=accumulate)


ROWS: tuple[Row, ...] = (
    Caught(
        "zero-grad-missing",
        "training_step",
        "training_step.not_cleared",
        without_zero_grad,
        healthy=no_fault(without_zero_grad),
    ),
    Caught(
        "zero-grad-before-step",
        "training_step",
        "training_step.cleared_gradient",
        zero_grad_before_step,
        healthy=no_fault(zero_grad_before_step),
    ),
    Caught(
        "same-batch-every-step",
        "batches",
        "batches.always_the_same",
        first_batch_at_every_step,
        healthy=no_fault(first_batch_at_every_step),
    ),
    Caught(
        "metric-smoothing-hides-spike",
        "accumulation",
        "accumulation.loss_scaled",
        printed_loss,
        healthy=no_fault(printed_loss),
    ),
    Caught(
        "clip-before-unscale",
        "training_step",
        "training_step.clip_before_unscale",
        clip_before_unscale,
        healthy=no_fault(clip_before_unscale),
    ),
    Caught(
        "clip-after-step",
        "training_step",
        "training_step.clip_after_step",
        clip_after_step,
        healthy=no_fault(clip_after_step),
    ),
    Caught(
        "clip-with-fused-backward-step",
        "training_step",
        "training_step.clip_of_nothing",
        clip_of_freed_gradients,
        healthy=no_fault(clip_of_freed_gradients),
    ),
    Caught(
        "loss-clamped-instead-of-grads",
        "training_step",
        "training_step.clamped_loss",
        clamped_loss,
        healthy=no_fault(clamped_loss),
    ),
    Caught(
        "adam-no-bias-correction",
        "optimizer",
        "optimizer.no_bias_correction",
        hand_written("raw"),
        healthy=hand_written(""),
    ),
    Caught(
        "adam-step-counter-wrong",
        "optimizer",
        "optimizer.step_counter",
        hand_written("counter"),
        healthy=hand_written(""),
    ),
    Caught(
        "weight-decay-coupled",
        "optimizer",
        "optimizer.coupled_decay",
        hand_written("coupled"),
        healthy=hand_written(""),
    ),
    Caught(
        "weight-decay-sign",
        "optimizer",
        "optimizer.decay_sign",
        hand_written("sign"),
        healthy=hand_written(""),
    ),
    Caught(
        "weight-decay-after-update",
        "optimizer",
        "optimizer.decay_after_update",
        hand_written("after"),
        healthy=hand_written(""),
        only_warns="Hugging Face's own AdamW decays after the update, and trains as well",
    ),
    Caught(
        "adam-eps-inside-correction",
        "optimizer",
        "optimizer.eps_placement",
        hand_written("eps"),
        healthy=hand_written(""),
        only_warns="torch, TensorFlow and the paper's short form put eps in different places",
    ),
    Caught(
        "no-decay-names-never-match",
        "optimizer",
        "optimizer.gains_decay",
        partial(no_decay_by_name, names=("LayerNorm.weight", "bias")),
        healthy=partial(no_decay_by_name, names=("norm", "bias")),
        only_warns="leaving out the biases alone is a recipe of its own",
    ),
    Unseen(
        "decay-everything",
        "one group with decay for all is a legitimate choice, so it passes; the line of the "
        "optimizer check tells how many matrices and vectors decay",
    ),
    Caught(
        "tied-param-in-two-groups",
        "optimizer",
        "optimizer.repeated_parameters",
        tied_twice,
        healthy=no_fault(tied_twice),
    ),
    Caught(
        "scheduler-per-microbatch",
        "schedule",
        "schedule.per_micro_batch",
        scheduler_per_micro_batch,
        healthy=no_fault(scheduler_per_micro_batch),
    ),
    Caught(
        "lr-zero-at-first-step",
        "schedule",
        "schedule.zero_at_first_step",
        zero_rate_at_first,
        healthy=no_fault(zero_rate_at_first),
        only_warns="some published recipes waste the first step this way and lose nothing else",
    ),
    Caught(
        "lr-only-first-group",
        "schedule",
        "schedule.only_some_groups",
        partial(rate_for, groups=lambda optimizer: optimizer.param_groups[:1]),
        healthy=partial(rate_for, groups=lambda optimizer: optimizer.param_groups),
    ),
    Caught(
        "lr-computed-not-applied",
        "schedule",
        "schedule.not_applied",
        partial(rate_for, groups=lambda optimizer: []),
        healthy=partial(rate_for, groups=lambda optimizer: optimizer.param_groups),
    ),
    Caught(
        "schedule-restarts-on-resume",
        "resume",
        "resume.learning_rate",
        partial(resumed, how="made anew"),
        healthy=partial(resumed, how="saved"),
    ),
    Caught(
        "lr-multiplied-on-resume",
        "resume",
        "resume.learning_rate",
        partial(resumed, how="multiplied"),
        healthy=partial(resumed, how="saved"),
    ),
    Caught(
        "scheduler-steps-on-skipped-update",
        "schedule",
        "schedule.skipped_counted",
        counts_skipped_updates,
        healthy=no_fault(counts_skipped_updates),
        only_warns="a schedule that counts the tokens that were read moves on as well",
    ),
    Unseen(
        "effective-batch-depends-on-world-size",
        "how many tokens an update should have is the recipe's intent, and the number of processes "
        "is not part of a pipeline",
    ),
    Caught(
        "loss-scale-updated-before-use",
        "training_step",
        "training_step.scale_changes",
        scale_raised_too_early,
        healthy=no_fault(scale_raised_too_early),
    ),
    Caught(
        "autocast-around-optimizer",
        "training_step",
        "training_step.autocast_at_step",
        autocast_around_all,
        healthy=no_fault(autocast_around_all),
        only_warns="torch's own optimizers have no products that autocast would round",
    ),
    Caught(
        "fp16-overflow-nan",
        "forward_hooks",
        "forward_hooks.non_finite",
        grown_scores,
        healthy=no_fault(grown_scores),
    ),
    Caught(
        "softmax-or-norm-in-half",
        "loss",
        "loss.low_precision",
        narrow_loss,
    ),
    Caught(
        "sync-flag-set-too-late",
        "distributed",
        "distributed.partly_synchronised",
        flag_after_forward,
        healthy=no_fault(flag_after_forward),
    ),
    Caught(
        "replicas-diverge",
        "distributed",
        "distributed.weights_partly",
        one_replica_renewed,
        healthy=no_fault(one_replica_renewed),
    ),
    Caught(
        "mean-of-rank-means",
        "accumulation",
        "accumulation.mean_of_means",
        mean_over_ranks,
        healthy=no_fault(mean_over_ranks),
    ),
)
