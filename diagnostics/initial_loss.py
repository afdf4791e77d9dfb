"""Initial loss: a fresh model starts near ln V, and a trained one is clearly below.

Why it matters
    Before training a model should spread its bets over all V tokens, which costs ln V nats. A
    higher start is confidence in random weights, which training has to undo first; a lower one
    means that the answer leaks in. A checkpoint that scores ln V was not really loaded.

How it is measured
    Fresh: random tokens and random targets, so that no text can favour a guess; the mean of
    logsumexp(logits) - mean(logits) is the exact loss over all targets. The pipeline's own batch
    is compared as well. Weights of layers are compared with one another and tested for patterns,
    and with what the configuration declares of their spread and of a tie between head and
    embedding (init_std, tie_word_embeddings and the like). Two parameters over the same numbers
    are stepped by the own optimizer, both and one of them: a failure if both go further.
    Trained: the loss on the own batch, beside ln V and the entropy of single tokens, which is
    what a constant predictor scores. A model of which neither is said counts as trained when it
    beats that constant predictor, or when the gains of its norms have moved away from a constant.

What it cannot see
    A wrong scale of weights that norms hide: residual branches not scaled by depth, a doubled
    residual. What was meant, where no configuration says it: a variance in place of a standard
    deviation, embeddings that were to be tied, one layer called in a loop.
    Whether ln V is the wrong goal, as for objectives that are not cross-entropy.

Break it
    python -m exercises.break_initial_loss
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._init_verdicts import (
    equal_head,
    identical,
    layers_shared,
    one_memory,
    patterned,
    spread_mistaken,
    tie_differs,
)
from diagnostics._init_weights import (
    find_equal_head,
    find_identical_layers,
    find_mistaken_spread,
    find_one_memory,
    find_patterns,
    find_shared_layers,
    measure_double_step,
    read_tie,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Batch, MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

# Excess over ln W, measured: GPT-2 init 0.01 to 0.16, torch's default init of a GPT 0.14 to 0.24,
# no final norm 0.4, bigram table N(0, 1) 0.5; too confident: tied N(0, 1) 7 to 18, head std 1 12+
EXCESS_WARN = 0.35
EXCESS_FAIL = 1.0
TRAINED_MARGIN = 0.05  # nats that a trained model must lie below a baseline to count as below it
UNKNOWN = "nothing says whether it is trained"
SIGMAS = 4.0  # chance deviations that a loss may lie below what knowing nothing gives


@dataclass(frozen=True)
class Start:
    """Where a model starts, in nats."""

    loss_random: float  # exact mean over all V targets, on random tokens
    reported_random: float  # cross-entropy with the random targets that were drawn
    baseline: float  # ln W, W the width of the logits
    logit_std: float  # spread of the logits over the vocabulary
    class_share: float  # share of that spread that is the same at every position
    drawn: int  # random targets


@dataclass(frozen=True)
class Baselines:
    """What predictors that know nothing of the context score on the own data, in nats."""

    loss: float  # of the model, on the own batch
    unigram: float  # of a constant predictor: the entropy of single tokens
    uniform: float  # of a random predictor: ln V
    exchanged: float  # of the model's predictions, with the targets dealt out at random
    concentration: float  # sqrt(sum f^2) over (input, target) pairs: how few they are


def check_initial_loss(
    model: nn.Module | float,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    fresh: bool | None = None,
    **parts: object,
) -> CheckResult:
    """Check where the loss starts.

    model: the model, or only its first loss in nats (then vocab_size is needed).
    inputs, targets: (B, T) int64 of real data; needed to judge a trained model.
    fresh: True, False, or None to find out from the weights and the data.
    parts: other fields of Pipeline, such as make_model or train_ids.
    """
    if not isinstance(model, nn.Module):
        if vocab_size is None:
            raise ValueError("a loss alone needs vocab_size to be compared with ln V")
        return _judge_number(float(model), vocab_size, fresh)
    if inputs is not None and targets is not None:
        parts["batch"] = (inputs, targets)
    pipeline = Pipeline(model, vocab_size=vocab_size, fresh=fresh, **parts)  # type: ignore[arg-type]
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Judge what is shared, then the model as fresh or as trained; shared layers only warn."""
    probe.require_choice()
    tie = read_tie(probe.pipeline.model, probe.vocab_size)
    if tie is not None and tie.declared and not tie.shared:
        return tie_differs(tie)
    result = _judge_start(probe)
    if result.status is not Status.PASS:
        return result
    copied = find_equal_head(probe.pipeline.model)
    if copied is not None:
        return equal_head(*copied, result.numbers)
    twice = find_one_memory(probe.pipeline.model)
    if twice:
        return one_memory(twice, measure_double_step(probe, *twice[0]), result.numbers)
    shared = find_shared_layers(probe.pipeline.model)
    if shared:
        return layers_shared(shared, result.numbers)
    return result if tie is None or tie.declared == tie.shared else tie_differs(tie)


