"""Bugs in evaluation, generation and sampling: what is done with a trained model.

Shapes: M ids, T0 prompt tokens, T time, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    caller,
    patched,
    replaced,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._text import say

Evaluate = Callable[[nn.Module, Tensor], float]


def _evaluation(change: Callable[[Evaluate], Evaluate]) -> Inject:
    """Wrap evaluate(model, ids (M,)) -> mean nats per token."""

    def make(pipeline: Pipeline) -> Evaluate:
        assert pipeline.evaluate is not None
        return change(pipeline.evaluate)

    return replaced(evaluate=make)


def _value(change: Callable[[float], float]) -> Inject:
    return _evaluation(lambda evaluate: lambda model, ids: change(float(evaluate(model, ids))))


def _never_in_eval(pipeline: Pipeline) -> Pipeline:
    if not any("drop" in type(m).__name__.lower() for m in pipeline.model.modules()):
        raise CannotInject(say("the model has no dropout, so that the mode does not matter"))
    return _evaluation(_in_train_mode)(pipeline)


def _in_train_mode(evaluate: Evaluate) -> Evaluate:
    """eval() has no effect: whatever mode the model came in, it is read in train mode."""

    def in_train_mode(model: nn.Module, ids: Tensor) -> float:
        kind = type(model)
        modes = [(module, module.training) for module in model.modules()]
        on: dict[str, Any] = {"eval": lambda: kind.train(model, True)}
        with patched(model, train=lambda mode=True: kind.train(model, True), **on):
            model.train()
            value = evaluate(model, ids)
        for module, training in modes:
            module.training = training
        return value

    return in_train_mode


def _afterwards(act: Callable[[nn.Module], object]) -> Inject:
    def change(evaluate: Evaluate) -> Evaluate:
        def changed(model: nn.Module, ids: Tensor) -> float:
            value = evaluate(model, ids)
            act(model)
            return value

        return changed

    return _evaluation(change)


def _first_value(evaluate: Evaluate) -> Evaluate:
    kept: list[float] = []

    def changed(model: nn.Module, ids: Tensor) -> float:
        kept.append(evaluate(model, ids))
        return kept[0]

    return changed


def _move_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.999)


Generate = Callable[[nn.Module, Tensor, int], Tensor]


def _generation(change: Callable[[Generate], Generate]) -> Inject:
    """Wrap generate(model, prompt (1, T0), n) -> (1, T0 + n)."""

    def make(pipeline: Pipeline) -> Generate:
        assert pipeline.generate is not None
        return change(pipeline.generate)

    return replaced(generate=make)


def _token_by_token(generate: Generate, read: Callable[[Tensor, int], Tensor]) -> Generate:
    """Make each token with a call on what is read of the text: read(text (1, T), T0) -> ids."""

    def changed(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        text = prompt
        for _ in range(count):
            new = generate(model, read(text, prompt.shape[1]), 1)[:, -1:]
            text = torch.cat([text, new], 1)
        return text

    return changed


def _first_block(pipeline: Pipeline) -> Pipeline:
    """Beyond the block the first tokens are read."""
    block = Probe(pipeline).block_size
    if block is None:
        raise CannotInject(say("nothing limits the length of the model's context"))

    def change(generate: Generate) -> Generate:
        return _token_by_token(generate, lambda text, T0: text[:, :block])

    return _generation(change)(pipeline)


def _sampled(pipeline: Pipeline) -> Pipeline:
    """Draw each token instead of taking the most probable one."""
    call = caller(pipeline)
    probe = Probe(pipeline)

    def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        text = prompt
        with torch.no_grad():
            for _ in range(count):
                read = text[:, -(probe.block_size or text.shape[1]) :]
                logits = call(model, read, read)[0][:, -1, : probe.usable_vocab_size]
                text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)], 1)
        return text

    return dataclasses.replace(pipeline, generate=generate)


def _left_in_eval(generate: Generate) -> Generate:
    def changed(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        text = generate(model, prompt, count)
        model.eval()
        return text

    return changed


def _seeded(generate: Generate) -> Generate:
    def changed(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        torch.manual_seed(0)
        return generate(model, prompt, count)

    return changed


Filter = Callable[[Tensor, float, int | None, float | None], Tensor]


def _sampling(change: Callable[[Filter], Filter]) -> Inject:
    """Wrap next_token_probabilities(logits (V,), temperature, top_k, top_p) -> (V,)."""

    def make(pipeline: Pipeline) -> Filter:
        inner = pipeline.next_token_probabilities
        assert inner is not None
        return change(inner)

    return replaced(next_token_probabilities=make)


def _drops_crossing(inner: Filter) -> Filter:
    """Leave the token out that crosses top_p; the most probable one always stays."""

    def changed(z: Tensor, temperature: float, k: int | None, p: float | None) -> Tensor:
        kept = inner(z, temperature, k, p).clone()
        if p is not None and p < 1.0 and int((kept > 0).sum()) > 1:
            kept[kept.where(kept > 0, math.inf).argmin()] = 0.0
        return kept / kept.sum()

    return changed


def _not_rescaled(inner: Filter) -> Filter:
    """Cut probabilities after the softmax and leave their sum below 1."""

    def changed(z: Tensor, temperature: float, k: int | None, p: float | None) -> Tensor:
        return inner(z, temperature, k, None) * (inner(z, temperature, k, p) > 0)

    return changed


def _one_more(inner: Filter) -> Filter:
    def changed(z: Tensor, temperature: float, k: int | None, p: float | None) -> Tensor:
        return inner(z, temperature, None if k is None else min(k + 1, len(z)), p)

    return changed


def _in_place(inner: Filter) -> Filter:
    def changed(z: Tensor, temperature: float, k: int | None, p: float | None) -> Tensor:
        z /= temperature
        return inner(z, 1.0, k, p)

    return changed


EVALUATE = ("evaluate",)


GENERATE, FILTERS = ("generate",), ("next_token_probabilities",)


INJECTIONS = (
    Injection(
        "evaluation.train_mode",
        "evaluation runs in train mode",
        _never_in_eval,
        EVALUATE,
        ("evaluation.train_mode", "evaluation.eval_missing"),
    ),
    Injection(
        "evaluation.left_in_eval",
        "the model is left in eval mode",
        _afterwards(lambda model: model.eval()),
        EVALUATE,
    ),
    Injection(
        "evaluation.bits", "the value is in bits", _value(lambda v: v / math.log(2.0)), EVALUATE
    ),
    Injection("evaluation.perplexity", "the value is a perplexity", _value(math.exp), EVALUATE),
    Injection("evaluation.sign", "the value has the wrong sign", _value(lambda v: -v), EVALUATE),
    Injection(
        "evaluation.ignores_ids",
        "the first value comes back at every call",
        _evaluation(_first_value),
        EVALUATE,
    ),
    Injection(
        "evaluation.reads_part",
        "only the first tenth of the ids is read",
        _evaluation(
            lambda evaluate: lambda model, ids: evaluate(model, ids[: max(64, len(ids) // 10)])
        ),
        EVALUATE,
    ),
    Injection(
        "evaluation.changes_weights",
        "the weights move a little during evaluation",
        _afterwards(_move_weights),
        EVALUATE,
    ),
    Injection(
        "evaluation.resets_random_state",
        "torch is seeded during evaluation",
        _afterwards(lambda model: torch.manual_seed(0)),
        EVALUATE,
    ),
    Injection(
        "generation.too_many_tokens",
        "one token too many is generated",
        _generation(lambda generate: lambda model, ids, n: generate(model, ids, n + 1)),
        GENERATE,
    ),
    Injection(
        "generation.too_few_tokens",
        "one token too few is generated",
        _generation(lambda generate: lambda model, ids, n: generate(model, ids, n)[:, :-1]),
        GENERATE,
        ("generation.too_few_tokens", "generation.stops_early"),
    ),
    Injection(
        "generation.prompt_lost",
        "only the new tokens come back",
        _generation(
            lambda generate: lambda model, ids, n: generate(model, ids, n)[:, ids.shape[1] :]
        ),
        GENERATE,
    ),
    Injection(
        "generation.keeps_first_block",
        "beyond the block the first tokens are read, not the last",
        _first_block,
        GENERATE,
    ),
    Injection(
        "generation.newest_token_only",
        "each token is made from the newest one alone",
        _generation(lambda generate: _token_by_token(generate, lambda text, T0: text[:, -1:])),
        GENERATE,
    ),
    Injection(
        "generation.not_fed_back",
        "each token is made from the prompt alone",
        _generation(lambda generate: _token_by_token(generate, lambda text, T0: text[:, :T0])),
        GENERATE,
    ),
    Injection(
        "generation.sampled",
        "tokens are drawn, not the most probable ones taken",
        _sampled,
        GENERATE,
    ),
    Injection(
        "generation.left_in_eval",
        "the model is left in eval mode",
        _generation(_left_in_eval),
        GENERATE,
    ),
    Injection(
        "generation.resets_random_state",
        "torch is seeded during generation",
        _generation(_seeded),
        GENERATE,
    ),
    Injection(
        "sampling.temperature_ignored",
        "the temperature has no effect",
        _sampling(lambda inner: lambda z, t, k, p: inner(z, 1.0, k, p)),
        FILTERS,
    ),
    Injection(
        "sampling.temperature_inverted",
        "logits are multiplied by the temperature",
        _sampling(lambda inner: lambda z, t, k, p: inner(z, 1.0 / t if t else t, k, p)),
        FILTERS,
    ),
    Injection(
        "sampling.top_k_ignored",
        "top_k has no effect",
        _sampling(lambda inner: lambda z, t, k, p: inner(z, t, None, p)),
        FILTERS,
    ),
    Injection(
        "sampling.top_k_off_by_one", "one token too many is kept", _sampling(_one_more), FILTERS
    ),
    Injection(
        "sampling.top_p_ignored",
        "top_p has no effect",
        _sampling(lambda inner: lambda z, t, k, p: inner(z, t, k, None)),
        FILTERS,
    ),
    Injection(
        "sampling.top_p_drops_crossing",
        "the token that crosses top_p is dropped",
        _sampling(_drops_crossing),
        FILTERS,
    ),
    Injection(
        "sampling.top_p_not_rescaled",
        "what top_p keeps does not sum to 1",
        _sampling(_not_rescaled),
        FILTERS,
    ),
    Injection(
        "sampling.negated",
        "the least probable token comes first",
        _sampling(lambda inner: lambda z, t, k, p: inner(-z, t, k, p)),
        FILTERS,
    ),
    Injection(
        "sampling.changes_input",
        "logits are divided in place",
        _sampling(_in_place),
        FILTERS,
    ),
)
