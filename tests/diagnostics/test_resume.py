"""Resume: a loaded run equals the run that never stopped, and each usual loss is named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from diagnostics import Pipeline, Status, check_resume, diagnose
from tests.diagnostics.tiny import Bigram, HFStyle, MixtureOfExperts, Recurrent, TinyGPT

State = tuple[nn.Module, Optimizer, int]
MakeModel = Callable[[], nn.Module]


def adam(model: nn.Module) -> Optimizer:
    return AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)


def save_state(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "random": torch.get_rng_state(),
        },
        path,
    )


class Loader:
    """A healthy load_state, parts of which a test replaces."""

    def __init__(
        self,
        make_model: MakeModel = TinyGPT,
        make_optimizer: Callable[[nn.Module], Optimizer] = adam,
        *,
        moments: bool = True,
        random: bool = True,
        after: Callable[[nn.Module, Optimizer, int], Any] = lambda *state: state,
    ) -> None:
        self.make_model, self.make_optimizer = make_model, make_optimizer
        self.moments, self.random, self.after = moments, random, after

    def __call__(self, path: Path) -> State:
        saved = torch.load(path)
        model = self.make_model()
        model.load_state_dict(saved["model"])
        optimizer = self.make_optimizer(model)
        if self.moments:
            optimizer.load_state_dict(saved["optimizer"])
        if self.random:
            torch.set_rng_state(saved["random"])
        return self.after(model, optimizer, saved["step"])


class Dropping(nn.Module):
    """A bigram table with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 17
        self.table = nn.Embedding(17, 17)
        self.dropout = nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.dropout(self.table(ids))


def frozen() -> nn.Module:
    model = TinyGPT()
    model.tokens.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make_model",
    [
        TinyGPT,
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT().bfloat16(),
        lambda: TinyGPT(std=0.0),
        frozen,
        Bigram,
        Recurrent,
        lambda: MixtureOfExperts(shut=True),
        Dropping,
    ],
)
def test_a_complete_checkpoint_passes(make_model: MakeModel) -> None:
    result = check_resume(make_model(), save_state, Loader(make_model), adam)
    assert (result.status, result.reason) == (Status.PASS, "resume.ok")
    assert "batches_from" in result.next_step


def test_a_model_that_shifts_inside_passes() -> None:
    result = check_resume(HFStyle(), save_state, Loader(HFStyle), adam, labels="same")
    assert result.reason == "resume.ok"


def test_an_optimizer_without_moments_passes() -> None:
    def plain(model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.1)

    result = check_resume(TinyGPT(), save_state, Loader(make_optimizer=plain), plain)
    assert result.reason == "resume.ok"


def test_loading_into_the_users_own_model_is_healthy_and_leaves_it_untouched() -> None:
    model = TinyGPT()
    before = copy.deepcopy(model.state_dict())
    result = check_resume(model, save_state, Loader(lambda: model), adam)
    assert result.reason == "resume.ok"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def change_rate(factor: float) -> Callable[..., Any]:
    def after(model: nn.Module, optimizer: Optimizer, step: int) -> State:
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return model, optimizer, step

    return after


def change_decay(model: nn.Module, optimizer: Optimizer, step: int) -> State:
    optimizer.param_groups[0]["weight_decay"] = 0.0
    return model, optimizer, step


def half(model: nn.Module, optimizer: Optimizer, step: int) -> State:
    return model.half().float(), optimizer, step


def thaw(model: nn.Module, optimizer: Optimizer, step: int) -> State:
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model, optimizer, step


def clear_second_moments(model: nn.Module, optimizer: Optimizer, step: int) -> State:
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()
    return model, optimizer, step


def swap_moments(model: nn.Module, optimizer: Optimizer, step: int) -> State:
    same = [p for p in optimizer.param_groups[0]["params"] if p.shape == (16,)]
    a, b = optimizer.state[same[0]], optimizer.state[same[-1]]
    a["exp_avg"], b["exp_avg"] = b["exp_avg"], a["exp_avg"]
    return model, optimizer, step


