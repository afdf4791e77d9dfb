"""Rows of the table: hooks that stay or act, and what surrounds a run.

Shapes: B batch, T time, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._lab import BATCH_SIZE, Lab, retype
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.model import FeedForward
from tests.catalogue._row import Build, Caught, Row, Unseen


def observed(
    hook: Callable[[nn.Module, Any, Any], object],
    *,
    times: int = 1,
    removed: bool = False,
) -> Build:
    """A run observes the sizes of activations, `times` times, with a hook on one block."""

    def build(lab: Lab) -> Pipeline:
        pipeline = lab.pipeline()
        model, tokens = pipeline.model, lab.train_ids[None, :8]
        assert isinstance(model, MiniGPT)
        for _ in range(times):
            handle = model.blocks[0].register_forward_hook(hook)
            model(tokens)
            if removed:
                handle.remove()
        return pipeline

    return build


def observe(module: nn.Module, inputs: Any, output: Tensor) -> None:
    """Look at the size of an output, and return nothing."""
    output.detach().square().mean().item()


def observe_and_return(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Look at an output, and return what was looked at: torch takes it in the output's place."""
    return output.detach()


def compiled(*, guarded: bool) -> Build:
    """A feed-forward layer keeps the function that it built at its first call.

    Without a guard the function of the first mode serves the other mode too.
    """

    class Kept(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            built: dict[Any, Callable[[Tensor], Tensor]] = self.__dict__.setdefault("built", {})
            key = self.training if guarded else "any mode"
            if key not in built:
                built[key] = self.build()
            return built[key](x)

        def build(self) -> Callable[[Tensor], Tensor]:
            p = self.output_dropout.p if self.training else 0.0
            return lambda x: functional.dropout(self.output(functional.gelu(self.expand(x))), p)

    def build(lab: Lab) -> Pipeline:
        config = MiniGPTConfig.debug(lab.tokenizer.vocab_size, dropout=0.2)

        def make_model() -> nn.Module:
            return retype(MiniGPT(config), FeedForward, Kept)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            return lab.pipeline(model=make_model(), make_model=make_model)

    return build


def restored_state(dtype: torch.dtype | None) -> Build:
    """The moments of an earlier run are put back by hand, as they lie in the file."""

    def build(lab: Lab) -> Pipeline:
        def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
            optimizer = lab.make_optimizer(model)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    moment = torch.zeros_like(parameter, dtype=dtype)
                    optimizer.state[parameter] = {
                        "step": torch.tensor(3.0),
                        "exp_avg": moment.clone(),
                        "exp_avg_sq": moment.clone(),
                    }
            return optimizer

        return lab.pipeline(make_optimizer=make_optimizer)

    return build


def drawn(make_generator: Callable[[], np.random.Generator]) -> Build:
    """Windows start where a generator of NumPy says."""

    def build(lab: Lab) -> Pipeline:
        def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
            T = lab.config.block_size
            starts = make_generator().integers(0, len(data) - T, BATCH_SIZE)
            rows = torch.stack([data[start : start + T + 1] for start in starts.tolist()])
            return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

        return lab.pipeline(get_batch=get_batch)

    return build


ROWS: tuple[Row, ...] = (
    Caught(
        "hooks-not-removed",
        "environment",
        "environment.hooks_piled_up",
        observed(observe, times=3),
        healthy=observed(observe, times=3, removed=True),
        only_warns="a hook that returns nothing changes no number; it costs time, and may be meant",
    ),
    Unseen(
        "shared-module-hooks",
        "One activation object in all layers computes the same as one in each, which is a usual "
        "design; what is mixed up are the records of a hook of the user's, outside the pipeline.",
    ),
    Caught(
        "hook-returns-value",
        "environment",
        "environment.hook_changes_output",
        observed(observe_and_return),
        healthy=observed(observe),
    ),
    Unseen(
        "recompute-fires-hooks-twice",
        "Activation checkpointing runs the forward pass again by design, with equal numbers; who "
        "counts the hook's calls twice is a collector of the user's, outside the pipeline.",
    ),
    Caught(
        "stale-compiled-graph",
        "modes",
        "modes.mode_remembered",
        compiled(guarded=False),
        healthy=compiled(guarded=True),
    ),
    Unseen(
        "autocast-not-applied",
        "A forward pass outside autocast computes in float32, which is right and more exact; no "
        "part of a pipeline says in which type its author meant it to run.",
    ),
    Caught(
        "device-or-dtype-mismatch-after-load",
        "environment",
        "environment.optimizer_state_dtype",
        restored_state(torch.float16),
        healthy=restored_state(None),
    ),
    Caught(
        "untested-randomness",
        "environment",
        "environment.not_reproducible",
        drawn(np.random.default_rng),
        healthy=drawn(lambda: np.random.default_rng(np.random.randint(2**31))),
        only_warns="a run may want fresh windows each time; then it only cannot be repeated",
    ),
)
