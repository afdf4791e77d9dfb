"""The monitor inside other people's trainers, where they are installed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnostics import TrainingMonitor
from diagnostics.monitor import lightning_callback, transformers_callback

V = 31


def rows(count: int, length: int = 12) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(V, (count, length), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def make_trainer(folder: Path, monitor: TrainingMonitor, **changes: Any) -> Any:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(**(settings | changes)),
        train_dataset=rows(48),
        eval_dataset=rows(8),
        callbacks=[transformers_callback(monitor)],
    )


def test_a_real_transformers_trainer(tmp_path: Path) -> None:
    """Six updates of two micro-batches each: the losses are those that the trainer logs."""
    monitor = TrainingMonitor(on_event=None, clip_norm=1.0)
    trainer = make_trainer(tmp_path, monitor, logging_steps=1, eval_strategy="steps", eval_steps=3)
    trainer.train()
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert [update.step for update in monitor.history] == [1, 2, 3, 4, 5, 6]
    losses = [update.loss for update in monitor.history]
    assert losses == pytest.approx(logged, abs=2e-3)
    assert all(0 < (update.grad_norm or 0) <= 1.001 for update in monitor.history)
    assert [step for step, _, _ in monitor._evaluations.losses] == [3, 6]
    assert monitor.events == []
    assert "gradients" not in monitor.summary()


def test_a_transformers_model_that_breaks_is_placed(tmp_path: Path) -> None:
    monitor = TrainingMonitor(on_event=None, folder=tmp_path / "post")
    trainer = make_trainer(tmp_path, monitor, max_steps=1)
    with torch.no_grad():
        trainer.model.transformer.h[0].mlp.c_fc.bias.fill_(3e38)
        trainer.model.transformer.h[0].mlp.c_proj.weight.fill_(3e38)
    trainer.train()
    assert [event.reason for event in monitor.events] == ["monitor.loss_not_finite"]
    assert monitor.postmortem is not None
    assert monitor.postmortem["where"]["module"].startswith("transformer.h.0.mlp.")
    assert len(list((tmp_path / "post").iterdir())) == 1


def test_a_real_lightning_trainer(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(V, V)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.loss(batch)

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.loss(batch))

        def loss(self, batch: Any) -> torch.Tensor:
            logits = self(batch[0])
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    ids = torch.stack([row["input_ids"] for row in rows(48)])
    data = torch.utils.data.TensorDataset(ids[:, :-1], ids[:, 1:])
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    monitor = TrainingMonitor(on_event=None)
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[lightning_callback(monitor)],
    )
    trainer.fit(Module(), loader, loader)
    assert [update.step for update in monitor.history] == [1, 2, 3, 4, 5, 6]
    assert monitor.history[0].loss == pytest.approx(math.log(V), abs=1.0)
    assert [len(monitor._evaluations.losses), monitor.events] == [1, []]