def _judge_start(probe: Probe) -> CheckResult:
    """Judge the model as fresh or as trained; a fresh one from make_model comes first."""
    own = _measure_own(probe)
    trained, why = _is_trained(probe, own)
    untrained = probe.pipeline.make_model is not None and not _starts_trained(probe, trained)
    if untrained or not trained:
        result = _check_fresh(probe, None if trained else own, why)
        if result.failed or not trained:
            return result
    if own is None:
        raise MissingPartError(
            "batch", "get_batch and train_ids", why="a trained model is judged on its own data"
        )
    return _judge_trained(own, why)


def measure_start(probe: Probe, *, fresh: bool) -> Start:
    """Measure a model on random tokens with random targets. fresh: from make_model."""
    ids = probe.tokens(8, probe.probe_length + 1, "initial loss")
    inputs = ids[:, :-1].contiguous()
    same = probe.pipeline.labels == "same"
    # targets are handed over too: a model that peeks at them must be seen to
    targets = inputs.clone() if same else ids[:, 1:].contiguous()
    with probe.model(fresh=fresh) as model, probe.seeded("initial loss"), torch.no_grad():
        logits = probe.adapter.call(model, inputs, targets).logits.float()  # (B, T, W)
    if logits.shape[1] != inputs.shape[1]:
        raise MissingPartError("forward", why="the model gives logits of the last position only")
    if same:
        logits, targets = logits[:, :-1], targets[:, 1:]
    shut = (logits == -math.inf).flatten(0, 1).all(0)  # the extra columns of a padded vocabulary
    logits = logits[..., ~shut]
    log_p = logits.log_softmax(-1)
    V = min(probe.vocab_size, logits.shape[-1])
    spread = logits.var(-1).mean()
    return Start(
        loss_random=float(-log_p[..., :V].mean()),
        reported_random=float(-log_p.gather(-1, (targets % V)[..., None]).mean()),
        baseline=math.log(logits.shape[-1]),
        logit_std=float(spread.sqrt()),
        class_share=float(logits.mean((0, 1)).var() / spread) if float(spread) else 0.0,
        drawn=targets.numel(),
    )


def measure_baselines(probe: Probe, batch: Batch, *, fresh: bool = False) -> Baselines:
    """Score the model (fresh: of make_model) and two predictors without context on a batch."""
    with probe.model(fresh=fresh) as model, probe.seeded("initial loss"), torch.no_grad():
        output = probe.adapter.call(model, batch.inputs, batch.targets, batch.attention_mask)
    logits, inputs, targets = output.logits, batch.inputs, batch.targets
    if probe.pipeline.labels == "same":
        logits, inputs, targets = logits[:, :-1], inputs[:, :-1], targets[:, 1:]
    scored = targets != probe.pipeline.ignore_index
    log_p = logits[scored].float().log_softmax(-1)  # (N, W)
    drawn = torch.bincount(targets[scored], minlength=log_p.shape[-1]) / scored.sum()
    pairs = torch.stack([inputs[scored], targets[scored]])
    shares = torch.unique(pairs, dim=1, return_counts=True)[1] / scored.sum()
    mean_log_p = log_p.mean(0)[drawn > 0] @ drawn[drawn > 0]
    ids = probe.pipeline.train_ids
    if ids is None or len(ids) < batch.targets.numel():
        ids = batch.targets[batch.targets != probe.pipeline.ignore_index].cpu()
    counts = torch.bincount(ids.long().flatten().cpu()).double()
    counts = counts[counts > 0]
    p = counts / counts.sum()
    # Miller and Madow (1955): the entropy of a sample is too low by (kinds - 1) / (2 N)
    bias = (len(p) - 1) / (2 * float(counts.sum()))
    return Baselines(
        loss=float(-log_p.gather(-1, targets[scored][:, None]).mean()),
        unigram=min(float(-(p * p.log()).sum()) + bias, math.log(probe.vocab_size)),
        uniform=math.log(probe.vocab_size),
        exchanged=float(-mean_log_p),
        concentration=float(shares.square().sum().sqrt()),
    )


