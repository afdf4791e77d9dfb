"""What `--html` shows of a run: its numbers as they come, what the model writes, how it ended.

The page itself is handed over by `__main__.py`. Here is what it is told, and nothing of it may
change the training: samples are drawn with a generator of their own, in eval mode, and what goes
wrong with one is a message.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from minigpt._cli import CommandError, describe_error, require_writable
from minigpt.device import describe_device
from minigpt.generate import generate
from minigpt.parallel import PeerError
from minigpt.trainer import NonFiniteError, StepReport, Trainer

if TYPE_CHECKING:
    from minigpt._train_data import TrainData
    from minigpt._training_state import TrainSettings
    from minigpt._watcher import Page, Watcher
    from minigpt.model import MiniGPT

PROMPT_LENGTH = 16  # tokens of the validation text, white space at its beginning passed over
SPACE_MAX = 64
SAMPLE_LENGTH = 80  # tokens that the model adds: a line or two, and half the price of three
# README's balanced setting: what a person would try first, and the same after every evaluation
SAMPLING = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05}
RESUMABLE = ("interrupted", "paused")
SAMPLES_MAX = 10  # about, in a run
FREE_SECONDS, SHARE_MAX = 0.5, 0.03  # samples may take so long, and this share of the time


def require_page(path: Path | None, folder: Path) -> None:
    """Raise CommandError where no page can be written; the run makes `folder` by itself."""
    if path is None:
        return
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CommandError(f"--html wants a file to write, got the device {path}")
    if folder.exists() or path.parent.absolute() != folder.absolute():
        require_writable(path, "--html")


def describe_start(model: MiniGPT, data: TrainData, settings: TrainSettings) -> dict[str, str]:
    """Return name -> text: what the run is started with, for a person."""
    config = model.config
    tokens = settings.rows_per_update * config.block_size
    epochs = tokens * settings.max_steps / len(data.train_ids)
    device = describe_device(next(model.parameters()).device)
    how = f"{settings.dtype}, matmul {settings.matmul_precision}"
    how += ", compiled" if settings.compiled else ""
    processes = f", {settings.processes} processes" if settings.processes > 1 else ""
    numbers = dataclasses.asdict(settings)
    return {
        "parameters": f"{model.parameter_count():,}",
        "model": ", ".join(f"{name} {value}" for name, value in config.to_dict().items()),
        "tokens per step": (
            f"{tokens:,}: {settings.rows_per_update} rows of {config.block_size}; "
            f"{settings.max_steps:,} steps are {epochs:.2f} epochs"
        ),
        "device": f"{device}{processes}",
        "precision": how,
        "data": f"train {len(data.train_ids):,} ids, validation {len(data.validation_ids):,}",
        "corpus": data.corpus_fingerprint or "its fingerprint is not known",
        "tokenizer": data.tokenizer.fingerprint,
        "settings": ", ".join(f"{name} {value}" for name, value in numbers.items()),
    }


class PageFeed:
    """Tells a page about the run of a trainer; without a page, nobody.

    watcher: who knows of a post-mortem.
    """

    def __init__(self, page: Page | None, data: TrainData) -> None:
        self.page, self.data = page, data
        self.watcher: Watcher | None = None
        self._trainer: Trainer | None = None
        self._resumed: tuple[int, int] | None = None  # step, and clipped updates until then
        self._begun = False
        self._waiting: list[object] = []  # messages from before: a page is not yet to be replaced
        self._start = time.perf_counter()
        self._sampling_seconds, self._sampled_at = 0.0, -1

    def follow(self, trainer: Trainer) -> None:
        """Say whose run it is, before it begins."""
        self._trainer = trainer
        if trainer.state.step > 0:
            self._resumed = trainer.state.step, trainer.state.clipped_steps

    def on_step(self, report: StepReport) -> None:
        """Show an update, and after some evaluations what the model writes by now."""
        if self.page is None:
            return
        self._begin(self.page)
        self._log(self.page, report)  # first: a page that has no number is no run's memory
        if report.validation_loss is not None and self._is_sample_due(report.step):
            self._sample(self.page, report.step)

    def on_event(self, event: object) -> None:
        """Show a message of the watcher, or a warning of the trainer."""
        if self.page is not None and self._begun:
            self.page.event(event)
        else:
            self._waiting.append(event)

    def end(self, reason: str) -> None:
        """Say how the run ended, in the trainer's word for it."""
        if self.page is not None:
            self._begin(self.page)  # a run that was finished already makes no step
            if reason != "interrupted":  # who stops a run does not want to wait
                self._sample_last(self.page)
            words = "`--resume` goes on from here" if reason in RESUMABLE else ""
            self.page.finish(reason, words)

    def fail(self, error: BaseException) -> None:
        """Say that the run ended with this error; an update that was refused is shown as it was.

        A run that failed before its first step leaves the page as it was: it may be resumed.
        """
        if self.page is None or not self._begun:
            return
        if isinstance(error, NonFiniteError) and error.report is not None:
            self._log(self.page, error.report)
        path = None if self.watcher is None else self.watcher.postmortem_path
        if isinstance(error, (NonFiniteError, OSError, PeerError)):  # whose words are for a person
            self.page.finish("failed", describe_error(error), postmortem=path)
        else:
            self.page.fail(error, postmortem=path)

    def __enter__(self) -> PageFeed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)

    def _begin(self, page: Page) -> None:
        """Take up the page of a resumed run; by now the trainer has cut its log to the step."""
        if self._resumed is not None and self._trainer is not None:
            (step, clipped), self._resumed = self._resumed, None
            page.go_on(step, log=self._trainer.log.path, clipped_updates=clipped)
        self._begun = True
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            page.event(event)

    def _log(self, page: Page, report: StepReport) -> None:
        page.log(**vars(report))

    def _is_sample_due(self, step: int) -> bool:
        """Spread few samples over the whole run: after every evaluation where there are few."""
        assert self._trainer is not None
        settings = self._trainer.settings
        every = settings.evaluate_every
        return step // every % math.ceil(settings.max_steps / every / SAMPLES_MAX) == 0

    def _sample(self, page: Page, step: int) -> None:
        """Show a continuation of the validation text, unless samples have cost too much already."""
        start = time.perf_counter()
        if self._sampling_seconds > FREE_SECONDS + SHARE_MAX * (start - self._start):
            return
        self._sampled_at = step
        try:
            prompt, text = self._write_text()
        except Exception as error:  # any: a sample is a courtesy, and no reason to stop
            self._sampling_seconds = math.inf
            page.event(f"there are no samples: {type(error).__name__}: {error}")
            return
        page.sample(step, text, prompt=prompt)
        self._sampling_seconds += time.perf_counter() - start

    def _sample_last(self, page: Page) -> None:
        """Show what the model writes in the end, whatever the samples before it have cost."""
        step = self._trainer.state.step if self._trainer is not None else self._sampled_at
        if step != self._sampled_at and math.isfinite(self._sampling_seconds):
            self._sampling_seconds = 0.0
            self._sample(page, step)

    def _write_text(self) -> tuple[str, str]:
        """Return the beginning of the validation text, and how the model goes on from it."""
        assert self._trainer is not None
        model, settings = self._trainer.model, self._trainer.settings
        decode: Callable[[torch.Tensor], str] = self.data.tokenizer.decode
        text = decode(self.data.validation_ids[:SPACE_MAX])
        begin = (len(text) - len(text.lstrip())) % len(text)  # white space alone: 0
        prompt = self.data.validation_ids[begin : begin + PROMPT_LENGTH]
        generator = torch.Generator().manual_seed(settings.seed)
        ids = generate(
            model,
            prompt[None].to(self._trainer.device),
            SAMPLE_LENGTH,
            temperature=SAMPLING["temperature"],
            top_k=min(int(SAMPLING["top_k"]), model.config.vocab_size),
            top_p=SAMPLING["top_p"],
            repetition_penalty=SAMPLING["repetition_penalty"],
            generator=generator,
            slide_by=max(1, model.config.block_size // 2),
        )[0]
        return decode(prompt), decode(ids[len(prompt) :].cpu())
