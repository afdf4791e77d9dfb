"""Shapes: logits are (B, T, V) and the loss is one number, for every batch size and length.

Why it matters
    Most code is tried with one shape. A squeeze that removes a batch of 1, logits that become
    (B*T, V) when targets come, a (T, B, V) read as (B, T, V): the wrong shape often broadcasts
    or flattens into something that trains, on targets of other tokens.

How it is measured
    The model is called with B in {1, 2, 3} and T in {1, 2, 7, block} (a block longer than 128
    with B = 2 only), without targets and with them, at sizes where B, T and V differ, and the raw
    output is read: order of the axes, width, number type, finiteness, shape of the loss. Each row
    alone must give what it gives in the batch, in the same place. One token more than the block
    may raise, or be taken by positions that go on; it must not be cut off, share a row of a table
    of positions with an earlier token, or change what is predicted within the block. A copy on the
    `meta` device, whose tensors have a place but no memory, shows tensors that are made elsewhere.

What it cannot see
    Scrambling inside one row (a view of (V, T) as (T, V)): that is for `causal_independence` and
    `prefix`. Whether the loss pairs logits with their own targets: that is for `loss`. What rotary
    or relative positions are worth beyond the lengths of training: that needs training. Devices of
    a model that cannot run on meta because it reads numbers out of tensors.

Break it
    python -m exercises.break_shapes
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from diagnostics._adapter import UnreadableOutputError
from diagnostics._overrun import judge_cut, judge_overrun
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._shape_layouts import judge_layout, predictions, unreadable
from diagnostics._shape_sweep import CELLS_MAX, Sweep, Trial, call, measure_sweep
from diagnostics._text import Text, say
from diagnostics._trace import DeviceWatch, MixedDevicesError, user_frame

ROW_LIMIT = 1e-4  # healthy rows measured: 3e-7 relative to the largest logit, in float32


def check_shapes(
    model: nn.Module,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check the shapes of logits and loss for several batch sizes and lengths.

    vocab_size, block_size: None: read from the model.    parts: other fields of Pipeline.
    """
    pipeline = Pipeline(model, vocab_size=vocab_size, block_size=block_size, **parts)  # type: ignore[arg-type]
    return _check(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Judge the sweep; NaN for another cause than the size is left to `forward_hooks`."""
    result = _check(probe)
    if result.reason != "shapes.not_finite":
        return result
    weights = probe.pipeline.model.parameters()
    if result.numbers["everywhere"] or not all(bool(w.isfinite().all()) for w in weights):
        return verdict(
            Status.SKIP,
            "shapes.not_finite",
            say("not measured: the logits are not finite, whatever the size"),
            next_step=say("mend what forward_hooks reports: it names the first such module"),
        )
    return result


def _check(probe: Probe) -> CheckResult:
    with probe.model() as model:
        try:
            adapter = probe.adapter
        except UnreadableOutputError as error:
            return unreadable(probe, model, error)
        except Exception as error:  # any: the sweep below says at which sizes it raises
            trial = Trial(3, min(7, probe.probe_length), False, error=error)
            return _raises([trial], [], probe.block_size)
        sweep = measure_sweep(probe, model)
    if adapter.target_name is not None and adapter.always_targets:
        sweep.trials = [t for t in sweep.trials if t.with_targets or t.error is None]
    for judge in (_judge_errors, _judge_kind, judge_layout, _judge_loss, _judge_finite):
        result = judge(sweep)
        if result is not None:
            return result
    for ask in (_ask_rows, _ask_device):
        result = ask(probe)
        if result is not None:
            return result
    longer = _one_more_than_the_block(probe)
    warning = None if longer is None else _judge_overrun(probe, longer)
    return _pass(sweep, longer) if warning is None else warning


def _pass(sweep: Sweep, longer: Trial | None) -> CheckResult:
    shown = next(t for t in reversed(sweep.trials) if t.error is None)
    assert shown.logits is not None
    widths = {t.logits.shape[-1] for t in sweep.of() if t.logits is not None}
    told = "logits are (B, T, {width}) in {count} calls with B up to {B} and T up to {T}"
    return verdict(
        Status.PASS,
        "shapes.ok",
        say(
            told if longer is None else told + "; rows beyond the block are taken too",
            width=max(widths),
            count=len(sweep.of()),
            B=max(t.B for t in sweep.trials),
            T=max(t.T for t in sweep.trials),
        ),
        measured=say("{name}: logits {shape}", name=shown.name, shape=tuple(shown.logits.shape)),
        numbers={"calls": len(sweep.of()), "width": max(widths), "vocab_size": sweep.V},
    )


# ---- judging the sweep ---------------------------------------------------------------------


def _judge_errors(sweep: Sweep) -> CheckResult | None:
    failed = [t for t in sweep.trials if t.error is not None]
    return _raises(failed, sweep.of(), sweep.block) if failed else None


def _raises(failed: list[Trial], fine: list[Trial], block: int | None) -> CheckResult:
    first = failed[0]
    assert first.error is not None
    lengths_fine = {t.T for t in fine}
    lengths_failed = {t.T for t in failed}
    one_length = len(lengths_fine) == 1 and not lengths_fine & lengths_failed
    refused = all(isinstance(t.error, (ValueError, AssertionError)) for t in failed)
    causes: tuple[Text, ...] = ()
    if fine and {t.B for t in failed} == {1} and {t.B for t in fine} > {1}:
        causes = (say("an axis of size 1 is squeezed away: squeeze() without a dimension"),)
    elif fine and {t.B for t in failed} == {1}:
        causes = (say("the batch axis is squeezed away when it has size 1"),)
    elif fine and lengths_failed == {1}:
        causes = (say("the time axis is squeezed away when it has size 1"),)
    elif fine and all(t.with_targets for t in failed):
        causes = (say("only the branch that computes the loss fails"),)
    elif lengths_fine and min(lengths_failed) > max(lengths_fine):
        causes = (
            say("a table or a mask is shorter than the block of {block}", block=block),
            say("the positions do not start at 0, so that the last ones have no row"),
        )[: 2 if isinstance(first.error, IndexError) else 1]
    fixed = one_length and refused
    return verdict(
        Status.WARN if fixed else Status.FAIL,
        "shapes.fixed_length" if fixed else "shapes.raises",
        say(
            "the model raises {kind} with {name}: {message}",
            kind=type(first.error).__name__,
            name=first.name,
            message=(str(first.error).strip() or "no message").split("\n")[0][:200],
        ),
        measured=say(
            "{bad} of {all:call raises|calls raise}", bad=len(failed), all=len(failed) + len(fine)
        ),
        expected=say(
            "an answer for every B, and for every T up to the block ({block})", block=block
        ),
        where=say("{frame}", frame=user_frame(first.error) or first.name),
        causes=causes,
        next_step=say(
            "call the model by hand with ids of shape ({B}, {T}); read the traceback from the "
            "bottom",
            B=first.B,
            T=first.T,
        ),
        numbers={"raising": [t.name for t in failed], "exception": type(first.error).__name__},
    )


def _judge_kind(sweep: Sweep) -> CheckResult | None:
    """Judge the number type, and whether these are logits at all."""
    for t in reversed(sweep.of()):
        if t.logits is not None and not t.logits.is_floating_point():
            return predictions(t.name, t.logits)
    largest = max((t for t in sweep.of() if t.logits is not None), key=lambda t: t.B * t.T)
    assert largest.logits is not None
    logits = largest.logits.float()
    # a row of logits that is positive and sums to 1 by chance does not exist
    if bool((logits >= 0).all()) and bool(((logits.sum(-1) - 1).abs() < 1e-3).all()):
        return verdict(
            Status.WARN,
            "shapes.probabilities",
            say("the model returns probabilities: every row is positive and sums to 1"),
            measured=say("the first row sums to {total}", total=float(logits.sum(-1).flatten()[0])),
            expected=say("logits, on which temperature, cross_entropy and top-k rely"),
            causes=(say("softmax is the last step of forward"),),
            next_step=say("return what goes into the softmax"),
        )
    return None


def _judge_loss(sweep: Sweep) -> CheckResult | None:
    without = {(t.B, t.T): t.loss for t in sweep.of(with_targets=False)}
    for t in sweep.of(with_targets=True):
        state = without.get((t.B, t.T))
        if isinstance(state, Tensor) and isinstance(t.loss, Tensor) and state.shape == t.loss.shape:
            continue  # comes without targets as well: a hidden state, not a loss
        if isinstance(t.loss, Tensor) and t.loss.numel() != 1:
            return verdict(
                Status.FAIL,
                "shapes.loss_not_scalar",
                say("the loss has shape {shape}: it is not one number", shape=tuple(t.loss.shape)),
                measured=say("{name}: {n:number|numbers}", name=t.name, n=t.loss.numel()),
                expected=say("a scalar, shape ()"),
                causes=(say('reduction="none", and no mean afterwards'),)
                if t.loss.numel() == t.B * t.T
                else (),
                next_step=say("return loss.mean() over the scored targets"),
                numbers={"shape": list(t.loss.shape)},
            )
        if isinstance(t.loss, float):
            return verdict(
                Status.FAIL,
                "shapes.loss_not_tensor",
                say("the loss is a plain Python number: no gradient can flow back from it"),
                measured=say("{name}: {kind}", name=t.name, kind=type(t.loss).__name__),
                expected=say("a tensor of shape () that is part of the graph"),
                causes=(say(".item() or float() is called inside forward"),),
                next_step=say("return the tensor; call .item() where it is printed"),
            )
    return None


def _judge_finite(sweep: Sweep) -> CheckResult | None:
    bad = [
        t
        for t in sweep.of()
        # columns beyond V may be -inf: closed entries of a padded vocabulary
        if t.logits is not None and not bool(t.logits[..., : sweep.V].isfinite().all())
    ]
    if not bad:
        return None
    lengths = sorted({t.T for t in bad})
    return verdict(
        Status.FAIL,
        "shapes.not_finite",
        say("the logits are not finite with {name}", name=bad[0].name),
        measured=say(
            "{bad} of {all:call gives|calls give} NaN or inf", bad=len(bad), all=len(sweep.of())
        ),
        expected=say("finite logits at every size"),
        where=say("T in {lengths}, B in {B}", lengths=lengths, B=sorted({t.B for t in bad})),
        causes=(say("a deviation over one position: std() of a single number is NaN"),)
        if lengths == [1]
        else (),
        next_step=say("mend what forward_hooks reports: it names the first such module"),
        numbers={"calls": [t.name for t in bad], "everywhere": len(bad) == len(sweep.of())},
    )


# ---- rows, devices, and one token too many --------------------------------------------------


def _ask_rows(probe: Probe) -> CheckResult | None:
    """Does each row of logits belong to its row of ids? Numbers that moved elsewhere are found."""
    T = min(7, probe.probe_length)
    tokens = probe.tokens(3, T, "rows")
    with probe.model(exact=True, jitter=JITTER_STD) as model, probe.seeded("rows"):
        try:
            together = probe.logits(model, tokens)  # (B, T, W)
            alone = torch.cat([probe.logits(model, tokens[b : b + 1]) for b in range(3)])
            V = probe.vocab_size  # closed columns beyond V may hold -inf
            together, alone = together[..., :V], alone[..., :V]
        except MissingPartError:  # the last position only
            return None
    limit = ROW_LIMIT * float(alone.abs().max())
    misplaced = ((together - alone).abs() > limit).any(dim=2)  # (B, T)
    if not bool(misplaced.any()):
        return None
    moved = (together.flatten().sort().values - alone.flatten().sort().values).abs().max()
    if not bool(moved <= limit):
        return None  # other numbers, not other places: rows influence one another
    b, t = (int(i) for i in torch.nonzero(misplaced)[0])
    return verdict(
        Status.FAIL,
        "shapes.rows_mixed",
        say("the logits of a batch stand in other places than the ids they were computed from"),
        measured=say(
            "{count} of {all:place holds|places hold} the logits of another place",
            count=int(misplaced.sum()),
            all=misplaced.numel(),
        ),
        expected=say("0: row b, position t holds what row b gives alone"),
        where=say("first is row {b}, position {t}, with B=3, T={T}", b=b, t=t, T=T),
        causes=(say("reshape or view between (T, B, .) and (B, T, .) where transpose is meant"),),
        next_step=say("use transpose(0, 1) to swap two axes; reshape only splits or merges them"),
        numbers={"misplaced": int(misplaced.sum()), "places": misplaced.numel()},
    )


def _ask_device(probe: Probe) -> CheckResult | None:
    """Run a copy on the meta device: does any tensor come from elsewhere?"""
    if not probe.copies_are_independent or probe.pipeline.forward is not None:
        return None
    tokens = probe.tokens(2, min(7, probe.probe_length), "device")
    try:
        model = copy.deepcopy(probe.pipeline.model).eval().to("meta")
        with torch.no_grad(), probe.seeded("device"), DeviceWatch():
            model(tokens.to("meta"))
    except MixedDevicesError as error:
        return verdict(
            Status.FAIL,
            "shapes.wrong_device",
            say("forward makes a tensor on the CPU whatever device the model is on"),
            measured=say("{message}", message=str(error)),
            expected=say("every tensor on the device of the token ids"),
            where=say("{place}", place=error.place),
            causes=(
                say("a tensor is created without device=, such as torch.arange(T)"),
                say("a tensor is a plain attribute, not a registered buffer, so to() misses it"),
            ),
            next_step=say("torch.arange(T, device=token_ids.device), or self.register_buffer(...)"),
            numbers={"place": error.place},
        )
    except Exception:  # any: a model that cannot run on meta for other reasons is not judged
        return None
    return None


def _one_more_than_the_block(probe: Probe) -> Trial | None:
    """Call the model with a row that is one token longer; None: refused, or nothing limits it."""
    block = probe.block_size
    if block is None or (block + 1) * probe.vocab_size > CELLS_MAX:
        return None
    with probe.model() as model:
        trial = call(probe, model, probe.tokens(1, block + 1, "overrun"), True)
    return trial if trial.error is None else None


def _judge_overrun(probe: Probe, longer: Trial) -> CheckResult | None:
    """A longer row that is taken is fine, as long as nothing shows that it matters."""
    shape = () if longer.logits is None else tuple(longer.logits.shape)
    found = judge_cut(longer.T - 1, shape)
    return judge_overrun(probe, longer.T - 1) if found is None else found
