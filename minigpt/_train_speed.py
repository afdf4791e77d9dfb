"""What `python -m minigpt.train` settles and says about speed, before the first step.

Each choice changes the last bits of a run, so a new run makes it and a resumed one keeps it.
"""

from __future__ import annotations

import dataclasses
import textwrap

import torch

from minigpt._training_state import MATMUL_PRECISIONS, TrainSettings
from minigpt.model import MiniGPTConfig
from minigpt.parallel import Team
from minigpt.speed import bfloat16_seconds_ratio, compile_problem, try_matmul_precision

LOSING = 1.05  # times as long: below it bfloat16 costs nothing worth a word
WIDTH = 88


def choose_speed(
    settings: TrainSettings,
    config: MiniGPTConfig,
    team: Team,
    *,
    matmul_precision: str,
    compiled: bool,
) -> TrainSettings:
    """Return the settings of a new run with what was asked for, where it works; say what was found.

    matmul_precision: one of torch's three, or "auto" to measure. All ranks take the same.
    """
    if matmul_precision == "auto":
        matmul_precision = _measured_precision(settings, config, team)
    if settings.dtype == "bfloat16" and team.is_first and team.device.type == "cpu":
        _warn_of_slow_bfloat16(settings, config)
    settings = dataclasses.replace(settings, matmul_precision=matmul_precision, compiled=compiled)
    return keep_speed(settings, team)


def keep_speed(settings: TrainSettings, team: Team) -> TrainSettings:
    """Return the settings of any run as this machine can follow them, and set torch accordingly."""
    torch.set_float32_matmul_precision(settings.matmul_precision)
    if not settings.compiled:
        return settings
    problem = compile_problem(team.device)
    if not team.total([float(problem is not None)])[0]:
        if team.is_first:
            _say("torch.compile works here; the first update waits for it, for minutes perhaps")
        return settings
    if team.is_first:
        reason = problem or "it fails in another process of this run"
        _say(f"not compiled, torch.compile does not work here: {reason}")
    return dataclasses.replace(settings, compiled=False)


def _measured_precision(settings: TrainSettings, config: MiniGPTConfig, team: Team) -> str:
    if team.device.type != "cpu":  # there, a faster setting always means fewer bits
        if team.is_first:
            _say(f"matmul highest; auto is for CPUs, got {team.device.type}")
        return "highest"
    choice = torch.zeros((), dtype=torch.int64)
    if team.is_first:  # two processes could measure differently
        trial = try_matmul_precision(config, settings.batch_size * config.block_size)
        choice += MATMUL_PRECISIONS.index(trial.precision)
        if trial.changes_bits:
            _say(
                f"matmul {trial.precision}; medium takes {trial.seconds_ratio:.2f} of the time "
                f"of highest, with {trial.error_ratio:.1f} times its rounding error"
            )
        else:
            _say("matmul highest; medium changes no bit of a product on this chip")
    return MATMUL_PRECISIONS[int(team.gather(choice)[0])]


def _warn_of_slow_bfloat16(settings: TrainSettings, config: MiniGPTConfig) -> None:
    ratio = bfloat16_seconds_ratio(config, settings.batch_size * config.block_size)
    if not ratio <= LOSING:
        _say(
            f"[WARN] bfloat16 takes {ratio:.1f} times as long as float32 on this CPU, in a layer "
            "of this size; leave --dtype bfloat16 out"
        )


def _say(sentence: str) -> None:
    label, indent = "speed       ", " " * 12
    lines = textwrap.wrap(sentence, WIDTH, initial_indent=label, subsequent_indent=indent)
    print("\n".join(lines), flush=True)
