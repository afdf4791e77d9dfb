"""What a probe finds out about a pipeline, and the copies that it lends."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, diagnose
from diagnostics._probe import Batch, MissingPartError, Probe, read_batch, tokenizer_vocab_size
from tests.diagnostics.tiny import Bigram, Recurrent, TinyGPT


def probe(model: nn.Module | None = None, **parts: Any) -> Probe:
    """A probe of a pipeline with some parts."""
    return Probe(Pipeline(model or TinyGPT(), **parts))


class Closed(nn.Module):
    """Keeps its forward pass in a closure, as minGPT's block does: a deep copy still uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 9
        self.table = nn.Embedding(9, 9)
        self.call = lambda ids: self.table(ids)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 9)."""
        return self.call(ids)


class Uncopyable(Bigram):
    """Refuses to be copied."""

    def __deepcopy__(self, memo: object) -> Uncopyable:
        raise RuntimeError("no copies")


# ---- sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vocab_size", "n_vocab", "padded_vocab_size"])
@pytest.mark.parametrize("holder", ["config", "hparams", "cfg"])
def test_vocabulary_is_read_from_any_usual_configuration(name: str, holder: str) -> None:
    """As an attribute or as a key."""
    for config in (SimpleNamespace(**{name: 77}), {name: 77}):
        model = nn.Linear(2, 2)
        setattr(model, holder, config)
        assert probe(model).vocab_size == 77


def test_vocabulary_said_by_the_user_wins_and_the_ids_come_last() -> None:
    """Said, configuration, tokenizer, embedding, ids; otherwise it is missing, and named."""
    model = nn.Linear(2, 2)
    assert probe(TinyGPT(19), vocab_size=23).vocab_size == 23
    assert probe(model, tokenizer=SimpleNamespace(vocab_size=31)).vocab_size == 31
    assert probe(nn.Sequential(nn.Embedding(13, 4))).vocab_size == 13
    assert probe(model, train_ids=torch.tensor([3, 6, 2])).vocab_size == 7
    with pytest.raises(MissingPartError, match="vocab_size"):
        _ = probe(model).vocab_size


def test_token_embedding_is_preferred_to_the_largest_table() -> None:
    """A position table may have more rows."""
    model = nn.Module()
    model.positions, model.token_table = nn.Embedding(512, 4), nn.Embedding(13, 4)
    assert probe(model).vocab_size == 13


@pytest.mark.parametrize("name", ["block_size", "n_positions", "max_position_embeddings", "n_ctx"])
def test_block_size_is_read_under_any_usual_name(name: str) -> None:
    """Structural probes are at most 32 long; one token has no order to probe."""
    model = nn.Linear(2, 2)
    model.config = {name: 48}  # type: ignore[assignment]
    assert (probe(model).block_size, probe(model).probe_length) == (48, 32)
    model.config = {name: 1}  # type: ignore[assignment]
    with pytest.raises(MissingPartError, match="one token"):
        _ = probe(model).probe_length
    assert probe(nn.Linear(2, 2)).block_size is None
    assert probe(nn.Linear(2, 2), block_size=6).probe_length == 6


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        (None, None),
        (SimpleNamespace(n_vocab=5), 5),
        (SimpleNamespace(get_vocab_size=lambda: 6), 6),
        (["a", "b", "c"], 3),
        (SimpleNamespace(vocab_size="many"), None),
        (SimpleNamespace(vocab_size=True), None),
    ],
)
def test_tokenizer_sizes_under_any_usual_name(tokenizer: Any, size: int | None) -> None:
    """A flag is not a size."""
    assert tokenizer_vocab_size(tokenizer) == size


def test_added_tokens_are_counted() -> None:
    """Hugging Face's vocab_size leaves them out, len counts them."""

    class Tokenizer:
        vocab_size = 10

        def __len__(self) -> int:
            return 12

    assert tokenizer_vocab_size(Tokenizer()) == 12


# ---- tokens and batches ------------------------------------------------------------------


