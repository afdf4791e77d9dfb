"""What is in memory when: a step has moments at which the most may be alive, and one is the peak.

In the forward pass activations pile up. The loss adds gradients of the logits to all of them. Then
the backward pass frees activations layer by layer, from the last to the first, while gradients of
the weights pile up. A wide and shallow model has its peak at the end, a long batch at the start.

Shapes: B batch, T time, C embedding_dim, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minigpt._memory_activations import (
    FLOAT_BYTES,
    ID_BYTES,
    Numbers,
    activation_rows,
    attention_bytes,
    attention_cost,
    feed_forward_bytes,
)
from minigpt._memory_sizes import (
    OPTIMIZER_STATES,
    Sizes,
    parameter_count,
    parameter_counts,
    tensor_count,
)
from minigpt._training_state import evaluation_rows

ADAM_STATES = OPTIMIZER_STATES["adamw"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes alive at one point of the run, by kind; `working` is what no kind keeps for long."""

    name: str
    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    working: int = 0

    @property
    def total(self) -> int:
        """Return the sum of all kinds."""
        kinds = self.weights + self.gradients + self.optimizer
        return kinds + self.activations + self.working


@dataclass(frozen=True)
class Account:
    """The steady part of a run: what is alive at every moment, and what a gradient costs."""

    numbers: Numbers

    @property
    def weights(self) -> int:
        """Return the bytes of the weights: float32 in training, also under autocast."""
        workload = self.numbers.workload
        width = FLOAT_BYTES if workload.mode == "train" else self.numbers.width
        return parameter_count(self.numbers.sizes) * width

    @property
    def gradients(self) -> int:
        """Return the bytes of all gradients, as wide as the weights."""
        return self.weights if self.numbers.workload.mode == "train" else 0

    @property
    def optimizer(self) -> int:
        """Return the bytes of the optimizer's states, float32."""
        if self.numbers.workload.mode != "train":
            return 0
        states = OPTIMIZER_STATES[self.numbers.workload.optimizer]
        counters = tensor_count(self.numbers.sizes) if states == ADAM_STATES else 0
        return self.weights * states + counters * FLOAT_BYTES

    @property
    def keeps_gradients(self) -> bool:
        """Return whether all gradients are there before the backward pass begins.

        Those of the batch before are; and processes exchange theirs in buckets, which stay.
        """
        return self.numbers.workload.accumulation_steps > 1 or self.numbers.workload.processes > 1

    def moment(self, name: str, gradients: int, activations: int, working: int) -> Moment:
        """Return a moment of the step: the steady part and what is given."""
        return Moment(
            name=name,
            weights=self.weights,
            gradients=gradients,
            optimizer=self.optimizer,
            activations=activations,
            working=working,
        )


def training_moments(numbers: Numbers) -> list[Moment]:
    """Return the moments of an update and of an evaluation.

    A checkpoint being written is none: the bytes go from the tensors into the file.
    """
    account, workload = Account(numbers), numbers.workload
    moments = _update_moments(account)
    every = account.gradients
    # Clipping and the fused optimizer write in place; where there is none, copies are made.
    fused = workload.device != "mps"
    working = 0 if fused else _largest_parameter(numbers.sizes) * FLOAT_BYTES
    moments.append(account.moment("optimizer step", every, 0, working))
    if workload.evaluation_windows >= 0:
        sizes = numbers.sizes
        most = evaluation_rows(sizes.block_size, sizes.vocab_size)
        rows = min(most, workload.evaluation_windows or most)
        evaluation = replace(workload, mode="inference", batch_size=rows, dtype="float32")
        working = forward_bytes(Numbers(numbers.sizes, evaluation), scored=True)
        moments.append(account.moment(f"evaluation, {rows} rows", every, 0, working))
    return moments