@pytest.mark.parametrize(
    ("reason", "loader"),
    [
        ("optimizer_state_lost", Loader(moments=False)),
        ("optimizer_state", Loader(after=clear_second_moments)),
        ("moments_swapped", Loader(after=swap_moments)),
        ("optimizer_elsewhere", Loader(after=lambda m, o, s: (copy.deepcopy(m), o, s))),
        ("optimizer_class", Loader(after=lambda m, o, s: (m, SGD(m.parameters(), lr=0.1), s))),
        ("learning_rate", Loader(after=change_rate(2.0))),
        ("learning_rate", Loader(after=change_rate(1e-4))),
        ("settings", Loader(after=change_decay)),
        ("step", Loader(after=lambda m, o, s: (m, o, s - 1))),
        ("step", Loader(after=lambda m, o, s: (m, o, s + 1))),
        ("step", Loader(after=lambda m, o, s: (m, o, 0))),
        ("weights", Loader(after=half)),
    ],
)
def test_what_is_not_restored_is_named(reason: str, loader: Loader) -> None:
    result = check_resume(TinyGPT(), save_state, loader, adam)
    assert (result.status, result.reason) == (Status.FAIL, f"resume.{reason}")
    assert result.measured
    assert result.expected
    assert result.next_step


def test_causes_follow_the_numbers() -> None:
    """Twice the halved rate is the first rate; a step less is saved before it is counted."""

    def cause(after: Callable[..., Any]) -> str:
        return check_resume(TinyGPT(), save_state, Loader(after=after), adam).causes[0]

    assert "starts again" in cause(change_rate(2.0))
    assert "factor" in cause(change_rate(1e-4))
    assert "before it is counted" in cause(lambda m, o, s: (m, o, s - 1))
    assert "starts at 0" in cause(lambda m, o, s: (m, o, 0))
    assert "float16" in cause(half)


def test_a_rate_that_the_loop_sets_at_every_step_is_a_warning() -> None:
    result = check_resume(
        TinyGPT(),
        save_state,
        Loader(after=change_rate(2.0)),
        adam,
        learning_rate=lambda step: 1e-2,
    )
    assert (result.status, result.reason) == (Status.WARN, "resume.learning_rate")


def test_a_schedule_that_starts_again_is_named_by_its_first_rate() -> None:
    """The loaded optimizer has the rate of step 0, in the middle of a warm-up."""

    def at_first_rate(model: nn.Module, optimizer: Any, step: int) -> tuple[Any, Any, int]:
        optimizer.param_groups[0]["lr"] = 2e-4
        return model, optimizer, step

    result = check_resume(
        TinyGPT(),
        save_state,
        Loader(after=at_first_rate),
        adam,
        learning_rate=lambda step: 2e-4 * (step + 1),
    )
    assert result.reason == "resume.learning_rate"
    assert "the schedule restarts" in result.causes[0]


def test_frozen_parameters_and_ties_come_back() -> None:
    result = check_resume(frozen(), save_state, Loader(frozen, after=thaw), adam)
    assert result.reason == "resume.frozen"
    assert "tokens.weight" in result.measured

    def untie(model: Any, optimizer: Optimizer, step: int) -> State:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return model, optimizer, step

    make: MakeModel = lambda: TinyGPT(tied=True)  # noqa: E731
    result = check_resume(make(), save_state, Loader(make, after=untie), adam)
    assert result.reason == "resume.untied"
    assert "head.weight" in result.measured


def test_references_in_place_of_copies_are_told() -> None:
    kept: list[State] = []
    result = check_resume(
        TinyGPT(), lambda m, o, s, path: kept.append((m, o, s)), lambda path: kept[0], adam
    )
    assert result.reason == "resume.weights"
    assert "references" in result.causes[0]


