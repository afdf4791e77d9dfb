"""Initial loss: ln V for who knows nothing; confidence, leaks and cloned layers are told apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_initial_loss, diagnose
from diagnostics._init_weights import find_identical_layers, find_one_memory, find_patterns
from diagnostics._probe import Probe
from diagnostics.initial_loss import measure_baselines, measure_start
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
    random_pair,
)

SKEWED = torch.tensor([0, 0, 0, 1]).repeat(100)  # entropy of 3/4, 1/4: 0.5623 nats


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _uniform(V: int) -> Bigram:
    model = Bigram(V)
    nn.init.zeros_(model.table.weight)
    return model


def test_uniform_model_scores_exactly_ln_v() -> None:
    """All logits 0: ln 16 = 2.7726 nats, without any spread."""
    start = measure_start(Probe(Pipeline(_uniform(16))), fresh=False)
    assert start.loss_random == pytest.approx(math.log(16), abs=1e-6)
    assert start.reported_random == pytest.approx(math.log(16), abs=1e-6)
    assert start.baseline == pytest.approx(2.7725887, abs=1e-6)
    assert start.logit_std == 0.0


def test_confident_table_by_hand() -> None:
    """Logits (10, 0, 0, 0): logsumexp is 10.000136, the mean 2.5, so that the loss is 7.5001."""
    model = _uniform(4)
    with torch.no_grad():
        model.table.weight[:, 0] = 10.0
    start = measure_start(Probe(Pipeline(model)), fresh=False)
    assert start.loss_random == pytest.approx(7.500136, abs=1e-4)
    assert start.class_share == pytest.approx(1.0)  # the same at every position


def test_baselines_by_hand() -> None:
    """Three zeros to one 1: entropy 0.5623 (+ 1 / 800); pairs 00, 00, 01, 10: sqrt(6) / 4."""
    inputs, targets = SKEWED[None], SKEWED.roll(-1)[None]
    pipeline = Pipeline(_uniform(2), train_ids=SKEWED, batch=(inputs, targets))
    probe = Probe(pipeline)
    baselines = measure_baselines(probe, probe.batch)
    assert baselines.uniform == pytest.approx(math.log(2))
    assert baselines.unigram == pytest.approx(0.5623351 + 1 / 800, abs=1e-6)
    assert baselines.concentration == pytest.approx(math.sqrt(6) / 4)
    assert baselines.exchanged == pytest.approx(math.log(2), abs=1e-6)
    assert baselines.loss == pytest.approx(math.log(2), abs=1e-6)


def _zero_head() -> TinyGPT:
    model = TinyGPT(65)
    nn.init.zeros_(model.head.weight)
    return model


class _Shut(TinyGPT):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.hidden(ids)).clone()
        logits[..., 16:] = -math.inf
        return logits, None if targets is None else cross_entropy(logits, targets)


HEALTHY: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "GPT-2 init": lambda: (TinyGPT(65, C=64, H=4, std=0.02), {}),
    "GPT-2 init, 768 wide": lambda: (TinyGPT(65, C=768, L=1, std=0.02), {}),
    "torch's default": lambda: (TinyGPT(65, C=64), {}),
    "torch's default, small": lambda: (TinyGPT(19), {}),
    "tied, small": lambda: (TinyGPT(65, C=64, tied=True, std=0.02), {}),
    "zero head": lambda: (_zero_head(), {}),
    "gru": lambda: (Recurrent(), {}),
    "convolution": lambda: (Convolution(), {}),
    "experts": lambda: (MixtureOfExperts(), {}),
    "hugging face": lambda: (HFStyle(), {"labels": "same"}),
    "padded, open": lambda: (TinyGPT(64), {"vocab_size": 60}),
    "padded, shut": lambda: (_Shut(), {"vocab_size": 16}),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("fresh", [None, True])
def test_healthy_starts_pass(name: str, fresh: bool | None) -> None:
    """All of them lie less than 0.35 nats above ln V."""
    model, parts = HEALTHY[name]()
    result = check_initial_loss(model, fresh=fresh, **parts)
    assert (result.status, result.reason) == (Status.PASS, "initial_loss.ok")
    assert result.numbers["judged_as"] == "fresh"


def test_bigram_table_only_warns() -> None:
    """N(0, 1) logits cost half a nat, in every lecture about them."""
    result = check_initial_loss(Bigram(65), fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.too_high")


def test_tied_unit_variance_embedding_is_named() -> None:
    """nn.Embedding's N(0, 1) as a head: more than ten nats above ln V."""
    result = check_initial_loss(TinyGPT(65, C=32, tied=True))
    assert (result.status, result.reason) == (Status.FAIL, "initial_loss.too_high")
    assert "shares the token embedding" in result.causes[0]