def _measure_own(probe: Probe) -> Baselines | None:
    if probe.batch.source == "synthetic" or not probe.scores_something:
        return None
    return measure_baselines(probe, probe.batch)


def _is_trained(probe: Probe, own: Baselines | None) -> tuple[bool, str]:
    """Tell fresh from trained, and say by what."""
    if probe.pipeline.fresh is not None:
        return not probe.pipeline.fresh, "declared"
    if own is not None and own.loss < own.unigram - TRAINED_MARGIN:
        return True, "it beats a constant predictor on its own batch"
    gains = [
        parameter
        for name, parameter in probe.pipeline.model.named_parameters()
        if parameter.ndim == 1 and parameter.numel() > 1 and name.endswith("weight")
    ]
    if gains and any(bool((gain != gain[0]).any()) for gain in gains):
        return True, "the gains of its norms have moved"
    if gains:
        return False, "its norms are as they were made"
    return False, UNKNOWN if own is None else "it does not beat a constant predictor"


def _starts_trained(probe: Probe, trained: bool) -> bool:
    """Whether make_model gives learnt weights too, as it does where a loaded model is tuned."""
    if not trained or probe.batch.source == "synthetic" or not probe.scores_something:
        return False
    made = measure_baselines(probe, probe.batch, fresh=True)
    return made.loss < made.unigram - TRAINED_MARGIN


# ---- fresh ---------------------------------------------------------------------------------


def _check_fresh(probe: Probe, own: Baselines | None, why: str) -> CheckResult:
    from_factory = probe.pipeline.make_model is not None
    start = measure_start(probe, fresh=from_factory)
    numbers: dict[str, Any] = {"judged_as": "fresh", "because": why, **asdict(start)}
    if own is not None:
        numbers |= {"own_batch": asdict(own)}
    sure = from_factory or probe.pipeline.fresh is True
    odd = _odd_weights(probe, numbers, from_factory) if sure else None
    if odd is not None:
        return odd
    excess = start.loss_random - start.baseline
    if math.isnan(excess):
        return _not_finite("a fresh model", "random tokens", numbers)
    if not excess <= EXCESS_WARN:
        return _too_high(probe, start, numbers, from_factory)
    low = _too_low(start, own, numbers)
    if low is not None:
        return low
    return CheckResult(
        check="initial_loss",
        status=Status.PASS,
        reason="initial_loss.ok",
        claim=say(
            "a fresh model scores {loss} nats on random tokens, and ln {width} is {baseline}",
            loss=start.loss_random,
            width=round(math.exp(start.baseline)),
            baseline=start.baseline,
        ),
        measured=say("{excess} nats above ln V", excess=excess),
        expected=say("at most {limit} nats above", limit=EXCESS_WARN),
        numbers=numbers,
    )


def _not_finite(model: str, where: str, numbers: dict[str, Any]) -> CheckResult:
    """NaN is neither high nor low: no spread of weights follows from it."""
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL,
        reason="initial_loss.not_finite",
        claim=say("the loss of {model} on {where} is not a number", model=model, where=where),
        measured=say("nan nats"),
        expected=say("a finite loss"),
        next_step=say("python -m diagnostics --only forward_hooks"),
        numbers=numbers,
    )


def _too_high(
    probe: Probe, start: Start, numbers: dict[str, Any], from_factory: bool
) -> CheckResult:
    excess = start.loss_random - start.baseline
    unsure = numbers["because"] == UNKNOWN and not from_factory  # it may be a trained one
    return CheckResult(
        check="initial_loss",
        status=Status.WARN if excess <= EXCESS_FAIL or unsure else Status.FAIL,
        reason="initial_loss.too_high",
        claim=say(
            "before any training the model is confident: it scores {loss} nats on random tokens, "
            "where guessing scores {baseline}",
            loss=start.loss_random,
            baseline=start.baseline,
        ),
        measured=say(
            "{excess} nats above ln V; the standard deviation of the logits is {std}",
            excess=excess,
            std=start.logit_std,
        ),
        expected=say(
            "at most {warn} nats above ln V (a warning up to {fail})",
            warn=EXCESS_WARN,
            fail=EXCESS_FAIL,
        ),
        causes=_causes_of_spread(probe, start, from_factory),
        next_step=say(
            "draw embedding and head from N(0, 0.02), or divide the logits by {std}",
            std=start.logit_std,
        ),
        numbers=numbers,
    )


