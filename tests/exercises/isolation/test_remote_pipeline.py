"""A pipeline in another process gets the verdicts that it gets here, and no lie gets a PASS."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Report, Status
from diagnostics._catalog import CATALOG
from diagnostics._clone import clone
from diagnostics._trace import record_calls
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises.isolation import remote_pipeline as remote
from exercises.isolation.channel import Channel, RemoteError, serve
from exercises.isolation.pipeline_server import answers
from exercises.isolation.wire import JSON_BYTES_MAX
from minigpt import MiniGPT

# the order of a set depends on the process, and that of the other one cannot be known here
OTHERWISE = {"fingerprint.set": (Status.WARN, "fingerprint.unknown_order")}
# checks that compute for a long time; their healthy runs are slow tests
HEAVY = frozenset(
    {"accumulation", "batches", "evaluation", "generation", "gradients", "honesty", "optimizer",
     "overfit", "prefix", "resume", "schedule", "shapes", "training_step"}
)  # fmt: skip
# a stand-in here cannot be forked into ranks that hold the code over there
NOT_REMOTE = frozenset({"distributed"})
QUICK_BUGS = frozenset(
    {
        "environment.hook", "files.stale", "roundtrip.lowercased", "fingerprint.order",
        "range.wrapped", "text.thinned", "split.same_file", "shift.identical",
        "modes.unmasked_training", "forward_hooks.masked_row", "loss.double_softmax",
        "initial_loss.cloned", "batch_independence.alone", "causal_independence.no_mask",
        "positions.constant", "context.diagonal", "padding.replaced", "gradients.plain_list",
        "optimizer.left_out", "checkpoint.heads", "generation.prompt_lost",
        "sampling.changed_in_place", "schedule.not_applied", "training_step.not_cleared",
    }
)  # fmt: skip


def exercise(check: str) -> Exercise:
    found: Exercise = importlib.import_module(f"exercises.break_{check}").EXERCISE
    return found


def bugs() -> Iterator[Any]:
    for check in [name for name in CATALOG if name not in NOT_REMOTE]:
        for bug in exercise(check).bugs:
            name = f"{check}.{bug.name}"
            marks = () if name in QUICK_BUGS else (pytest.mark.thorough,)
            yield pytest.param(check, bug, id=name, marks=marks)


# ---- the other process -------------------------------------------------------------------------


def healthy() -> Pipeline:
    return Lab().pipeline()


def broken(check: str, name: str) -> Callable[[], Pipeline]:
    (bug,) = (bug for bug in exercise(check).bugs if bug.name == name)
    return lambda: bug.break_it(Lab())


def serve_pipeline(connection: socket.socket, build: Any, arguments: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    channel = Channel(connection)
    serve(channel, answers(build(*arguments) if arguments else build, channel))


def serve_bytes(connection: socket.socket, message: bytes, after: int) -> None:
    """Serve the healthy pipeline up to a number of questions, then send these bytes."""
    channel = Channel(connection)
    table = answers(healthy, channel)
    for _ in range(after):
        name, *arguments = channel.receive()
        channel.send(("value", table[name](*arguments)))
    channel.receive()
    connection.sendall(message)


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[Channel]:
    """Run a function of (connection, ...) in a process that shares nothing with this one."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        # torch imports its compiler, for seconds, when the first optimizer is made
        modules = ["torch._dynamo", "exercises._lab", "exercises.isolation.pipeline_server"]
        context.set_forkserver_preload(modules)
    here, there = socket.socketpair()
    child: BaseProcess = context.Process(target=target, args=(there, *arguments), daemon=True)
    child.start()
    there.close()
    channel = Channel(here)
    try:
        yield channel
    finally:
        with suppress(OSError):
            channel.close()
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()


def examined(build: Any, *arguments: str, only: list[str], served: Any = serve_pipeline) -> Report:
    with process(served, build, arguments) as channel:
        return remote.diagnose_remote(channel, only=only)


# ---- the same verdicts -------------------------------------------------------------------------


def test_quick_bugs_exist() -> None:
    """A bug that was renamed does not leave the quick tests unseen."""
    names = {f"{check}.{bug.name}" for check in CATALOG for bug in exercise(check).bugs}
    assert names >= QUICK_BUGS


