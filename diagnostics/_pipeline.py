"""The user's pipeline, described: a model, and every other part that unlocks more checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

PairOrDict = tuple[Tensor, Tensor] | Mapping[str, Tensor]


@dataclass
class Pipeline:
    """What to check. Only `model` is needed; each further part unlocks the checks named there.

    Shapes: B batch, T time, V vocabulary; ids and targets are int64.
    A part that is left out is never guessed at: the checks that need it say SKIP and name it.
    """

    model: nn.Module
    make_model: Callable[[], nn.Module] | None = None  # a fresh one, to train from scratch
    files: Sequence[str | Path] = ()  # paths that the pipeline reads
    # (model, inputs, targets) -> (logits (B, T, V), scalar loss); None: recognised from what the
    # model returns: (logits, loss), logits, a dict, or an object with .logits and .loss
    forward: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    vocab_size: int | None = None  # None: read from model.config, the tokenizer or the ids
    block_size: int | None = None  # None: read from model.config or the batch
    tokenizer: Any = None  # encode(str) -> ids, decode(ids) -> str; HF and tiktoken styles too
    train_text: str | None = None  # the raw text that train_ids came from
    train_ids: Tensor | None = None  # (N,)
    val_ids: Tensor | None = None  # (M,)
    get_batch: Callable[[Tensor], PairOrDict] | None = None  # (N,) ids -> a batch
    # a batch, or (split: "train" | "val") -> a batch, for a loader bound to its own data
    batch: PairOrDict | Callable[[str], PairOrDict] | None = None
    labels: Literal["next", "same"] = "next"  # "same": the model shifts inside, as HF models do
    ignore_index: int = -100
    pad_id: int | None = None
    make_optimizer: Callable[[nn.Module], Optimizer] | None = None
    train_step: Callable[[nn.Module, Optimizer, Tensor, Tensor], Any] | None = None
    accumulate: Callable[[nn.Module, Optimizer, list[tuple[Tensor, Tensor]]], Any] | None = None
    learning_rate: Callable[[int], float] | None = None
    max_steps: int | None = None
    evaluate: Callable[[nn.Module, Tensor], float] | None = None  # -> mean nats per token
    generate: Callable[[nn.Module, Tensor, int], Tensor] | None = None  # greedy: (1,T0), n
    next_token_probabilities: Callable[..., Tensor] | None = None
    save: Callable[[nn.Module, Path], None] | None = None
    load: Callable[[Path], nn.Module] | None = None
    save_state: Callable[[nn.Module, Optimizer, int, Path], None] | None = None
    load_state: Callable[[Path], tuple[nn.Module, Optimizer, int]] | None = None
    batches_from: Callable[[int], Iterator[tuple[Tensor, Tensor]]] | None = None
    micro_batches: int = 1
    causal: bool = True  # False: declared not causal
    fresh: bool | None = None  # True: freshly initialised; False: trained; None: not said
    allow: Iterable[str] = ()  # reason ids that are a declared design; they become warnings
    # (model) -> the model as one process of many trains it, such as DistributedDataParallel(model);
    # called on every rank, with a process group; a loop that reduces gradients itself: the model
    replicate: Callable[[nn.Module], nn.Module] | None = None
    # (rank, processes) -> the batches (inputs, targets) of that rank, in order
    rank_batches: Callable[[int, int], Iterable[PairOrDict]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(
                f"Pipeline(model) must be a torch.nn.Module, got {type(self.model).__name__}"
            )
        if self.labels not in ("next", "same"):
            raise ValueError(f'labels must be "next" or "same", got {self.labels!r}')
        self.allow = (self.allow,) if isinstance(self.allow, str) else tuple(self.allow)
        for name in _CALLABLE_PARTS:
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise TypeError(f"Pipeline({name}=...) must be callable, got {part!r:.80}")


_CALLABLE_PARTS = (
    "make_model",
    "forward",
    "get_batch",
    "make_optimizer",
    "train_step",
    "accumulate",
    "learning_rate",
    "evaluate",
    "generate",
    "next_token_probabilities",
    "save",
    "load",
    "save_state",
    "load_state",
    "batches_from",
    "replicate",
    "rank_batches",
)
