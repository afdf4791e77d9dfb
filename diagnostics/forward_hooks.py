"""Forward hooks: every module's output is finite and of a sane size, from the first to the last.

Why it matters
    One NaN in one module makes every number after it NaN, and the loss only says that something,
    somewhere, broke. The name of the first module, and whether what it read was still finite,
    turns a day of printing into one line. Sizes that grow a thousandfold with depth, or outputs
    that are equal for all tokens, are the same story before it becomes NaN.

How it is measured
    One batch runs through a copy in eval mode with a hook on every module (tensor, tuple and
    dict outputs); modules are judged in the order in which they ended, so that the innermost
    comes first. Weights that are already NaN are named before any output. Each norm is fed random
    rows of six sizes by hand: whatever goes in, rows of root mean square (RMS) 1 must come out,
    before its gain. Along a chain of blocks the median RMS of the positions may grow, by at most
    1000; outputs must differ between tokens; units that are 0 for every token are counted.

What it cannot see
    NaN that needs another batch, training for some steps, or a GPU. Faults between modules are
    placed in the module around them. A variance with n - 1 or a shifted epsilon inside a norm
    (1 % and less).

Break it
    python -m exercises.break_forward_hooks
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Batch, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._trace import Call, call_name, record_calls

GROWTH_MAX = 1e3  # measured: 1.0 to 3.3 for 2 to 24 blocks, fresh and with weights times 50
GROWTH_FAIL = 1e6  # float16 ends at 6.6e4, and no norm can hide this
NORM_LIMIT = 0.05  # LayerNorm and RMSNorm measured: 7e-6 and less, in bfloat16 2e-3
COLLAPSED = 1e-6  # spread between tokens over size; measured: 0.98, 24 post-norm blocks 0.07
DEAD_SHARE_MAX = 0.5  # fresh ReLU layers measured: 0 with 256 tokens
TOKENS_MAX = 1024  # a quarter of a second in a model of 10 million parameters
LOGITS_MAX = 20_000_000  # 80 MB in float32
DEAD_TOKENS_MIN = 64  # with fewer tokens a unit may be 0 for all of them by chance


def assert_finite_tensor(tensor: Tensor, name: str) -> None:
    """Raise FloatingPointError naming the tensor when it holds NaN or infinity.

    The message gives the counts, the shape and the first place. Whole numbers are always finite.
    """
    finite = tensor.isfinite()
    if bool(finite.all()):
        return
    first = tuple(int(i) for i in torch.nonzero(~finite)[0])
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    raise FloatingPointError(
        f"{name} must be finite, got {nan} NaN and {inf} infinite of {tensor.numel()} values, "
        f"shape {tuple(tensor.shape)}, the first at {first}"
    )


def check_forward_hooks(
    model: nn.Module,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that every module's output is finite and of a sane size.

    inputs, targets: (B, T) ids to run; None: random ones, and the next tokens.
    vocab_size: V; None: read from the model.    parts: other fields of Pipeline, such as forward.
    Raises ValueError when inputs have another shape.
    """
    if inputs is not None and inputs.ndim != 2:
        raise ValueError(f"inputs must have shape (B, T), got {tuple(inputs.shape)}")
    if inputs is not None:
        parts["batch"] = (inputs, inputs.roll(-1, 1) if targets is None else targets)
    pipeline = Pipeline(model, vocab_size=vocab_size, **parts)  # type: ignore[arg-type]
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Judge one forward pass of the pipeline's batch, the most basic fault first."""
    bad_weight = _judge_weights(probe.pipeline.model)
    if bad_weight is not None:
        return bad_weight
    with probe.model() as model:
        watched = watch_forward(probe, model, _affordable(probe))
        found = _judge_finite(watched)
        if found is not None:
            return found
        found = _judge_norms(probe, model)
        if found is not None and found.failed:
            return found
    return _judge_sizes(probe, watched, found)


@dataclass
class Watched:
    """One forward pass with everything that its modules gave."""

    calls: list[Call]
    logits: Tensor | None  # (B, T, W), columns beyond V left out
    loss: Tensor | None
    scored: int  # targets that are not ignored
    error: Exception | None = None  # some layers raise on NaN; what came before is still known


