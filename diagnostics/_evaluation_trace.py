"""What an evaluation computed, seen from inside the model, and which formula gives its value.

Every row that the model reads is found again in the ids, so that the true next token of every
position is known whatever windows the evaluation chose, and its nats are taken from the very
logits that the evaluation saw.

Shapes: B rows of a call, T time, W width of the logits, N ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagnostics._adapter import UnreadableOutputError, read_output
from diagnostics._side_effects import Leftovers, Watch

KEY_LENGTH = 8  # tokens by which a row is looked up before it is compared as a whole
RELATIVE = 1e-5  # two float32 sums of thousands of nats; measured 1e-6
RELATIVE_HALF = 2e-2  # a cross-entropy computed in half precision
LOGITS_MAX = 2**21  # numbers that are scored at once: 16 MB
NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """One row of one forward call. Nats are float64, NaN where there is no such target."""

    call: int
    start: int  # place of the row's first token in the ids
    nats: Tensor  # (T,) of the true next token
    own: Tensor  # (T,) of the token that was read
    skipped: Tensor  # (T,) of the token after the next
    inner: Tensor  # (T,) of the row's own next token, padding included
    fixed: Tensor  # (2, T) of id 0, and of the last of the ids: what targets are filled up with
    padded: int  # tokens at the row's end that are not from the ids


@dataclass
class Recorder:
    """Called after every forward call of the model; keeps nats, not logits."""

    ids: Tensor  # (N,)
    vocab_size: int
    score: bool = True  # False: only find the rows
    rows: list[Row] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)  # the model's own, by call
    calls: int = 0
    foreign_rows: list[Tensor] = field(default_factory=list)  # not from the ids
    unreadable: int = 0  # calls whose tokens or logits could not be recognised
    bytes_per_logit: int = 8

    def __post_init__(self) -> None:
        self.ids = self.ids.cpu()
        self._values: list[int] = self.ids.tolist()
        self._places: dict[int, dict[tuple[int, ...], list[int]]] = {}
        self._expected = 0  # where the next row starts if it goes on where the last one ended

    def __call__(self, given: tuple[Tensor, ...], output: Any) -> None:
        """Take the first integer tensor as the tokens, and read the logits."""
        call, self.calls = self.calls, self.calls + 1
        if not given:
            self.unreadable += 1
            return
        tokens = given[0] if given[0].ndim == 2 else given[0][None]  # (B, T)
        B, T = tokens.shape
        try:
            read = read_output(output, B, T, self.vocab_size)
        except UnreadableOutputError:
            self.unreadable += 1
            return
        if read.loss is not None and read.loss.numel() == 1:
            self.losses[call] = float(read.loss)
        self.bytes_per_logit = min(self.bytes_per_logit, read.logits.dtype.itemsize)
        wide = torch.float32 if read.logits.device.type == "mps" else torch.float64
        some = max(1, LOGITS_MAX // max(1, read.logits[0].numel()))  # rows at a time
        for rows, logits in zip(tokens.cpu().split(some), read.logits.split(some), strict=True):
            places = self._locate_all(rows)
            mine = [b for b, place in enumerate(places) if place is not None]
            self.foreign_rows += [row for row, p in zip(rows, places, strict=True) if p is None]
            found = [place for place in places if place is not None]
            if not self.score:
                none = _NOTHING
                self.rows += [
                    Row(call, start, none, none, none, none, none, T - known)
                    for start, known in found
                ]
            elif found:
                surprise = -logits[mine].to(wide).log_softmax(-1).cpu()
                self._add(call, rows[mine], surprise, found)

    def _add(
        self, call: int, rows: Tensor, surprise: Tensor, places: list[tuple[int, int]]
    ) -> None:
        """Keep the nats of rows (R, T) whose surprise is (R, T, W), or (R, 1, W) at the last place.

        places: where each row starts in the ids, and how many of its tokens are from there.
        """
        T, N = rows.shape[1], len(self.ids)
        starts, known = torch.tensor(places).T[:, :, None]  # (R, 1) each
        ahead = starts + 1 + torch.arange(T + 1)  # (R, T + 1) places of the next tokens, and one
        real = (torch.arange(T + 1) <= known) & (ahead < N)
        after = torch.where(real, self.ids[ahead.clamp(max=N - 1)], -1)
        true = torch.where(torch.arange(T) < known, after[:, :-1], -1)
        following = torch.where(known == T, after[:, T - 1 : T], rows[:, -1:])  # or more padding
        inner = torch.cat([rows[:, 1:], following], dim=1)
        fixed = [torch.full_like(rows, value) for value in (0, int(self.ids[-1]))]
        wanted = torch.stack([true, rows, after[:, 1:], inner, *fixed], dim=1)  # (R, 6, T)
        picked = _pick(surprise, wanted)
        for (start, length), n in zip(places, picked, strict=True):
            self.rows.append(Row(call, start, n[0], n[1], n[2], n[3], n[4:], T - length))

    def _locate_all(self, rows: Tensor) -> list[tuple[int, int] | None]:
        """Return for each of rows (R, T) what `_locate` does."""
        places = []
        for row in rows.tolist():
            place = self._locate(row)
            if place is not None:
                self._expected = place[0] + len(row)
            places.append(place)
        return places

    def _locate(self, row: list[int]) -> tuple[int, int] | None:
        """Return (start, known tokens) of a row in the ids; padding on the right is allowed for."""
        whole = self._find(row)
        if whole is not None:
            return whole, len(row)
        behind = self._find(row[1:]) if len(row) > 1 else None
        if behind is not None:  # a beginning-of-text token was put before the row
            return behind - 1, len(row)
        known = len(row)
        while known > 1 and row[known - 1] == row[-1]:
            known -= 1
        found: tuple[int, int] | None = None
        for length in range(known, min(known + 2, len(row))):  # the pad id may be a real one too
            padded = self._find(row[:length])
            if padded is None:
                continue
            # a row that ends where the inputs of all ids end, whose last token fills it up
            if found is None or padded + length == len(self._values) - 1:
                found = padded, length
        return found

    def _find(self, row: list[int]) -> int | None:
        """Return where a row starts; of several equal windows, the nearest to the expected one."""
        if self._values[self._expected : self._expected + len(row)] == row:
            return self._expected
        width = min(KEY_LENGTH, len(row))
        if width not in self._places:
            places: dict[tuple[int, ...], list[int]] = {}
            for start in range(len(self._values) - width + 1):
                places.setdefault(tuple(self._values[start : start + width]), []).append(start)
            self._places[width] = places
        starts = [
            start
            for start in self._places[width].get(tuple(row[:width]), [])
            if self._values[start : start + len(row)] == row
        ]
        return min(starts, key=lambda start: abs(start - self._expected)) if starts else None


@dataclass(frozen=True)
class Call:
    """One evaluation: what it returned, what it read, and what it left behind."""

    ids: Tensor  # (N,)
    value: float
    recorder: Recorder
    watch: Watch
    leftovers: Leftovers
    drew_random: bool
    random_after: tuple[bytes, ...]

    @property
    def share_read(self) -> float:
        """Share of the next tokens in the ids that were scored; NaN when nothing was seen."""
        if not self.recorder.rows:
            return float("nan")
        return len(scored_places(self.recorder)) / (len(self.ids) - 1)

    @property
    def windows(self) -> list[int]:
        """Where in the ids each row started."""
        return [row.start for row in self.recorder.rows]


@dataclass(frozen=True)
class Formula:
    """A number that an evaluation might return for what it read. reason "" is a healthy one."""

    reason: str
    value: float


def scored_places(recorder: Recorder) -> set[int]:
    """Return the places in the ids whose token was a next token of some row."""
    places: set[int] = set()
    for row in recorder.rows:
        places.update((torch.nonzero(row.nats.isfinite()).flatten() + row.start + 1).tolist())
    return places


def fitting_formula(recorder: Recorder, value: float) -> str | None:
    """Return the reason of the first formula that gives the value, "" for health, or None."""
    tried: list[Formula] = []
    for formula in _formulas(recorder):  # the healthy ones come first, and mostly are enough
        if _gives(formula, value, RELATIVE):
            return formula.reason
        tried.append(formula)
    halves = tried if recorder.bytes_per_logit < 4 else []
    return next((f.reason for f in halves if _gives(f, value, RELATIVE_HALF)), None)


def _gives(formula: Formula, value: float, limit: float) -> bool:
    return abs(value - formula.value) <= limit * max(1.0, abs(formula.value))


def token_mean(recorder: Recorder) -> float:
    """Return the mean nats over every next token of every row."""
    return _mean(torch.cat([row.nats for row in recorder.rows]))


def _formulas(recorder: Recorder) -> Iterator[Formula]:
    """Yield healthy formulas first, then mistakes, the usual ones first."""
    scorings = []
    for groups in _scorings(recorder):
        scorings.append(groups)
        yield Formula("", _mean(torch.cat(groups)))
    own = _own_losses(recorder)
    if own is not None:
        yield Formula(_shift_of_losses(recorder), own[0])
    for groups in scorings:
        yield from _mistakes(groups, recorder)
    if own is not None:
        yield Formula("evaluation.mean_of_means", own[1])
        for reason, value in _scales(own[0], own[2], len(recorder.losses)):
            yield Formula(reason, value)
    rows = recorder.rows
    if any(row.padded for row in rows):
        for inside, cut in ((1, 0), (1, 1), (0, 0)):
            nats = torch.cat([_with_one_pad(row, inside, cut) for row in rows])
            yield Formula("evaluation.padding_counted", _mean(nats))
        yield Formula("evaluation.padding_counted", _mean(torch.cat([row.inner for row in rows])))
        yield Formula(
            "evaluation.padding_counted", _mean(torch.cat([row.inner[:-1] for row in rows]))
        )
        for nats in _with_filled_targets(rows):
            yield Formula("evaluation.padding_counted", _mean(nats))
    for reason, kept in _other_shifts(rows):
        yield Formula(reason, _mean(torch.cat(kept)))


def _other_shifts(rows: list[Row]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the nats of targets that are moved by 0 or by 2 places, row by row."""
    yield "evaluation.not_shifted", [row.own for row in rows]
    yield "evaluation.not_shifted", [row.own[1:] for row in rows]
    yield "evaluation.shifted_twice", [row.skipped for row in rows]
    yield "evaluation.shifted_twice", [row.skipped[:-1] for row in rows]
    yield "evaluation.shifted_twice", [row.skipped[:-2] for row in rows]


