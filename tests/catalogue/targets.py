"""Rows of the table: which target meets which logits, and which of them are masked.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._lab import IGNORE_INDEX, Lab, retype
from minigpt import MiniGPT
from tests.catalogue._builders import accumulating, by_tokens, cross_entropy, scored_by
from tests.catalogue._row import Caught, Row, Unseen

ROWS_OF_DOCUMENTS = 8


# ---- the loss inside the model -----------------------------------------------------------------


def score_shifted_again(logits: Tensor, targets: Tensor) -> Tensor:
    """The batch holds y[t] = x[t + 1], and the model shifts once more."""
    return cross_entropy(logits[:, :-1], targets[:, 1:])


def score_ignoring_id_0(logits: Tensor, targets: Tensor) -> Tensor:
    """ignore_index=0, and id 0 is the line break of the text."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


def score_masked_mean(logits: Tensor, targets: Tensor, *, count_min: int) -> Tensor:
    """A mean by hand, over a mask: 0 / 0 where a micro-batch has no scored target at all."""
    mask = (targets != IGNORE_INDEX).float()
    picked = logits.log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]  # (B, T)
    return -(picked * mask).sum() / mask.sum().clamp_min(count_min)


# ---- loaders -----------------------------------------------------------------------------------


def windows(data: Tensor, length: int, count: int = ROWS_OF_DOCUMENTS) -> Tensor:
    """Return (count, length): random windows of the data (N,)."""
    starts = torch.randint(len(data) - length + 1, (count, 1))
    return data[starts + torch.arange(length)]


def copying(lab: Lab) -> Pipeline:
    """The + 1 is missing in the slice of the targets."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        window = windows(data, lab.config.block_size + 1)
        return window[:, :-1], window[:, :-1].clone()

    return lab.pipeline(get_batch=get_batch)


def rolled_backward(lab: Lab) -> Pipeline:
    """roll(+1) where roll(-1) is meant, with the invented token masked."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        inputs = windows(data, lab.config.block_size)
        targets = inputs.roll(1, dims=1)
        targets[:, 0] = IGNORE_INDEX
        return inputs, targets

    return lab.pipeline(get_batch=get_batch)


def sharded(lab: Lab) -> Pipeline:
    """Each of two ranks shifts its own half of the row: the last label of each half is lost."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        inputs = windows(data, lab.config.block_size + 1)[:, :-1]
        shards = []
        for shard in inputs.chunk(2, dim=1):
            targets = shard.roll(-1, dims=1)
            targets[:, -1] = IGNORE_INDEX
            shards.append(targets)
        return inputs, torch.cat(shards, dim=1)

    return lab.pipeline(get_batch=get_batch)


def strided(lab: Lab) -> Pipeline:
    """Windows start every T + 1 tokens, so that the token at each seam is never a target."""
    T = lab.config.block_size

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.arange(0, len(data) - T, T + 1)
        chosen = starts[torch.randint(len(starts), (ROWS_OF_DOCUMENTS,))][:, None]
        return data[chosen + torch.arange(T)], data[chosen + torch.arange(1, T + 1)]

    return lab.pipeline(get_batch=get_batch)


def pad_of(lab: Lab) -> int:
    """Return the id that the lab pads with: its rarest character."""
    pad = lab.pipeline().pad_id
    assert pad is not None
    return pad


def documents(lab: Lab) -> list[Tensor]:
    """Return lines of the text, none of which holds the pad id, in a fixed order."""
    pad = pad_of(lab)
    lines = [line for line in lab.train_text.splitlines() if len(line) >= 12]
    encoded = [torch.tensor(lab.tokenizer.encode(line))[: lab.config.block_size] for line in lines]
    lengths = range(9, 9 + 2 * ROWS_OF_DOCUMENTS, 2)
    chosen = [ids for ids in encoded if not bool((ids == pad).any())]
    return [ids[:length] for ids, length in zip(chosen, lengths, strict=False)]


def collate(rows: list[Tensor], pad: int, fill: int) -> tuple[Tensor, Tensor]:
    """Pad rows of ids: inputs (B, T) with `pad`, the targets of padding with `fill`."""
    inputs = nn.utils.rnn.pad_sequence(
        [row[:-1] for row in rows], batch_first=True, padding_value=pad
    )
    targets = nn.utils.rnn.pad_sequence(
        [row[1:] for row in rows], batch_first=True, padding_value=fill
    )
    return inputs, targets


def padded(lab: Lab, fill: int | None) -> Pipeline:
    """A batch of lines, padded; `fill` marks the targets of padding, None: the pad id itself."""
    pad = pad_of(lab)
    return lab.pipeline(batch=collate(documents(lab), pad, pad if fill is None else fill))


class Tokenizer:
    """A tokenizer with one special token, which GPT-2 style recipes also use as the pad."""

    def __init__(self, lab: Lab, eos_token_id: int) -> None:
        self.encode, self.decode = lab.tokenizer.encode, lab.tokenizer.decode
        self.vocab_size, self.eos_token_id = lab.tokenizer.vocab_size, eos_token_id


def ending(lab: Lab, *, by_value: bool) -> Pipeline:
    """pad_id is the end mark, and the collator masks every label that equals it."""
    eos = pad_of(lab)
    rows = [torch.cat([ids, torch.tensor([eos])]) for ids in documents(lab)]
    inputs = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=eos)
    lengths = torch.tensor([len(row) for row in rows])
    attention_mask = (torch.arange(inputs.shape[1]) < lengths[:, None]).long()
    targets = inputs.roll(-1, dims=1)
    targets[:, -1] = IGNORE_INDEX
    if by_value:
        targets[targets == eos] = IGNORE_INDEX
    else:
        targets[torch.arange(inputs.shape[1]) >= lengths[:, None] - 1] = IGNORE_INDEX
    batch = {"input_ids": inputs, "labels": targets, "attention_mask": attention_mask}
    tokenizer = Tokenizer(lab, eos)
    return lab.pipeline(batch=batch, tokenizer=tokenizer, pad_id=eos, train_text=None)


def asked(lab: Lab) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts, each ending in ": ", and answers, cut from the text."""
    lines = [line for line in lab.train_text.splitlines() if len(line) >= 24]
    kinds = {line[12]: line for line in lines if ":" not in line}  # answers begin differently
    chosen = list(kinds.values())[:ROWS_OF_DOCUMENTS]
    encode = lab.tokenizer.encode
    return [encode(line[:8] + ":") for line in chosen], [encode(line[12:22]) for line in chosen]


