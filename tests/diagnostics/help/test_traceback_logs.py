"""Tracebacks in logs: prefixes, ranks between each other, and which one to read."""

from __future__ import annotations

import json

import pytest

from diagnostics.help.traceback import read_traceback
from tests.diagnostics.help.tracebacks import (
    CALL,
    STEP,
    TRAIN,
    place_of,
    prefixed,
    python,
)


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank1]: ",
        "trainer-1  | ",
        "2026-01-01T10:00:00.123Z ",
        "> ",
        "    ",
        "Jan 01 10:00 box[7]: ",
    ],
)
def test_prefixes_of_a_log_are_taken_off(prefix: str) -> None:
    text = prefixed("step 3 loss 2.0\n" + python("ValueError: bad\n\tlist"), prefix)
    reading = read_traceback(text + prefix.rstrip() + "\n")
    assert (reading.kind, place_of(reading)) == ("ValueError", ("train.py", 7, "step"))
    assert reading.message == "bad\n\tlist"


def test_a_prefix_may_count_the_time() -> None:
    lines = python("ValueError: bad").rstrip("\n").split("\n")
    text = "".join(f"10:00:{n:02d},{n * 37:03d} app[12] {line}\n" for n, line in enumerate(lines))
    assert place_of(read_traceback(text)) == ("train.py", 7, "step")


def test_a_progress_bar_before_the_header_is_no_prefix() -> None:
    text = "  3%|3  | 3/100 [00:01<00:40]" + python("ValueError: bad")
    assert place_of(read_traceback(text)) == ("train.py", 7, "step")


