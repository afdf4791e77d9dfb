"""Corners of generation: ids in the prompt, two rows, a padded vocabulary, and train mode.

Shapes: B batch, T0 prompt tokens, n new tokens, V vocabulary, W width of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from diagnostics._generation_stop import judge_stop, speak
from diagnostics._generation_trial import Trial, all_equal, as_text, mode_changed
from diagnostics._generation_words import misfit
from diagnostics._greedy import Case, Follower
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._side_effects import Leftovers, watched
from diagnostics._state import read_state
from diagnostics._text import say
from diagnostics._trace import declared_dropout

EVERY_ID_MAX = 512  # vocabulary up to which every id is put into a prompt
PROMPTS_MAX = 8


def judge_corners(trial: Trial) -> Iterator[CheckResult]:
    """Ask what only some pipelines have: small vocabularies, batches, stop ids, padded logits."""
    yield from _judge_prompt_ids(trial)
    yield from _judge_rows(trial)
    if trial.shaken:
        yield from _judge_padding(trial)
    else:
        yield from judge_stop(trial)


def _judge_prompt_ids(trial: Trial) -> Iterator[CheckResult]:
    """No id in the prompt may end generation before it begins."""
    for prompt in _prompts_of_ids(trial):
        text = as_text(trial.generate(prompt[None], 2))
        if text is None or len(text) > len(prompt):
            continue
        # the best token may be the stop token, left out of the text: then another one must come
        second = trial.follower.right(prompt)[: trial.probe.usable_vocab_size].topk(2).indices[1]
        if speak(trial, [[int(second)] * 2], prompt[None]) not in ([[]], None):
            continue
        yield verdict(
            Status.FAIL,
            "generation.prompt_ends_text",
            say("a token in the prompt ends generation before it begins"),
            measured=say("0 of 2 new tokens after a prompt of {T0}", T0=len(prompt)),
            expected=say("new tokens: only a new stop token may end the text"),
            where=say("the prompt holds ids {ids} ...", ids=str(prompt[:6].tolist())),
            causes=(say("the stop test looks at the whole text, as `eos in ids` does"),),
            next_step=say("test the newest token only"),
        )
        return


def _prompts_of_ids(trial: Trial) -> Iterator[Tensor]:
    V, block = trial.probe.usable_vocab_size, trial.follower.block
    if V <= EVERY_ID_MAX and not trial.shaken:
        size = max(1, (block or V + 2) - 2)
        ids = torch.randperm(V, generator=trial.probe.generator("every id"))
        yield from torch.split(ids.to(trial.probe.device), size)[:PROMPTS_MAX]
    for name in ("eos_token_id", "eot_token", "eos_id"):
        stop = getattr(trial.probe.pipeline.tokenizer, name, None)
        if isinstance(stop, int) and 0 <= stop < V:
            yield torch.tensor([0, stop, 0], device=trial.probe.device)


def _judge_rows(trial: Trial) -> Iterator[CheckResult]:
    """Two rows, where generate takes them, are continued as each would be alone."""
    T0 = min(3, trial.probe.probe_length)
    prompts = trial.probe.tokens(2, T0, "rows")
    together = _logits_or_none(trial.probe, trial.model, prompts)
    if together is None or not torch.allclose(
        together[:1], trial.probe.logits(trial.model, prompts[:1]), rtol=1e-3, atol=1e-3
    ):
        return  # rows of this model influence one another: `batch_independence` says so
    try:
        raw = trial.generate(prompts, 4)
    except Exception:  # any: one row at a time is all that was promised
        return
    if (
        not isinstance(raw, Tensor)
        or raw.shape != (2, T0 + 4)
        or not torch.equal(raw[:, :T0].to(prompts.device), prompts)
    ):
        return
    alone = [case for case in (trial.case(p, 4) for p in prompts) if isinstance(case, Case)]
    if len(alone) < 2 or trial.follower.wrong_steps(alone):
        return
    # where a row ends alone, padding may follow in a batch
    cases = [
        Case(case.prompt, 4, row[: len(case.text)].to(case.prompt.device))
        for case, row in zip(alone, raw, strict=True)
    ]
    wrong = trial.follower.wrong_steps(cases)
    if not all(trial.follower.nearly_best(step) for step in wrong):
        yield misfit("generation.rows_mixed", wrong, 8, trial.follower, {})


def _judge_padding(trial: Trial) -> Iterator[CheckResult]:
    """Columns of the logits that no token belongs to must not be chosen."""
    V = trial.probe.vocab_size
    prompt = trial.probe.tokens(1, 3, "padding")
    last = trial.follower.right(prompt[0])  # (W,)
    if len(last) <= V or not _raise_padding(trial.model, V, int(last[:V].argmax()), len(last)):
        return
    raised = Follower(trial.probe, trial.model).right(prompt[0])
    if int(raised.argmax()) < V:
        return
    text = as_text(trial.generate(prompt, 1))
    if text is not None and int(text[-1]) >= V:
        yield verdict(
            Status.WARN,
            "generation.padding_chosen",
            say(
                "ids that no token has can be generated: {first} to {last}",
                first=V,
                last=len(last) - 1,
            ),
            measured=say("id {id} was chosen where its logit was raised", id=int(text[-1])),
            expected=say(
                "ids below {V}; training keeps the others down, nothing forbids them", V=V
            ),
            causes=(say("the vocabulary is padded, and generate looks at every column"),),
            next_step=say("cut the logits to [:, :{V}] before choosing", V=V),
        )


def judge_train_mode(trial: Trial) -> Iterator[CheckResult]:
    """A model that comes in train mode is read in eval mode and goes back in train mode."""
    before = read_state(trial.model)
    prompt, count = list(trial.prompts())[1]
    with watched(trial.model) as watch:
        texts = [as_text(trial.generate(prompt[None], count, seed)) for seed in "ab"]
    changed = Leftovers.find(trial.model, before)
    if changed.left_in_eval:
        yield mode_changed(Status.FAIL, "generation.left_in_eval", "eval", changed.left_in_eval)
    if watch.training and declared_dropout(trial.model) and not all_equal(*texts):
        expected_mode = trial.probe.pipeline.model.training
        yield verdict(
            Status.FAIL if expected_mode else Status.WARN,
            "generation.eval_missing",
            say("a model in train mode is generated from with dropout on"),
            measured=say("another seed gives another text"),
            expected=say("eval mode inside generate, and train mode again afterwards"),
            where=say("{n:module|modules} ran in train mode", n=len(watch.training)),
            causes=(say("model.eval() is not called"),),
            next_step=say("call model.eval() first, and give the mode back afterwards"),
        )
    if watch.gradients_recorded:
        yield verdict(
            Status.WARN,
            "generation.records_gradients",
            say("generation records gradients that nobody uses: memory for every token"),
            measured=say("gradients are enabled in forward calls"),
            expected=say("disabled"),
            next_step=say("put @torch.no_grad() above generate"),
        )


def _raise_padding(model: nn.Module, V: int, best: int, W: int) -> bool:
    """Give every padded row of the output matrix twice the best token's weights."""
    raised = False
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 1 and parameter.shape[0] == W:
                parameter[V:] = 2 * parameter[best]
                raised = True
    return raised


def _logits_or_none(probe: Probe, model: nn.Module, tokens: Tensor) -> Tensor | None:
    try:
        return probe.logits(model, tokens)
    except MissingPartError:  # the last position only
        return None
