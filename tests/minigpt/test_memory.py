"""The memory budget: predicted by formula, compared with what the training code really uses."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from minigpt import (
    CharTokenizer,
    MiniGPT,
    MiniGPTConfig,
    attention,
    make_optimizer,
    save_checkpoint,
)
from minigpt import _memory_command as command
from minigpt import _memory_machine as machine
from minigpt._memory_activations import Numbers, is_written_out
from minigpt._memory_advice import describe_change
from minigpt._memory_measure import run_request
from minigpt._memory_peak import PeakMeter
from minigpt._memory_sizes import parameter_counts
from minigpt._training_state import evaluation_rows
from minigpt.evaluate import evaluate
from minigpt.memory import (
    MeasurementError,
    MemoryBudget,
    ModelSizes,
    Workload,
    find_fitting,
    find_largest_batch,
    list_knobs,
    measure_memory,
    predict_memory,
)
from minigpt.speed import matmul_precision
from minigpt.update import update_weights

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
TOLERANCE = 0.2  # of the measured bytes


def sizes(V: int = 100, T: int = 32, C: int = 64, L: int = 2, **more: Any) -> ModelSizes:
    """The debug configuration with four heads, unless told otherwise."""
    numbers = {"vocab_size": V, "block_size": T, "embedding_dim": C, "num_heads": 4}
    return ModelSizes(**(numbers | {"num_layers": L} | more))


CPU = sizes(T=64, C=128, L=4)
SMALL = sizes(T=256, C=384, L=6, num_heads=6)
LARGE_VOCABULARY = sizes(V=50_257)
MEASURED: dict[str, tuple[ModelSizes, dict[str, Any]]] = {
    "debug": (sizes(), {"batch_size": 8, "evaluation_windows": 240}),
    "debug, 1 row": (sizes(), {"batch_size": 1}),
    "debug, 64 rows": (sizes(), {"batch_size": 64, "evaluation_windows": 8}),
    "cpu": (CPU, {"batch_size": 12}),
    "cpu, dropout": (replace(CPU, dropout=0.1), {"batch_size": 12}),
    "cpu, bfloat16": (CPU, {"batch_size": 4, "dtype": "bfloat16"}),
    "cpu, both": (replace(CPU, dropout=0.1), {"batch_size": 4, "dtype": "bfloat16"}),
    "cpu, accumulated": (CPU, {"batch_size": 12, "accumulation_steps": 3}),
    "cpu, checkpointed": (CPU, {"batch_size": 12, "checkpointed": True}),
    "small": (SMALL, {"batch_size": 8}),
    "long block": (sizes(T=512), {"batch_size": 2}),
    "long block, dropout": (sizes(T=512, dropout=0.1), {"batch_size": 2}),
    "long block, both": (sizes(T=512, dropout=0.1), {"batch_size": 2, "dtype": "bfloat16"}),
    "large vocabulary": (LARGE_VOCABULARY, {"batch_size": 4}),
    "large vocabulary, 1 row": (LARGE_VOCABULARY, {"batch_size": 1}),
    "large vocabulary, accumulated": (
        LARGE_VOCABULARY,
        {"batch_size": 4, "accumulation_steps": 2},
    ),
    "large vocabulary, bfloat16": (sizes(V=50_257, T=8), {"batch_size": 4, "dtype": "bfloat16"}),
    "large vocabulary, evaluated": (
        sizes(V=50_257, T=8),
        {"batch_size": 1, "evaluation_windows": 0},
    ),
    "wide, 1 row": (sizes(T=16, C=512), {"batch_size": 1}),
    "one layer, narrow inside": (sizes(T=64, C=128, L=1, expansion_factor=1), {"batch_size": 16}),
    "sgd": (sizes(T=16, C=512), {"batch_size": 1, "optimizer": "sgd"}),
    "sgd with momentum": (sizes(T=16, C=512), {"batch_size": 1, "optimizer": "sgd-momentum"}),
    "inference": (CPU, {"batch_size": 12, "mode": "inference"}),
    "inference, vocabulary": (
        replace(CPU, vocab_size=5000),
        {"batch_size": 12, "mode": "inference"},
    ),
    "inference, bfloat16": (CPU, {"batch_size": 12, "mode": "inference", "dtype": "bfloat16"}),
    "generation": (CPU, {"batch_size": 12, "mode": "generation"}),
    "generation, bfloat16": (
        replace(CPU, vocab_size=5000),
        {"batch_size": 12, "mode": "generation", "dtype": "bfloat16"},
    ),
}


SLOW = {"small"}  # six layers of block 256


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MEASURED]
)
def test_the_prediction_is_what_the_training_code_uses(name: str) -> None:
    """Weights, gradients and optimizer to the byte; the rest within a fifth of the measurement."""
    compare(*MEASURED[name])


@pytest.mark.parametrize(
    ("config", "workload"),
    [
        (replace(CPU, dropout=p, num_layers=1), {"batch_size": 4} | how)
        for p in (0.0, 0.1)
        for how in ({"dtype": "bfloat16"}, {"matmul_precision": "medium", "evaluation_windows": 8})
    ]
    + [
        (sizes(T=256), {"batch_size": 2, "dtype": "bfloat16", "mode": mode})
        for mode in ("train", "inference", "generation")
    ],
)
def test_so_it_is_where_attention_is_written_out(
    config: ModelSizes, workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed to be a chip on which the model prefers that; the results are the same anywhere."""
    monkeypatch.setattr(attention, "HAS_AVX512", True)
    assert is_written_out(Numbers(config, Workload(**workload)))
    compare(config, workload)


