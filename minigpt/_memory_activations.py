"""How many bytes the forward pass keeps for the backward pass, tensor by tensor.

The rows below are read off the model line by line: an operation keeps what its derivative needs.
A linear layer keeps its input, GELU and a norm too, dropout its mask, attention its queries, keys
and values; an addition keeps nothing. Numbers of float32 have 4 bytes; under autocast the linear
layers and attention work with 2, while norms, the residual stream and the loss stay at 4.

Shapes: B batch, T time, C embedding_dim, H num_heads, V vocab_size, L num_layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from minigpt._memory_sizes import Sizes, Workload, matrix_count

FLOAT_BYTES = 4  # float32
HALF_BYTES = 2  # bfloat16
ID_BYTES = 8  # int64


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """One line of the account: what it is, its bytes, and how they come about, in words."""

    kind: str  # "weights", "gradients", "optimizer", "activations" or "cache"
    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What the attention of one layer costs beyond queries, keys, values and its result."""

    kept: int  # bytes for the backward pass
    forward: int  # more bytes in the worst moment of the forward pass
    backward: int  # more bytes in the worst moment of the backward pass
    formula: str


@dataclass(frozen=True)
class Numbers:
    """The counts of which all formulas are made."""

    sizes: Sizes
    workload: Workload

    @property
    def tokens(self) -> int:
        """Return B x T."""
        return self.workload.batch_size * self.sizes.block_size

    @property
    def stream(self) -> int:
        """Return B x T x C, the numbers in the residual stream."""
        return self.tokens * self.sizes.embedding_dim

    @property
    def logits(self) -> int:
        """Return B x T x V."""
        return self.tokens * self.sizes.vocab_size

    @property
    def scores(self) -> int:
        """Return B x H x T x T: what every position thinks of every other one, per head."""
        return self.tokens * self.sizes.num_heads * self.sizes.block_size

    @property
    def half(self) -> bool:
        """Return whether linear layers work in bfloat16."""
        return self.workload.dtype == "bfloat16"

    @property
    def width(self) -> int:
        """Return the bytes of a number inside a block."""
        return HALF_BYTES if self.half else FLOAT_BYTES

    @property
    def mask_width(self) -> int:
        """Return the bytes of a number in the mask of dropout: CUDA has a kernel with bools."""
        return 1 if self.workload.device == "cuda" else self.width


def activation_rows(numbers: Numbers) -> list[MemoryRow]:
    """Return what lies in memory when the forward pass of a training step has ended."""
    sizes, stream, tokens = numbers.sizes, numbers.stream, numbers.tokens
    batch = (2 * tokens + sizes.block_size) * ID_BYTES + FLOAT_BYTES  # ids, positions, one sum
    rows = [_row("batch", batch, "B x T ids and as many targets, 8 bytes each")]
    if numbers.workload.checkpointed:
        inputs = sizes.num_layers * stream * FLOAT_BYTES
        rows.append(_row("block inputs", inputs, "B x T x C x 4 bytes a layer, and nothing else"))
        copied = sizes.vocab_size * sizes.embedding_dim
    else:
        rows += _block_rows(numbers)
        copied = matrix_count(sizes)
    if sizes.dropout:
        mask = stream * _first_mask_width(numbers)
        rows.append(_row("embedding mask", mask, "B x T x C numbers, of the first dropout"))
    if numbers.half:
        formula = "a copy of each matrix in use, 2 bytes a number"
        rows.append(_row("bf16 weights", copied * HALF_BYTES, formula))
    end = _norm_input(numbers) + stream * numbers.width
    rows.append(_row("before the head", end, "B x T x C twice: the last norm's input, and normed"))
    log_softmax = numbers.logits * FLOAT_BYTES
    rows.append(_row("log-softmax", log_softmax, "B x T x V x 4 bytes, kept by the loss"))
    return rows


