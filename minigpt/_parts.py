"""A Mini-GPT run, described part by part, under the names that the checks call them by.

The parts are the very functions that train, evaluate, save and generate. This module knows
nothing about the checks; a command hands its dictionary over to them.

Shapes: B batch, T time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from minigpt._training_state import TrainSettings
from minigpt.batches import get_batch, get_update_batch
from minigpt.checkpoint import load_checkpoint, save_checkpoint
from minigpt.evaluate import evaluate
from minigpt.generate import generate
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import make_optimizer
from minigpt.parallel import Team
from minigpt.sampling import next_token_probabilities
from minigpt.tokenizer import CharTokenizer
from minigpt.update import update_weights


def describe_run(
    config: MiniGPTConfig,
    tokenizer: CharTokenizer,
    train_ids: Tensor,
    val_ids: Tensor | None,
    settings: TrainSettings,
) -> dict[str, Any]:
    """Return all parts of a run but its model: data, steps, schedule, files, text.

    train_ids, val_ids: 1-D int64. Fresh models are of debug size, whatever the run's own is: what
    is trained from scratch is to show in seconds whether the pipeline can learn at all.
    """
    debug_config = MiniGPTConfig.debug(config.vocab_size, block_size=config.block_size)

    def accumulate(
        model: nn.Module, optimizer: Optimizer, batches: Sequence[tuple[Tensor, Tensor]]
    ) -> float:
        model.train()
        return update_weights(model, optimizer, batches, clip_norm=settings.clip_norm).loss

    def rank_batches(rank: int, processes: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in itertools.count():
            for part in range(rank, processes * settings.accumulation_steps, processes):
                yield get_update_batch(
                    train_ids,
                    settings.batch_size,
                    config.block_size,
                    seed=settings.seed,
                    step=step,
                    part=part,
                )

    return {
        "make_model": lambda: MiniGPT(debug_config),
        "vocab_size": config.vocab_size,
        "block_size": config.block_size,
        "tokenizer": tokenizer,
        "train_ids": train_ids,
        "val_ids": val_ids,
        "get_batch": lambda data: get_batch(data, settings.batch_size, config.block_size),
        "make_optimizer": lambda model: make_optimizer(
            model,
            learning_rate=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        ),
        "train_step": lambda model, optimizer, inputs, targets: accumulate(
            model, optimizer, [(inputs, targets)]
        ),
        "accumulate": accumulate,
        "learning_rate": settings.rate_after,
        "max_steps": settings.max_steps,
        "evaluate": evaluate,
        "generate": lambda model, ids, count: generate(model, ids, count, greedy=True),
        "next_token_probabilities": next_token_probabilities,
        "save": lambda model, path: save_checkpoint(path, model, tokenizer),
        "load": lambda path: load_checkpoint(path).model,
        "replicate": lambda model: Team(dist.get_rank(), dist.get_world_size()).wrap(model),
        "rank_batches": rank_batches,
    }