def test_interleaved_ranks_come_apart_and_the_first_own_error_is_read() -> None:
    """Rank 0 only lost its peer; torchrun's own traceback comes last and says nothing."""
    bad = prefixed(python("IndexError: list index out of range"), "[rank1]: ").split("\n")
    lost = prefixed(
        python(
            "RuntimeError: Connection closed by peer [10.0.0.1]:8327", ("train.py", 30, "f", "x")
        ),
        "[rank0]: ",
    ).split("\n")
    mixed = "\n".join(line for pair in zip(lost, bad, strict=False) for line in pair)
    mixed += "\n" + "\n".join(bad[len(lost) :])
    text = (
        mixed
        + "\n"
        + python(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            ("/opt/course/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        )
    )
    reading = read_traceback(text)
    assert (reading.rank, reading.kind) == (1, "IndexError")
    assert "rank 1 is the first in this text whose error is its own" in reading.notes
    root = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
    assert "torchrun observed rank 1 as the first failure" in read_traceback(text + root).notes


def test_processes_that_differ_in_a_number_only_come_apart() -> None:
    """Ray writes the process into the prefix; the lines of both stand between each other."""
    one = prefixed(python("ValueError: a", TRAIN, STEP), "(worker pid=12) ").split("\n")
    two = prefixed(python("TypeError: b", STEP, CALL), "(worker pid=13) ").split("\n")
    reading = read_traceback(
        "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    )
    assert (reading.kind, reading.way[0], reading.count) == ("TypeError", "train.py:7 step", 2)


def test_several_ranks_with_errors_of_their_own_are_named() -> None:
    text = prefixed(python("ValueError: a"), "[rank2]: ") + prefixed(
        python("ValueError: b"), "[rank0]: "
    )
    reading = read_traceback(text)
    assert (reading.rank, reading.message) == (2, "a")
    assert "other ranks with errors of their own: 0" in reading.notes


def test_the_error_of_another_process_is_read_where_it_was_raised() -> None:
    remote = python("KeyError: 'text'", ("prepare.py", 12, "tokenize", "return row['text']"))
    joint = "The above exception was the direct cause of the following exception:"
    text = f'pool.RemoteTraceback: \n"""\n{remote}"""\n\n{joint}\n\n{python("KeyError: 1", TRAIN)}'
    reading = read_traceback(text)
    assert place_of(reading) == ("prepare.py", 12, "tokenize")
    assert reading.message == "'text'"
    assert reading.raised_from == ("reported as KeyError: 1",)


def test_what_python_ignored_at_its_exit_is_passed_over() -> None:
    ignored = python("AssertionError: can only test a child process", CALL)
    text = python("ValueError: bad") + "Exception ignored in: <function f at 0x7f>\n" + ignored
    reading = read_traceback(text)
    assert (reading.kind, reading.count) == ("ValueError", 2)
    assert any("passed over" in note for note in reading.notes)


@pytest.mark.parametrize("prompt", ["PS C:\\work> ", "me@box:~/gpt$ ", "^C", "$ python x.py"])
def test_a_prompt_after_it_is_not_the_message(prompt: str) -> None:
    assert read_traceback(python("ValueError: bad") + prompt + "\n").message == "bad"


def test_a_structured_log_holds_the_traceback_in_one_line() -> None:
    text = json.dumps({"level": "error", "error": python("ValueError: bad", TRAIN, STEP)})
    for pasted in (text, f"10:00:00 {text}\n", repr(python("ValueError: bad", TRAIN, STEP))):
        reading = read_traceback(pasted)
        assert reading.kind == "ValueError"
        assert place_of(reading) == ("train.py", 7, "step")


BAR = "\rTraining:  10%|#  | 10/100 [00:01<00:09, 9.8it/s]\rTraining:  11%|# | 11/100 [00:01<00:08]"


@pytest.mark.parametrize("at", range(len(python("ValueError: bad").split("\n"))))
def test_a_progress_bar_that_is_drawn_inside_a_traceback_is_taken_out(at: int) -> None:
    """The bar goes to the same stream, and may come before any line, with or without a newline."""
    lines = python("ValueError: bad").split("\n")
    for end in ("", "\n"):
        text = "\n".join([*lines[:at], BAR + end + lines[at], *lines[at + 1 :]])
        reading = read_traceback(text)
        assert (reading.kind, reading.message, reading.count) == ("ValueError", "bad", 1)
        assert place_of(reading) == ("train.py", 7, "step")


@pytest.mark.parametrize(
    "after",
    [
        "/opt/lib/python3.11/site-packages/torch/a.py:666: UserWarning: 'pin'\n  warnings.warn(m)",
        "train.py:30: FutureWarning: GradScaler is deprecated.\n  scaler = GradScaler()",
        "wandb: Run history:",
        "srun: error: node01: task 0: Exited with exit code 1",
        "```",
    ],
)
def test_what_others_print_after_it_is_not_the_message(after: str) -> None:
    assert read_traceback(python("ValueError: bad") + after + "\n").message == "bad"


def test_a_traceback_without_indentation_keeps_its_frames() -> None:
    """Chats and web forms cut the blanks at the start of every line."""
    lines = python("ValueError: bad", TRAIN, STEP).split("\n")
    lines.insert(3, "           ^^^^^^^^^^^")
    reading = read_traceback("\n".join(line.strip() for line in lines))
    assert (reading.kind, reading.message) == ("ValueError", "bad")
    assert place_of(reading) == ("train.py", 7, "step")
    assert reading.where is not None
    assert reading.where.code == "logits = model(ids)"


def test_an_error_before_the_interrupt_is_the_one_explained() -> None:
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = python("RuntimeError: selected index k out of range") + during
    reading = read_traceback(text + python("KeyboardInterrupt", TRAIN))
    assert reading.kind == "KeyboardInterrupt"
    assert reading.explanation is not None
    assert reading.explanation.name == "index.top_k"


def test_the_key_that_the_terminal_shows_is_no_prefix() -> None:
    reading = read_traceback("^C" + python("KeyboardInterrupt") + "^C\n")
    assert reading.kind == "KeyboardInterrupt"
    assert reading.notes == ()
    assert reading.explanation is not None
    assert reading.explanation.next_step == "run the same command again"


def test_a_loader_process_that_only_ended_gives_way_to_its_own_error() -> None:
    child = python("RuntimeError: An attempt has been made to start a new process before the\n"
                   "        current process has finished its bootstrapping phase.")  # fmt: skip
    parent = python("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", TRAIN)
    reading = read_traceback(child + parent)
    assert reading.explanation is not None
    assert reading.explanation.name == "loader.bootstrap"


def test_the_usage_of_a_command_and_a_scheduler_s_kill_are_last_words() -> None:
    reading = read_traceback("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n")
    assert (reading.kind, reading.message) == ("error", "unrecognized arguments: --x")
    assert reading.explanation is not None
    assert reading.explanation.name == "command.options"
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
    told = read_traceback(killed).explanation
    assert told is not None
    assert told.name == "memory.killed"


def test_a_trainer_without_labels_is_told_so() -> None:
    last = "ValueError: The model did not return a loss from the inputs, only the following keys: "
    last += "logits. For reference, the inputs it received are input_ids."
    told = read_traceback(python(last)).explanation
    assert told is not None
    assert (told.name, told.cause.endswith("it got input_ids")) == ("transformers.no_loss", True)