def _update_moments(account: Account) -> list[Moment]:
    """Return the moments of forward and backward, where a batch is followed by another one."""
    numbers = account.numbers
    sizes, logits = numbers.sizes, numbers.logits
    resident = account.keeps_gradients
    every = account.gradients
    kept = sum(row.bytes for row in activation_rows(numbers))
    log_softmax = logits * FLOAT_BYTES
    before = every if resident else 0
    head = sizes.vocab_size * sizes.embedding_dim * FLOAT_BYTES
    cast = logits * FLOAT_BYTES if numbers.half else 0
    stream = numbers.stream * FLOAT_BYTES
    moments = [
        account.moment("forward ends", before, kept, logits * numbers.width + cast),
        account.moment("loss, backward", before, kept, 2 * log_softmax),
        account.moment(
            "head, backward",
            before or head,
            kept - log_softmax,
            log_softmax + numbers.stream * numbers.width + (head if resident else 0),
        ),
    ]
    kept -= log_softmax + 2 * stream  # the head and the final norm are done with
    blocks = [(sizes.num_layers, "last block, backward"), (1, "first block, backward")]
    for remaining, name in blocks[: sizes.num_layers]:
        moments.append(_block_moment(account, name, remaining, kept, head))
    last = account.moment("backward ends", every, 0, stream + (head if resident else 0))
    return [*moments, last]


def _block_moment(account: Account, name: str, remaining: int, kept: int, head: int) -> Moment:
    """Return the worse half of a block in the backward pass; `remaining` blocks are not done."""
    numbers = account.numbers
    sizes, width, stream = numbers.sizes, numbers.width, numbers.stream
    parts = parameter_counts(sizes)
    block = (parts["attention"] + parts["feed-forward"]) // sizes.num_layers * FLOAT_BYTES
    done = sizes.num_layers - remaining
    whole = attention_bytes(numbers) + feed_forward_bytes(numbers)
    if numbers.workload.checkpointed:  # this block was computed once more, from its kept input
        left = kept - (done + 1) * stream * FLOAT_BYTES + whole
    else:
        left = kept - done * whole
    resident = account.keeps_gradients
    above = account.gradients if resident else head + done * block
    new = block if resident else 0
    second = parts["feed-forward"] // sizes.num_layers * FLOAT_BYTES
    arriving = stream * FLOAT_BYTES + (stream * width if numbers.half else 0)
    halves = [
        account.moment(name, above, left, new + arriving + sizes.expansion_factor * stream * width),
        account.moment(
            name,
            above + (0 if resident else second),
            left - feed_forward_bytes(numbers),
            new + arriving + 4 * stream * width + attention_cost(numbers).backward,
        ),
    ]
    return max(halves, key=lambda moment: moment.total)


def forward_bytes(numbers: Numbers, *, scored: bool) -> int:
    """Return what a forward pass without gradients needs at its worst.

    In a block: the stream three times, before, in and normed, and the feed-forward layer's inner
    numbers before and after GELU. At the end: logits, and for a loss their log-softmax.
    """
    stream, logits = numbers.stream * numbers.width, numbers.logits * numbers.width
    feed_forward = (3 + 2 * numbers.sizes.expansion_factor) * stream
    scores = attention_cost(numbers, training=False)
    attention = max(7 * stream, 5 * stream + scores.forward + scores.kept)
    head = 2 * stream + (2 if scored else 1) * logits
    return max(feed_forward, attention, head) + 2 * numbers.tokens * ID_BYTES


def inference_moments(numbers: Numbers) -> list[Moment]:
    """Return the one moment of a scored batch without gradients."""
    working = forward_bytes(numbers, scored=True)
    return [Account(numbers).moment("forward", 0, 0, working)]


def generation_moments(numbers: Numbers) -> list[Moment]:
    """Return the one moment of generation: a whole block read at once, beside the cache."""
    working = forward_bytes(numbers, scored=False)
    return [Account(numbers).moment("whole block read", 0, cache_bytes(numbers), working)]


def cache_bytes(numbers: Numbers) -> int:
    """Return the bytes of the keys and values that generation keeps: 2 x L x B x block x C."""
    return 2 * numbers.sizes.num_layers * numbers.stream * numbers.width


def _largest_parameter(sizes: Sizes) -> int:
    C = sizes.embedding_dim
    return C * max(sizes.vocab_size, sizes.block_size, sizes.expansion_factor * C, 3 * C)