def _shift_of_losses(recorder: Recorder) -> str:
    """Return the shift that explains the model's own loss in every call; "" for the right one.

    A model that shifts inside, and is given targets that are shifted already, reports it so.
    """
    limit = RELATIVE_HALF if recorder.bytes_per_logit < 4 else RELATIVE
    for reason, kept in _other_shifts(recorder.rows):
        by_call: dict[int, list[Tensor]] = {}
        for row, nats in zip(recorder.rows, kept, strict=True):
            by_call.setdefault(row.call, []).append(nats)
        means = {call: _mean(torch.cat(parts)) for call, parts in by_call.items()}
        if all(
            abs(means[call] - loss) <= limit * max(1.0, abs(loss))
            for call, loss in recorder.losses.items()
        ):
            return reason
    return ""


def _scorings(recorder: Recorder) -> Iterator[list[Tensor]]:
    """Yield nats grouped by call, for each healthy choice of the positions that are scored."""
    rows = recorder.rows
    choices: tuple[Callable[[], list[Tensor]], ...] = (
        lambda: [row.nats for row in rows],
        lambda: [row.nats[: len(row.nats) - row.padded][:-1] for row in rows],
        lambda: _each_place_once(rows),
        lambda: [row.nats[-1:] for row in rows],
    )
    for choose in choices:
        kept = choose()
        by_call: dict[int, list[Tensor]] = {}
        for row, nats in zip(rows, kept, strict=True):
            by_call.setdefault(row.call, []).append(nats[nats.isfinite()])
        groups = [torch.cat(parts) for parts in by_call.values()]
        if any(len(group) for group in groups):
            yield [group for group in groups if len(group)]