def answering(lab: Lab, *, late: int) -> Pipeline:
    """The labels of a prompt are ignored; its length is counted with a start mark too many."""
    prompts, answers = asked(lab)
    rows = torch.tensor([p + a for p, a in zip(prompts, answers, strict=True)])  # (B, T + 1)
    targets = rows.clone()
    for row, prompt in enumerate(prompts):
        targets[row, : len(prompt) + late] = IGNORE_INDEX
    return lab.pipeline(batch=(rows[:, :-1], targets[:, 1:]), get_batch=None)


def merged(text: str, pieces: dict[str, int]) -> list[int]:
    """Encode words with the space before them, as byte-pair merges do."""
    return [pieces.setdefault(word, len(pieces)) for word in re.findall(r" ?\w+|.", text)]


def searching(lab: Lab, marker: str) -> Pipeline:
    """The answer begins after the ids of a marker; alone it is encoded without its space."""
    pieces: dict[str, int] = {}
    texts = [f"Add {a} and {a + 2}. Answer: {2 * a + 2}." for a in range(ROWS_OF_DOCUMENTS)]
    rows = torch.tensor([merged(text, pieces) for text in texts])  # (B, T + 1)
    wanted = torch.tensor(merged(marker, pieces))
    targets = torch.full_like(rows, IGNORE_INDEX)
    for row, ids in enumerate(rows):
        for end in range(len(wanted), len(ids)):
            if torch.equal(ids[end - len(wanted) : end], wanted):
                targets[row, end:] = ids[end:]
    return lab.pipeline(batch=(rows[:, :-1], targets[:, 1:]), get_batch=None, train_ids=None)