def test_tokens_depend_on_seed_and_name_only() -> None:
    """Two probes ask with the same tokens, and names are independent."""
    a, b = probe(), probe()
    assert torch.equal(a.tokens(2, 5, "x"), b.tokens(2, 5, "x"))
    assert not torch.equal(a.tokens(2, 5, "x"), a.tokens(2, 5, "y"))
    assert not torch.equal(a.tokens(2, 5), Probe(Pipeline(TinyGPT()), seed=1).tokens(2, 5))
    assert a.tokens(64, 12).max() < 19


def test_batches_come_from_the_users_part_or_are_synthetic() -> None:
    """Pairs, dictionaries, loaders by split, get_batch, and nothing."""
    pair = (torch.zeros(12, 5), torch.ones(12, 5))
    given = probe(batch=pair)
    assert (given.batch.source, given.batch.inputs.shape) == ("batch", (8, 5))  # at most 8 rows
    assert given.batch.inputs.dtype == torch.int64
    assert given.raw_batch.inputs is pair[0]
    splits: list[str] = []
    loaded = probe(batch=lambda split: (splits.append(split), pair)[1])
    assert loaded.batch.source == "batch"
    assert splits == ["train"]
    drawn = probe(
        get_batch=lambda data: (data[None, :4], data[None, 1:5]), train_ids=torch.arange(9)
    )
    assert drawn.batch.source == "get_batch"
    assert torch.equal(drawn.batch.targets, torch.tensor([[1, 2, 3, 4]]))


def test_synthetic_batches_follow_the_declared_labels() -> None:
    """Shifted by one, or the inputs themselves."""
    batch = probe().batch
    assert batch.source == "synthetic"
    assert batch.inputs.shape == (8, 12)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    same = probe(labels="same").batch
    assert torch.equal(same.inputs, same.targets)
    with pytest.raises(MissingPartError, match="get_batch and train_ids"):
        _ = probe().raw_batch


def test_dictionary_batches_bring_their_mask() -> None:
    """Under the usual names."""
    mask = torch.tensor([[1, 1, 0]])
    ids = torch.tensor([[1, 2, 3]])
    batch = read_batch({"input_ids": ids, "labels": ids + 1, "attention_mask": mask}, "batch")
    assert torch.equal(batch.targets, ids + 1)
    assert batch.attention_mask is mask
    assert read_batch({"x": ids, "y": ids}, "batch").attention_mask is None
    with pytest.raises(TypeError, match=r"batch must give .* got keys \['input_ids'\]"):
        read_batch({"input_ids": ids}, "batch")
    with pytest.raises(TypeError, match="got list"):
        read_batch([ids], "batch")


def test_samplers_that_want_numpy_get_it() -> None:
    """The sampler of nanoGPT calls .astype on its data; the user's data is a copy either way."""

    def sample(data: Any) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(data[:4].astype(np.int64))[None]
        return ids, ids + 1

    data = torch.arange(10)
    assert torch.equal(
        probe(get_batch=sample).draw_batch(data).inputs, torch.tensor([[0, 1, 2, 3]])
    )
    with pytest.raises(MissingPartError, match="get_batch"):
        probe().draw_batch(data)

    def rude(data: Tensor) -> tuple[Tensor, Tensor]:
        data.zero_()
        return data[None], data[None]

    probe(get_batch=rude).draw_batch(data)
    assert torch.equal(data, torch.arange(10))