def test_light_checks_pass_as_they_do_here() -> None:
    """The healthy pipeline passes, with a reason of its own for each check, in another process."""
    light = [check for check in CATALOG if check not in HEAVY | NOT_REMOTE]
    report = examined(healthy, only=light)
    got = {result.check: (result.status, result.reason) for result in report.results}
    assert got == {check: (Status.PASS, f"{check}.ok") for check in light}
    assert report.notes == ()


def test_checks_that_need_the_code_itself_are_skipped() -> None:
    report = examined(healthy, only=sorted(NOT_REMOTE))
    got = {result.check: (result.status, result.reason) for result in report.results}
    assert got == {check: (Status.SKIP, f"{check}.missing_part") for check in NOT_REMOTE}


@pytest.mark.slow
def test_heavy_checks_pass_as_they_do_here() -> None:
    report = examined(healthy, only=sorted(HEAVY))
    got = {result.check: (result.status, result.reason) for result in report.results}
    assert got == {check: (Status.PASS, f"{check}.ok") for check in HEAVY}


@pytest.mark.parametrize(("check", "bug"), list(bugs()))
def test_bug_is_found_for_the_same_reason(check: str, bug: Bug) -> None:
    report = examined(broken, check, bug.name, only=[bug.trips])
    (result,) = report.results
    expected = OTHERWISE.get(f"{check}.{bug.name}", (Status.FAIL, bug.reason))
    assert (result.status, result.reason) == expected
    assert torch.is_grad_enabled()


# ---- parity of the parts -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def pipelines(lab: Lab) -> Iterator[tuple[Pipeline, Pipeline]]:
    """The healthy pipeline here and over there; models start with the same weights."""
    with process(serve_pipeline, healthy, ()) as channel:
        channel.deadline = None
        yield lab.pipeline(), remote.remote_pipeline(channel)


Pair = tuple[Pipeline, Pipeline]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def tokens() -> Tensor:
    return torch.arange(24).reshape(2, 12)


def test_model_has_names_weights_and_settings(pipelines: Pair) -> None:
    here, there = pipelines
    assert same(state(here.model), state(there.model))
    kinds = [(path, type(module).__name__) for path, module in here.model.named_modules()]
    assert kinds == [(path, type(module).__name__) for path, module in there.model.named_modules()]
    assert there.model.config.block_size == here.model.config.block_size  # type: ignore[union-attr]
    assert isinstance(there.model.token_embedding, nn.Embedding)


def test_logits_loss_and_gradients_are_the_same_bits(pipelines: Pair) -> None:
    found = []
    for pipeline in pipelines:
        model = clone(pipeline.model)
        logits, loss = model(tokens(), tokens() + 1)
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({"logits": logits.detach(), "loss": loss.detach(), **gradients})
    assert len(found[0]) == 31
    assert same(*found)


def test_without_gradients_the_output_has_no_graph(pipelines: Pair) -> None:
    with torch.no_grad():
        logits, _ = pipelines[1].model(tokens())
    assert not logits.requires_grad