def compare(config: ModelSizes, workload: dict[str, Any]) -> None:
    """Run it in this process, and compare all figures but those of the operating system."""
    workload = {"evaluation_windows": -1} | workload
    request = {"sizes": asdict(config), "workload": asdict(Workload(**workload)), "threads": None}
    with matmul_precision("highest"):  # the measuring process sets its own
        measured = run_request(request)
    predicted = predict_memory(config, **workload)
    exact = ("parameters", "weights", "gradients", "optimizer")
    assert {k: getattr(predicted, k) for k in exact} == {k: measured[k] for k in exact}
    assert predicted.activations == pytest.approx(measured["activations"], rel=0.02)
    assert predicted.peak.total == pytest.approx(max(measured["peaks"].values()), rel=TOLERANCE)
    phases = {
        phase: max(m.total for m in predicted.moments if phase in m.name)
        for phase in ("forward", "backward", "evaluation")
        if phase in measured["peaks"] and workload.get("mode", "train") == "train"
    }
    assert phases == pytest.approx({p: measured["peaks"][p] for p in phases}, rel=TOLERANCE)


def test_processes_that_exchange_gradients_keep_them_all_the_time() -> None:
    """A group of one is enough: the wrapper's buckets are as large as in any other."""
    config = sizes(T=16, C=256)
    model = MiniGPT(MiniGPTConfig(**asdict(config))).train()
    optimizer = make_optimizer(model, learning_rate=1e-3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        batch = (torch.randint(100, (2, 16)), torch.randint(100, (2, 16)))
        for _ in range(2):  # the wrapper sorts its buckets anew after the first
            update_weights(wrapped, optimizer, [batch])
        gradients = 4 * model.parameter_count()
        steady = 4 * gradients  # weights, two moments, and the buckets that are there already
        meter = PeakMeter(torch.device("cpu"))
        with meter.watch(model, optimizer, steady):
            update_weights(wrapped, optimizer, [batch])
    finally:
        dist.destroy_process_group()
    predicted = predict_memory(config, batch_size=2, processes=2, evaluation_windows=-1)
    assert predicted.moments[0].gradients == gradients
    assert predicted.peak.total == pytest.approx(max(meter.peaks.values()), rel=TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(
    V=st.integers(1, 300),
    T=st.integers(1, 40),
    H=st.integers(1, 4),
    D=st.integers(1, 9),
    L=st.integers(1, 4),
    expansion=st.integers(1, 5),
)
def test_parameters_are_counted_exactly(
    V: int, T: int, H: int, D: int, L: int, expansion: int
) -> None:
    config = MiniGPTConfig(V, T, H * D, H, L, expansion)
    with torch.device("meta"):
        model = MiniGPT(config)
    assert predict_memory(config, batch_size=1).parameters == model.parameter_count()


def test_a_budget_that_fits_on_paper() -> None:
    """V = 5, T = 4, C = 8, H = 2, one layer, two rows: B T = 8, B T C = 64."""
    budget = predict_memory(sizes(V=5, T=4, C=8, L=1, num_heads=2), batch_size=2)
    assert parameter_counts(budget.sizes) == {
        "token embedding": 40,
        "position embedding": 32,
        "attention": 16 + 8 * 24 + 24 + 8 * 8 + 8,
        "feed-forward": 16 + 8 * 32 + 32 + 32 * 8 + 8,
        "final norm": 16,
        "head": 40,
    }
    assert budget.parameters == 40 + 32 + 304 + 568 + 16 + 40 == 1000
    assert {row.name: row.bytes for row in budget.rows} == {
        "weights": 4000,
        "gradients": 4000,
        "optimizer": 8000 + 17 * 4,  # both moments, and the steps of each of 17 tensors
        "batch": 2 * 64 + 4 * 8 + 4,  # inputs and targets, positions, the number of targets
        "norm inputs": 2 * (256 + 64),  # the tokens' vectors, and two numbers for each token
        "linear layers": 14 * 256,
        "attention": 2 * 8 * 4,
        "before the head": 256 + 64 + 256,
        "log-softmax": 8 * 5 * 4,
    }
    loss = budget.moments[1]
    assert (loss.name, loss.gradients, loss.working) == ("loss, backward", 0, 2 * 160)
    assert loss.total == 4000 + 8068 + budget.activations + 320


def test_written_out_attention_grows_with_the_square_of_the_block() -> None:
    """Doubling the block doubles the scores twice: B H T T, three times with dropout."""
    rows = []
    for T in (64, 128):
        budget = predict_memory(sizes(T=T, dropout=0.1), batch_size=2)
        rows += [row.bytes for row in budget.rows if row.name == "attention"]
    assert rows == [2 * 3 * 2 * 4 * 64 * 64 * 4, 4 * 2 * 3 * 2 * 4 * 64 * 64 * 4]


def test_the_fused_kernel_of_cuda_takes_dropout_and_its_masks_are_bools() -> None:
    budget = predict_memory(sizes(dropout=0.1), batch_size=2, device="cuda")
    rows = {row.name: row.bytes for row in budget.rows}
    assert rows["attention"] == 2 * (2 * 4 * 32) * 4
    assert rows["dropout masks"] == 2 * 2 * (2 * 32 * 64)
    assert rows["embedding mask"] == 2 * 32 * 64


@pytest.mark.parametrize(
    ("block_size", "vocab_size", "rows"), [(32, 100, 64), (256, 50_257, 1), (64, 8192, 32)]
)
def test_the_evaluation_reads_fewer_rows_where_logits_are_large(
    block_size: int, vocab_size: int, rows: int
) -> None:
    """2**24 numbers: 64 rows of 32 x 100, 32 of 64 x 8192, 1.3 of 256 x 50,257."""
    assert evaluation_rows(block_size, vocab_size) == rows
    assert inspect.signature(evaluate).parameters["batch_size"].default is None
    budget = predict_memory(sizes(V=vocab_size, T=block_size), batch_size=1)
    assert f"evaluation, {rows} rows" in [moment.name for moment in budget.moments]


def test_a_checkpoint_configuration_and_plain_sizes_predict_the_same() -> None:
    config = MiniGPTConfig.debug(100)
    mine = ModelSizes(**config.to_dict())
    assert (
        predict_memory(config, batch_size=3).moments == predict_memory(mine, batch_size=3).moments
    )


def test_processes_share_the_memory_of_a_cpu_and_not_that_of_gpus() -> None:
    one, two = (predict_memory(sizes(), batch_size=8, processes=n) for n in (1, 2))
    assert two.needed == 2 * (two.peak.total + 300 * MIB)
    assert one.needed == one.peak.total + 300 * MIB
    cuda = predict_memory(sizes(), batch_size=8, processes=2, device="cuda")
    assert cuda.needed == cuda.peak.total + 500 * MIB
    assert cuda.workload.effective_batch == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number in 1..1000000000, got 0"),
        ({"accumulation_steps": True}, "accumulation_steps must be a whole number"),
        ({"mode": "play"}, "mode must be train, inference or generation, got 'play'"),
        ({"dtype": "float16"}, "dtype must be float32 or bfloat16, got 'float16'"),
        ({"optimizer": "lion"}, "optimizer must be adamw, sgd-momentum or sgd, got 'lion'"),
        ({"device": "tpu"}, "device must be cpu, cuda or mps, got 'tpu'"),
        ({"evaluation_windows": -2}, "evaluation_windows must be >= -1, got -2"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        predict_memory(sizes(), **({"batch_size": 8} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": 63}, "embedding_dim must be a multiple of num_heads, got 63 and 4"),
        ({"L": 0}, "num_layers must be a whole number in"),
        ({"dropout": float("nan")}, r"dropout must be in \[0, 1\), got nan"),
        ({"expansion_factor": 1.5}, "expansion_factor must be a whole number"),
    ],
)
def test_sizes_that_are_none_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        sizes(**change)


@pytest.mark.parametrize("capable", [True, False])
@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_form_of_attention_is_the_one_that_the_model_takes(
    capable: bool, precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "HAS_AVX512", capable)
    workload = Workload(batch_size=1, dtype=dtype, matmul_precision=precision)
    with matmul_precision(precision):
        for T in (1, 2, attention.SHORT, attention.SHORT + 1):
            row = torch.empty(1, 1, T, 1, dtype=getattr(torch, dtype))
            taken = attention.written_out_is_faster(row, row)
            assert is_written_out(Numbers(sizes(T=T), workload)) == taken


# What to turn.


def budget_of(**more: Any) -> MemoryBudget:
    return predict_memory(SMALL, **({"batch_size": 12, "evaluation_windows": 8} | more))


def test_knobs_come_in_the_order_of_the_guide() -> None:
    knobs = {knob.name: knob.how for knob in list_knobs(budget_of())}
    assert list(knobs.items()) == [
        ("batch", "--batch-size 6 --accumulation-steps 2"),
        ("length", "--block-size 128"),
        ("precision", "--dtype bfloat16"),
        ("recompute", "torch.utils.checkpoint around each block (no flag)"),
        ("weights", "--embedding-dim 192"),
        ("optimizer", "sgd-momentum in minigpt/optimizer.py (no flag)"),
    ]


def test_every_knob_of_a_long_batch_saves_something() -> None:
    before = budget_of()
    assert all(knob.after.needed < before.needed for knob in list_knobs(before))


def test_the_evaluation_is_a_knob_where_it_is_the_peak() -> None:
    """10 rows of logits and their log-softmax outweigh four times one row of them."""
    before = predict_memory(LARGE_VOCABULARY, batch_size=1)
    assert before.peak.name == "evaluation, 10 rows"
    assert before.update_peak.name == "backward ends"
    knob = next(knob for knob in list_knobs(before) if knob.name == "evaluation")
    assert knob.how == "--evaluation-windows 5"
    assert before.needed - knob.after.needed == pytest.approx(2 * 5 * 32 * 50_257 * 4, rel=0.01)


def test_splitting_a_batch_keeps_the_effective_batch() -> None:
    """Three rows do not halve: one row three times is the next that is the same."""
    before = predict_memory(sizes(), batch_size=3, accumulation_steps=2, processes=2)
    after = next(knob.after for knob in list_knobs(before) if knob.name == "batch")
    assert (after.workload.batch_size, after.workload.accumulation_steps) == (1, 6)
    assert before.workload.effective_batch == after.workload.effective_batch == 12


def test_the_first_combination_that_fits_turns_no_knob_too_far() -> None:
    before = budget_of()
    assert find_fitting(before, before.needed) == before
    split = budget_of(batch_size=3, accumulation_steps=4)
    found = [find_fitting(before, split.needed - less) for less in (0, 1)]
    changes = [describe_change(before, after) for after in found if after is not None]
    assert changes == [
        "--batch-size 3 --accumulation-steps 4",
        "--batch-size 1 --accumulation-steps 12",
    ]
    assert find_fitting(before, 300 * MIB) is None


def test_the_combination_goes_on_where_the_batch_is_not_enough() -> None:
    """At one row, half a block is the next knob."""
    before = budget_of()
    half = replace(SMALL, block_size=128)
    workload = {"batch_size": 1, "accumulation_steps": 12, "evaluation_windows": 8}
    found = find_fitting(before, predict_memory(half, **workload).needed)
    assert found is not None
    change = "--batch-size 1 --accumulation-steps 12 --block-size 128"
    assert describe_change(before, found) == change


@settings(max_examples=30, deadline=None)
@given(limit=st.integers(301 * MIB, 64 * 1024 * MIB))
def test_one_more_row_than_the_largest_batch_does_not_fit(limit: int) -> None:
    before = budget_of()
    rows = find_largest_batch(before, limit)
    needed = [budget_of(batch_size=max(1, n)).needed for n in (rows, rows + 1)]
    assert rows == 0 or needed[0] <= limit
    assert needed[1] > limit


def test_generation_has_no_knobs_of_training() -> None:
    budget = predict_memory(CPU, batch_size=12, mode="generation")
    knobs = {knob.name: knob.how for knob in list_knobs(budget)}
    assert knobs == {
        "batch": "--batch-size 6",
        "length": "--block-size 32",
        "precision": "model.to(torch.bfloat16) (no flag)",
        "weights": "--embedding-dim 64",
    }


# What there is.


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 * 2**30), ("1.5 GiB", 3 * 2**29), ("500MB", 500_000_000), ("7 b", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert machine.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["8", "8G", "-1GiB", "0.1B", "nan GiB", "", "1e3MB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size"):
        machine.parse_bytes(text)


def test_sizes_are_written_short() -> None:
    shown = [machine.format_bytes(count) for count in (0, 1000, 1024, 41 * MIB, 10**13)]
    assert shown == ["0 B", "1000 B", "1.0 KiB", "41.0 MiB", "9.1 TiB"]


def test_a_container_limits_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("meminfo", "limit", "used", "old_limit", "old_used")]
    for file, text in zip(files, ["MemAvailable: 4096 kB\n", "3000000", "1000000"], strict=False):
        file.write_text(text)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(machine, "MEMINFO", files[0])
    monkeypatch.setattr(machine, "CONTROL_GROUPS", ((files[1], files[2]), (files[3], files[4])))
    assert machine.available_bytes("cpu") == 2_000_000
    # Files that were read long ago fill it up, and make way for whoever needs the room.
    (tmp_path / "memory.stat").write_text("file 900000\ninactive_file 600000\nactive_file 300000\n")
    assert machine.available_bytes("cpu") == 2_600_000
    (tmp_path / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 700000\n")
    assert machine.available_bytes("cpu") == 2_700_000  # version 1: with the groups inside
    files[1].write_text("max\n")
    assert machine.available_bytes("cpu") == 4096 * 1024
    files[0].unlink()
    assert machine.available_bytes("cpu") is None


# The measurement.


def test_measuring_happens_in_a_process_of_its_own() -> None:
    measured = measure_memory(sizes(), batch_size=8, threads=1)
    predicted = predict_memory(sizes(), batch_size=8)
    assert measured.peak == pytest.approx(predicted.peak.total, rel=TOLERANCE)
    assert measured.peaks.keys() == {"forward", "backward", "update", "evaluation"}
    if Path("/proc/self/status").exists():
        assert measured.process is not None
        assert measured.imports is not None
        assert measured.process >= measured.weights
        assert measured.imports > 50 * MIB


def test_a_measuring_process_that_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {-9: "killed by the system", 1: "failed: RuntimeError: no"}
    monkeypatch.delattr(signal, "SIGKILL", raising=False)  # as on Windows
    for code, words in ends.items():
        done = SimpleNamespace(returncode=code, stderr="a line\nRuntimeError: no\n", stdout="")
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        with pytest.raises(MeasurementError, match=words):
            measure_memory(sizes(), batch_size=8)


@pytest.mark.parametrize("change", [{"processes": 2}, {"device": "mps"}])
def test_what_cannot_be_measured_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only one process on cpu or cuda can be measured"):
        measure_memory(sizes(), batch_size=8, **change)


def test_on_cuda_the_allocator_is_asked_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics are faked: 10 bytes more at each question, and a reset after each."""
    asked: list[str] = []

    def highest(device: torch.device) -> int:
        asked.append("read")
        return 10 * asked.count("read")

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", highest)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append("reset"))
    model = MiniGPT(MiniGPTConfig.debug(10)).train()
    optimizer = make_optimizer(model, learning_rate=1e-3)
    meter = PeakMeter(torch.device("cuda"))
    batch = (torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64))
    with meter.watch(model, optimizer, 0):
        update_weights(model, optimizer, [batch])
        meter.mark("evaluation")
        evaluate(model, torch.zeros(9, dtype=torch.int64))
    assert meter.peaks == {"forward": 20, "backward": 30, "update": 40, "evaluation": 50}
    assert asked == ["reset"] + ["read", "reset"] * 5
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


# The command.


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = command.main(arguments)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.isascii()
    return code, shown


def test_the_command_says_what_when_and_whether(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run(capsys, "--preset", "cpu", "--budget", "1GiB", "--accumulation-steps", "4")
    assert code == 0
    assert "batch       12 rows x 1 process x 4 accumulation steps: effective batch 48" in shown
    assert "> last block, backward" in shown
    assert "[OK]        fits into the 1.0 GiB given" in shown
    assert "together" not in shown


def test_what_does_not_fit_ends_with_1_and_the_first_combination_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--embedding-dim", "384", "--num-heads", "6", "--block-size", "256"]
    code, shown = run(capsys, *flags, "--budget", "350MiB", "--evaluation-windows", "1")
    assert code == 1
    assert "[FAIL]      does not fit into the 350.0 MiB given" in shown
    assert "together    --batch-size" in shown
    assert "effective batch 8" in shown


def test_what_fits_only_if_malloc_is_thrifty_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    budget = predict_memory(sizes(), batch_size=8)
    assert budget.needed_at_worst == int(1.5 * budget.peak.total) + 300 * MIB
    code, shown = run(capsys, "--budget", f"{budget.needed_at_worst - 1}B")
    assert code == 0
    words = "[WARN] just fits into the 310.9 MiB given; malloc may hold on to more, up to 310.9 MiB"
    assert words in " ".join(shown.split())
    _, shown = run(capsys, "--budget", f"{budget.needed_at_worst}B")
    assert "[OK]" in shown


def test_nothing_fits_into_less_than_python_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run(capsys, "--budget", "100MiB")
    assert code == 1
    assert "largest     no batch fits" in shown
    assert "together    no model fits: Python and torch themselves take 300.0 MiB\n" in shown
    code, shown = run(capsys, "--budget", "200MiB", "--processes", "2")
    assert "together    no model fits: Python and torch themselves take 600.0 MiB\n" in shown
    code, shown = run(capsys, "--budget", "301MiB")
    assert code == 1
    assert "no combination of these fits; it takes more memory or a smaller" in shown


def test_unknown_memory_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "available_bytes", lambda device: None)
    code, shown = run(capsys)
    assert code == 0
    assert "fits        unknown" in shown


def test_what_does_not_fit_is_not_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure_memory", lambda *_, **__: pytest.fail("it was run"))
    code, shown = run(capsys, "--measure", "--budget", "200MiB")
    assert code == 1
    assert "measured    not run: it does not fit" in shown


def test_a_prediction_that_is_off_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The activations measured are made half of what was predicted."""
    budget = predict_memory(sizes(), batch_size=8)
    measured = SimpleNamespace(
        weights=budget.weights,
        gradients=budget.gradients,
        optimizer=budget.optimizer,
        activations=budget.activations // 2,
        peak=budget.peak.total,
        peaks={"evaluation": budget.peak.total},
        process=None,
        imports=None,
    )
    monkeypatch.setattr(command, "measure_memory", lambda *_, **__: measured)
    code, shown = run(capsys, "--measure", "--budget", "1GiB")
    assert code == 1
    assert [line.split()[0] for line in shown.splitlines() if "[FAIL]" in line] == ["activations"]


def test_a_checkpoint_brings_its_sizes_and_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    tokenizer = CharTokenizer(list("abc"))
    model = MiniGPT(MiniGPTConfig(3, 16, 32, 2, 3, 2, 0.2))
    run_settings = {"settings": {"batch_size": 5, "accumulation_steps": 7, "dtype": "bfloat16"}}
    save_checkpoint(path, model, tokenizer, trainer_state=run_settings)
    _, shown = run(capsys, "--checkpoint", str(path), "--batch-size", "6")
    assert f"dropout 0.2: {model.parameter_count():,} parameters" in " ".join(shown.split())
    assert "cpu, bfloat16, train" in shown
    assert "6 rows x 1 process x 7 accumulation steps" in shown


@pytest.mark.parametrize("content", [b"", b"\x08" + b"\0" * 7 + b'{"a":1} ', b"\xff" * 64])
def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(command.CommandError, match="is no whole checkpoint of minigpt"):
        command.main(["--checkpoint", str(path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "--batch-size must be a whole number"),
        (["--embedding-dim", "65"], "--embedding-dim must be a multiple of --num-heads"),
        (["--budget", "8"], "--budget: a size is a number and a unit"),
        (["--threads", "0"], "--threads must be >= 1, got 0"),
        (["--checkpoint", "a.pt"], "a.pt is a .pt file"),
        (["--checkpoint", "a.pt", "--preset", "cpu"], "leave --preset out"),
        (["--measure", "--processes", "2", "--budget", "9GiB"], "--measure: only one process"),
    ],
)
def test_usage_errors_name_the_flag(arguments: list[str], message: str) -> None:
    with pytest.raises(command.CommandError, match=message):
        command.main(arguments)


def test_a_prediction_does_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from minigpt.memory import *; "
        "print(predict_memory(ModelSizes(vocab_size=9, block_size=8, embedding_dim=4, num_heads=2, "
        "num_layers=1), batch_size=2).parameters)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == 36 + 32 + (8 + 60 + 20) + (8 + 80 + 68) + 8 + 36
