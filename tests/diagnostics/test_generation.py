"""Generation: greedy text is what full forward calls say, and each usual mistake is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_generation, diagnose
from diagnostics._generation_stop import _find_stop
from diagnostics._generation_trial import Trial
from diagnostics._greedy import Follower
from diagnostics._probe import Probe
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.generate import generate as minigpt_generate
from minigpt.model import KeyValueCache
from tests.diagnostics.architectures import StateSpace, alibi_mix
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
)

BLOCK = 12  # of the tiny models
Generate = Callable[[nn.Module, Tensor, int], Tensor]


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    output = model(ids)
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


def best(last: Tensor, ids: Tensor) -> Tensor:
    return last.argmax(-1, keepdim=True)


def build(
    context: Callable[[Tensor, int], Tensor] = lambda ids, T0: ids[:, -BLOCK:],
    choose: Callable[[Tensor, Tensor], Tensor] = best,
    position: int = -1,
    join: Callable[[Tensor, Tensor], Tensor] = lambda ids, new: torch.cat([ids, new], 1),
    count: Callable[[int, int], int] = lambda n, T0: n,
    end: Callable[[Tensor, int], Tensor] = lambda ids, T0: ids,
    eval_mode: bool = True,
    restore: bool = True,
) -> Generate:
    """Return a textbook loop of which a test replaces one part."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        T0, was_training = ids.shape[1], model.training
        if eval_mode:
            model.eval()
        for _ in range(count(n, T0)):
            logits = logits_of(model, context(ids, T0))
            ids = join(ids, choose(logits[:, max(position, -logits.shape[1])], ids))
        if restore:
            model.train(was_training)
        return end(ids, T0)

    return generate