def test_wide_head_is_named() -> None:
    """A head of standard deviation 1 over 32 normed numbers."""
    model = TinyGPT(65, C=32)
    nn.init.normal_(model.head.weight)
    result = check_initial_loss(model)
    assert result.status is Status.FAIL
    assert "the head's weights have standard deviation" in result.causes[0]


def test_large_bias_is_named() -> None:
    """The same tokens are favoured at every position."""
    model = Recurrent(65)
    with torch.no_grad():
        model.head.bias.copy_(3 * torch.randn(65))
    result = check_initial_loss(model, fresh=True)
    assert result.status is Status.FAIL
    assert any("same at every position" in cause for cause in result.causes)


def test_logits_without_any_cause_give_none() -> None:
    """Scaled logits: nothing in the weights points anywhere, and no cause is invented."""

    class Scaled(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            logits = 8 * self.head(self.hidden(ids))
            return logits, None

    result = check_initial_loss(Scaled(65), fresh=True)
    assert result.status is Status.FAIL
    assert result.causes == ()


def test_model_that_peeks_at_its_targets_is_too_low() -> None:
    """The targets are added to the logits: even random ones are known."""

    class Peeking(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            logits = self.head(self.hidden(ids))
            if targets is None:
                return logits, None
            logits = logits + nn.functional.one_hot(targets, logits.shape[-1])
            return logits, cross_entropy(logits, targets)

    result = check_initial_loss(Peeking(), fresh=True)
    assert (result.status, result.reason) == (Status.FAIL, "initial_loss.too_low")
    assert "random tokens" in result.claim


def test_copying_batch_with_tied_weights_is_too_low() -> None:
    """Targets equal to the inputs: tied embeddings know them before any training."""
    model = TinyGPT(65, C=64, L=1, tied=True, std=0.1, positions=False)
    inputs, targets = random_pair(65, B=8)
    assert check_initial_loss(model, inputs, targets, fresh=True).reason == "initial_loss.ok"
    result = check_initial_loss(model, inputs, inputs, fresh=True)
    assert result.reason == "initial_loss.too_low"
    assert "its own batch" in result.claim


def _cloned() -> TinyGPT:
    model = TinyGPT(65, L=3)
    model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(3))
    return model


def test_cloned_layers_fail_only_where_fresh_is_sure() -> None:
    """Deepcopy of one block; a trained model may repeat layers on purpose."""
    result = check_initial_loss(_cloned(), fresh=True)
    assert (result.status, result.reason) == (Status.FAIL, "initial_loss.identical_layers")
    assert "blocks.1" in result.claim
    assert check_initial_loss(_cloned(), make_model=_cloned).reason.endswith("identical_layers")
    assert check_initial_loss(_cloned()).reason == "initial_loss.ok"


def test_layers_that_torch_copies_warn() -> None:
    """nn.TransformerEncoder deep-copies its layer; a person may want to draw again."""

    class Encoder(TinyGPT):
        def __init__(self) -> None:
            super().__init__(L=0)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def hidden(self, ids: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            return self.norm(self.encoder(self.tokens(ids), mask=mask.to(self.head.weight)))

    result = check_initial_loss(Encoder(), fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.identical_layers")


def test_shared_layers_and_equal_norms_are_not_clones() -> None:
    """One block object at every depth is a design; norms and biases are equal by design."""
    model = TinyGPT(65, L=3)
    assert find_identical_layers(model) == []
    model.blocks = nn.ModuleList([model.blocks[0]] * 3)
    assert find_identical_layers(model) == []
    for block in TinyGPT(65, L=3).blocks:
        nn.init.eye_(block.attention.output.weight)
    result = check_initial_loss(model, fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.layers_share_weights")


@pytest.mark.parametrize(
    "fill",
    [
        lambda w: torch.full_like(w, 0.02),
        lambda w: 0.02 * torch.arange(w.numel()).sin().view_as(w),
        lambda w: 0.02 * torch.randn(1, w.shape[1]).expand_as(w),
    ],
    ids=["constant", "wave", "equal rows"],
)
def test_patterned_weights_fail(fill: Callable[[Tensor], Tensor]) -> None:
    """A constant, a wave and equal rows have rank 1 or 2."""
    model = TinyGPT(65)
    with torch.no_grad():
        model.blocks[1].mlp[0].weight.copy_(fill(model.blocks[1].mlp[0].weight))
    result = check_initial_loss(model, fresh=True)
    assert (result.status, result.reason) == (Status.FAIL, "initial_loss.patterned_weights")
    assert result.numbers["patterned"] == ["blocks.1.mlp.0.weight"]


def _declared(*, std: float = 0.02, tied: bool = False, **settings: Any) -> TinyGPT:
    """A GPT with numbers enough for a spread, and a configuration that says something."""
    model = TinyGPT(C=32, block=32, std=std, tied=tied)
    for name, value in settings.items():
        setattr(model.config, name, value)
    return model


@pytest.mark.parametrize(
    ("settings", "std", "reason"),
    [
        ({"initializer_range": 0.02}, 0.02, "ok"),
        ({"initializer_range": 0.02}, 0.02**2, "std_and_variance"),
        ({"initializer_range": 0.02}, 0.02**0.5, "std_and_variance"),
        ({"init_variance": 0.0004}, 0.02, "ok"),
        ({"init_variance": 0.0004}, 0.0004, "std_and_variance"),
        ({"initializer_range": 0.02}, 0.05, "ok"),  # a declaration that nothing uses
        ({}, 0.0004, "ok"),
    ],
)
def test_variance_and_standard_deviation_change_places(
    settings: dict[str, Any], std: float, reason: str
) -> None:
    result = check_initial_loss(_declared(std=std, **settings), fresh=True)
    assert result.reason == f"initial_loss.{reason}"


def test_a_start_of_torch_that_lies_near_the_root_of_an_unused_setting_passes() -> None:
    """Rows of 16 numbers start at 0.144, near the root of 0.02; the tables do not."""
    model = TinyGPT(V=64, C=16, block=32)
    model.config.initializer_range = 0.02
    assert check_initial_loss(model, fresh=True).reason == "initial_loss.ok"


def test_a_declared_tie_is_compared_with_the_tensors() -> None:
    missing = check_initial_loss(_declared(tie_word_embeddings=True), fresh=True)
    assert (missing.status, missing.reason) == (Status.FAIL, "initial_loss.not_tied")
    assert "head" in missing.claim
    assert "tokens" in missing.claim
    there = check_initial_loss(_declared(tie_word_embeddings=True, tied=True), fresh=True)
    assert there.reason == "initial_loss.ok"
    apart = check_initial_loss(_declared(tie_word_embeddings=False), fresh=True)
    assert apart.reason == "initial_loss.ok"
    only_there = check_initial_loss(_declared(tie_word_embeddings=False, tied=True), fresh=True)
    assert (only_there.status, only_there.reason) == (Status.WARN, "initial_loss.tied")


def test_a_head_that_is_a_copy_of_the_embedding_warns() -> None:
    """Equal numbers in two tensors were tied once; two tensors of zeros were not."""
    model = _declared(tied=True)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    result = check_initial_loss(model, fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.equal_not_tied")
    assert "head" in result.claim
    for weight in (model.head.weight, model.tokens.weight):
        nn.init.zeros_(weight)
    assert check_initial_loss(model, fresh=True).reason == "initial_loss.ok"


def test_a_tie_of_the_numbers_alone_warns() -> None:
    """Values are shared, gradients are not; parts of one buffer, as in a GRU, do not overlap."""
    view = _declared(tie_word_embeddings=True)
    view.head.weight.data = view.tokens.weight.data
    result = check_initial_loss(view, fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.one_memory")
    assert result.numbers["moves_times"] is None
    buffer = torch.randn(2, 3, 4)
    parts = nn.ParameterList(nn.Parameter(part) for part in buffer)
    assert find_one_memory(parts) == []
    assert find_one_memory(nn.ParameterList([*parts, nn.Parameter(buffer[1])])) == [("1", "2")]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_tie_of_the_numbers_alone_that_an_optimizer_moves_twice_fails(kind: Any) -> None:
    """Both parameters are stepped, each over the same numbers: 2 times one step."""
    view = _declared(tie_word_embeddings=True)
    view.head.weight.data = view.tokens.weight.data
    result = check_initial_loss(
        view, fresh=True, make_optimizer=lambda m: kind(m.parameters(), lr=0.01, weight_decay=0.0)
    )
    assert (result.status, result.reason) == (Status.FAIL, "initial_loss.one_memory")
    assert result.numbers["moves_times"] == pytest.approx(2.0, rel=1e-3)

    only_one = check_initial_loss(
        view, fresh=True, make_optimizer=lambda m: kind([m.tokens.weight], lr=0.01)
    )
    assert (only_one.status, only_one.reason) == (Status.WARN, "initial_loss.one_memory")


def test_one_layer_in_every_place_warns() -> None:
    """ALBERT does so on purpose; a layer that is called in a loop has one name only."""
    model = TinyGPT(std=0.02)
    model.blocks = nn.ModuleList([model.blocks[0]] * 3)
    result = check_initial_loss(model, fresh=True)
    assert (result.status, result.reason) == (Status.WARN, "initial_loss.layers_share_weights")
    assert "blocks.1" in result.claim

    one_norm = TinyGPT(std=0.02)
    one_norm.blocks[1].norm1 = one_norm.blocks[0].norm1
    assert check_initial_loss(one_norm, fresh=True).reason == "initial_loss.layers_share_weights"
    looped = TinyGPT(std=0.02, L=1)
    assert check_initial_loss(looped, fresh=True).reason == "initial_loss.ok"


def test_zero_identity_and_orthogonal_are_no_pattern() -> None:
    """All three are used on purpose."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    nn.init.zeros_(model[0].weight)
    nn.init.eye_(model[1].weight)
    nn.init.eye_(model[2].weight)
    nn.init.orthogonal_(model[3].weight)
    assert find_patterns(model) == []
    assert find_identical_layers(model) == []


def test_nan_in_a_weight_is_no_pattern() -> None:
    """NaN has no rank; the search goes on with the next matrix."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    nn.init.constant_(model[0].weight, math.nan)
    nn.init.constant_(model[1].weight, 0.02)
    assert find_patterns(model) == ["1.weight"]


class Decaying(nn.Module):
    """A layer with the decays of a state-space model: one row, repeated, in every layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.arange(1.0, 17.0).log().repeat(width, 1))
        self.weight = nn.Parameter(torch.randn(width, width))


def test_decays_of_a_state_space_model_are_no_copies_and_no_pattern() -> None:
    """A rule fills them alike in each layer; the drawn matrix beside them is still watched."""
    model = nn.Sequential(Decaying(), Decaying())
    assert find_identical_layers(model) == []
    assert find_patterns(model) == []
    with torch.no_grad():
        model[1].weight.copy_(model[0].weight)
    assert find_identical_layers(model) == [("0.weight", "1.weight")]
    with torch.no_grad():
        model[0].weight.fill_(0.02)
    assert find_patterns(model) == ["0.weight"]


def test_factory_that_loads_learnt_weights_is_not_judged_as_fresh() -> None:
    """Tuning starts from a loaded model: confident on random tokens, and right on its own data."""
    ids = torch.arange(16).repeat(20)
    model = _uniform(16)
    with torch.no_grad():
        model.table.weight.copy_(10 * torch.eye(16).roll(1, 1))  # t is followed by t + 1
    batch = (ids[:64].view(4, 16), ids[1:65].view(4, 16))
    parts = {"fresh": False, "train_ids": ids, "make_model": lambda: copy.deepcopy(model)}
    result = check_initial_loss(model, *batch, vocab_size=16, **parts)
    assert (result.status, result.reason) == (Status.PASS, "initial_loss.ok")
    assert result.numbers["judged_as"] == "trained"


def _learnt(strength: float) -> Bigram:
    """A table that knows that 0 follows three times in four, times `strength`."""
    model = _uniform(2)
    with torch.no_grad():
        model.table.weight[:, 0] = strength * math.log(3)
    return model


BATCH = (SKEWED[None, :-1], SKEWED[None, 1:])


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        (_uniform(2), Status.FAIL, "initial_loss.not_trained"),
        (_learnt(1.0), Status.WARN, "initial_loss.barely_trained"),
        (_learnt(-2.0), Status.FAIL, "initial_loss.wrong_weights"),
    ],
)
def test_trained_models_are_compared_with_two_baselines(
    model: Bigram, status: Status, reason: str
) -> None:
    """Ln 2 = not loaded; 0.5623 = a constant predictor; above ln 2 = another tokenizer."""
    result = check_initial_loss(model, *BATCH, fresh=False)
    assert (result.status, result.reason) == (status, reason)
    assert result.numbers["uniform"] == pytest.approx(math.log(2))


def test_model_that_beats_the_constant_predictor_is_taken_for_trained() -> None:
    """0 0 0 1 repeats; a table over the last token knows that 0 follows 1."""
    model = _uniform(2)
    with torch.no_grad():
        model.table.weight.copy_(torch.tensor([[math.log(2), 0.0], [9.0, 0.0]]))
    result = check_initial_loss(model, *BATCH)
    assert (result.status, result.reason) == (Status.PASS, "initial_loss.ok")
    assert result.numbers["judged_as"] == "trained"
    assert check_initial_loss(model, *BATCH, fresh=False).reason == "initial_loss.ok"


def test_moved_norms_tell_a_trained_model() -> None:
    """Without data it cannot be judged, and the part that is missing is named."""
    model = TinyGPT()
    with torch.no_grad():
        model.norm.weight.add_(torch.randn(16))
    result = diagnose(Pipeline(model), only=["initial_loss"])["initial_loss"]
    assert result.status is Status.SKIP
    assert "batch" in result.next_step


def test_unknown_and_confident_only_warns() -> None:
    """No norms, no data, nothing declared: it may be a trained model."""
    model = Recurrent(65)
    with torch.no_grad():
        model.head.weight.mul_(40)
    assert check_initial_loss(model).status is Status.WARN
    assert check_initial_loss(model, fresh=True).status is Status.FAIL


@pytest.mark.parametrize(
    ("loss", "fresh", "status", "reason"),
    [
        (4.18, None, Status.PASS, "ok"),
        (4.7, None, Status.WARN, "too_high"),
        (9.0, True, Status.FAIL, "too_high"),
        (math.nan, True, Status.FAIL, "not_finite"),
        (math.nan, False, Status.FAIL, "not_finite"),
        (2.0, True, Status.FAIL, "too_low"),
        (2.0, False, Status.PASS, "ok"),
        (4.2, False, Status.FAIL, "not_trained"),
    ],
)
def test_a_loss_alone_is_compared_with_ln_65(
    loss: float, fresh: bool | None, status: Status, reason: str
) -> None:
    """Ln 65 = 4.174."""
    result = check_initial_loss(loss, vocab_size=65, fresh=fresh)
    assert (result.status, result.reason) == (status, f"initial_loss.{reason}")
    assert "4.174" in result.claim


def test_a_loss_alone_needs_the_vocabulary() -> None:
    """Ln V cannot be guessed from a number."""
    with pytest.raises(ValueError, match="vocab_size"):
        check_initial_loss(4.2)


def test_nan_model_does_not_pass() -> None:
    """NaN is neither near ln V nor below it."""
    model = TinyGPT()
    with torch.no_grad():
        model.norm.bias[0] = math.nan
    for fresh, told in (
        (True, "the loss of a fresh model on random tokens is not a number"),
        (False, "the loss of a trained model on its own data is not a number"),
    ):
        result = check_initial_loss(model, *random_pair(19), fresh=fresh)
        assert (result.status, result.reason) == (Status.FAIL, "initial_loss.not_finite")
        assert result.claim == told
        assert result.causes == ()


def test_model_comes_back_untouched() -> None:
    """Weights, mode and random state are as before."""
    model = TinyGPT().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    check_initial_loss(model, *random_pair(19), make_model=TinyGPT)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