def _each_place_once(rows: list[Row]) -> list[Tensor]:
    """Return the nats of the places that no row before has scored."""
    seen: set[int] = set()
    once: list[Tensor] = []
    for row in rows:
        places = range(row.start + 1, row.start + 1 + len(row.nats))
        once.append(row.nats[torch.tensor([place not in seen for place in places])])
        seen.update(places)
    return once


def _mistakes(groups: list[Tensor], recorder: Recorder) -> Iterator[Formula]:
    """Yield wrong summaries of nats grouped by call."""
    every = torch.cat(groups)
    mean, count, calls = _mean(every), len(every), len(groups)
    means = torch.stack([group.mean() for group in groups])
    if calls > 1:
        yield Formula("evaluation.mean_of_means", float(means.mean()))
        yield Formula("evaluation.last_batch_dropped", _mean(torch.cat(groups[:-1])))
        yield Formula("evaluation.last_batch_dropped", float(means[:-1].mean()))
        yield Formula("evaluation.first_batch_only", float(means[0]))
        yield Formula("evaluation.last_batch_only", float(means[-1]))
        yield Formula("evaluation.sum", float(means.sum()))
        yield Formula("evaluation.batches_miscounted", float(means.sum()) / (calls - 1))
        yield Formula("evaluation.batches_miscounted", float(means.sum()) / (calls + 1))
    rows = [row.nats[row.nats.isfinite()] for row in recorder.rows]
    yield Formula(
        "evaluation.mean_of_means", float(torch.stack([r.mean() for r in rows if len(r)]).mean())
    )
    for reason, value in _scales(mean, count, calls):
        yield Formula(reason, value)
    yield Formula("evaluation.perplexity", float(every.exp().mean()))
    yield Formula("evaluation.perplexity", float(means.exp().mean()))
    yield Formula("evaluation.exp_inside_mean", math.log(float(every.exp().mean())))
    yield Formula("evaluation.exp_inside_mean", math.log(float(means.exp().mean())))
    yield Formula("evaluation.sum", count * mean / len(recorder.rows))
    read: dict[int, int] = {}  # tokens by call
    for row in recorder.rows:
        read[row.call] = read.get(row.call, 0) + len(row.nats)
    inputs = sum(read.values())
    if inputs != count:
        yield Formula("evaluation.length_off_by_one", mean * inputs / count)
    if len(read) == calls:
        weights = torch.tensor([*read.values()], dtype=torch.float64)
        yield Formula("evaluation.length_off_by_one", float((means * weights).sum() / inputs))
    for other in (inputs, inputs - len(rows), inputs + len(rows), count - 1, count + 1):
        if other not in (0, count):
            yield Formula("evaluation.length_off_by_one", count * mean / other)
    yield Formula("evaluation.length_off_by_one", count * mean / len(recorder.ids))


