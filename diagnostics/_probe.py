"""What every check asks of a pipeline: sizes, tokens, a batch, calls, and independent copies.

Everything is found out lazily and once, so that `--only shift` never runs the model.

Shapes: B batch, T time, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics._adapter import Adapter
from diagnostics._clone import clone
from diagnostics._guard import (
    EntryState,
    borrowed,
    kept_random_states,
    same_bytes,
    seed_everything,
)
from diagnostics._pipeline import Pipeline

JITTER_STD = 0.02  # as large as GPT-2's initial weights: zero-initialised heads become visible
BLOCK_TRIED_MAX = 4096  # rows of a table of positions that are tried as the block
NOISE_KEPT_MAX = 2**20  # numbers; drawing them costs a small model as much as a forward call
PROBE_LENGTH_MAX = 32  # tokens per row in a structural probe; the debug block size

_VOCAB_NAMES = (
    "vocab_size",
    "n_vocab",
    "num_tokens",
    "vocabulary_size",
    "ntoken",
    "padded_vocab_size",
)
_BLOCK_NAMES = (
    "block_size",
    "n_positions",
    "max_position_embeddings",
    "context_length",
    "n_ctx",
    "max_seq_len",
    "max_seq_length",
    "max_len",
    "seq_len",
    "context_size",
)
_CONFIG_NAMES = ("config", "cfg", "hparams", "args", "params")


class MissingPartError(Exception):
    """A check needs a part that the pipeline does not have; the suite turns it into SKIP."""

    def __init__(self, *arguments: str, why: str) -> None:
        super().__init__(f"needs {' or '.join(arguments)}: {why}")
        self.arguments = arguments
        self.why = why


@dataclass(frozen=True)
class Batch:
    """A batch as the user's code made it, on the model's device when `probe.batch` gives it."""

    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    attention_mask: Tensor | None = None
    source: str = "batch"  # the part it came from: "batch", "get_batch" or "synthetic"

    def crop(self, rows: int, length: int, ignore_index: int) -> Batch:
        """Return the first rows, and of their columns the window with the most scored targets."""
        T = min(self.inputs.shape[1], length)
        scored = (self.targets[:rows] != ignore_index).sum(0)  # (T of the whole batch,)
        start = int(scored.unfold(0, T, 1).sum(1).argmax())
        window = slice(start, start + T)
        mask = self.attention_mask
        return Batch(
            self.inputs[:rows, window],
            self.targets[:rows, window],
            None if mask is None else mask[:rows, window],
            self.source,
        )


class Probe:
    """One pipeline under examination. Checks read it; only `_suite` creates it."""

    def __init__(self, pipeline: Pipeline, *, seed: int = 42, overfit_steps: int = 300) -> None:
        self.pipeline = pipeline
        self.seed = seed
        self.overfit_steps = overfit_steps
        self.notes: list[str] = []  # what a person should know: no copy was possible, ...
        self.entry = EntryState.read()  # before the suite makes its own order
        self._known_noises: dict[tuple[torch.Size, ...], list[Tensor]] = {}

    # ---- sizes ---------------------------------------------------------------------------

    @cached_property
    def device(self) -> torch.device:
        """Device of the first parameter; the CPU for a model without parameters."""
        first = next(self.pipeline.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @cached_property
    def vocab_size(self) -> int:
        """V: said, or read from the config, the tokenizer, the embedding, or the largest id."""
        pipeline = self.pipeline
        found = (
            pipeline.vocab_size
            or _config_number(pipeline.model, _VOCAB_NAMES)
            or tokenizer_vocab_size(pipeline.tokenizer)
            or self._predicted_rows()
        )
        if found is None and pipeline.train_ids is not None and len(pipeline.train_ids):
            found = int(pipeline.train_ids.max()) + 1
        if found is None:
            raise MissingPartError("vocab_size", why="the model's configuration does not say it")
        return int(found)

    @cached_property
    def embedding_rows(self) -> int | None:
        """Rows of the token embedding as its name tells it; None where no name speaks of tokens."""
        return _embedding_rows(self.pipeline.model, named_only=True)

    @cached_property
    def usable_vocab_size(self) -> int:
        """V, or the rows of the token embedding where those are fewer: ids must stay below."""
        rows = self.embedding_rows or self.vocab_size
        if rows >= self.vocab_size or self._takes(self.vocab_size - 1):
            return self.vocab_size
        return rows

    @cached_property
    def block_size(self) -> int | None:
        """The longest context the model takes, in tokens; None when nothing limits or says it."""
        said = self.pipeline.block_size or _config_number(self.pipeline.model, _BLOCK_NAMES)
        return said or self._longest_taken()

    @cached_property
    def model_states_block(self) -> bool:
        """Whether the model's own configuration says a block; a Pipeline may say one for it."""
        return _config_number(self.pipeline.model, _BLOCK_NAMES) is not None

    @cached_property
    def probe_length(self) -> int:
        """T of structural probes: the block, but at most PROBE_LENGTH_MAX.

        Raises MissingPartError for a block of one token: nothing can leak, shift or be cut there.
        """
        if self.block_size == 1:
            raise MissingPartError("block_size", why="a row of one token has no order to look at")
        return max(2, min(self.block_size or PROBE_LENGTH_MAX, PROBE_LENGTH_MAX))

    def require_choice(self) -> None:
        """Raise MissingPartError for a vocabulary of one token.

        It leaves no token to exchange, every probability is 1 and every gradient 0.
        """
        try:
            V = self.vocab_size
        except MissingPartError:  # not known here; a check that needs it says so
            return
        if V == 1:
            raise MissingPartError(
                "vocab_size", why="a vocabulary of one token leaves nothing to predict"
            )

    # ---- tokens and batches --------------------------------------------------------------

    def generator(self, name: str = "") -> torch.Generator:
        """Return a CPU generator seeded from the run's seed and a name."""
        return torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))

    def tokens(self, B: int, T: int, name: str = "tokens") -> Tensor:
        """Return random ids (B, T) below V on the model's device, the same for the same name."""
        ids = torch.randint(self.vocab_size, (B, T), generator=self.generator(name))
        return ids.to(self.device)

    @cached_property
    def raw_batch(self) -> Batch:
        """A batch exactly as the user's loader gave it. Raises MissingPartError without one."""
        pipeline = self.pipeline
        with self.seeded("batch"):
            if callable(pipeline.batch):
                return read_batch(pipeline.batch("train"), "batch")
            if pipeline.batch is not None:
                return read_batch(pipeline.batch, "batch")
            if pipeline.get_batch is not None and pipeline.train_ids is not None:
                return self.draw_batch(pipeline.train_ids)
        raise MissingPartError(
            "batch", "get_batch and train_ids", why="there is no batch to look at"
        )

    @cached_property
    def batch(self) -> Batch:
        """A batch to compute with: the user's (at most 8 rows), or random tokens without one."""
        try:
            raw = self.raw_batch
        except MissingPartError:
            T = min(self.block_size or PROBE_LENGTH_MAX, 64)
            ids = self.tokens(8, T + 1, "synthetic batch")
            same = self.pipeline.labels == "same"
            inputs = ids[:, :-1].contiguous()
            targets = inputs.clone() if same else ids[:, 1:].contiguous()
            return Batch(inputs, targets, source="synthetic")
        mask = None if raw.attention_mask is None else raw.attention_mask[:8].to(self.device)
        return Batch(
            raw.inputs[:8].to(self.device).long(),
            raw.targets[:8].to(self.device).long(),
            mask,
            raw.source,
        )

    @cached_property
    def scores_something(self) -> bool:
        """Whether a target of the batch counts; under labels="same" the first of a row does not."""
        targets = self.batch.targets
        scored = targets[:, 1:] if self.pipeline.labels == "same" else targets
        return bool((scored != self.pipeline.ignore_index).any())

    def draw_batch(self, data: Tensor) -> Batch:
        """Call the user's get_batch on data (N,) of our choosing, as a tensor or a NumPy array."""
        if self.pipeline.get_batch is None:
            raise MissingPartError("get_batch", why="batches are drawn from data of our choosing")
        try:
            raw = self.pipeline.get_batch(data.clone())
        except (AttributeError, TypeError):
            # nanoGPT-style samplers call NumPy methods (.astype) on a mapped array
            raw = self.pipeline.get_batch(np.ascontiguousarray(data.cpu().numpy()))  # type: ignore[arg-type]
        return read_batch(raw, "get_batch")

    # ---- calls ---------------------------------------------------------------------------

    @cached_property
    def adapter(self) -> Adapter:
        """How to call this model and read its output."""
        T = min(7, self.probe_length)
        # B, T and V must differ, or (B, V, T) could not be told from (B, T, V)
        B = next(size for size in (3, 5, 6) if size not in (T, self.vocab_size))
        with self.seeded("adapter"), self.model() as model:
            return Adapter.learn(self.pipeline, model, self.tokens(B, T), self.vocab_size)

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return logits (B, T, W) of every position, without gradient.

        Raises MissingPartError for a model that gives the last position only.
        """
        with torch.no_grad():
            logits = self.adapter.logits(model, inputs).detach()
        if logits.shape[1] != inputs.shape[1]:
            raise MissingPartError(
                "forward", why="the model gives logits of the last position only"
            )
        return logits

    def loss(self, model: nn.Module, batch: Batch | None = None) -> tuple[Tensor, Tensor]:
        """Return (logits, loss) of a batch, with gradient."""
        batch = batch or self.batch
        output = self.adapter.call(model, batch.inputs, batch.targets, batch.attention_mask)
        if output.loss is not None:
            return output.logits, output.loss
        return output.logits, self.adapter.cross_entropy(output.logits, batch.targets)

    @contextmanager
    def seeded(self, name: str = "") -> Iterator[None]:
        """Seed the global random states for a call into the user's code; put them back after."""
        with kept_random_states():
            self.reseed(name)
            yield

    def reseed(self, name: str = "") -> None:
        """Seed as `seeded` does, for one of many calls in a block that puts the states back."""
        seed_everything(self.seed + zlib.crc32(name.encode()) % 10_000)

    # ---- copies --------------------------------------------------------------------------

    @contextmanager
    def model(
        self,
        *,
        train: bool = False,
        exact: bool = False,
        jitter: float = 0.0,
        scale: float = 1.0,
        fresh: bool = False,
    ) -> Iterator[nn.Module]:
        """Lend a model to work on: an independent copy, or the original with its storage cloned.

        train: mode of every module.    exact: in float64 where the model can run in it.
        jitter: standard deviation of fixed noise added to every weight.
        scale: factor on every weight, to see what small initial weights hide.
        fresh: from make_model when there is one.
        """
        with self._lend(fresh) as model:
            model.train(train)
            for parameter in model.parameters():
                parameter.grad = None
            if exact and self.runs_in_float64:
                model.double()
            if jitter or scale != 1.0:
                self._shake(model, jitter, scale)
            yield model

    @cached_property
    def runs_in_float64(self) -> bool:
        """Whether a float64 copy runs; some models force float32 or bfloat16 inside."""
        if self.device.type == "mps":
            return False  # MPS has no float64
        with self._lend(False) as model:
            try:
                model.eval().double()
                self.logits(model, self.tokens(2, min(4, self.probe_length)))
            except (RuntimeError, TypeError, ValueError):
                return False
        return True

    @cached_property
    def batch_runs_in_float64(self) -> bool:
        """Whether `batch` with its attention mask gives a finite loss in float64, too.

        A mask filled with the smallest float64 number becomes -inf in a softmax that computes in
        float32: rows that see pads only turn into NaN, which never happens in training.
        """
        if not self.runs_in_float64 or self.batch.attention_mask is None:
            return self.runs_in_float64
        with self.model(exact=True) as model, self.seeded("float64"), torch.no_grad():
            return bool(self.loss(model)[1].isfinite().all())

    def noise(self, model: nn.Module, tokens: Tensor) -> float:
        """Return how far equal rows of (B, T) tokens differ by their place in the batch alone."""
        forward = self.logits(model, tokens)
        backward = self.logits(model, tokens.flip(0)).flip(0)
        return float((forward - backward).abs().max())

    @cached_property
    def copies_are_independent(self) -> bool:
        """Whether a deep copy computes with its own weights: moving the original leaves it alone.

        A module that keeps a closure over another one copies into a model that still computes
        with the original's weights; minGPT's block does.
        """
        original = self.pipeline.model
        tokens = self.tokens(2, min(4, self.probe_length))
        try:
            # one for each call: what a model keeps from a call must not look like the original's
            twin, other = clone(original), clone(original)
        except Exception as error:  # any: user classes may refuse in any way
            self.notes.append(
                f"the model cannot be deep-copied ({type(error).__name__}); the original was used "
                f"with its storage cloned, and restored"
            )
            return False
        was_training = [(module, module.training) for module in original.modules()]
        try:
            original.eval()
            twin.eval()
            other.eval()
            before = self._raw_call(twin, tokens)
            with borrowed(original):  # gets its own storage and modes back, exactly
                original.train()  # a dropout that the twin shares would show as well
                self._shake(original, 10 * JITTER_STD, 1.0)
                independent = _same(self._raw_call(other, tokens), before)
        except Exception as error:  # any: the model itself may raise; `shapes` says where
            self.notes.append(
                f"the model raised {type(error).__name__} on (2, {tokens.shape[1]}) ids, so no "
                f"copy could be proved independent; the original was used with its storage cloned"
            )
            return False
        finally:
            for module, training in was_training:
                module.training = training
        if not independent:
            self.notes.append(
                "a deep copy of the model still computes with the original's weights (a module "
                "holds a closure over another one); the original was used with its storage "
                "cloned, and restored"
            )
        return independent

    @contextmanager
    def _lend(self, fresh: bool) -> Iterator[nn.Module]:
        fresh_model = None
        if fresh and self.pipeline.make_model is not None:
            with self.seeded("make_model"):
                fresh_model = self.pipeline.make_model()
        if fresh_model is not None and fresh_model is not self.pipeline.model:
            yield fresh_model.to(self.device)
        elif self.copies_are_independent:
            yield clone(self.pipeline.model)
        else:
            with borrowed(self.pipeline.model) as model:
                yield model

    def _shake(self, model: nn.Module, jitter: float, scale: float) -> None:
        shaken: dict[object, nn.Parameter] = {}  # two parameters may lie over the same numbers
        for parameter in model.parameters():
            place = 0 if parameter.is_meta else parameter.data_ptr()
            if parameter.is_floating_point():
                shaken.setdefault((place or id(parameter), parameter.shape), parameter)
        noises = self._noises(tuple(parameter.shape for parameter in shaken.values()))
        with torch.no_grad():
            for parameter, noise in zip(shaken.values(), noises, strict=True):
                if scale != 1.0:
                    parameter.mul_(scale)
                parameter.add_(jitter * noise.to(parameter))

    def _noises(self, shapes: tuple[torch.Size, ...]) -> list[Tensor]:
        """Return noise N(0, 1) of these shapes, always the same; small ones are kept."""
        if shapes in self._known_noises:
            return self._known_noises[shapes]
        generator = self.generator("jitter")
        noises = [torch.randn(shape, generator=generator) for shape in shapes]
        if sum(noise.numel() for noise in noises) <= NOISE_KEPT_MAX:
            self._known_noises[shapes] = noises
        return noises

    def _takes(self, token_id: int) -> bool:
        """Whether the model runs on an id; a hashed table has a row for every one."""
        if self.device.type != "cpu":
            return False  # on a GPU a wrong id would end the whole process
        ids = torch.full((2, min(4, self.probe_length)), token_id)
        try:
            self._raw_call(self._trial_model, ids)
        except Exception:  # any: the model itself may raise
            return False
        return True

    @cached_property
    def _trial_model(self) -> nn.Module:
        """A copy to try sizes on: a model may keep state from the first call that it gets."""
        try:
            return clone(self.pipeline.model)
        except Exception:  # any: user classes may refuse in any way
            return self.pipeline.model

    def _predicted_rows(self) -> int | None:
        """Rows of the token embedding, without those that are read only: padding, a start sign."""
        rows = _embedding_rows(self.pipeline.model)
        if rows is None:
            return None
        B, T = 2, min(3, self.probe_length)
        try:
            found = self._raw_call(self._trial_model, torch.zeros(B, T, dtype=torch.long))
        except Exception:  # any: the model itself may raise; `shapes` says where
            return rows
        widths = [t.shape[2] for t in found if t.ndim == 3 and t.shape[:2] == (B, T)]
        heads = [m.out_features for m in self.pipeline.model.modules() if isinstance(m, nn.Linear)]
        return widths[0] if widths and widths[0] in heads and widths[0] < rows else rows

    def _longest_taken(self) -> int | None:
        """The block of a model that does not say it: the longest row that does not raise.

        A table of positions proposes its length; else up to PROBE_LENGTH_MAX tokens are tried.
        """
        for rows in _position_rows(self.pipeline.model):
            if rows <= BLOCK_TRIED_MAX and self._takes_rows(rows, rows + 1) == [True, False]:
                return rows
        if self._takes_rows(2, PROBE_LENGTH_MAX) != [True, False]:
            return None  # nothing limits it, or its fault is not the length
        fits, raises = 2, PROBE_LENGTH_MAX
        while raises - fits > 1:
            middle = (fits + raises) // 2
            fits, raises = (middle, raises) if all(self._takes_rows(middle)) else (fits, middle)
        try:
            wanted = self.raw_batch.inputs.shape[-1]
        except Exception:  # any: no batch, or a loader that raises; `batches` says where
            wanted = 0
        return fits if wanted <= fits else None  # it is trained on more: raising is a fault

    def _takes_rows(self, *lengths: int) -> list[bool]:
        """Whether the model runs on one row of each length; never asked on a GPU, as above."""
        if self.device.type != "cpu":
            return []
        taken = []
        for T in lengths:
            try:
                self._raw_call(self._trial_model, torch.zeros(1, T, dtype=torch.long))
                taken.append(True)
            except Exception:  # any: the model itself may raise
                taken.append(False)
        return taken

    def _raw_call(self, model: nn.Module, tokens: Tensor) -> list[Tensor]:
        """Call without the adapter, which needs copies itself; return all floating tensors."""
        with self.seeded("raw call"), torch.no_grad():
            forward = self.pipeline.forward
            if forward is not None:
                return _floating_tensors(forward(model, tokens.clone(), tokens.roll(-1, 1)))
            try:
                return _floating_tensors(model(tokens.clone()))
            except TypeError:  # targets are not optional
                return _floating_tensors(model(tokens.clone(), tokens.roll(-1, 1)))