def test_crop_takes_the_columns_that_are_scored() -> None:
    """Columns 3 to 4 hold the only scored targets."""
    inputs = torch.arange(12).reshape(2, 6)
    targets = torch.full((2, 6), -100)
    targets[:, 3:5] = 1
    batch = Batch(inputs, targets, torch.ones(2, 6), "batch").crop(1, 2, -100)
    assert batch.inputs.tolist() == [[3, 4]]
    assert batch.targets.tolist() == [[1, 1]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.shape == (1, 2)
    whole = Batch(inputs, targets).crop(8, 64, -100)
    assert torch.equal(whole.inputs, inputs)


# ---- copies ------------------------------------------------------------------------------


def test_a_lent_model_is_an_independent_copy() -> None:
    """Its weights are equal, its storage is its own; the original keeps mode and gradients."""
    model = TinyGPT().train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = model.head.weight.detach().clone()
    asked = probe(model)
    with asked.model() as copy:
        assert copy is not model
        assert not copy.training
        assert torch.equal(copy.head.weight, before)
        assert copy.head.weight.grad is None
        with torch.no_grad():
            copy.head.weight.zero_()
    assert asked.copies_are_independent
    assert torch.equal(model.head.weight, before)
    assert model.training
    assert model.head.weight.grad is not None
    assert asked.notes == []


def test_jitter_scale_and_precision() -> None:
    """Noise of 0.02 around ten times the weight, in float64, the same each time."""
    model = Bigram(40)
    asked = probe(model)
    with asked.model(exact=True, jitter=0.02, scale=10.0) as copy:
        table = copy.table.weight.detach().clone()
    with asked.model(exact=True, jitter=0.02, scale=10.0) as copy:
        assert torch.equal(copy.table.weight, table)
    noise = table - 10 * model.table.weight.detach().double()
    assert table.dtype == torch.float64
    assert float(noise.std()) == pytest.approx(0.02, rel=0.05)
    assert asked.runs_in_float64


def test_noise_is_the_same_for_every_copy_and_no_copy_writes_into_it() -> None:
    """Two tables of one shape get different noise; what is done to a copy does no harm."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    asked = probe(Bigram())
    shaken = []
    for _ in range(2):
        one = copy.deepcopy(model)
        asked._shake(one, 0.5, 1.0)
        shaken.append([parameter.detach().clone() for parameter in one.parameters()])
        for parameter in one.parameters():
            parameter.data.add_(7.0)
    assert all(torch.equal(a, b) for a, b in zip(*shaken, strict=True))
    assert not torch.equal(shaken[0][0], shaken[0][2])


def test_weights_that_lie_over_the_same_numbers_are_shaken_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight.data = model[0].weight.data
    alone = nn.Sequential(copy.deepcopy(model[0]))
    asked = probe(Bigram())
    asked._shake(model, 0.5, 1.0)
    asked._shake(alone, 0.5, 1.0)
    assert torch.equal(model[0].weight, alone[0].weight)


def test_models_that_insist_on_float32_are_not_forced() -> None:
    """With exact=True the copy falls back to the model's own precision."""

    class Single(Bigram):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, None]:
            return super().forward(ids)[0] + torch.zeros(11).to(self.table.weight).float() @ (
                torch.eye(11)
            ).to(self.table.weight.dtype), None

    asked = probe(Single())
    assert not asked.runs_in_float64
    with asked.model(exact=True) as copy:
        assert copy.table.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("model", "words"),
    [(Closed(), "closure over another one"), (Uncopyable(9), "cannot be deep-copied")],
    ids=["closure", "refuses"],
)
def test_where_no_copy_is_possible_the_original_is_lent_and_restored(
    model: nn.Module, words: str
) -> None:
    """With other storage, so that training the loan leaves the weights alone; a note says so."""
    asked = probe(model)
    before = model.table.weight.detach().clone()  # type: ignore[union-attr,operator]
    with asked.model(train=True, jitter=1.0) as loan:
        assert loan is model
        assert not torch.equal(model.table.weight, before)  # type: ignore[arg-type]
    assert torch.equal(model.table.weight, before)  # type: ignore[arg-type]
    assert any(words in note for note in asked.notes)


class Stateful(Recurrent):
    """Keeps its hidden state in a plain attribute from call to call."""

    kept: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add the mean of the last call's logits to this one's."""
        out = super().forward(*args, **kwargs)
        logits = out[0] if isinstance(out, tuple) else out
        moved = logits if self.kept is None else logits + self.kept
        self.kept = logits.detach().mean()
        return (moved, *out[1:]) if isinstance(out, tuple) else moved


def test_a_copy_of_a_model_that_keeps_state_is_its_own() -> None:
    """Its second call differs from its first, which says nothing about the original's weights."""
    model = Stateful()
    asked = probe(model)
    assert asked.copies_are_independent
    assert asked.notes == []
    assert model.kept is None