class Rotary(nn.Module):
    """One attention layer without a table of positions: it takes texts of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=19, block_size=BLOCK)
        self.core = TinyGPT(positions=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.core(ids)[0]


class Padded(nn.Module):
    """23 tokens in a table of 32 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        with torch.no_grad():
            self.head.weight[23:] = 0.0
            self.head.weight[:23] += 0.3
            self.embedding.weight += 0.3

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 32)."""
        return self.head(self.embedding(ids))


@pytest.mark.parametrize(
    "model",
    [
        TinyGPT(),
        TinyGPT(tied=True),
        TinyGPT(std=0.0),  # equal logits: every token is right
        TinyGPT().bfloat16(),
        Bigram(),
        Recurrent(),
        Convolution(),
        HFStyle(),
        MixtureOfExperts(),
        Rotary(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_healthy_loop_passes_on_every_architecture(model: nn.Module) -> None:
    result = check_generation(model, build(), block_size=BLOCK)
    assert (result.status, result.reason) == (Status.PASS, "generation.ok")
    assert result.numbers["tokens"] >= 15


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("use_cache", [True, False])
def test_minigpt_passes_with_and_without_its_cache(dropout: float, use_cache: bool) -> None:
    def generate(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        return minigpt_generate(model, ids, n, greedy=True, use_cache=use_cache)  # type: ignore[arg-type]

    model = MiniGPT(MiniGPTConfig.debug(65, dropout=dropout))
    assert check_generation(model, generate).reason == "generation.ok"


def test_a_model_without_a_block_is_followed_too() -> None:
    generate = build(context=lambda ids, T0: ids)
    assert check_generation(Recurrent(), generate).reason == "generation.ok"
    wrong = build(context=lambda ids, T0: ids[:, -1:])
    assert check_generation(Recurrent(), wrong).reason == "generation.newest_token_only"


def most_unlike(last: Tensor, ids: Tensor) -> Tensor:
    return last.argmin(-1, keepdim=True)


def second(last: Tensor, ids: Tensor) -> Tensor:
    return last.topk(2).indices[:, 1:]


def penalised(last: Tensor, ids: Tensor) -> Tensor:
    seen = last.gather(1, ids)
    return best(last.scatter(1, ids, torch.where(seen > 0, seen / 1.3, seen * 1.3)), ids)


def not_repeated(last: Tensor, ids: Tensor) -> Tensor:
    return best(last.scatter(1, ids[:, -6:], -torch.inf), ids)


@pytest.mark.parametrize(
    ("reason", "generate"),
    [
        ("first_position", build(position=-BLOCK)),
        ("position_before", build(position=-2)),
        ("position_before", build(context=lambda ids, T0: ids[:, -BLOCK - 1 :][:, : max(
            1, min(BLOCK, ids.shape[1] - 1))])),
        ("argmin", build(choose=most_unlike)),
        ("second_best", build(choose=second)),
        ("repetition_penalty", build(choose=penalised)),
        ("newest_token_only", build(context=lambda ids, T0: ids[:, -1:])),
        ("prompt_not_read", build(context=lambda ids, T0: ids[:, T0 - 1 :][:, -BLOCK:])),
        ("not_fed_back", build(context=lambda ids, T0: ids[:, :T0][:, -BLOCK:])),
        ("keeps_first_block", build(context=lambda ids, T0: ids[:, :BLOCK])),
        ("context_too_short", build(
            context=lambda ids, T0: ids if ids.shape[1] <= BLOCK else ids[:, -3:])),
        ("wrong_token", build(choose=not_repeated)),
        ("prompt_lost", build(end=lambda ids, T0: ids[:, T0:])),
        ("prompt_lost", build(end=lambda ids, T0: ids[:, -BLOCK:])),
        ("wrong_axis", build(join=lambda ids, new: torch.cat([ids, new[-1:]], 0))),
        ("not_ids", build(end=lambda ids, T0: ids.float())),
        ("too_many_tokens", build(count=lambda n, T0: n + 1)),
        ("too_few_tokens", build(count=lambda n, T0: n - 1)),
        ("too_few_tokens", build(count=lambda n, T0: max(0, n - T0))),
        ("sampled", build(choose=lambda last, ids: torch.multinomial(last.softmax(-1), 1))),
        ("left_in_eval", build(restore=False)),
        ("rows_mixed", build(choose=lambda last, ids: best(last[:1], ids).expand(len(ids), 1))),
    ],
)  # fmt: skip
def test_each_mistake_is_named(reason: str, generate: Generate) -> None:
    result = check_generation(TinyGPT(), generate)
    assert (result.status, result.reason) == (Status.FAIL, f"generation.{reason}")
    assert result.measured
    assert result.expected
    assert result.next_step


def test_raising_beyond_the_block_is_a_warning() -> None:
    """It cannot go unnoticed, and the generators of well-known libraries do it too."""
    result = check_generation(TinyGPT(), build(context=lambda ids, T0: ids))
    assert (result.status, result.reason) == (Status.WARN, "generation.stops_at_block")
    assert "IndexError" in result.measured
    assert result.next_step


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK // 2])
def test_a_shorter_window_beyond_the_block_is_a_warning(length: int) -> None:
    def crop(ids: Tensor, T0: int) -> Tensor:
        return ids if ids.shape[1] <= BLOCK else ids[:, -length:]

    result = check_generation(TinyGPT(), build(context=crop))
    assert (result.status, result.reason) == (Status.WARN, "generation.shorter_context")
    assert f"about {length} of 12" in result.claim


def unlimited() -> list[nn.Module]:
    """Return models that take a text of any length, and say so by saying nothing."""
    torch.manual_seed(0)
    alibi = TinyGPT(mix=alibi_mix, positions=False)
    del alibi.config
    return [Recurrent(), StateSpace(), alibi]


@pytest.mark.parametrize("block", [None, BLOCK])
@pytest.mark.parametrize("model", unlimited(), ids=lambda model: type(model).__name__)
def test_any_crop_is_a_warning_where_nothing_in_the_model_sets_a_limit(
    model: nn.Module, block: int | None
) -> None:
    """Its user may mean it; a block that the pipeline says is the length of training rows."""
    crop = build(context=lambda ids, T0: ids[:, -4:])
    result = check_generation(model, crop, block_size=block)
    assert (result.status, result.reason) == (Status.WARN, "generation.shorter_context")
    assert result.numbers["length"] >= 4  # the longest window that gives this text
    assert f"at most the last {result.numbers['length']} tokens" in result.claim


def test_a_crop_longer_than_the_texts_stays_unseen_without_a_limit() -> None:
    crop = build(context=lambda ids, T0: ids[:, -48:])
    assert check_generation(unlimited()[1], crop).reason == "generation.ok"


def test_the_first_tokens_in_place_of_the_last_are_a_fault_without_a_limit_too() -> None:
    result = check_generation(unlimited()[2], build(context=lambda ids, T0: ids[:, :8]))
    assert (result.status, result.reason) == (Status.FAIL, "generation.keeps_first_block")
    assert result.numbers["length"] >= 8  # the longest beginning that gives this text
    assert f"no more than the first {result.numbers['length']} tokens" in result.claim


def test_a_crop_to_another_number_is_a_fault_where_the_model_says_its_block() -> None:
    """All texts are cropped to 4 of 12, those below the block too."""
    result = check_generation(TinyGPT(), build(context=lambda ids, T0: ids[:, -4:]))
    assert (result.status, result.reason) == (Status.FAIL, "generation.context_too_short")
    assert "only the last 4 tokens" in result.claim


def test_later_tokens_are_not_blamed_on_a_cache_where_every_call_reads_the_whole_text() -> None:
    """The second new token is the third best one; the loop has no cache."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        for number in range(n):
            last = logits_of(model, ids[:, -BLOCK:])[:, -1]
            ids = torch.cat([ids, last.topk(3).indices[:, 2:] if number % 3 == 1 else best(
                last, ids)], 1)  # fmt: skip
        return ids

    assert check_generation(TinyGPT(), generate).reason == "generation.wrong_token"