class BranchingGPT(MiniGPT):
    """In training the loss is computed in pieces of time, to save memory."""

    masked = False  # whether that branch was given the mask

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: object
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) and the loss of one of two branches."""
        logits, loss = super().forward(token_ids, targets, **options)  # type: ignore[arg-type]
        if targets is None or not self.training:
            return logits, loss
        mask = targets != IGNORE_INDEX if self.masked else torch.ones_like(targets)
        total = logits.new_zeros(())
        for z, y, kept in zip(
            logits.split(8, 1), targets.clamp_min(0).split(8, 1), mask.split(8, 1), strict=True
        ):
            losses = functional.cross_entropy(z.transpose(1, 2), y, reduction="none")
            total = total + (losses * kept).sum()
        return logits, total / mask.sum()


class MaskedBranchGPT(BranchingGPT):
    """The same with the mask on both branches."""

    masked = True


def branching(lab: Lab, kind: type[MiniGPT]) -> Pipeline:
    """A padded batch, and the model with two branches."""
    pad = pad_of(lab)
    return lab.pipeline(
        batch=collate(documents(lab), pad, IGNORE_INDEX),
        edit_model=lambda model: retype(model, MiniGPT, kind),
    )


# ---- metrics -----------------------------------------------------------------------------------


def metric(lab: Lab, *, shifted: bool) -> Pipeline:
    """The reported metric compares logits[t] with x[t]; the loss uses x[t + 1]."""
    T = lab.config.block_size

    @torch.no_grad()
    def evaluate(model: nn.Module, ids: Tensor) -> float:
        was_training = model.training
        model.eval()
        total, count = 0.0, 0
        for start in range(0, len(ids) - 1, T):
            window = ids[start : start + T + 1]
            logits = model(window[None, :-1])[0][0]  # (t, V)
            labels = window[1:] if shifted else window[:-1]
            total += float(functional.cross_entropy(logits, labels, reduction="sum"))
            count += len(labels)
        model.train(was_training)
        return total / count

    return lab.pipeline(evaluate=evaluate)


ROWS: tuple[Row, ...] = (
    # target-alignment
    Caught("double-shift", "loss", "loss.shifted_twice", scored_by(score_shifted_again)),
    Caught("no-shift-copy", "shift", "shift.identical", copying),
    Caught("backward-shift", "shift", "shift.backward", rolled_backward),
    Caught(
        "shard-boundary-label-lost",
        "shift",
        "shift.column_ignored",
        sharded,
        only_warns="documents of one length, masked at their end, ignore a column in every row too",
    ),
    Caught(
        "metric-not-shifted",
        "evaluation",
        "evaluation.not_shifted",
        partial(metric, shifted=False),
        healthy=partial(metric, shifted=True),
    ),
    Caught(
        "window-stride-skips-token",
        "batches",
        "batches.gaps",
        strided,
        only_warns="chunks of T + 1 tokens lose one transition in T + 1, which many recipes accept",
    ),
    # label-mask
    Caught(
        "pad-in-loss",
        "loss",
        "loss.padding_counted",
        partial(padded, fill=None),
        healthy=partial(padded, fill=IGNORE_INDEX),
    ),
    Caught(
        "ignore-sentinel-mismatch",
        "loss",
        "loss.unknown_mark",
        partial(padded, fill=-1),
        healthy=partial(padded, fill=IGNORE_INDEX),
    ),
    Caught(
        "ignore-id-is-real-token",
        "loss",
        "loss.ignores_real_token",
        scored_by(score_ignoring_id_0),
        healthy=scored_by(cross_entropy),
    ),
    Caught(
        "pad-is-eos-masked",
        "loss",
        "loss.end_never_scored",
        partial(ending, by_value=True),
        healthy=partial(ending, by_value=False),
    ),
    Unseen(
        "prompt-not-masked",
        "which tokens are a prompt is the intent of the author: a batch in which all of them are "
        "targets is what pretraining looks like",
    ),
    Caught(
        "marker-not-found-all-masked",
        "shift",
        "shift.nothing_scored",
        partial(searching, marker="Answer:"),
        healthy=partial(searching, marker=" Answer:"),
    ),
    Caught(
        "answer-mask-off-by-one",
        "loss",
        "loss.answer_starts_late",
        partial(answering, late=1),
        healthy=partial(answering, late=0),
        only_warns="a prompt may end in a varying token, such as a style, after a fixed one",
    ),
    Caught(
        "mask-dropped-on-one-branch",
        "loss",
        "loss.ignored_counted",
        partial(branching, kind=BranchingGPT),
        healthy=partial(branching, kind=MaskedBranchGPT),
    ),
    Caught(
        "all-labels-masked-nan",
        "accumulation",
        "accumulation.nan_on_empty",
        accumulating(by_tokens, partial(score_masked_mean, count_min=0)),
        healthy=accumulating(by_tokens, partial(score_masked_mean, count_min=1)),
        only_warns="where every micro-batch is known to score something, the mean is never empty",
    ),
)