def test_fresh_models_come_from_make_model_and_never_are_the_users_own() -> None:
    """make_model=lambda: model would have its model trained."""
    model, made = Bigram(9), Bigram(9)
    with probe(model, make_model=lambda: made).model(fresh=True) as fresh:
        assert fresh is made
    with probe(model, make_model=lambda: model).model(fresh=True) as fresh:
        assert fresh is not model
    with probe(model).model(fresh=True) as fresh:
        assert fresh is not model


def test_seeded_calls_repeat_and_leave_the_global_state_alone() -> None:
    """Names make independent draws."""
    asked, state = probe(), torch.get_rng_state()
    with asked.seeded("a"):
        first = torch.rand(2)
    with asked.seeded("a"):
        assert torch.equal(torch.rand(2), first)
    with asked.seeded("b"):
        assert not torch.equal(torch.rand(2), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_logits_of_the_last_position_only_are_a_missing_part() -> None:
    """Such a model needs a forward of the user's."""

    class Last(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, -1]

    model = Last()
    with pytest.raises(MissingPartError, match="last position only"):
        probe(model).logits(model, torch.zeros(2, 4, dtype=torch.long))


def test_noise_of_a_healthy_model_is_nothing() -> None:
    """Equal rows in other places of the batch give equal logits."""
    asked = probe()
    with asked.model(exact=True) as model:
        assert asked.noise(model, asked.tokens(3, 6)) < 1e-12


class Unsaid(nn.Module):
    """Knows at most `block` positions and says so nowhere; id V - 1 is read, never predicted."""

    def __init__(self, block: int, *, table: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.positions = nn.Embedding(block, 4) if table else None
        self.head = nn.Linear(4, 8)
        self.limit = block

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(ids.shape[1]))
        elif ids.shape[1] > self.limit:
            raise ValueError("too long")
        logits: Tensor = self.head(hidden)
        return logits


@pytest.mark.parametrize(("block", "table"), [(12, True), (100, True), (12, False)])
def test_block_that_nothing_says_is_found_by_trying(block: int, table: bool) -> None:
    """A table of positions proposes its length; without one, rows of up to 32 are tried."""
    assert probe(Unsaid(block, table=table)).block_size == block


def test_length_that_the_batch_needs_is_no_block() -> None:
    """A model that raises on rows of its own batch has a fault, not a limit."""
    ids = torch.zeros(2, 20, dtype=torch.long)
    assert probe(Unsaid(12, table=False), batch=(ids, ids)).block_size is None


def test_rows_that_are_only_read_are_not_in_the_vocabulary() -> None:
    """Nine rows are embedded, eight are predicted: the ninth is padding or a start sign."""
    assert probe(Unsaid(12, table=True)).vocab_size == 8


class _HalfMasked(nn.Module):
    """Scores in the model's dtype, softmax in float32, as eager attention of Gemma 2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=9)
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedding(input_ids)
        T = x.shape[1]
        near = torch.ones(T, T).tril().triu(-1).bool()
        seen = near if attention_mask is None else near & attention_mask[:, None].bool()
        shut = torch.zeros_like(x[:1, :1, :1]).masked_fill(~seen, torch.finfo(x.dtype).min)
        scores = x @ x.transpose(1, 2) + shut
        return self.head(scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ x)


def test_a_masked_batch_that_only_float64_breaks_is_not_computed_in_it() -> None:
    """The smallest float64 is -inf in float32: a row that sees pads only has no softmax there."""
    ids = torch.randint(9, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    parts = {"input_ids": ids, "labels": ids.roll(-1, 1)}
    unmasked = Probe(Pipeline(_HalfMasked(), batch=parts))
    assert unmasked.batch_runs_in_float64
    masked = Probe(Pipeline(_HalfMasked(), batch=parts | {"attention_mask": mask}))
    assert masked.runs_in_float64
    assert not masked.batch_runs_in_float64
    masked.pipeline.make_optimizer = lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert diagnose(masked.pipeline, only=["optimizer"])["optimizer"].status is Status.PASS