def test_texts_beyond_the_block_of_a_model_that_takes_them_are_a_warning() -> None:
    result = check_generation(Rotary(), build(context=lambda ids, T0: ids))
    assert (result.status, result.reason) == (Status.WARN, "generation.past_block")


def test_another_model_than_the_given_one_is_told() -> None:
    """Both the user's own model, over which a method is bound, and a third one."""
    model = TinyGPT()
    bound = check_generation(model, lambda given, ids, n: build()(model, ids, n))
    assert bound.reason == "generation.other_model"
    other = TinyGPT()
    closed = check_generation(model, lambda given, ids, n: build()(other, ids, n))
    assert closed.reason == "generation.other_model"


def cached(
    make: Callable[[], KeyValueCache], after: Callable[[KeyValueCache], None] = lambda cache: None
) -> Generate:
    """Return a loop with MiniGPT's cache; `make` and `after` spoil it."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        was_training = model.training
        model.eval()
        cache = make()
        for step in range(n):
            unread = ids[:, -1:] if step else ids
            if cache.length + unread.shape[1] > 32 or ids.shape[1] > 32:
                last = model(ids[:, -32:])[0][:, -1]
            else:
                last = model(unread, cache=cache)[0][:, -1]
                after(cache)
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], 1)
        model.train(was_training)
        return ids

    return generate


def empty() -> KeyValueCache:
    config = MiniGPTConfig.debug(65)
    return KeyValueCache(config, 1, device=torch.device("cpu"), dtype=torch.float32)


def test_a_spoilt_cache_is_told_and_a_good_one_passes() -> None:
    model = MiniGPT(MiniGPTConfig.debug(65))
    assert check_generation(model, cached(empty)).reason == "generation.ok"

    def forgets_newest(cache: KeyValueCache) -> None:
        cache.length -= 1

    def zeroes_first(cache: KeyValueCache) -> None:
        cache.keys[:, :, :, 0] = 0.0

    for spoil in (forgets_newest, zeroes_first):
        result = check_generation(model, cached(empty, spoil))
        assert result.status is Status.FAIL
        assert result.reason in ("generation.cache", "generation.newest_token_only")

    kept = empty()
    result = check_generation(model, cached(lambda: kept))
    assert result.reason == "generation.remembers"
    assert "other prompts" in result.claim


def test_dropout_that_stays_on_is_told() -> None:
    """In eval mode by model.train(); in train mode by a forgotten model.eval()."""
    model = MiniGPT(MiniGPTConfig.debug(65, dropout=0.2))

    def loop(**changes: Any) -> Generate:
        return build(context=lambda ids, T0: ids[:, -32:], **changes)

    def trains(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        return loop(eval_mode=False)(model.train(), ids, n)

    assert check_generation(model, trains).reason == "generation.dropout_on"
    result = check_generation(model.train(), loop(eval_mode=False))
    assert (result.status, result.reason) == (Status.FAIL, "generation.eval_missing")
    result = check_generation(model.eval(), loop(eval_mode=False))
    assert (result.status, result.reason) == (Status.WARN, "generation.eval_missing")
    result = check_generation(TinyGPT(), build(eval_mode=False))
    assert result.reason == "generation.ok"


def test_random_states_belong_to_the_run() -> None:
    def seeds(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        torch.manual_seed(1)
        return build()(model, ids, n)

    assert check_generation(TinyGPT(), seeds).reason == "generation.resets_random_state"

    def draws(last: Tensor, ids: Tensor) -> Tensor:
        return torch.multinomial((last * 1e7).softmax(-1), 1)

    result = check_generation(TinyGPT(), build(choose=draws))
    assert (result.status, result.reason) == (Status.WARN, "generation.draws_random")


def test_changed_weights_and_recorded_gradients_are_told() -> None:
    def edits(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        text = build()(model, ids, n)
        with torch.no_grad():
            next(model.parameters())[0, 0] += 1e-6
        return text

    assert check_generation(TinyGPT(), edits).reason == "generation.changes_weights"

    def records(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        for _ in range(n):
            last = logits_of(model, ids[:, -BLOCK:])[:, -1]
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], 1)
        return ids

    result = check_generation(TinyGPT(), records)
    assert (result.status, result.reason) == (Status.WARN, "generation.records_gradients")


def test_a_stop_token_ends_text_with_a_warning_and_in_the_prompt_it_is_a_fault() -> None:
    def stops(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        for _ in range(n):
            ids = build()(model, ids, 1)
            if int(ids[0, -1]) == 5:
                break
        return ids

    torch.manual_seed(3)
    model = Bigram(7)
    with torch.no_grad():
        model.table.weight[:, 5] += 4.0  # the stop token is likely after every token
    result = check_generation(model, stops, block_size=BLOCK)
    assert (result.status, result.reason) == (Status.WARN, "generation.stops_early")
    assert "token 5" in result.claim

    def stops_at_once(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        return ids if bool((ids == 39).any()) else build()(model, ids, n)

    result = check_generation(TinyGPT(40), stops_at_once)
    assert (result.status, result.reason) == (Status.FAIL, "generation.prompt_ends_text")


def test_ids_of_a_padded_vocabulary_are_a_warning_until_they_are_generated() -> None:
    torch.manual_seed(0)
    model = Padded()
    result = check_generation(model, build(), vocab_size=23, block_size=BLOCK)
    assert (result.status, result.reason) == (Status.WARN, "generation.padding_chosen")
    cut = build(choose=lambda last, ids: best(last[:, :23], ids))
    assert check_generation(model, cut, vocab_size=23, block_size=BLOCK).reason == "generation.ok"
    with torch.no_grad():
        model.head.weight[30] = 9.0
    result = check_generation(model, build(), vocab_size=23, block_size=BLOCK)
    assert (result.status, result.reason) == (Status.FAIL, "generation.impossible_id")


def test_a_refused_long_prompt_is_a_warning() -> None:
    def short_only(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        if ids.shape[1] > BLOCK:
            raise ValueError("prompt too long")
        return build()(model, ids, n)

    result = check_generation(TinyGPT(), short_only)
    assert (result.status, result.reason) == (Status.WARN, "generation.long_prompt_refused")


def test_one_row_only_is_all_that_was_promised() -> None:
    def one_row(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        if len(ids) != 1:
            raise ValueError("one row")
        return build()(model, ids, n)

    assert check_generation(TinyGPT(), one_row).reason == "generation.ok"


def test_without_the_part_it_is_a_skip_and_the_model_stays_untouched() -> None:
    report = diagnose(Pipeline(Bigram()), only=["generation"])
    assert report["generation"].status is Status.SKIP
    model = TinyGPT().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    check_generation(model, build(restore=False))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_ids_that_a_fresh_model_cannot_know_to_be_padding_are_a_warning() -> None:
    """Fresh weights choose them; training keeps them down, so that it says nothing of generate."""
    torch.manual_seed(0)
    model = Padded()
    with torch.no_grad():
        model.head.weight[30] = 9.0
    result = check_generation(model, build(), vocab_size=23, block_size=BLOCK, fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "generation.padding_chosen")


def ending_at(
    stop: int,
    *,
    any_row: bool = False,
    freeze: bool = True,
    kept: bool = True,
    first_only: bool = False,
) -> Generate:
    """Return a loop over rows that ends a row at `stop`, and a habit of which a test changes."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, n: int) -> Tensor:
        finished = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(n):
            new = logits_of(model, ids[:, -BLOCK:])[:, -1].argmax(-1)
            if freeze:
                new = torch.where(finished, 0, new)
            finished |= new == stop
            if not kept and len(ids) == 1 and bool(finished):
                break
            ids = torch.cat([ids, new[:, None]], 1)
            if bool(
                finished[:1].all() if first_only else finished.any() if any_row else finished.all()
            ):
                break
        return ids

    return generate