def watch_forward(probe: Probe, model: nn.Module, batch: Batch) -> Watched:
    """Run one batch with hooks on every module, which are gone afterwards whatever happens."""
    output = None
    error: Exception | None = None
    adapter = probe.adapter  # learnt before the hooks listen

    def forward() -> None:
        nonlocal output, error
        try:
            output = adapter.call(model, batch.inputs, batch.targets, batch.attention_mask)
        except (ArithmeticError, RuntimeError, ValueError) as raised:
            error = raised

    with torch.no_grad(), probe.seeded("forward_hooks"):
        calls = record_calls(model, forward, clone=True)
    if error is not None and not any(_count_bad(t) for call in calls for t in call.outputs):
        raise error  # nothing to do with numbers: `shapes` says more
    scored = int((batch.targets != probe.pipeline.ignore_index).sum())
    if output is None:
        return Watched(calls, None, None, scored, error)
    return Watched(calls, output.logits[..., : probe.vocab_size], output.loss, scored)


def _affordable(probe: Probe) -> Batch:
    """Return the batch with as many rows as fit: every module's output is kept for a moment."""
    batch = probe.batch
    T = batch.inputs.shape[1]
    rows = max(1, min(TOKENS_MAX // T, LOGITS_MAX // (T * probe.vocab_size)))
    mask = None if batch.attention_mask is None else batch.attention_mask[:rows]
    return Batch(batch.inputs[:rows], batch.targets[:rows], mask, batch.source)


# ---- finite --------------------------------------------------------------------------------


def _judge_weights(model: nn.Module) -> CheckResult | None:
    """Name weights that are not finite; a buffer may hold -inf (a mask), but not NaN."""
    bad: list[tuple[str, Tensor]] = [
        (path, p.detach()) for path, p in model.named_parameters() if _count_bad(p)
    ]
    bad += [(path, b) for path, b in model.named_buffers() if bool(b.isnan().any())]
    if not bad:
        return None
    path, tensor = bad[0]
    everywhere = bool((~tensor.isfinite()).all())
    return verdict(
        Status.FAIL,
        "forward_hooks.bad_weight",
        say("the weight {path} is not finite before anything is computed", path=path),
        measured=say(
            "{nan} NaN and {inf} infinite of {total:value|values}",
            nan=int(tensor.isnan().sum()),
            inf=int(tensor.isinf().sum()),
            total=tensor.numel(),
        ),
        expected=say("finite numbers"),
        where=say("{count:tensor|tensors}; first is {path}", count=len(bad), path=path),
        causes=(
            say("an optimizer step was taken with a gradient that was NaN"),
            say("the tensor was made with torch.empty and never filled"),
        )
        if everywhere
        else (),
        next_step=say("go back to the last checkpoint whose weights are finite"),
        numbers={"path": path, "paths": [name for name, _ in bad]},
    )


def _judge_finite(watched: Watched) -> CheckResult | None:
    logits, loss = watched.logits, watched.loss
    logits_fine = logits is not None and bool(logits.isfinite().all())
    if logits_fine and (loss is None or bool(loss.isfinite().all())):
        return None  # infinities that were hidden again are the design of a mask
    if logits_fine and loss is not None:
        return _bad_loss(watched, loss)
    bad = [call for call in watched.calls if any(_count_bad(t) for t in call.outputs)]
    # a module without weights that gives -inf only is a mask at work
    faults = [call for call in bad if not _is_mask(call)] or bad
    if not faults:
        return verdict(
            Status.FAIL,
            "forward_hooks.non_finite",
            say("the logits are not finite, although every module's output is"),
            measured=say("{bad} values", bad=_count_bad(logits) if logits is not None else 0),
            expected=say("finite logits"),
            next_step=say("look at what forward does after its last module"),
            numbers={"path": "the model itself"},
        )
    return _bad_module(watched, faults)


def _bad_module(watched: Watched, faults: list[Call]) -> CheckResult:
    call = faults[0]
    name = call_name(call)
    inputs_bad = sum(_count_bad(t) for t in call.inputs if t.is_floating_point())
    nan = sum(int(t.isnan().sum()) for t in call.outputs)
    inf = sum(int(t.isinf().sum()) for t in call.outputs)
    largest = max((_largest(t) for t in call.inputs), default=0.0)
    around = call.path.rpartition(".")[0] or "the model itself"
    made = _made_where(inputs_bad, largest, around)
    return verdict(
        Status.FAIL,
        "forward_hooks.non_finite",
        say(
            "{name} ({kind}) is the first module whose output is not finite",
            name=name,
            kind=call.kind,
        ),
        measured=say(
            "{nan} NaN and {inf} infinite of {total:value|values}; {made}",
            nan=nan,
            inf=inf,
            total=sum(t.numel() for t in call.outputs),
            made=made,
        ),
        expected=say("finite numbers"),
        where=say(
            "call {n} of {all}; the output of {count:module call|module calls} is not finite",
            n=watched.calls.index(call) + 1,
            all=len(watched.calls),
            count=len(faults),
        ),
        causes=_causes_of(call, inputs_bad, nan, inf, largest),
        next_step=say(
            "assert_finite_tensor on what {path} reads and on each step inside it",
            path=around if inputs_bad else call.path,
        ),
        numbers={
            "path": call.path,
            "call": call.number,
            "nan": nan,
            "inf": inf,
            "input_finite": not inputs_bad,
            "paths": [call_name(c) for c in faults],
        },
    )


def _made_where(inputs_bad: int, largest: float, around: str) -> Text:
    if not inputs_bad:
        return say("its input is finite (largest {size}), so it is made here", size=largest)
    return say(
        "its input already holds {n}, made in {around} before it", n=inputs_bad, around=around
    )


def _causes_of(call: Call, inputs_bad: int, nan: int, inf: int, largest: float) -> tuple[Text, ...]:
    dtype = next((t.dtype for t in call.outputs if t.is_floating_point()), torch.float32)
    limit = torch.finfo(dtype).max
    if inf and dtype == torch.float16:
        return (
            say(
                "float16 ends at {limit}: a product of numbers up to {largest} overflows",
                limit=limit,
                largest=largest,
            ),
        )
    if inputs_bad:
        return _causes_in_between(call)
    if nan and not inputs_bad:
        return (
            say("the root, the logarithm or the power of a negative number, or 0 / 0, inside it"),
        )
    return ()


def _causes_in_between(call: Call) -> tuple[Text, ...]:
    """Read the pattern of what a module was given: infinities, or NaN in whole positions."""
    read = next(t for t in call.inputs if t.is_floating_point() and _count_bad(t))
    around = call.path.rpartition(".")[0] or "the model itself"
    if bool(read.isinf().any()):
        return (
            say(
                "an exp, a power or a product in {around} is larger than {dtype} can hold",
                around=around,
                dtype=str(read.dtype).removeprefix("torch."),
            ),
        )
    places = read.isnan().flatten(0, -2) if read.ndim > 1 else read.isnan()[None]  # (B * T, C)
    hit = places.any(dim=1)
    if bool((places.all(dim=1) == hit).all()) and not bool(hit.all()):
        return (
            say(
                "a softmax over nothing: at {count} of {all} positions everything is masked with "
                "-inf, and 0 / 0 is NaN",
                count=int(hit.sum()),
                all=len(hit),
            ),
        )
    return ()


def _bad_loss(watched: Watched, loss: Tensor) -> CheckResult:
    assert watched.logits is not None
    causes: tuple[Text, ...] = ()
    if not watched.scored:
        causes = (say("all targets are ignored, so the mean runs over nothing: 0 / 0"),)
    elif _largest(watched.logits) > 88:  # exp(88.7) is the largest float32
        causes = (say("log(softmax) by hand: exp overflows, or a probability rounds to 0"),)
    return verdict(
        Status.FAIL,
        "forward_hooks.loss_not_finite",
        say("the logits are finite, and the loss is {loss}", loss=float(loss.flatten()[0])),
        measured=say(
            "largest logit {size}; {scored} scored targets",
            size=_largest(watched.logits),
            scored=watched.scored,
        ),
        expected=say("a finite loss"),
        causes=causes,
        next_step=say("use functional.cross_entropy on the logits, with at least one target"),
        numbers={"scored": watched.scored, "largest_logit": _largest(watched.logits)},
    )


# ---- norms ---------------------------------------------------------------------------------


def _judge_norms(probe: Probe, model: nn.Module) -> CheckResult | None:
    """Feed each norm by hand: rows of any size must come out with RMS 1, before the gain."""
    wrong = []
    for path, module in model.named_modules():
        rms = measure_norm(probe, module)
        if rms is not None and not bool(((rms - 1).abs() <= NORM_LIMIT).all()):
            wrong.append((path, module, rms))
    if not wrong:
        return None
    path, module, rms = wrong[0]
    name = type(module).__name__.lower()
    declared = any(word in name for word in ("layernorm", "layer_norm", "rmsnorm"))
    return verdict(
        Status.FAIL if declared else Status.WARN,
        "forward_hooks.norm_scale",
        say(
            "{path} ({kind}) does not bring its rows to size 1",
            path=path,
            kind=type(module).__name__,
        ),
        measured=say(
            "rows of RMS 1 to 6 come out with RMS {low} to {high}",
            low=float(rms.min()),
            high=float(rms.max()),
        ),
        expected=say("RMS 1 for each, within {limit}, before the gain", limit=NORM_LIMIT),
        where=say("{count:norm|norms}; first is {path}", count=len(wrong), path=path),
        causes=_norm_causes(rms),
        next_step=say("compare with functional.layer_norm(x, x.shape[-1:]) on random x"),
        numbers={"path": path, "row_rms": [float(r) for r in rms]},
    )


def measure_norm(probe: Probe, module: nn.Module) -> Tensor | None:
    """Return (6,): RMS, without gain and bias, of rows that went in six sizes; None: no norm."""
    weight = getattr(module, "weight", getattr(module, "gamma", getattr(module, "scale", None)))
    name = type(module).__name__.lower()
    if "norm" not in name or any(word in name for word in ("batch", "group", "instance", "l2")):
        return None
    if not isinstance(weight, Tensor) or weight.ndim != 1 or weight.numel() < 4:
        return None
    weight = weight.detach()
    C = weight.numel()
    rows = torch.randn((1, 6, C), generator=probe.generator("norms")).to(weight)
    rows = rows * torch.arange(1, 7).to(weight)[:, None] + 0.5  # (1, 6, C)
    try:
        with torch.no_grad():
            normed = module(rows.clone())
    except Exception:  # any: a module that only sounds like a norm
        return None
    if not isinstance(normed, Tensor) or normed.shape != rows.shape:
        return None
    bias = getattr(module, "bias", getattr(module, "beta", None))
    out = normed - bias.detach() if isinstance(bias, Tensor) else normed
    gains = (weight, 1 + weight)  # Gemma and others store the gain minus 1
    fits = []
    for gain in gains:
        used = gain.abs() > 1e-2 * gain.abs().max()
        fits.append((out / gain)[0][:, used].float().square().mean(1).sqrt())  # (6,)
    return min(fits, key=lambda rms: float(torch.nan_to_num((rms - 1).abs(), nan=1e30).max()))


def _norm_causes(rms: Tensor) -> tuple[Text, ...]:
    sizes = torch.arange(1, 7).to(rms)
    slope = float(((rms[1:] / rms[:-1]).log() / (sizes[1:] / sizes[:-1]).log()).mean())
    if math.isfinite(slope) and abs(slope + 3) < 0.3:
        return (say("the variance is squared where its root is meant: (var + eps)**2"),)
    if math.isfinite(slope) and abs(slope + 1) < 0.3:
        return (say("the division is by the variance, without a root"),)
    if math.isfinite(slope) and abs(slope - 1) < 0.3:
        return (say("rows are not divided by their own size at all"),)
    if abs(slope) < 0.3:
        return ()
    return (say("mean and variance are taken over another axis than the last"),)


# ---- sizes ---------------------------------------------------------------------------------


def _judge_sizes(probe: Probe, watched: Watched, warning: CheckResult | None) -> CheckResult:
    chain = _chain_of(watched.calls)
    sizes = {call_name(call): measure_rms(call.outputs[0]) for call in chain}
    growth = _growth(list(sizes.values()))
    rms = {call_name(c): measure_rms(c.outputs[0]) for c in watched.calls if _is_float(c)}
    numbers: dict[str, Any] = {
        "calls": len(watched.calls),
        "growth": growth,
        "rms": rms,
        "order": list(rms),  # of the calls, which sorted names in a file no longer show
        "largest": max((_largest(t) for c in watched.calls for t in c.outputs), default=0.0),
    }
    if not growth <= GROWTH_MAX:
        return _explodes(sizes, growth, numbers)
    collapsed = _judge_collapse(probe, watched, chain, numbers)
    if collapsed is not None:
        return collapsed
    if warning is not None:
        return warning
    dead = _judge_dead(watched, numbers)
    if dead is not None:
        return dead
    return verdict(
        Status.PASS,
        "forward_hooks.ok",
        say(
            "the one module output is finite; its size (RMS) is {low}"
            if len(watched.calls) == 1
            else "all {count} module outputs are finite; sizes (RMS) lie between {low} and {high}",
            count=len(watched.calls),
            low=min(rms.values(), default=0.0),
            high=max(rms.values(), default=0.0),
        ),
        measured=say("growth {growth} over {n:block|blocks}", growth=growth, n=len(chain)),
        numbers=numbers,
    )


def measure_rms(tensor: Tensor) -> float:
    """Return the median over positions of the root mean square over the last axis.

    The median, because trained models keep single positions of huge size (attention sinks).
    """
    if tensor.numel() == 0:
        return 0.0
    return float(tensor.float().square().mean(-1).sqrt().flatten().median())


def measure_spread(tensor: Tensor) -> float:
    """Return how far the positions of (B, T, C) differ from their mean, relative to its size."""
    rows = tensor.double() if tensor.device.type != "mps" else tensor.float()
    rows = rows.flatten(0, -2)
    size = float(rows.square().mean().sqrt())
    return float((rows - rows.mean(0)).square().mean().sqrt()) / size if size else 0.0


def _growth(sizes: list[float]) -> float:
    """Largest size over the first that is not 0: 1 for an empty chain."""
    started = [size for size in sizes if size != 0]
    return max(started) / started[0] if started else 1.0


def _chain_of(calls: list[Call]) -> list[Call]:
    """Return the calls of the longest list of blocks of one class: the residual chain."""
    families: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        parent, _, last = call.path.rpartition(".")
        if last.isdigit() and not call.is_leaf and _is_float(call) and call.outputs[0].ndim == 3:
            families.setdefault((parent, call.kind), []).append(call)
    return max(families.values(), key=len, default=[])


def _explodes(sizes: dict[str, float], growth: float, numbers: dict[str, Any]) -> CheckResult:
    path = max(sizes, key=lambda name: sizes[name])
    per_block = growth ** (1 / max(1, len(sizes) - 1))
    return verdict(
        Status.FAIL if not growth <= GROWTH_FAIL else Status.WARN,
        "forward_hooks.explodes",
        say(
            "the size of the activations grows {growth} times from block to block end",
            growth=growth,
        ),
        measured=say(
            "RMS {first} after the first block, {last} after {path}",
            first=next(iter(sizes.values())),
            last=sizes[path],
            path=path,
        ),
        expected=say("a growth of at most {limit}", limit=GROWTH_MAX),
        where=say("{n:block|blocks}, about {rate} times each", n=len(sizes), rate=per_block),
        causes=(say("no norm at the start of each branch, or initial weights that are too large"),),
        next_step=say("print the RMS in numbers['rms'] block by block; look at the first jump"),
        numbers=numbers,
    )


def _judge_collapse(
    probe: Probe, watched: Watched, chain: list[Call], numbers: dict[str, Any]
) -> CheckResult | None:
    """Are outputs equal for all tokens, although the tokens differ?"""
    ids = _affordable(probe).inputs
    if bool((ids == ids.flatten()[0]).all()) or ids.numel() < 2:
        return None
    places = [(call_name(call), call.outputs[0]) for call in chain]
    if watched.logits is not None and watched.logits.ndim == 3:
        places.append(("the logits", watched.logits))
    spreads = {path: measure_spread(x) for path, x in places if measure_rms(x) > 0}
    flat = [path for path, spread in spreads.items() if not spread > COLLAPSED]
    numbers["spread"] = spreads
    if not flat:
        return None
    by_weights = not _collapses_with_jitter(probe)
    if by_weights and flat == ["the logits"]:
        return None  # a head that is zero, or nearly so, before training
    return verdict(
        Status.WARN if by_weights else Status.FAIL,
        "forward_hooks.collapsed",
        say("{path}: the output is the same for every token of the batch", path=flat[0]),
        measured=say("positions differ by {spread} of their size", spread=spreads[flat[0]]),
        expected=say("more than {limit}, because the tokens differ", limit=COLLAPSED),
        where=say("{count:place|places}; first is {path}", count=len(flat), path=flat[0]),
        causes=(say("weights are all zero or have died: noise added to them brings tokens apart"),)
        if by_weights
        else (say("what is computed from the tokens is multiplied by 0, or averaged over all"),),
        next_step=say("follow two different tokens through the model and see where they meet"),
        numbers=numbers,
    )


def _collapses_with_jitter(probe: Probe) -> bool:
    """Whether the logits stay equal for all tokens when noise is added to every weight."""
    with probe.model(jitter=JITTER_STD) as model:
        watched = watch_forward(probe, model, _affordable(probe))
    return watched.logits is not None and not measure_spread(watched.logits) > COLLAPSED


def _judge_dead(watched: Watched, numbers: dict[str, Any]) -> CheckResult | None:
    """Count units that are 0 for every token, where a linear layer reads them."""
    dead: dict[str, float] = {}
    for call in watched.calls:
        x = next((t for t in call.inputs if t.is_floating_point()), None)
        if not isinstance(call.module, nn.Linear) or x is None or x.ndim < 2:
            continue
        rows = x.flatten(0, -2)
        zeros = (rows == 0).all(0)
        # rectified units only: never negative, and not a row of zeros by design
        if len(rows) >= DEAD_TOKENS_MIN and bool((rows >= 0).all()) and bool((rows > 0).any()):
            dead[call_name(call)] = float(zeros.double().mean())
    numbers["dead_share"] = dead
    worst = max(dead, key=lambda path: dead[path], default=None)
    if worst is None or not dead[worst] > DEAD_SHARE_MAX:
        return None
    return verdict(
        Status.WARN,
        "forward_hooks.dead_units",
        say(
            "{share:%} of the units that {path} reads are 0 for every token",
            share=dead[worst],
            path=worst,
        ),
        measured=say("{share:%} always 0", share=dead[worst]),
        expected=say(
            "at most {limit:%}; trained sparse models can have more", limit=DEAD_SHARE_MAX
        ),
        where=say(
            "{count:layer reads|layers read} rectified units (0 where negative); worst is {path}",
            count=len(dead),
            path=worst,
        ),
        causes=(say("a step that was too large pushed their biases far below 0"),),
        next_step=say("lower the learning rate, or use GELU, which never stays at 0"),
        numbers=numbers,
    )


# ---- small helpers -------------------------------------------------------------------------


def _count_bad(tensor: Tensor) -> int:
    return int((~tensor.detach().isfinite()).sum())


def _largest(tensor: Tensor) -> float:
    """Return the largest finite value in size, 0 where there is none."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return 0.0
    sizes = tensor.detach().abs()
    largest = float(sizes.max())  # NaN and inf come through; masking them costs ten times as much
    if math.isfinite(largest):
        return largest
    finite = sizes[sizes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _is_float(call: Call) -> bool:
    return bool(call.outputs) and call.outputs[0].is_floating_point() and call.outputs[0].ndim > 0


def _is_mask(call: Call) -> bool:
    """Whether a module without weights gives -inf only: that is how a mask looks."""
    if next(call.module.parameters(), None) is not None:
        return False
    return all(not bool((t.isnan() | (t == math.inf)).any()) for t in call.outputs)