def test_saving_must_leave_the_live_run_alone() -> None:
    def switches(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        save_state(model.eval(), optimizer, step, path)

    def rounds(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        save_state(model.half().float(), optimizer, step, path)

    for save in (switches, rounds):
        assert check_resume(TinyGPT(), save, Loader(), adam).reason == "resume.save_changes"


def test_a_random_state_that_is_lost_is_a_warning_where_steps_draw() -> None:
    lost = Loader(Dropping, random=False)
    result = check_resume(Dropping(), save_state, lost, adam)
    assert (result.status, result.reason) == (Status.WARN, "resume.random_state")
    assert check_resume(TinyGPT(), save_state, Loader(random=False), adam).reason == "resume.ok"


def test_a_loaded_model_that_stays_in_eval_mode_diverges() -> None:
    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss

    loader = Loader(Dropping, after=lambda m, o, s: (m.eval(), o, s))
    result = check_resume(Dropping(), save_state, loader, adam, train_step=step)
    assert result.reason == "resume.diverges"
    assert "eval mode" in result.causes[0]


DATA = torch.randint(50, (3000,), generator=torch.Generator().manual_seed(0))


def draw(generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    places = torch.randint(2900, (4, 1), generator=generator) + torch.arange(8)
    return DATA[places], DATA[places + 1]


def seeded_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield draw(torch.Generator().manual_seed(step))
        step += 1


def global_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield draw(None)


def reseeding_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    torch.manual_seed(1337)
    return global_from(step)


@pytest.mark.parametrize(
    ("status", "reason", "batches_from"),
    [
        (Status.PASS, "ok", seeded_from),
        (Status.FAIL, "data_replayed", lambda step: seeded_from(0)),
        (Status.FAIL, "data_replayed", reseeding_from),
        (Status.FAIL, "data_order", lambda step: seeded_from(max(0, step - 1))),
        (Status.FAIL, "data_order", lambda step: seeded_from(100 * step)),
        (Status.FAIL, "data_order", lambda step: iter(())  if step else seeded_from(0)),
        (Status.WARN, "fresh_order", global_from),
    ],
)  # fmt: skip
def test_batches_go_on_where_they_stopped(
    status: Status, reason: str, batches_from: Callable[[int], Any]
) -> None:
    report = diagnose(Pipeline(Bigram(), batches_from=batches_from), only=["resume"])
    assert (report["resume"].status, report["resume"].reason) == (status, f"resume.{reason}")


def test_micro_batches_count_as_one_step() -> None:
    """With two batches a step, step 3 begins with batch 6 of the run."""

    def doubled(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        return seeded_from(2 * step)

    for micro, reason in ((2, "resume.ok"), (1, "resume.data_order")):
        pipeline = Pipeline(Bigram(), batches_from=doubled, micro_batches=micro)
        assert diagnose(pipeline, only=["resume"])["resume"].reason == reason


def test_without_its_parts_it_is_a_skip_that_names_them() -> None:
    result = diagnose(Pipeline(Bigram()), only=["resume"])["resume"]
    assert result.status is Status.SKIP
    assert "save_state and load_state or batches_from" in result.next_step
    pipeline = Pipeline(Bigram(), save_state=save_state, load_state=Loader(Bigram))
    result = diagnose(pipeline, only=["resume"])["resume"]
    assert result.status is Status.SKIP
    assert "make_optimizer" in result.next_step


def test_a_suffix_that_save_refuses_is_tried_again_with_another() -> None:
    def to_folder(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        if path.suffix:
            raise ValueError("a folder has no suffix")
        save_state(model, optimizer, step, path)

    assert check_resume(TinyGPT(), to_folder, Loader(), adam).reason == "resume.ok"


def test_the_global_random_state_stays() -> None:
    model = Dropping()
    before = torch.get_rng_state()
    check_resume(model, save_state, Loader(Dropping), adam)
    assert torch.equal(before, torch.get_rng_state())


class Averaging(Bigram):
    """A table with a running average of its rows, and on request a table made at the first call."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("average", self.table.weight.detach().clone(), persistent=persistent)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        if self.training:
            with torch.no_grad():
                self.get_buffer("average").lerp_(self.table.weight, 0.1)
        return super().forward(ids, targets)


@pytest.mark.parametrize("found", ["average", "nothing"])
def test_a_buffer_that_training_moves_must_come_back(found: str) -> None:
    """Without it in the file the average starts again as in a new model."""

    def save(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        save_state(model, optimizer, step, path)
        saved = torch.load(path)
        if found != "average":
            del saved["model"]["average"]
        torch.save(saved, path)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Averaging()

    class Loose(Loader):
        def __call__(self, path: Path) -> State:
            saved, model = torch.load(path), make()
            model.load_state_dict(saved["model"], strict=False)
            optimizer = adam(model)
            optimizer.load_state_dict(saved["optimizer"])
            torch.set_rng_state(saved["random"])
            return model, optimizer, saved["step"]

    result = check_resume(make(), save, Loose(), adam)
    if found == "average":
        assert result.reason == "resume.ok"
        return
    assert (result.status, result.reason) == (Status.FAIL, "resume.buffers")
    assert result.claim.startswith("1 of 1 buffer that training moves comes back changed")
    assert "start again" in result.causes[0]


def test_a_buffer_that_is_not_persistent_is_left_alone() -> None:
    """It is made anew, like a table of angles; where it acts, the runs part."""
    result = check_resume(
        Averaging(persistent=False), save_state, Loader(lambda: Averaging(persistent=False)), adam
    )
    assert result.reason == "resume.ok"