def _scales(mean: float, count: int, calls: int) -> Iterator[tuple[str, float]]:
    """Yield what becomes of a mean that is scaled or transformed at the end."""
    yield "evaluation.perplexity", math.exp(min(mean, 700.0))
    yield "evaluation.bits", mean / math.log(2)
    yield "evaluation.sign", -mean
    yield "evaluation.sum", mean * count
    yield "evaluation.divided_again", mean / max(calls, 1) if calls > 1 else NAN
    yield "evaluation.divided_again", mean / count


def _with_one_pad(row: Row, inside: int, cut: int) -> Tensor:
    """Return the nats of a row's text, and of one pad after it where the row is padded.

    inside: 1 where the targets are the row's own next tokens, so that the last one is a pad.
    cut: how many positions at the end of a full row are not scored.
    """
    if not row.padded:
        return row.nats[: len(row.nats) - cut]
    last = len(row.nats) - row.padded - inside
    return torch.cat([row.nats[:last], row.inner[last : last + 1]])


def _with_filled_targets(rows: list[Row]) -> Iterator[Tensor]:
    """Yield the nats of all places where targets were filled up on their own, to a full window.

    The last token of the text is a target then; after it comes the pad, id 0, or the last of all.
    """
    for fill in (lambda row: row.inner, lambda row: row.fixed[0], lambda row: row.fixed[1]):
        yield torch.cat([torch.where(row.nats.isfinite(), row.nats, fill(row)) for row in rows])


def _own_losses(recorder: Recorder) -> tuple[float, float, int] | None:
    """Return (token-weighted mean, plain mean, tokens) of the losses that the model returned."""
    counts: dict[int, int] = {}
    for row in recorder.rows:
        counts[row.call] = counts.get(row.call, 0) + int(row.nats.isfinite().sum())
    if not recorder.losses or set(recorder.losses) != set(counts):
        return None
    total = sum(counts.values())
    weighted = sum(loss * counts[call] for call, loss in recorder.losses.items()) / max(total, 1)
    return weighted, sum(recorder.losses.values()) / len(recorder.losses), total


def _mean(nats: Tensor) -> float:
    kept = nats[nats.isfinite()]
    return float(kept.mean()) if len(kept) else NAN


def _pick(surprise: Tensor, targets: Tensor) -> Tensor:
    """Return (R, n, T): the surprise at targets (R, n, T); NaN where there is none.

    surprise: (R, T, W), or (R, 1, W) where only the last place of each row has one.
    """
    picked = torch.full(targets.shape, NAN, dtype=torch.float64)
    first = targets.shape[2] - surprise.shape[1]
    wanted = targets[:, :, first:]
    known = (wanted >= 0) & (wanted < surprise.shape[2])
    nats = surprise.gather(2, torch.where(known, wanted, 0).mT).mT.double()  # (R, n, T - first)
    picked[:, :, first:] = torch.where(known, nats, NAN)
    return picked


_NOTHING = torch.empty(0)  # in place of nats, where rows are found and not scored
