"""`diagnose`: run every check that applies, in order, and say what to mend first."""

from __future__ import annotations

import dataclasses
import importlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._catalog import select
from diagnostics._causation import can_explain
from diagnostics._guard import seed_everything, untouched
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._report import Report
from diagnostics._result import CheckFailedError, CheckResult, Status
from diagnostics._subject import measure_subject
from diagnostics._text import say
from diagnostics._trace import user_frame

ONE_THREAD_MAX = 1_000_000  # parameters of a model that is small


def diagnose(
    pipeline: Pipeline,
    *,
    seed: int = 42,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    overfit_steps: int = 300,
    fast: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Check a pipeline and return the report. The user's objects come back untouched.

    seed: fixes every random choice; the same seed gives the same report in the same environment.
    only, skip: names of checks or stages.
    overfit_steps: upper bound of the steps with which one batch is memorised.
    fast: leave out the checks that train for many steps or start processes, unless `only` asks
        for them.
    progress: called as (check, index, total) before each check.
    Raises ValueError for an unknown name, TypeError for something that is not a Pipeline.
    """
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"diagnose wants a Pipeline, got {type(pipeline).__name__}")
    only, skip = None if only is None else _listed(only), _listed(skip)
    names = select(only, skip, fast=fast)
    probe = Probe(pipeline, seed=seed, overfit_steps=overfit_steps)
    results: list[CheckResult] = []
    with (
        probe.entry.set_aside(),
        untouched([pipeline.model], _tensors_of(pipeline)),
        _fitting_threads(pipeline.model),
    ):
        subject = measure_subject(
            pipeline, only=only, skip=skip, fast=fast, overfit_steps=overfit_steps
        )
        for index, name in enumerate(names):
            if progress is not None:
                progress(name, index, len(names))
            results.append(_run_check(name, probe))
    from diagnostics.environment import measure_environment

    return Report(
        results=tuple(_mark_consequences(results)),
        seed=seed,
        environment=measure_environment(),
        notes=tuple(probe.notes),
        subject=subject,
    )


def require_healthy(pipeline: Pipeline, **how: Any) -> Report:
    """Return the report when nothing fails; raise CheckFailedError with its text otherwise.

    For a training script, before its first step, or for a test. A check that warns passes; one
    that lacks a part is skipped and stops nothing, but a report that measured nothing does.
    how: what `diagnose` takes, such as seed, only, skip or fast.
    """
    report = diagnose(pipeline, **how)
    if not report.passed:
        raise CheckFailedError(str(report))
    return report


def _listed(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _run_check(name: str, probe: Probe) -> CheckResult:
    """Run one check; whatever it raises becomes a result, so that the others still run."""
    seed_everything(probe.seed)
    start = time.perf_counter()
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's model; the verdict is what counts
            result: CheckResult = importlib.import_module(f"diagnostics.{name}").run(probe)
    except MissingPartError as missing:
        result = skipped(name, missing)
    except Exception as error:  # any: users' parts may raise anything
        result = _raised(name, error)
    result = dataclasses.replace(result, seconds=time.perf_counter() - start)
    if result.status is Status.FAIL and result.reason in probe.pipeline.allow:
        result = dataclasses.replace(
            result,
            status=Status.WARN,
            next_step=say("declared as intended with allow=({reason!r},)", reason=result.reason),
        )
    return result


def skipped(name: str, missing: MissingPartError) -> CheckResult:
    """Return the SKIP of a check whose part is missing, naming what unlocks it."""
    arguments = " or ".join(missing.arguments)
    return CheckResult(
        check=name,
        status=Status.SKIP,
        reason=f"{name}.missing_part",
        claim=say("not measured: {why}", why=missing.why),
        next_step=say("to unlock it, give Pipeline {arguments}", arguments=arguments),
        numbers={"missing": list(missing.arguments)},
    )


@contextmanager
def _fitting_threads(model: nn.Module) -> Iterator[None]:
    """Compute a small model on one CPU thread, and give the threads back.

    Its operations are too short to be shared out: several threads wait for one another, on a
    busy machine many times longer than they compute.
    """
    threads = torch.get_num_threads()
    small = sum(parameter.numel() for parameter in model.parameters()) < ONE_THREAD_MAX
    try:
        if small:
            torch.set_num_threads(1)
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _raised(name: str, error: Exception) -> CheckResult:
    frame = user_frame(error)
    own = frame is None
    on_device = isinstance(error, RuntimeError) and "device-side assert" in str(error)
    return CheckResult(
        check=name,
        status=Status.ERROR,
        reason=f"{name}.raised",
        claim=say(
            "the check could not finish: {kind}: {message}",
            kind=type(error).__name__,
            message=str(error).strip().split("\n")[0][:300],
        ),
        where="" if frame is None else say("{frame}", frame=frame),
        next_step=say(_next_step_of_error(own, on_device)),
        numbers={"exception": type(error).__name__},
    )


def _next_step_of_error(own: bool, on_device: bool) -> str:
    if on_device:  # raised at some later call: neither message nor frame show the place
        return (
            "run it again on the CPU, where the error names the line and the value: move model and "
            'data with .to("cpu"); an id of V or more is the usual cause'
        )
    if own:
        return "this is a fault of the check itself; report it with the output of --env"
    return "call that part by hand with the same input, read the traceback from the bottom"


def _mark_consequences(results: list[CheckResult]) -> list[CheckResult]:
    """Name, for each failure and warning, the first earlier failure that can have produced it."""
    marked: list[CheckResult] = []
    for result in results:
        if result.failed or result.status is Status.WARN:
            cause = next((m.check for m in marked if can_explain(m, result)), None)
            result = dataclasses.replace(result, consequence_of=cause)
        marked.append(result)
    return marked


def _tensors_of(pipeline: Pipeline) -> list[Tensor]:
    """Return the tensors that the user handed over, so that they can be put back."""
    found: list[Tensor] = []
    parts: list[Any] = [pipeline.train_ids, pipeline.val_ids]
    if isinstance(pipeline.batch, Mapping):
        parts += pipeline.batch.values()
    elif isinstance(pipeline.batch, (tuple, list)):
        parts += pipeline.batch
    found += [part for part in parts if isinstance(part, Tensor)]
    return found