@pytest.mark.parametrize("stop", [1, 7, 18])
@pytest.mark.parametrize("kept", [True, False])
def test_rows_that_end_each_for_itself_are_healthy(stop: int, kept: bool) -> None:
    """The stop id is kept in the text or left out; the other row goes on."""
    torch.manual_seed(1)
    result = check_generation(TinyGPT(), ending_at(stop, kept=kept), pad_id=0)
    assert result.reason in ("generation.ok", "generation.stops_early")
    if stop == 18:  # this model says 18 often
        assert f"each {'with' if kept else 'before'} token 18" in result.claim


@pytest.mark.parametrize("kept", [True, False])
def test_the_stop_id_is_found_wherever_it_stands(kept: bool) -> None:
    """All ids are said in texts that fit into the block, and the last of one text once more."""
    torch.manual_seed(1)
    model = TinyGPT(V := 3 * BLOCK + 1)
    for stop in range(V):
        asked = Probe(Pipeline(model, generate=ending_at(stop, kept=kept), block_size=BLOCK))
        trial = Trial(asked, model, Follower(asked, model), shaken=False)
        assert _find_stop(trial, V) == stop


def test_without_a_stop_id_none_is_found() -> None:
    asked = Probe(Pipeline(model := TinyGPT(), generate=ending_at(-1), block_size=BLOCK))
    assert _find_stop(Trial(asked, model, Follower(asked, model), shaken=False), 23) is None