def _causes_of_spread(probe: Probe, start: Start, from_factory: bool) -> tuple[Text, ...]:
    """What the weights show: a tied unit-variance table, a wide head, a bias, trained weights."""
    causes = []
    with probe.model(fresh=from_factory) as model:
        tables = {
            module.weight.data_ptr(): module.weight
            for module in model.modules()
            if isinstance(module, nn.Embedding)
        }
        heads = [
            module.weight
            for module in model.modules()
            if isinstance(module, nn.Linear) and module.out_features >= probe.vocab_size
        ]
        for head in heads[-1:]:
            std = float(head.detach().float().std())
            ordinary = 1 / math.sqrt(head.shape[1])
            if head.data_ptr() in tables and std > 0.3:
                causes.append(
                    say(
                        "the head shares the token embedding, whose standard deviation is {std} "
                        "(nn.Embedding draws N(0, 1)): logits grow with the square root of the "
                        "width",
                        std=std,
                    )
                )
            elif std > 2 * ordinary:
                causes.append(
                    say(
                        "the head's weights have standard deviation {std}; {ordinary} gives logits "
                        "of size 1",
                        std=std,
                        ordinary=ordinary,
                    )
                )
    if start.class_share > 0.5:
        causes.append(
            say(
                "{share:%} of the spread is the same at every position: some tokens are favoured "
                "whatever was read, as by a large bias",
                share=start.class_share,
            )
        )
    if not causes and not from_factory and probe.pipeline.fresh is None:
        causes.append(say("the weights are trained ones: declare fresh=False"))
    return tuple(causes)


def _too_low(start: Start, own: Baselines | None, numbers: dict[str, Any]) -> CheckResult | None:
    """Below ln V by more than the luck of the drawn targets."""
    luck = 0.02 + SIGMAS * start.logit_std / math.sqrt(start.drawn)
    if not start.reported_random >= start.baseline - luck:
        return _low_result(
            "random tokens", start.reported_random, start.baseline, luck, numbers, leak=True
        )
    if own is not None:
        luck = 0.02 + SIGMAS * start.logit_std * own.concentration
        if not own.loss >= own.exchanged - luck:
            return _low_result("its own batch", own.loss, own.exchanged, luck, numbers, leak=False)
    return None


def _low_result(
    where: str, loss: float, baseline: float, luck: float, numbers: dict[str, Any], *, leak: bool
) -> CheckResult:
    return CheckResult(
        check="initial_loss",
        status=Status.FAIL,
        reason="initial_loss.too_low",
        claim=say(
            "a model that should know nothing scores {loss} nats on {where}, where {other} gives "
            "{baseline}",
            other="ln V" if leak else "dealing the targets out at random",
            loss=loss,
            where=where,
            baseline=baseline,
        ),
        measured=say("{below} below", below=baseline - loss),
        expected=say("at most {luck} below, by luck", luck=luck),
        causes=(
            say("the targets reach the prediction: forward reads them before it has the logits"),
        )
        if leak
        else (
            say("targets equal inputs, and head and embedding are tied: copying is already known"),
            say("the weights are trained ones: declare fresh=False"),
            say("the next token leaks in: see causal_independence"),
        ),
        next_step=say("compare the batch with `shift`; print loss for targets drawn at random"),
        numbers=numbers,
    )


def _odd_weights(probe: Probe, numbers: dict[str, Any], from_factory: bool) -> CheckResult | None:
    with probe.model(fresh=from_factory) as model:
        pairs = find_identical_layers(model)
        patterns = find_patterns(model)
        stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
        mistaken = find_mistaken_spread(model)
        by_torch = tuple(
            f"{n}." if n else "" for n, m in model.named_modules() if isinstance(m, stacks)
        )
    numbers |= {"identical_layers": len(pairs), "patterned": patterns}
    if mistaken is not None:
        return spread_mistaken(mistaken, numbers)
    if patterns:  # before copies: a rule fills matrices of one shape alike
        return patterned(patterns, numbers)
    return identical(pairs, by_torch, numbers) if pairs else None


