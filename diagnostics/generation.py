"""Generation: greedy text is what the model's own forward calls say, one token after the other.

Why it matters
    A generator can read the wrong position, the wrong end of a long text, or a cache that belongs
    to another prompt, and still write something. The model is then blamed for text that it would
    never have written, and no loss shows it.

How it is measured
    `generate` continues prompts that are shorter than the block, reach its end, cross it and are
    longer, on copies with the user's weights and with shaken ones, whose best token changes at
    every step. Each new token is compared with the argmax of a full forward call on the last
    block of the text before it; equal logits all count as right. Where tokens differ, the usual
    mistakes are tried on the same text, and the one that gives every token is named. Further: the
    same prompt again, after another prompt, and under another seed; two rows; prompts with every
    id of a small vocabulary; train mode; and weights, modes and random states before and after.

What it cannot see
    Sampling: only the greedy path is followed; see `sampling`. The quality of the text. Streaming
    or decoding to characters. Stop ids that the model never chooses. Positions of a rotary cache
    beyond the block, where dropping old keys is a design of its own: it is a warning.

Break it
    python -m exercises.break_generation
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._generation_words import format_fault, misfit, result
from diagnostics._greedy import Case, Follower
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._side_effects import Leftovers, is_reset, random_states, watched
from diagnostics._state import read_state
from diagnostics._text import say
from diagnostics._trace import declared_dropout, dropout_off

# Fresh weights give one best token for ever, or one that hangs on the last token alone; measured
# on GPT, GRU and zero-initialised heads, these give 10 to 28 different ones in 96 places.
SHAKEN: dict[str, Any] = {"jitter": 0.2, "scale": 3.0}
EVERY_ID_MAX = 512  # vocabulary up to which every id is put into a prompt
PROMPTS_MAX = 8


def check_generation(
    model: nn.Module,
    generate: Callable[[nn.Module, Tensor, int], Tensor],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    **parts: Any,
) -> CheckResult:
    """Check a greedy generate(model, prompt (1, T0), n) -> (1, T0 + n) against the model itself.

    vocab_size, block_size: None: read from the model.    parts: other fields of Pipeline.
    """
    pipeline = Pipeline(
        model, generate=generate, vocab_size=vocab_size, block_size=block_size, **parts
    )
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Generate with the user's weights and with shaken ones; judge the texts and the traces."""
    if probe.pipeline.generate is None:
        raise MissingPartError("generate", why="there is no generation to look at")
    warnings: list[CheckResult] = []
    followed = 0
    for weights in (SHAKEN, {}):  # on shaken weights mistakes are told apart best
        with probe.model(**weights) as model:
            trial = Trial(probe, model, Follower(probe, model), shaken=bool(weights))
            for finding in trial.findings():
                if finding.status is not Status.WARN:
                    return finding
                warnings.append(finding)
            followed += trial.decided
    with probe.model(train=True, **SHAKEN) as model:
        for finding in Trial(probe, model, Follower(probe, model), shaken=True).train_findings():
            if finding.status is not Status.WARN:
                return finding
            warnings.append(finding)
    if warnings:
        return warnings[0]
    return result(
        Status.PASS,
        "ok",
        say("all {n} greedy tokens are those of full forward calls", n=followed),
        measured=say(
            "0 of {n} differ, below and beyond the block of {block}",
            n=followed,
            block=probe.block_size or "any length",
        ),
        numbers={"tokens": followed},
    )