def test_a_copy_is_independent_on_both_sides(pipelines: Pair) -> None:
    """Moving the copy moves its logits; the original gives the old ones."""
    model = pipelines[1].model
    before = model(tokens())[0].detach()
    copied = clone(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(2.0)
    assert not torch.equal(copied(tokens())[0], before)
    assert torch.equal(model(tokens())[0], before)


def test_float64_goes_over(pipelines: Pair) -> None:
    here, there = (clone(pipeline.model).double()(tokens())[0] for pipeline in pipelines)
    assert there.dtype is torch.float64
    assert torch.equal(here, there)


def test_random_draws_go_on_where_the_other_side_stopped(pipelines: Pair) -> None:
    """After the same seed both give the same batch, and leave the same random state."""
    found = []
    for pipeline in pipelines:
        torch.manual_seed(5)
        assert pipeline.get_batch is not None
        assert pipeline.train_ids is not None
        inputs, _ = pipeline.get_batch(pipeline.train_ids)
        found.append((inputs, torch.rand(3)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_three_training_steps_give_the_same_weights_and_moments(pipelines: Pair) -> None:
    weights, moments, rates = [], [], []
    for pipeline in pipelines:
        model = clone(pipeline.model)
        assert pipeline.make_optimizer is not None
        assert pipeline.train_step is not None
        optimizer = pipeline.make_optimizer(model)
        for step in range(3):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)
            pipeline.train_step(model, optimizer, tokens(), tokens() + 1)
        weights.append(state(model))
        moments.append({n: optimizer.state[p]["exp_avg_sq"] for n, p in model.named_parameters()})
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert same(*weights)
    assert not same(weights[0], state(pipelines[0].model))
    assert same(*moments)
    assert rates[0] == rates[1] == [0.01 / 3, 0.01 / 3]


def test_step_of_an_optimizer_moves_the_weights_here(pipelines: Pair) -> None:
    moved = []
    for pipeline in pipelines:
        model = clone(pipeline.model)
        assert pipeline.make_optimizer is not None
        optimizer = pipeline.make_optimizer(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        moved.append(state(model))
    assert same(*moved)
    assert not same(moved[1], state(pipelines[1].model))


def test_hooks_on_inner_modules_see_every_call(pipelines: Pair) -> None:
    calls = []
    for pipeline in pipelines:
        model = clone(pipeline.model).eval()
        with torch.no_grad():
            calls.append(record_calls(model, lambda model=model: model(tokens())))  # type: ignore[misc]
    names = [[(call.path, call.kind, len(call.outputs)) for call in each] for each in calls]
    assert names[0] == names[1]
    assert len(names[0]) == 28  # 3 before the blocks, 11 in each of the 2, 3 after them
    pairs = zip(*calls, strict=True)
    assert all(torch.equal(a.outputs[0], b.outputs[0]) for a, b in pairs if a.outputs)


def test_a_hook_may_replace_an_output_and_its_gradient(pipelines: Pair) -> None:
    """Doubling the token embedding doubles its gradient; both sides agree on every bit."""
    found = []
    for pipeline in pipelines:
        model = clone(pipeline.model)
        model.token_embedding.register_forward_hook(lambda module, args, output: 2 * output)  # type: ignore[union-attr,operator]
        logits, loss = model(tokens(), tokens() + 1)
        loss.backward()
        found.append({"logits": logits.detach(), "gradient": model.token_embedding.weight.grad})
    assert same(*found)


def test_what_is_written_into_an_argument_is_written_here(pipelines: Pair) -> None:
    """The healthy function leaves its argument alone."""
    function = pipelines[1].next_token_probabilities
    assert function is not None
    logits = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(function(logits, 1.0, None, None), logits.softmax(-1))
    assert torch.equal(logits, torch.tensor([1.0, 2.0, 3.0]))


def test_a_stream_of_batches_is_read_as_far_as_it_is_asked_for(pipelines: Pair) -> None:
    firsts = []
    for pipeline in pipelines:
        assert pipeline.batches_from is not None
        stream = pipeline.batches_from(3)
        firsts.append([next(stream)[0] for _ in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(*firsts, strict=True))


def test_state_goes_through_a_file_of_the_other_side(pipelines: Pair, tmp_path: Path) -> None:
    """The name is all that goes over: nothing is written here."""
    there = pipelines[1]
    assert there.make_optimizer is not None
    assert there.save_state is not None
    assert there.load_state is not None
    model = clone(there.model)
    there.save_state(model, there.make_optimizer(model), 7, tmp_path / "state.pt")
    loaded, optimizer, step = there.load_state(tmp_path / "state.pt")
    assert step == 7
    assert same(state(loaded), state(model))
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in loaded.parameters()}
    assert list(tmp_path.iterdir()) == []


def test_errors_keep_class_message_and_place(pipelines: Pair) -> None:
    """A call with too long a row raises here what it raises over there, as the same class."""
    here, there = pipelines
    too_long = torch.zeros(1, 40, dtype=torch.long)
    with pytest.raises(ValueError, match="block_size") as local:
        here.model(too_long)
    with pytest.raises(ValueError, match="block_size") as remotely:
        there.model(too_long)
    assert isinstance(remotely.value, RemoteError)
    assert type(remotely.value).__name__ == "ValueError"
    assert str(remotely.value) == str(local.value)
    assert Path(remotely.traceback[-1].path).name == "model.py"


# ---- attacks -----------------------------------------------------------------------------------


def attacked(**parts: Any) -> Pipeline:
    return Lab().pipeline(**parts)


class Agreeable(Tensor):
    """Equal to everything, as far as it is asked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("equal", "allclose", "__eq__", "isfinite", "all"):
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


class Flatterer:
    """An object that is whatever one hopes for."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 4.0

    def __str__(self) -> str:
        return "the text"


def forge_tensors() -> Pipeline:
    def flat(logits: Tensor, *settings: Any) -> Tensor:
        return torch.full_like(logits, 1 / len(logits)).as_subclass(Agreeable)

    return attacked(next_token_probabilities=flat)


def forge_objects() -> Pipeline:
    lab = Lab()
    tokenizer = lab.tokenizer
    type(tokenizer).decode = lambda self, ids: Flatterer()  # type: ignore[method-assign,assignment,return-value]
    return lab.pipeline(evaluate=lambda model, ids: Flatterer())


def give_nan() -> Pipeline:
    class Silent(MiniGPT):
        def forward(self, *args: Any, **named: Any) -> Any:
            logits, loss = super().forward(*args, **named)
            return logits * torch.nan, loss

    return attacked(edit_model=lambda model: _as(model, Silent))


def give_wrong_shapes() -> Pipeline:
    class Short(MiniGPT):
        def forward(self, *args: Any, **named: Any) -> Any:
            logits, loss = super().forward(*args, **named)
            return logits[..., :3], loss

    return attacked(edit_model=lambda model: _as(model, Short))


def give_wrong_targets_and_agree() -> Pipeline:
    """Feed each token as its own target, after patching whatever could notice."""
    lab = Lab()
    torch.allclose = lambda *_, **__: True  # type: ignore[assignment]
    torch.equal = lambda *_, **__: True  # type: ignore[assignment]
    importlib.import_module("diagnostics.shift").run = lambda probe: None
    return lab.pipeline(get_batch=lambda data: (lab.get_batch(data)[0],) * 2)


def give_too_much() -> Pipeline:
    """A text that is longer than a message may be."""
    lab = Lab()
    type(lab.tokenizer).decode = lambda self, ids: "x" * JSON_BYTES_MAX  # type: ignore[method-assign,assignment]
    return lab.pipeline()


def raise_in_generate() -> Pipeline:
    def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        raise LookupError("no words left")

    return attacked(generate=generate)


def leave_at_overlong() -> Pipeline:
    """End the process where a healthy model refuses, so that it looks like a refusal."""

    class Leaving(MiniGPT):
        def forward(self, token_ids: Tensor, *args: Any, **named: Any) -> Any:
            if token_ids.shape[1] > 32:
                os._exit(0)
            return super().forward(token_ids, *args, **named)

    return attacked(edit_model=lambda model: _as(model, Leaving))


def leave_politely() -> Pipeline:
    return attacked(learning_rate=lambda step: sys.exit(0))


def refuse_to_build() -> Pipeline:
    raise ZeroDivisionError("nothing to build")


def build_something_else() -> Any:
    return "a pipeline"


def build_bare_module() -> nn.Module:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vocab_size, self.block_size = 11, 8
            self.table = nn.Embedding(11, 11)

        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            logits = self.table(ids)
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    return Bare()


def _as(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    model.__class__ = kind
    return model


def verdicts(report: Report) -> dict[str, tuple[Status, str]]:
    return {result.check: (result.status, result.reason) for result in report.results}


def test_tensor_subclasses_arrive_as_plain_numbers() -> None:
    report = examined(forge_tensors, only=["sampling"])
    assert report.results[0].status is Status.FAIL


def test_objects_that_equal_everything_arrive_as_strangers() -> None:
    report = examined(forge_objects, only=["roundtrip", "evaluation"])
    assert {status for status, _ in verdicts(report).values()} <= {Status.FAIL, Status.ERROR}


def test_nan_does_not_pass() -> None:
    names = ["forward_hooks", "causal_independence", "modes", "prefix", "shapes"]
    report = examined(give_nan, only=names)
    found = verdicts(report)
    assert found["forward_hooks"] == (Status.FAIL, "forward_hooks.non_finite")
    assert found["causal_independence"][0] is not Status.PASS
    assert found["modes"] == (Status.SKIP, "modes.not_finite")
    assert found["prefix"][0] is not Status.PASS


def test_wrong_shapes_do_not_pass() -> None:
    report = examined(give_wrong_shapes, only=["shapes"])
    assert report.results[0].status is Status.FAIL


def test_patching_torch_over_there_changes_nothing_here() -> None:
    report = examined(give_wrong_targets_and_agree, only=["shift"])
    assert verdicts(report) == {"shift": (Status.FAIL, "shift.identical")}


def test_more_than_the_wire_takes_ends_the_session() -> None:
    report = examined(give_too_much, only=["roundtrip", "shift"])
    assert verdicts(report) == {
        "roundtrip": (Status.ERROR, "roundtrip.raised"),
        "shift": (Status.ERROR, "shift.raised"),
    }
    assert "does not fit" in str(report["roundtrip"].claim)


def test_what_a_part_raises_is_told_under_its_name() -> None:
    report = examined(raise_in_generate, only=["generation"])
    (result,) = report.results
    assert result.status is not Status.PASS
    assert "LookupError" in str(result)
    assert "no words left" in str(result)


def test_sys_exit_is_an_error_of_the_part() -> None:
    report = examined(leave_politely, only=["schedule", "sampling"])
    found = verdicts(report)
    assert found["schedule"][0] in (Status.FAIL, Status.ERROR)
    assert found["sampling"] == (Status.PASS, "sampling.ok")


def test_leaving_at_the_right_moment_is_no_refusal() -> None:
    """What was measured before stays; the check that ran, and all after it, say ERROR."""
    report = examined(leave_at_overlong, only=["shift", "shapes", "context", "sampling"])
    found = verdicts(report)
    assert found["shift"] == (Status.PASS, "shift.ok")
    assert found["context"] == (Status.ERROR, "context.raised")
    assert found["sampling"] == (Status.ERROR, "sampling.raised")
    assert report["sampling"].numbers == {"exception": "PeerGoneError"}
    assert "has ended" in str(report["sampling"].claim)


def test_a_lost_process_ends_a_plain_diagnose() -> None:
    """Through `remote_pipeline` alone, no check can take the end for an exception of the code."""
    with process(serve_pipeline, leave_at_overlong, ()) as channel:
        model = remote.remote_pipeline(channel).model
        with pytest.raises(remote.LostError):
            model(torch.zeros(1, 40, dtype=torch.long))
        assert not issubclass(remote.LostError, Exception)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"PASS" * 40, id="text"),
        pytest.param(struct.pack(">QQ", 10, 1 << 60), id="announces an exbibyte"),
        pytest.param(struct.pack(">QQ", 2, 0) + b"[]", id="no kind"),
        pytest.param(struct.pack(">QQ", 4, 0) + b"true", id="no answer"),
    ],
)
def test_bytes_that_are_no_answer_end_the_session(message: bytes) -> None:
    with process(serve_bytes, message, 3) as channel:
        report = remote.diagnose_remote(channel, only=["sampling", "loss"])
    assert {status for status, _ in verdicts(report).values()} == {Status.ERROR}


def test_silence_ends_with_the_deadline() -> None:
    here, there = socket.socketpair()
    with pytest.raises(remote.LostError, match="used up its time"):
        remote.diagnose_remote(Channel(here, deadline=0.0))
    there.close()


def test_an_error_in_build_pipeline_is_raised() -> None:
    with pytest.raises(ZeroDivisionError, match="nothing to build"):
        examined(refuse_to_build, only=["shift"])


def test_something_else_than_a_pipeline_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must return a diagnostics\.Pipeline.* got str"):
        examined(build_something_else, only=["shift"])


def test_a_bare_module_is_enough() -> None:
    report = examined(build_bare_module, only=["shapes", "causal_independence", "shift"])
    found = verdicts(report)
    assert found["shapes"] == (Status.PASS, "shapes.ok")
    assert found["shift"] == (Status.SKIP, "shift.missing_part")
