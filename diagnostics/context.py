"""Context: what position t predicts does depend on token t and on tokens before it.

Why it matters
    A mask that hides too much leaks nothing and trains without complaint: the model becomes a
    table of pairs, and its loss stops where a bigram model's does.

How it is measured
    The influence map of `causal_independence`, below the diagonal this time, for two rows of
    random tokens: does a position read its own token, does it read earlier ones, how far back
    does it reach, and which tokens does nobody read? A model that has no layer which could mix
    positions is a bigram table by design: a warning. A window that the configuration declares
    has to be the one that is measured: each layer adds window - 1 tokens to the reach. In a model
    that reads weights (T, T), each attention is switched off alone: the newest token must still
    reach its prediction, round it. So must earlier ones with all feed-forward layers switched off.
    Each of the data's common ids is set before other tokens and its embedding moved: later logits
    have to move, as they do with the token before it. Scores that are divided by the root of the
    width or of the number of heads, and projections that all heads share, are warnings.

What it cannot see
    A mask that hides a position from itself, as long as the residual stream carries the token
    around the attention. A scale that is left out or applied twice: T5 has none and muP divides
    by the head size, so that both are designs. Heads that are grouped or laid out in another order
    than in the weights' own code. How far a state that forgets would reach with finer numbers.
    Ids that are hidden though they are rare, and hidden ones where no nn.Embedding reads the ids.
    Whether the context is put to good use.

Break it
    python -m exercises.break_context
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diagnostics._attention_faults import judge_attention, watch_attention
from diagnostics._context_ids import judge_common_ids
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import (
    Bench,
    bench_tokens,
    direct_probe,
    not_causal,
    on_bench,
    one_token,
    parameter_count,
)
from diagnostics._text import Text, say
from diagnostics.causal_independence import EVERY_PAIR_MAX, WORK_MAX, measure_influence

ROWS = 2  # a gate or a router may hide a token in one row, not in both
MIXING_WORDS = re.compile(r"att(n|ention)|lstm|(^|\W|_)(gru|rnn|ssm)|mamba|retention")
MIXING_TYPES = (nn.MultiheadAttention, nn.RNNBase, nn.Conv1d)
WINDOW_NAMES = ("sliding_window", "window_size", "attention_window", "window")
FADING = 0.1  # of the limit, one token beyond the reach; Mistral leaves 0 there, Mamba 0.5
LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")


def check_context(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that predictions depend on the token at hand and on earlier ones.

    tokens: (B, T) ids with T >= 2; None: random ones.    vocab_size: V; None: read from the model.
    parts: other fields of Pipeline, such as forward.    Raises ValueError for another shape.
    """
    return _check(direct_probe(model, tokens, vocab_size, parts, length_min=2), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge random tokens over the block, or over its first 64 tokens."""
    return _check(probe, None)


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    if not probe.pipeline.causal:
        return not_causal("context")
    probe.require_choice()
    if tokens is None:
        # T + 1 copies of T tokens, for each row
        affordable = math.isqrt(int(WORK_MAX / (ROWS * parameter_count(probe))))
        T = min(probe.block_size or probe.probe_length, EVERY_PAIR_MAX, max(affordable, 8))
        tokens = bench_tokens(probe, ROWS, T, "context")
    if tokens.shape[1] < 2:
        return one_token("context.one_token", say("no earlier token could be read"))
    return on_bench(probe, "context", tokens[:ROWS, :EVERY_PAIR_MAX], _judge_map)


def _judge_map(bench: Bench, tokens: Tensor, limit: float) -> CheckResult:
    columns = list(range(tokens.shape[1]))
    maps = [measure_influence(bench.probe, bench.model, row, columns)[0] for row in tokens]
    calls = watch_attention(bench, tokens)
    result = _judge(bench.probe, torch.stack(maps).amax(dim=0).cpu(), limit, attends=bool(calls))
    if result.failed:
        return result
    hidden = judge_common_ids(bench)
    if hidden is not None and (hidden.failed or result.status is Status.PASS):
        return hidden
    if result.status is not Status.PASS:
        return result
    odd = judge_attention(bench, tokens, limit, calls)
    return result if odd is None else odd


@dataclass(frozen=True)
class _Reach:
    """What is read below the diagonal."""

    read: Tensor  # (T, T) bool: position i reads token j
    influence: Tensor  # (T, T)

    @property
    def T(self) -> int:  # noqa: N802 - the field's shape letter
        """Number of positions."""
        return len(self.read)

    @property
    def past(self) -> Tensor:
        """(T, T): pairs with j < i."""
        return torch.ones_like(self.read).tril(-1)

    @property
    def furthest(self) -> int:
        """How many tokens back the furthest token that is read lies; 0 without any."""
        pairs = torch.nonzero(self.read & self.past)
        return int((pairs[:, 0] - pairs[:, 1]).max()) if len(pairs) else 0

    def fades(self, limit: float) -> bool:
        """Whether one token further back the influence is just too small to tell from rounding.

        Beyond a window it is 0, or far below the limit; a state that forgets loses a share a step.
        """
        beyond = self.influence.diagonal(-(self.furthest + 1))
        return float(beyond.max()) > FADING * limit


def _judge(probe: Probe, influence: Tensor, limit: float, *, attends: bool) -> CheckResult:
    """Judge the map (T, T); attends: masks may be spoken of, the model reads weights (T, T)."""
    reach = _Reach(influence > limit, influence)
    T = reach.T
    if bool(influence.isnan().any()):
        return verdict(
            Status.FAIL,
            "context.not_finite",
            say("some logits are not finite, so that nothing can be said of the context"),
            measured=say(
                "{count} of {T} positions", count=int(influence.isnan().any(1).sum()), T=T
            ),
            expected=say("finite logits at every position"),
            causes=(say("a row of the mask hides everything, or a layer overflows"),),
            next_step=say("run forward_hooks: it names the first module that gives NaN"),
        )
    blind = ~reach.read.diagonal()
    if blind.any():
        return _judge_self(probe, reach, blind, limit, attends=attends)
    if reach.furthest == 0:
        return _judge_none(probe, reach, limit, attends=attends)
    window = _judge_window(probe, reach)
    if window is not None:
        return window
    if reach.furthest < T - 1:
        return _passed(reach, fades=True) if reach.fades(limit) else _short(reach)
    unread = [j for j in range(T - 1) if not reach.read[j + 1 :, j].any()]
    if unread:
        return _unread(reach, unread)
    return _passed(reach)


def _passed(reach: _Reach, *, fades: bool = False) -> CheckResult:
    T, pairs = reach.T, int(reach.past.sum())
    used = int((reach.read & reach.past).sum())
    last = reach.influence[-1]
    return verdict(
        Status.PASS,
        "context.ok",
        say(
            "predictions read their own token and reach {reach} tokens back, where the influence "
            "fades into rounding",
            reach=reach.furthest,
        )
        if fades
        else say(
            "predictions read their own token and reach {reach} tokens back, of {most} possible",
            reach=reach.furthest,
            most=T - 1,
        ),
        measured=say("{used} of {pairs} (position, earlier token) pairs", used=used, pairs=pairs),
        numbers={
            "reach": reach.furthest,
            "length": T,
            "share": used / pairs,
            "own": float(last[-1]),
            "first": float(last[0]),
        },
    )


def _judge_self(
    probe: Probe, reach: _Reach, blind: Tensor, limit: float, *, attends: bool
) -> CheckResult:
    """A model that shifts inside may give, at t, the prediction of token t itself."""
    inside = probe.pipeline.labels == "same"
    i = int(torch.nonzero(blind)[0])
    everywhere = bool(blind.all())
    causes = (_SHIFTED,) if everywhere and reach.furthest else ()
    if attends:
        causes = (*causes, _SELF_HIDDEN)
    return verdict(
        Status.WARN if inside else Status.FAIL,
        "context.self_hidden",
        say("position {i} predicts the same whatever token {i} is", i=i),
        measured=say(
            "its logits moved by {size}; it reads {count:earlier token|earlier tokens}",
            size=float(reach.influence[i, i]),
            count=int(reach.read[i, :i].sum()),
        ),
        expected=say("more than {limit}: the newest token is the best clue there is", limit=limit),
        where=say("{count} of {T} positions", count=int(blind.sum()), T=reach.T),
        causes=causes,
        next_step=say("print the mask for T=4: row i must allow column i as well")
        if attends
        else say("compare what goes into the first layer with the ids, position by position"),
        numbers={"blind": int(blind.sum()), "length": reach.T, "reach": reach.furthest},
    )


def _judge_none(probe: Probe, reach: _Reach, limit: float, *, attends: bool) -> CheckResult:
    mixers = mixing_modules(probe.pipeline.model)
    measured = say(
        "changing any earlier token moves no logit by more than {worst}",
        worst=float(reach.influence[reach.past].max()),
    )
    numbers = {"reach": 0, "length": reach.T, "mixing_modules": mixers}
    if not mixers:
        return verdict(
            Status.WARN,
            "context.bigram",
            say("every prediction depends on the last token only, as in a bigram table"),
            measured=measured,
            expected=say("more than {limit}, unless that is the design", limit=limit),
            next_step=say("nothing to do for a bigram model; else look where layers are called"),
            numbers=numbers,
        )
    return verdict(
        Status.FAIL,
        "context.unused",
        say(
            "no prediction reads an earlier token, although the model holds {path}", path=mixers[0]
        ),
        measured=measured,
        expected=say("more than {limit} for some pair: that layer is there to mix", limit=limit),
        where=say("{pairs} of {pairs:pair is|pairs are} not read", pairs=int(reach.past.sum())),
        causes=(
            *((_DIAGONAL,) if attends else (_OVER_HEADS,) if "att" in mixers[0].lower() else ()),
            say("what the layer gives is not added to the stream, or is overwritten after it"),
            say("each position is fed as a row of its own: (B*T, 1, C)"),
        ),
        next_step=say("check in forward that the output of {path} is used", path=mixers[0]),
        numbers=numbers,
    )


def _judge_window(probe: Probe, reach: _Reach) -> CheckResult | None:
    """Compare with the window that the configuration declares; None: nothing to say."""
    found = _config_number(probe.pipeline.model, WINDOW_NAMES)
    layers = _config_number(probe.pipeline.model, LAYER_NAMES)
    if found is None or layers is None:
        return None
    (name, window), L = found, layers[1]
    wanted, furthest = L * (window - 1), reach.furthest
    if furthest in (wanted, reach.T - 1) or wanted >= reach.T - 1:
        return None if furthest != wanted else _passed(reach)
    numbers = {"reach": furthest, "wanted": wanted, "window": window, "layers": L}
    # only this name has one meaning, set by Mistral: the window counts the token itself
    certain = name == "sliding_window" and furthest % L == 0
    return verdict(
        Status.FAIL if certain else Status.WARN,
        "context.window",
        say(
            "the configuration declares {name}={window}, but predictions reach {reach} tokens back",
            name=name,
            window=window,
            reach=furthest,
        ),
        measured=say(
            "{each} tokens a layer, in {L:layer|layers}", each=round(furthest / L, 2), L=L
        ),
        expected=say(
            "{wanted}: {L} x ({window} - 1), as the window counts the token itself",
            wanted=wanted,
            L=L,
            window=window,
        ),
        causes=(say("the window's edge is off by one: j >= i - w in place of j > i - w"),)
        if furthest == L * window
        else (),
        next_step=say("print one row of the mask: it must allow {window} columns", window=window),
        numbers=numbers,
    )


def _short(reach: _Reach) -> CheckResult:
    size = _chunk_size(reach)
    causes: tuple[Text, ...] = (say("a window, a convolution or a fixed number of tokens"),)
    if size:
        causes = (
            say(
                "positions are cut into blocks of {size}, and read their own block only", size=size
            ),
        )
    return verdict(
        Status.WARN,
        "context.chunked" if size else "context.short",
        say(
            "predictions reach {reach:token|tokens} back, of {most} possible",
            reach=reach.furthest,
            most=reach.T - 1,
        ),
        measured=say(
            "{used} of {pairs} (position, earlier token) pairs are read",
            used=int((reach.read & reach.past).sum()),
            pairs=int(reach.past.sum()),
        ),
        expected=say("{most} tokens, unless the design has a window", most=reach.T - 1),
        causes=causes,
        next_step=say("compare that with the window of the design"),
        numbers={"reach": reach.furthest, "length": reach.T, "chunk": size},
    )


def _unread(reach: _Reach, unread: list[int]) -> CheckResult:
    return verdict(
        Status.WARN,
        "context.unread_tokens",
        say("no later position reads token {j}", j=unread[0]),
        measured=say(
            "{count} of {total:token is|tokens are} read at their own position only",
            count=len(unread),
            total=reach.T - 1,
        ),
        expected=say("every token is read later, unless the pattern of the design leaves some out"),
        causes=(say("the mask leaves columns out: a stride, or a table that is too short"),),
        next_step=say("print the mask and look at column {j}", j=unread[0]),
        numbers={"unread": unread, "length": reach.T, "reach": reach.furthest},
    )


def mixing_modules(model: nn.Module) -> list[str]:
    """Return paths of modules that are there to mix positions, by type or by name."""
    return [
        path
        for path, module in model.named_modules()
        if path
        and (
            isinstance(module, MIXING_TYPES)
            or MIXING_WORDS.search(f"{path.rpartition('.')[2]} {type(module).__name__}".lower())
        )
        and "norm" not in type(module).__name__.lower()
        and not isinstance(module, nn.Dropout)
    ]


def _chunk_size(reach: _Reach) -> int | None:
    i = torch.arange(reach.T)
    for size in range(2, reach.T // 2 + 1):
        together = i[:, None] // size == i[None, :] // size
        if torch.equal(reach.read & reach.past, together & reach.past):
            return size
    return None


def _config_number(model: nn.Module, names: tuple[str, ...]) -> tuple[str, int] | None:
    for holder in (getattr(model, "config", None), getattr(model, "cfg", None), model):
        for name in names:
            value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return name, value
    return None


_SELF_HIDDEN = say(
    "the mask hides a position from itself, as tril(diagonal=-1) does, and nothing goes round"
)
_SHIFTED = say(
    "the model shifts its input or its logits by one, and the targets are shifted as well"
)
_OVER_HEADS = say(
    "attention runs over the heads of one token: (B, T, H, D) lacks a transpose(1, 2) before scores"
)
_DIAGONAL = say("the mask keeps the diagonal only, as tril combined with triu does")
