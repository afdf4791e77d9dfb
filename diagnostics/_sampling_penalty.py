"""A repetition penalty by itself: the larger it is, the less probable is a token that was seen.

Shapes: V vocabulary, T tokens that were seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

Penalise = Callable[[Tensor, Tensor, float], Tensor]  # (logits (V,), seen (T,), strength) -> (V,)

NOISE = 1e-5  # of a log-probability: float32 softmax over a few tokens
# both signs and zero; the largest and the smallest are not alone with their sign
LOGITS = (2.0, 0.7, 0.0, -0.4, -1.5, -3.0, 1.1, -0.1)


def check_repetition_penalty(
    penalise: Penalise, *, strengths: Sequence[float] = (1.0, 1.2, 1.5, 2.0)
) -> CheckResult:
    """Check penalise(logits (V,), previous_ids (T,), strength) -> logits (V,).

    strengths: growing, the first one is `off`; an additive penalty starts at 0.0.
    Each token is judged alone: of two that were seen, one may rise as the other falls.
    Raises ValueError for fewer than two strengths, and what the function raises.
    """
    if len(strengths) < 2:
        raise ValueError(f"strengths must hold at least 2 numbers, got {len(strengths)}")
    logits = torch.tensor(LOGITS)
    table = torch.stack([_one_seen(penalise, logits, strengths, v) for v in range(len(LOGITS))])
    for finding in _findings(logits, table, strengths):  # (V, strengths, V)
        return finding
    return verdict(
        Status.PASS,
        "sampling.ok",
        say("a token that was seen never gains from a larger penalty, whatever its logit's sign"),
        measured=say("{n} tokens at {k} strengths", n=len(LOGITS), k=len(strengths)),
        numbers={"tokens": len(LOGITS), "strengths": list(strengths)},
    )


def _one_seen(penalise: Penalise, logits: Tensor, strengths: Sequence[float], seen: int) -> Tensor:
    """Return the logits (strengths, V) after token `seen` has come once."""
    rows = [penalise(logits.clone(), torch.tensor([seen]), strength) for strength in strengths]
    return torch.stack([torch.as_tensor(row).detach().double().flatten() for row in rows])


def _findings(logits: Tensor, table: Tensor, strengths: Sequence[float]) -> Iterator[CheckResult]:
    """Judge logits (V seen, strengths, V), the more basic first."""
    V = len(logits)
    if not bool(table.isfinite().all()):
        yield _fault(
            "sampling.penalty_not_finite",
            "a penalty gives logits that are not finite",
            float("nan"),
            "finite logits at every strength",
            "a division by 0, or a token that is closed where it should be less probable",
        )
        return
    chances = table.log_softmax(-1)
    off = chances[:, 0] - logits.double().log_softmax(-1)  # (V, V)
    if not bool(off.abs().max() <= NOISE):
        yield _fault(
            "sampling.penalty_never_off",
            f"a penalty of {strengths[0]:g} changes the distribution",
            float(off.abs().max()),
            "the penalty that switches it off leaves the logits as they are",
            "another strength is the neutral one, or the penalty is always on",
        )
        return
    yield from _others(table, logits)
    own = chances[torch.arange(V), :, torch.arange(V)]  # (V, strengths) of the token that was seen
    rises = ~(own.diff(dim=1) <= NOISE).all(1)  # (V,)
    if bool(rises.any()):
        signs = {int(torch.sign(logits[v])) for v in torch.nonzero(rises).flatten().tolist()}
        yield _fault(
            "sampling.penalty_rewards",
            "a larger penalty makes a token that was seen more probable",
            float(own.diff(dim=1).nan_to_num(nan=torch.inf).max()),
            "log-probabilities that fall, or stay, as the penalty grows",
            "negative logits are divided by the penalty, which brings them nearer to 0"
            if signs == {-1}
            else "logits are multiplied by the penalty where they should be divided"
            if signs == {1}
            else "the sign of the penalty is turned",
            where=f"{int(rises.sum())} of {V} tokens; first has logit {float(logits[rises][0]):g}",
        )
    elif bool((own[:, 0] - own[:, -1]).abs().max() <= NOISE):
        yield _fault(
            "sampling.penalty_ignored",
            "the penalty has no effect on a token that was seen",
            0.0,
            "a token that was seen becomes less probable",
            "the changed logits are not the ones that are returned",
        )


def _others(table: Tensor, logits: Tensor) -> Iterator[CheckResult]:
    """Tokens that were not seen keep their places among one another."""
    moved = table - logits.double()  # (V, strengths, V)
    V = len(logits)
    unseen = ~torch.eye(V, dtype=torch.bool)
    others = torch.stack([moved[v][:, unseen[v]] for v in range(V)])  # (V, strengths, V - 1)
    spread = float((others - others[..., :1]).abs().max())
    if not spread <= NOISE:
        yield _fault(
            "sampling.penalty_spreads",
            "the penalty moves tokens that were not seen",
            spread,
            "only the logits of previous_ids move",
            "the penalty is applied to the whole row, or at other places than previous_ids",
        )


def _fault(
    reason: str, claim: str, moved: float, expected: str, cause: str, where: str = ""
) -> CheckResult:
    return verdict(
        Status.FAIL,
        reason,
        say(claim),
        measured=say("a log-probability moves by {moved}", moved=moved),
        expected=say(expected),
        where=say(where) if where else "",
        causes=(say(cause),),
        next_step=say(
            "torch.where(seen > 0, seen / penalty, seen * penalty) at previous_ids, out of place"
        ),
        numbers={"moved": moved},
    )