def read_batch(raw: Any, source: str) -> Batch:
    """Read a pair or a dictionary (input_ids, labels, attention_mask) into a Batch.

    Raises TypeError saying what came when it is neither.
    """
    if isinstance(raw, Mapping):
        inputs = next((raw[name] for name in ("input_ids", "inputs", "x") if name in raw), None)
        targets = next((raw[name] for name in ("labels", "targets", "y") if name in raw), None)
        mask = raw.get("attention_mask")
    elif isinstance(raw, (tuple, list)) and len(raw) >= 2:
        inputs, targets, mask = raw[0], raw[1], None
    else:
        inputs = targets = mask = None
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        came = f"keys {sorted(map(str, raw))}" if isinstance(raw, Mapping) else type(raw).__name__
        raise TypeError(
            f"{source} must give (inputs, targets) tensors or a dict with input_ids and labels, "
            f"got {came}"
        )
    return Batch(inputs, targets, mask if isinstance(mask, Tensor) else None, source)


def tokenizer_vocab_size(tokenizer: Any) -> int | None:
    """Return the tokenizer's vocabulary size under any usual name, or None."""
    if tokenizer is None:
        return None
    for name in ("vocab_size", "n_vocab", "get_vocab_size"):
        value = getattr(tokenizer, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int) and not isinstance(value, bool):
            # Hugging Face: vocab_size leaves added tokens out, len() counts them
            return max(value, len(tokenizer)) if hasattr(tokenizer, "__len__") else value
    return len(tokenizer) if hasattr(tokenizer, "__len__") else None