# ---- trained -------------------------------------------------------------------------------


def _judge_trained(own: Baselines, why: str) -> CheckResult:
    numbers: dict[str, Any] = {"judged_as": "trained", "because": why, **asdict(own)}
    facts = {"loss": own.loss, "unigram": own.unigram, "uniform": own.uniform}
    common: dict[str, Any] = {
        "check": "initial_loss",
        "measured": say("{loss} nats on its own batch", **facts),
        "expected": say(
            "clearly below {unigram}, the score of a constant predictor; a random one has "
            "{uniform}",
            **facts,
        ),
        "numbers": numbers,
    }
    if math.isnan(own.loss):
        return _not_finite("a trained model", "its own data", numbers)
    if not own.loss <= own.uniform + EXCESS_WARN:
        return CheckResult(
            status=Status.FAIL,
            reason="initial_loss.wrong_weights",
            claim=say(
                "a trained model scores {loss} nats on its own data, worse than guessing "
                "({uniform})",
                **facts,
            ),
            causes=_WRONG_WEIGHTS,
            next_step=say("compare the tokenizer's fingerprint with the one in the checkpoint"),
            **common,
        )
    if not own.loss <= own.uniform - TRAINED_MARGIN:
        return CheckResult(
            status=Status.FAIL,
            reason="initial_loss.not_trained",
            claim=say(
                "a trained model scores {loss} nats on its own data, as a fresh one does "
                "({uniform})",
                **facts,
            ),
            causes=_NOT_LOADED,
            next_step=say("load with strict=True and compare the loss with the checkpoint's"),
            **common,
        )
    barely = not own.loss <= own.unigram - TRAINED_MARGIN
    return CheckResult(
        status=Status.WARN if barely else Status.PASS,
        reason="initial_loss.barely_trained" if barely else "initial_loss.ok",
        claim=say(
            "a trained model scores {loss} nats, no better than always giving each token its "
            "frequency ({unigram})"
            if barely
            else "a trained model scores {loss} nats, below a constant predictor ({unigram}) and "
            "a random one ({uniform})",
            **facts,
        ),
        next_step=say("train longer, or look at gradients and learning rate") if barely else "",
        **common,
    )


_WRONG_WEIGHTS = (
    say("another tokenizer made these ids: equal size is not the same vocabulary"),
    say("some weights stayed at their start: a head or an embedding with another name"),
)
_NOT_LOADED = (
    say("the checkpoint was not loaded into this model (strict=False hides missing keys)"),
    say("the training changed nothing: rate 0, frozen weights, an optimizer of another model"),
)


def _judge_number(loss: float, vocab_size: int, fresh: bool | None) -> CheckResult:
    """Judge a loss alone."""
    baseline = math.log(vocab_size)
    numbers = {"loss": loss, "baseline": baseline}
    excess = loss - baseline
    status, reason = Status.PASS, "initial_loss.ok"
    if math.isnan(loss):
        status, reason = Status.FAIL, "initial_loss.not_finite"
    elif fresh is False:
        if not excess <= -TRAINED_MARGIN:
            status, reason = Status.FAIL, "initial_loss.not_trained"
    elif not excess <= EXCESS_WARN:
        status = Status.WARN if excess <= EXCESS_FAIL else Status.FAIL
        reason = "initial_loss.too_high"
    elif not excess >= -EXCESS_WARN:
        status, reason = Status.FAIL, "initial_loss.too_low"
    return CheckResult(
        check="initial_loss",
        status=status,
        reason=reason,
        claim=say(
            "the first loss is {loss} nats, and ln {V} is {baseline}",
            loss=loss,
            V=vocab_size,
            baseline=baseline,
        ),
        measured=say("{excess} nats above ln V", excess=excess),
        expected=say("at most {limit} nats above", limit=-TRAINED_MARGIN)
        if fresh is False
        else say("{low} to {limit} nats above", low=-EXCESS_WARN, limit=EXCESS_WARN),
        next_step="" if status is Status.PASS else say("give the model itself to see causes"),
        numbers=numbers,
    )