def test_a_loop_that_looks_at_the_first_row_alone_is_meant_for_one_row() -> None:
    """No more was promised."""
    torch.manual_seed(1)
    for freeze in (True, False):
        generate = ending_at(7, first_only=True, freeze=freeze)
        result = check_generation(TinyGPT(), generate, pad_id=0)
        assert result.reason in ("generation.ok", "generation.stops_early")


def test_a_row_that_ends_must_not_cut_the_others() -> None:
    torch.manual_seed(1)
    result = check_generation(TinyGPT(), ending_at(7, any_row=True), pad_id=0)
    assert (result.status, result.reason) == (Status.FAIL, "generation.rows_cut")
    assert "2 of 4 new tokens in a row without token 7" in result.measured


def test_a_row_that_goes_on_after_its_end_is_a_warning() -> None:
    torch.manual_seed(1)
    result = check_generation(TinyGPT(), ending_at(1, freeze=False), pad_id=0)
    assert (result.status, result.reason) == (Status.WARN, "generation.ended_row_goes_on")


def test_a_cache_in_half_precision_is_a_warning_and_a_wrong_one_stays_a_fault() -> None:
    """Where two logits lie close together, rounding decides between them."""

    def rounded(cache: KeyValueCache) -> None:
        cache.keys, cache.values = cache.keys.half().float(), cache.values.bfloat16().float()

    reasons = set()
    for seed in range(3):
        torch.manual_seed(seed)
        result = check_generation(MiniGPT(MiniGPTConfig.debug(65)), cached(empty, rounded))
        reasons.add((result.status, result.reason))
    assert reasons <= {
        (Status.PASS, "generation.ok"),
        (Status.WARN, "generation.low_precision"),
    }


def close_second(last: Tensor, ids: Tensor) -> Tensor:
    """Take the second best token where it is nearly as good."""
    two = last.topk(2)
    close = two.values[:, :1] - two.values[:, 1:] <= 0.02 * last.abs().max()
    return torch.where(close, two.indices[:, 1:], two.indices[:, :1])


def test_tokens_that_differ_only_where_logits_are_close_are_a_warning() -> None:
    reasons = set()
    for seed in range(4):
        torch.manual_seed(seed)
        result = check_generation(TinyGPT(), build(choose=close_second))
        reasons.add((result.status, result.reason))
    assert (Status.WARN, "generation.low_precision") in reasons
    assert all(status is not Status.FAIL for status, _ in reasons)


def test_a_window_of_one_token_more_than_the_block_is_a_fault() -> None:
    """The model takes it; a whole text that is fed uncropped is another thing, and a warning."""
    torch.manual_seed(1)
    model = Rotary()
    result = check_generation(model, build(context=lambda ids, T0: ids[:, -BLOCK - 1 :]))
    assert (result.status, result.reason) == (Status.FAIL, "generation.longer_context")
    assert "13 tokens" in result.claim