@dataclass
class Trial:
    """One copy of the model, and every question about what is generated with it."""

    probe: Probe
    model: nn.Module
    follower: Follower
    shaken: bool
    decided: int = 0
    long_prompt_refused: str = ""

    def findings(self) -> Iterator[CheckResult]:
        """Ask in eval mode; the most basic first."""
        before = read_state(self.model)
        cases: list[Case] = []
        for prompt, count in self._prompts():
            case = self._case(prompt, count)
            if isinstance(case, CheckResult):
                yield case
                return
            if case is not None:
                cases.append(case)
        yield from self._judge_repeats(cases)
        yield from self._judge_tokens(cases)
        self.decided = self.follower.decided(cases)
        changed = Leftovers.find(self.model, before)
        if changed.weights:
            yield result(
                Status.FAIL,
                "changes_weights",
                say("generating changes {n} of the model's weights", n=len(changed.weights)),
                measured=say("{name} differs after the calls", name=changed.weights[0]),
                expected=say("the same weights, bit for bit"),
                next_step=say("generate under torch.no_grad(), and edit no parameter in place"),
            )
        yield from self._judge_lengths(cases)
        yield from self._judge_prompt_ids()
        yield from self._judge_rows()
        if self.shaken:
            yield from self._judge_padding()
        if changed.left_in_train:
            yield _mode_changed(Status.WARN, "left_in_train", "train", changed.left_in_train)
        if self.long_prompt_refused:
            yield result(
                Status.WARN,
                "long_prompt_refused",
                say("a prompt longer than the block is refused"),
                measured=say("{error}", error=self.long_prompt_refused),
                expected=say("its last {block} tokens are read", block=self.follower.block),
                next_step=say("crop what the model reads: ids[:, -block_size:]"),
            )

    # ---- calls ---------------------------------------------------------------------------

    def generate(self, prompt: Tensor, count: int, seed: str = "generation") -> Any:
        """Call the user's function on prompt (B, T0) under a seed."""
        generate = self.probe.pipeline.generate
        assert generate is not None
        with self.probe.seeded(seed):
            return generate(self.model, prompt.clone(), count)

    def _prompts(self) -> Iterator[tuple[Tensor, int]]:
        """Yield (prompt (T0,), n): one token, a few, up to and across the block, and beyond."""
        block = self.follower.block
        sizes = [(1, 4), (3, 6)]
        if block is None:
            sizes.append((self.probe.probe_length, 4))
        else:
            sizes += [(max(1, block - 2), 6), (block, 2), (block + 3, 3)]
        for length, count in sizes:
            generator = self.probe.generator(f"prompt {length}")
            ids = torch.randint(self.probe.usable_vocab_size, (length,), generator=generator)
            yield ids.to(self.probe.device), count

    def _case(self, prompt: Tensor, count: int) -> Case | CheckResult | None:
        block = self.follower.block
        try:
            raw = self.generate(prompt[None], count)
        except Exception as error:  # any: users' parts may raise anything
            if block is None or len(prompt) + count <= block:
                raise
            if len(prompt) > block:
                self.long_prompt_refused = f"{type(error).__name__}: {error}"[:120]
                return None
            return result(
                Status.FAIL,
                "stops_at_block",
                say("generation breaks off when the text grows longer than the block"),
                measured=say("{kind}: {text}", kind=type(error).__name__, text=str(error)[:120]),
                expected=say("only the last {block} tokens are read", block=block),
                where=say("a prompt of {T0} and {n} new tokens", T0=len(prompt), n=count),
                causes=(say("the text is fed whole, without a crop to the last block"),),
                next_step=say("feed ids[:, -block_size:]"),
            )
        text = as_text(raw)
        fault = format_fault(raw, text, prompt, count)
        if fault is not None or text is None:
            return fault
        return Case(prompt, count, text.to(prompt.device))

    # ---- questions -----------------------------------------------------------------------

    def _judge_repeats(self, cases: list[Case]) -> Iterator[CheckResult]:
        """The same prompt gives the same text: again, after another prompt, with another seed."""
        case = cases[min(1, len(cases) - 1)]
        with self.probe.seeded("state"):
            before = random_states()
            again = as_text(self._unseeded(case))
            states = [random_states()]
        with self.probe.seeded("other state"):
            other = as_text(self._unseeded(case))
            states.append(random_states())
        same_seed = as_text(self.generate(case.prompt[None], case.count))
        if same_seed is None or not torch.equal(same_seed.to(case.text.device), case.text):
            yield result(
                Status.FAIL,
                "remembers",
                say("the same prompt gives another text after other prompts were continued"),
                measured=say("{text}", text=_tail(same_seed, len(case.prompt))),
                expected=say(
                    "{text}, as in the first call", text=_tail(case.text, len(case.prompt))
                ),
                causes=(
                    say("keys and values of an earlier call are kept: the cache is not reset"),
                ),
                next_step=say("make a new cache at the start of every call"),
            )
        elif not _all_equal(case.text, again, other):
            yield self._random(case)
        elif is_reset(*states):
            yield result(
                Status.FAIL,
                "resets_random_state",
                say("generating sets the global random state: training repeats itself afterwards"),
                measured=say("two calls under different seeds leave the same random state"),
                expected=say("different states, as before the calls"),
                causes=(say("a manual_seed call inside generate"),),
                next_step=say("pass a torch.Generator in place of seeding the global one"),
            )
        elif before != states[0]:
            yield result(
                Status.WARN,
                "draws_random",
                say("greedy generation draws from the global random state"),
                measured=say("the state differs after the call"),
                expected=say("the state as it was: argmax needs no chance"),
                causes=(say("greedy is made from sampling, with top_k=1 or a tiny temperature"),),
                next_step=say("take argmax where greedy text is asked for"),
            )

    def _unseeded(self, case: Case) -> Any:
        generate = self.probe.pipeline.generate
        assert generate is not None
        return generate(self.model, case.prompt[None].clone(), case.count)

    def _random(self, case: Case) -> CheckResult:
        """Two seeds, two texts: dropout, or sampling."""
        with dropout_off(self.model):
            texts = [as_text(self.generate(case.prompt[None], case.count, s)) for s in "abc"]
        dropout = _all_equal(*texts)
        return result(
            Status.FAIL,
            "dropout_on" if dropout else "sampled",
            say("dropout is active while text is generated")
            if dropout
            else say("tokens are drawn at random where the most probable ones were asked for"),
            measured=say("another seed gives another text"),
            expected=say("the same text: argmax leaves nothing to chance"),
            causes=(say("generate switches to train mode, or dropout ignores the mode"),)
            if dropout
            else (say("generate samples; the pipeline's part must be the greedy one"),),
            next_step=say("call model.eval() inside generate")
            if dropout
            else say("pass generate=lambda model, ids, n: ... with argmax or temperature 0"),
        )

    def _judge_tokens(self, cases: list[Case]) -> Iterator[CheckResult]:
        """Every new token is the argmax of the model's own forward call."""
        follower = self.follower
        wrong = follower.wrong_steps(cases)
        impossible = follower.impossible_steps(cases)
        if impossible and not self.shaken:
            yield misfit("impossible_id", impossible, len(impossible), follower, {})
        if not wrong:
            return
        total = sum(len(case.steps) for case in cases)
        block = follower.block
        past_block = block is not None and all(2 * step.length > block for step in wrong)
        readings = chain(follower.readings_past_block() if past_block else (), follower.readings())
        reading = follower.fitting(cases, readings)
        if reading is not None:
            reason = reading.reason
        elif self._ignores_model(wrong[0].case):
            reason = "other_model"
        elif past_block:
            reason = "past_block_unknown" if follower.reads_beyond_block else "past_block_wrong"
        elif any(step.length == len(step.case.prompt) for step in wrong):
            reason = "wrong_token"
        else:
            reason = "cache"
        facts = {} if reading is None else dict(reading.facts)
        yield misfit(reason, wrong, total, self.follower, facts)

    def _ignores_model(self, case: Case) -> bool:
        """Whether the text stays the same when every weight of the given model turns its sign."""
        weights: list[Tensor] = [p for p in self.model.parameters() if p.is_floating_point()]
        with torch.no_grad():
            try:
                torch._foreach_neg_(weights)
                turned = as_text(self.generate(case.prompt[None], case.count))
            finally:
                torch._foreach_neg_(weights)
        return _all_equal(case.text, turned)

    def _judge_lengths(self, cases: list[Case]) -> Iterator[CheckResult]:
        """Fewer tokens than asked for are right after a token that ends the text."""
        short = [case for case in cases if len(case.steps) < case.count]
        if not short:
            return
        ends = {int(case.text[-1]) for case in short if len(case.steps)}
        stopped = len(ends) == 1 and all(len(case.steps) for case in short)
        yield result(
            Status.WARN if stopped else Status.FAIL,
            "stops_early" if stopped else "too_few_tokens",
            say(
                "{k} of {n} texts end early, each with token {end}",
                k=len(short),
                n=len(cases),
                end=next(iter(ends)),
            )
            if stopped
            else say(
                "{k} of {n} texts hold fewer new tokens than asked for", k=len(short), n=len(cases)
            ),
            measured=say(
                "{came} of {count} new tokens after a prompt of {T0}",
                came=len(short[0].steps),
                count=short[0].count,
                T0=len(short[0].prompt),
            ),
            expected=say("{count}, or a text that ends with the stop token", count=short[0].count),
            causes=()
            if stopped
            else (say("the limit is counted from another length than the prompt's"),),
            next_step=say("leave the stop token out in this part, so that n tokens come")
            if stopped
            else say("loop `for _ in range(n)`, whatever the prompt's length"),
        )

    def _judge_prompt_ids(self) -> Iterator[CheckResult]:
        """No id in the prompt may end generation before it begins."""
        for prompt in self._prompts_of_ids():
            text = as_text(self.generate(prompt[None], 2))
            if text is None or len(text) > len(prompt):
                continue
            yield result(
                Status.FAIL,
                "prompt_ends_text",
                say("a token in the prompt ends generation before it begins"),
                measured=say("0 of 2 new tokens after a prompt of {T0}", T0=len(prompt)),
                expected=say("new tokens: only a new stop token may end the text"),
                where=say("the prompt holds ids {ids} ...", ids=str(prompt[:6].tolist())),
                causes=(say("the stop test looks at the whole text, as `eos in ids` does"),),
                next_step=say("test the newest token only"),
            )
            return

    def _prompts_of_ids(self) -> Iterator[Tensor]:
        V, block = self.probe.usable_vocab_size, self.follower.block
        if V <= EVERY_ID_MAX and not self.shaken:
            size = max(1, (block or V + 2) - 2)
            ids = torch.randperm(V, generator=self.probe.generator("every id"))
            yield from torch.split(ids.to(self.probe.device), size)[:PROMPTS_MAX]
        for name in ("eos_token_id", "eot_token", "eos_id"):
            stop = getattr(self.probe.pipeline.tokenizer, name, None)
            if isinstance(stop, int) and 0 <= stop < V:
                yield torch.tensor([0, stop, 0], device=self.probe.device)

    def _judge_rows(self) -> Iterator[CheckResult]:
        """Two rows, where generate takes them, are continued as each would be alone."""
        prompts = self.probe.tokens(2, 3, "rows")
        together = _logits_or_none(self.probe, self.model, prompts)
        if together is None or not torch.allclose(
            together[:1], self.probe.logits(self.model, prompts[:1]), rtol=1e-3, atol=1e-3
        ):
            return  # rows of this model influence one another: `batch_independence` says so
        try:
            raw = self.generate(prompts, 4)
        except Exception:  # any: one row at a time is all that was promised
            return
        if (
            not isinstance(raw, Tensor)
            or raw.shape != (2, 7)
            or not torch.equal(raw[:, :3].to(prompts.device), prompts)
        ):
            return
        cases = [Case(p, 4, row.to(p.device)) for p, row in zip(prompts, raw, strict=True)]
        wrong = self.follower.wrong_steps(cases)
        if wrong and not self.follower.wrong_steps(
            [c for c in (self._case(p, 4) for p in prompts) if isinstance(c, Case)]
        ):
            yield misfit("rows_mixed", wrong, 8, self.follower, {})

    def _judge_padding(self) -> Iterator[CheckResult]:
        """Columns of the logits that no token belongs to must not be chosen."""
        V = self.probe.vocab_size
        prompt = self.probe.tokens(1, 3, "padding")
        last = self.follower.right(prompt[0], 3)  # (W,)
        if len(last) <= V or not _raise_padding(self.model, V, int(last[:V].argmax()), len(last)):
            return
        raised = Follower(self.probe, self.model).right(prompt[0], 3)
        if int(raised.argmax()) < V:
            return
        text = as_text(self.generate(prompt, 1))
        if text is not None and int(text[-1]) >= V:
            yield result(
                Status.WARN,
                "padding_chosen",
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

    def train_findings(self) -> Iterator[CheckResult]:
        """A model that comes in train mode is read in eval mode and goes back in train mode."""
        before = read_state(self.model)
        prompt, count = list(self._prompts())[1]
        with watched(self.model) as watch:
            texts = [as_text(self.generate(prompt[None], count, seed)) for seed in "ab"]
        changed = Leftovers.find(self.model, before)
        if changed.left_in_eval:
            yield _mode_changed(Status.FAIL, "left_in_eval", "eval", changed.left_in_eval)
        if watch.training and declared_dropout(self.model) and not _all_equal(*texts):
            expected_mode = self.probe.pipeline.model.training
            yield result(
                Status.FAIL if expected_mode else Status.WARN,
                "eval_missing",
                say("a model in train mode is generated from with dropout on"),
                measured=say("another seed gives another text"),
                expected=say("eval mode inside generate, and train mode again afterwards"),
                where=say("{n} modules ran in train mode", n=len(watch.training)),
                causes=(say("model.eval() is not called"),),
                next_step=say("call model.eval() first, and give the mode back afterwards"),
            )
        if watch.gradients_recorded:
            yield result(
                Status.WARN,
                "records_gradients",
                say("generation records gradients that nobody uses: memory for every token"),
                measured=say("gradients are enabled in forward calls"),
                expected=say("disabled"),
                next_step=say("put @torch.no_grad() above generate"),
            )


def as_text(raw: Any) -> Tensor | None:
    """Read what generate returned as one text (T,): (1, T), (T,) or a list; None otherwise."""
    if isinstance(raw, (list, tuple)):
        try:
            raw = torch.tensor(raw)
        except (TypeError, ValueError, RuntimeError):
            return None
    if not isinstance(raw, Tensor) or raw.is_floating_point():
        return None
    if raw.ndim == 2 and raw.shape[0] == 1:
        raw = raw[0]
    return raw.long() if raw.ndim == 1 else None


def _mode_changed(status: Status, reason: str, mode: str, paths: list[str]) -> CheckResult:
    return result(
        status,
        reason,
        say("generating leaves the model in {mode} mode", mode=mode),
        measured=say("{n} modules changed their mode", n=len(paths)),
        expected=say("every module in the mode in which it came"),
        where=say("{n} modules; first is {path}", n=len(paths), path=paths[0]),
        causes=(say("eval() or train() is called and not taken back"),),
        next_step=say("note each module.training before, and write it back afterwards"),
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


def _all_equal(first: Tensor | None, *others: Tensor | None) -> bool:
    return first is not None and all(
        other is not None and torch.equal(first.cpu(), other.cpu()) for other in others
    )


def _tail(text: Tensor | None, start: int) -> str:
    return "no text" if text is None else f"new tokens {text[start:][:8].tolist()}"
