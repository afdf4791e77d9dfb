"""Greedy generation with one copy of a model, and the questions about every text it gives.

Shapes: B batch, T0 prompt tokens, n new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._generation_words import format_fault, misfit
from diagnostics._greedy import Case, Follower, Step
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._side_effects import Leftovers, is_reset, random_states, watched
from diagnostics._state import read_state
from diagnostics._text import say
from diagnostics._trace import dropout_off, tensors_in

LONG_TEXT_MAX = 32  # new tokens of a text far beyond the block


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
        for prompt, count in self.prompts():
            case = self.case(prompt, count)
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
            yield verdict(
                Status.FAIL,
                "generation.changes_weights",
                say("generating changes {n} of the model's weights", n=len(changed.weights)),
                measured=say("{name} differs after the calls", name=changed.weights[0]),
                expected=say("the same weights, bit for bit"),
                next_step=say("generate under torch.no_grad(), and edit no parameter in place"),
            )
        yield from self._judge_lengths(cases)
        if changed.left_in_train:
            yield mode_changed(
                Status.WARN, "generation.left_in_train", "train", changed.left_in_train
            )
        if self.long_prompt_refused:
            yield verdict(
                Status.WARN,
                "generation.long_prompt_refused",
                say("a prompt longer than the block is refused"),
                measured=say("{error}", error=self.long_prompt_refused),
                expected=say(
                    "its last {block:token is|tokens are} read", block=self.follower.block
                ),
                next_step=say("crop what the model reads: ids[:, -block_size:]"),
            )

    # ---- calls ---------------------------------------------------------------------------

    def generate(self, prompt: Tensor, count: int, seed: str = "generation") -> Any:
        """Call the user's function on prompt (B, T0) under a seed."""
        generate = self.probe.pipeline.generate
        assert generate is not None
        self.probe.reseed(seed)  # the check puts the random states back
        return generate(self.model, prompt.clone(), count)

    def prompts(self) -> Iterator[tuple[Tensor, int]]:
        """Yield (prompt (T0,), n): one token, a few, up to and across the block, and beyond."""
        block = self.follower.block
        sizes = [(1, 4), (3, 6)]
        if block is None:
            sizes += [(self.probe.probe_length // 2, 6), (self.probe.probe_length, 8)]
        else:
            sizes += [(max(1, block - 2), 6), (block, 2), (block + 3, 3)]
        for length, count in sizes:
            generator = self.probe.generator(f"prompt {length}")
            ids = torch.randint(self.probe.usable_vocab_size, (length,), generator=generator)
            yield ids.to(self.probe.device), count

    def case(self, prompt: Tensor, count: int) -> Case | CheckResult | None:
        """Continue a prompt (T0,): a case, or what is wrong with its form, or None if refused."""
        block = self.follower.block
        try:
            raw = self.generate(prompt[None], count)
        except Exception as error:  # any: users' parts may raise anything
            if block is None or len(prompt) + count <= block:
                raise
            if len(prompt) > block:
                self.long_prompt_refused = f"{type(error).__name__}: {error}"[:120]
                return None
            return verdict(
                Status.WARN,  # loud, and a design: transformers' generate leaves it to the caller
                "generation.stops_at_block",
                say("generation raises when the text grows longer than the block"),
                measured=say("{kind}: {text}", kind=type(error).__name__, text=str(error)[:120]),
                expected=say("only the last {block:token is|tokens are} read", block=block),
                where=say("a prompt of {T0} and {n:new token|new tokens}", T0=len(prompt), n=count),
                causes=(say("the text is fed whole, without a crop to the last block"),),
                next_step=say("feed ids[:, -block_size:], or never ask for more than the block"),
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
            yield verdict(
                Status.FAIL,
                "generation.remembers",
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
        elif not all_equal(case.text, again, other):
            yield self._random(case)
        elif is_reset(*states):
            yield verdict(
                Status.FAIL,
                "generation.resets_random_state",
                say("generating sets the global random state: training repeats itself afterwards"),
                measured=say("two calls under different seeds leave the same random state"),
                expected=say("different states, as before the calls"),
                causes=(say("a manual_seed call inside generate"),),
                next_step=say("pass a torch.Generator in place of seeding the global one"),
            )
        elif before != states[0]:
            yield _DRAWS

    def _unseeded(self, case: Case) -> Any:
        generate = self.probe.pipeline.generate
        assert generate is not None
        return generate(self.model, case.prompt[None].clone(), case.count)

    def _random(self, case: Case) -> CheckResult:
        """Two seeds, two texts: dropout, or sampling."""
        with dropout_off(self.model):
            # the seeds under which it differed: without any dropout it differs as before
            seeds = ("generation", "state", "other state")
            texts = [as_text(self.generate(case.prompt[None], case.count, s)) for s in seeds]
        dropout = all_equal(*texts)
        return verdict(
            Status.FAIL,
            "generation.dropout_on" if dropout else "generation.sampled",
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
        # fresh weights cannot know which ids never come: that these can be chosen is a warning
        if impossible and not self.shaken and self.probe.pipeline.fresh is not True:
            yield misfit("generation.impossible_id", impossible, len(impossible), follower, {})
        if not wrong:
            return
        total = sum(len(case.steps) for case in cases)
        reason, facts = self._explain(cases, wrong)
        yield misfit(reason, wrong, total, follower, facts)

    def _explain(self, cases: list[Case], wrong: list[Step]) -> tuple[str, dict[str, Any]]:
        """Return the mistake that gives these tokens, and its facts."""
        follower, block = self.follower, self.follower.block
        longest = max(len(case.text) for case in cases)
        windows = follower.readings_of_windows(longest)
        reading = None
        if follower.sets_no_limit:  # there a window may be meant
            reading, windows = follower.fitting(cases, windows), iter(())
        past_block = block is not None and all(2 * step.length > block for step in wrong)
        read = self._with_long_text(cases) if past_block else cases
        if reading is None and past_block:
            reading = follower.fitting(read, follower.readings_past_block())
        # a few tokens that rounding can explain fit other readings by chance
        few = 4 * len(wrong) <= sum(len(case.steps) for case in cases)
        if reading is None and few and all(map(follower.nearly_best, wrong)):
            return "generation.low_precision", {}
        readings = chain(
            follower.readings(),
            windows,
            follower.readings_of_beginnings(longest),
        )
        if reading is None:
            reading = follower.fitting(read, readings)
        if reading is not None:
            return reading.reason, dict(reading.facts)
        if self._gives_nan(wrong[0].case):
            return "generation.not_finite", {}
        if self._ignores_model(wrong[0].case):
            return "generation.other_model", {}
        if past_block and follower.reads_beyond_block:
            return "generation.past_block_unknown", {}
        if past_block:
            return "generation.past_block_wrong", {}
        at_first = any(step.length == len(step.case.prompt) for step in wrong)
        if at_first or not self._reads_piecewise(wrong[0].case):
            return "generation.wrong_token", {}
        return "generation.cache", {}

    def _with_long_text(self, cases: list[Case]) -> list[Case]:
        """Add a text far beyond the block: on a few tokens a wrong reading can fit by chance.

        A cache that drops its oldest keys still holds what they told the layers above, and is
        like a window of almost any length while few tokens differ.
        """
        block = self.follower.block or 1
        prompt = self.probe.tokens(1, block, "long text")[0] % self.probe.usable_vocab_size
        longer = self.case(prompt, min(2 * block, LONG_TEXT_MAX))
        return [*cases, longer] if isinstance(longer, Case) else cases

    def _reads_piecewise(self, case: Case) -> bool:
        """Whether some call is given less than the text so far, as with a cache, or is not seen."""
        lengths: list[int] = []

        def on_call(given: tuple[Tensor, ...], output: Any) -> None:
            lengths.append(given[0].shape[-1] if given else 0)

        with watched(self.model, on_call):
            self.generate(case.prompt[None], case.count)
        whole = [min(length, self.follower.block or length) for length in case.steps]
        return lengths != whole

    def _gives_nan(self, case: Case) -> bool:
        """Whether the logits that generation reads hold NaN, of which argmax takes the first."""
        broken: list[bool] = []

        def on_call(given: tuple[Tensor, ...], output: Any) -> None:
            broken.append(any(bool(t.isnan().any()) for t in tensors_in(output)))

        with watched(self.model, on_call):
            self.generate(case.prompt[None], case.count)
        return any(broken)

    def _ignores_model(self, case: Case) -> bool:
        """Whether the text stays the same when every weight of the given model turns its sign."""
        weights: list[Tensor] = [p for p in self.model.parameters() if p.is_floating_point()]
        with torch.no_grad():
            try:
                torch._foreach_neg_(weights)
                turned = as_text(self.generate(case.prompt[None], case.count))
            finally:
                torch._foreach_neg_(weights)
        return all_equal(case.text, turned)

    def _judge_lengths(self, cases: list[Case]) -> Iterator[CheckResult]:
        """Fewer tokens than asked for are right where a stop token ends the text."""
        short = [case for case in cases if len(case.steps) < case.count]
        if not short:
            return
        kept = {int(case.text[-1]) if len(case.steps) else -1 for case in short}
        left_out = {int(self.follower.right(case.text).argmax()) for case in short}
        measured = say(
            "{came} of {count:new token|new tokens} after a prompt of {T0}",
            came=len(short[0].steps),
            count=short[0].count,
            T0=len(short[0].prompt),
        )
        expected = say(
            "{count}, or a text that ends with the stop token, or before it", count=short[0].count
        )
        # one text that ends at once shows nothing: some token would have come
        some = any(len(case.steps) for case in short)
        ends = [
            f"{place} token {min(found)}"
            for place, found in (("with", kept), ("before", left_out))
            if some and len(found) == 1 and -1 not in found
        ]
        if ends:
            yield verdict(
                Status.WARN,
                "generation.stops_early",
                say(
                    "{k} of {n:text ends|texts end} early, each {ends}",
                    k=len(short),
                    n=len(cases),
                    ends=" or ".join(ends),
                ),
                measured=measured,
                expected=expected,
                next_step=say("leave the stop token out in this part, so that n tokens come"),
            )
            return
        yield verdict(
            Status.FAIL,
            "generation.too_few_tokens",
            say(
                "{k} of {n:text holds|texts hold} fewer new tokens than asked for",
                k=len(short),
                n=len(cases),
            ),
            measured=measured,
            expected=expected,
            causes=(say("the limit is counted from another length than the prompt's"),),
            next_step=say("loop `for _ in range(n)`, whatever the prompt's length"),
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


def mode_changed(status: Status, reason: str, mode: str, paths: list[str]) -> CheckResult:
    """Say which modules came back in another mode."""
    return verdict(
        status,
        reason,
        say("generating leaves the model in {mode} mode", mode=mode),
        measured=say("{n:module|modules} changed mode", n=len(paths)),
        expected=say("every module in the mode in which it came"),
        where=say("first is {path}", path=paths[0]),
        causes=(say("eval() or train() is called and not taken back"),),
        next_step=say("note each module.training before, and write it back afterwards"),
    )


def all_equal(first: Tensor | None, *others: Tensor | None) -> bool:
    """Whether all texts are there and the same."""
    return first is not None and all(
        other is not None and torch.equal(first.cpu(), other.cpu()) for other in others
    )


def _tail(text: Tensor | None, start: int) -> str:
    return "no text" if text is None else f"new tokens {text[start:][:8].tolist()}"


_DRAWS = verdict(
    Status.WARN,
    "generation.draws_random",
    say("greedy generation draws from the global random state"),
    measured=say("the state differs after the call"),
    expected=say("the state as it was: argmax needs no chance"),
    causes=(say("greedy is made from sampling, with top_k=1 or a tiny temperature"),),
    next_step=say("take argmax where greedy text is asked for"),
)