def _block_rows(numbers: Numbers) -> list[MemoryRow]:
    """Return what all blocks keep."""
    L, width, stream = numbers.sizes.num_layers, numbers.width, numbers.stream
    expansion, attention = numbers.sizes.expansion_factor, attention_cost(numbers)
    count = 2 + 3 + 1 + 2 * expansion
    words = f"normed 2, q k v 3, mixed 1, feed-forward 2 x {expansion}"
    rows = [
        _row("norm inputs", 2 * L * _norm_input(numbers), "B x T x C x 4 bytes, twice a layer"),
        _row(
            "linear layers",
            L * count * stream * width,
            f"B x T x C x {width} bytes x {count} a layer: {words}",
        ),
        _row("attention", L * attention.kept, attention.formula),
    ]
    if numbers.sizes.dropout:
        masks = 2 * L * stream * numbers.mask_width
        rows.append(_row("dropout masks", masks, "B x T x C numbers, twice a layer"))
    return rows


def _row(name: str, count: int, formula: str) -> MemoryRow:
    return MemoryRow(kind="activations", name=name, bytes=count, formula=formula)


def _first_mask_width(numbers: Numbers) -> int:
    """Return the bytes of a number in the mask over the embeddings, which are never bfloat16."""
    return 1 if numbers.workload.device == "cuda" else FLOAT_BYTES


def feed_forward_bytes(numbers: Numbers) -> int:
    """Return what the second half of one block keeps: norm, two linear layers, GELU, mask."""
    inner = (1 + 2 * numbers.sizes.expansion_factor) * numbers.stream * numbers.width
    mask = numbers.stream * numbers.mask_width if numbers.sizes.dropout else 0
    return _norm_input(numbers) + inner + mask


def attention_bytes(numbers: Numbers) -> int:
    """Return what the first half of one block keeps."""
    inner = 5 * numbers.stream * numbers.width
    mask = numbers.stream * numbers.mask_width if numbers.sizes.dropout else 0
    return _norm_input(numbers) + inner + mask + attention_cost(numbers).kept


def attention_cost(numbers: Numbers, *, training: bool = True) -> Attention:
    """Return the cost of attention, which depends on the form that `minigpt.attention` takes."""
    device, dropout = numbers.workload.device, numbers.sizes.dropout if training else 0.0
    written_out = is_written_out(numbers)
    if not written_out and (device == "cuda" or (device == "cpu" and not dropout)):
        return Attention(
            kept=numbers.tokens * numbers.sizes.num_heads * FLOAT_BYTES,
            forward=0,
            backward=0,
            formula="B x H x T x 4 bytes a layer: the fused kernel keeps log-sum-exp only",
        )
    # What torch falls back to, where its kernel cannot do dropout, is float32 throughout.
    width = numbers.width if written_out else FLOAT_BYTES
    score = numbers.scores * width
    copies, words = (3, "weights, mask, both multiplied") if dropout else (1, "the weights")
    if written_out:
        others = numbers.sizes.block_size**2  # which scores lie in the future
    else:
        others = 3 * numbers.stream * (FLOAT_BYTES - numbers.width)  # q k v made float32
    return Attention(
        kept=copies * score + others,
        forward=2 * score if written_out else score,
        backward=score if dropout else 2 * score,  # with dropout, one of the three is free by then
        formula=f"B x H x T x T x {width} bytes x {copies} a layer, written out: {words}",
    )


def is_written_out(numbers: Numbers) -> bool:
    """Return what `minigpt.attention.written_out_is_faster` will say; False without torch."""
    workload, T = numbers.workload, numbers.sizes.block_size
    medium = workload.matmul_precision == "medium"
    if workload.device != "cpu" or T == 1 or not (numbers.half or medium):
        return False
    try:
        from minigpt import attention
    except ImportError:  # no torch: nothing will run here either
        return False
    return attention.HAS_AVX512 and (numbers.half or T <= attention.SHORT)


def _norm_input(numbers: Numbers) -> int:
    """Return what a norm keeps: its input, and mean and deviation of each token."""
    return numbers.stream * FLOAT_BYTES + 2 * numbers.tokens * FLOAT_BYTES