def _config_number(model: nn.Module, names: tuple[str, ...]) -> int | None:
    for holder in [*(getattr(model, name, None) for name in _CONFIG_NAMES), model]:
        for name in names:
            value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _embedding_rows(model: nn.Module, *, named_only: bool = False) -> int | None:
    """Rows of the first embedding whose name speaks of tokens, else of the largest one."""
    tables = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    other = ("type", "segment", "pos")  # token_type_embeddings holds two rows
    named = [
        module
        for name, module in tables.items()
        if any(word in name for word in ("tok", "wte", "word"))
        and not any(word in name.rpartition(".")[2] for word in other)
    ]
    if not named and not named_only:
        named = sorted(tables.values(), key=lambda table: -table.num_embeddings)
    return named[0].num_embeddings if named else None


def _position_rows(model: nn.Module) -> list[int]:
    """Lengths that tables of absolute positions have; relative ones limit nothing."""
    rows: list[int] = []
    for name, parameter in model.named_parameters():
        if any(word in name for word in ("pos", "wpe")) and "rel" not in name:
            rows += parameter.shape[-2:-1]  # (T, C) or (1, T, C)
    return rows


def _floating_tensors(raw: Any) -> list[Tensor]:
    if isinstance(raw, Tensor):
        return [raw.detach().clone()] if raw.is_floating_point() else []
    if isinstance(raw, Mapping):
        parts: Iterable[Any] = raw.values()
    elif isinstance(raw, (tuple, list)):
        parts = raw
    else:
        parts = [raw.logits] if isinstance(getattr(raw, "logits", None), Tensor) else []
    return [tensor for part in parts for tensor in _floating_tensors(part)]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(same_bytes(x, y) for x, y in zip(a, b, strict=True))


def ln(vocab_size: int) -> float:
    """Return ln V, the loss in nats of a model that knows nothing."""
    return math.log(vocab_size)
