"""Checks for small language models: one assumption each, measured, with causes and a next step.

    from diagnostics import Pipeline, diagnose
    print(diagnose(Pipeline(model, get_batch=get_batch, train_ids=ids)))

Names load on first use, so that lists and help texts do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnostics._catalog import CATALOG, explain
    from diagnostics._pipeline import Pipeline
    from diagnostics._report import Report
    from diagnostics._result import CheckFailedError, CheckResult, Status
    from diagnostics._self_test import SelfTest, self_test
    from diagnostics._stored import StoredReportError, load_report
    from diagnostics._suite import diagnose, require_healthy
    from diagnostics.accumulation import check_accumulation
    from diagnostics.batch_independence import check_batch_independence
    from diagnostics.batches import check_batches
    from diagnostics.causal_independence import check_causal_independence
    from diagnostics.checkpoint import check_checkpoint
    from diagnostics.compare import compare_files, compare_reports
    from diagnostics.context import check_context
    from diagnostics.distributed import check_distributed
    from diagnostics.environment import check_environment
    from diagnostics.evaluation import check_evaluation
    from diagnostics.files import check_files
    from diagnostics.fingerprint import check_fingerprint
    from diagnostics.forward_hooks import assert_finite_tensor, check_forward_hooks
    from diagnostics.generation import check_generation
    from diagnostics.gradients import check_gradients
    from diagnostics.honesty import check_honesty
    from diagnostics.initial_loss import check_initial_loss
    from diagnostics.loss import check_loss
    from diagnostics.modes import check_modes
    from diagnostics.monitor import TrainingMonitor
    from diagnostics.optimizer import check_optimizer
    from diagnostics.overfit import check_overfit
    from diagnostics.padding import check_padding
    from diagnostics.page import RunPage
    from diagnostics.positions import check_positions
    from diagnostics.prefix import check_prefix
    from diagnostics.range import check_range
    from diagnostics.resume import check_resume
    from diagnostics.roundtrip import check_roundtrip
    from diagnostics.sampling import check_sampling
    from diagnostics.schedule import check_schedule
    from diagnostics.shapes import check_shapes
    from diagnostics.shift import check_shift
    from diagnostics.split import check_split
    from diagnostics.text import check_text
    from diagnostics.training_step import check_training_step

__all__ = [
    "CATALOG",
    "CheckFailedError",
    "CheckResult",
    "Pipeline",
    "Report",
    "RunPage",
    "SelfTest",
    "Status",
    "StoredReportError",
    "TrainingMonitor",
    "assert_finite_tensor",
    "check_accumulation",
    "check_batch_independence",
    "check_batches",
    "check_causal_independence",
    "check_checkpoint",
    "check_context",
    "check_distributed",
    "check_environment",
    "check_evaluation",
    "check_files",
    "check_fingerprint",
    "check_forward_hooks",
    "check_generation",
    "check_gradients",
    "check_honesty",
    "check_initial_loss",
    "check_loss",
    "check_modes",
    "check_optimizer",
    "check_overfit",
    "check_padding",
    "check_positions",
    "check_prefix",
    "check_range",
    "check_resume",
    "check_roundtrip",
    "check_sampling",
    "check_schedule",
    "check_shapes",
    "check_shift",
    "check_split",
    "check_text",
    "check_training_step",
    "compare_files",
    "compare_reports",
    "diagnose",
    "explain",
    "load_report",
    "require_healthy",
    "self_test",
]

_HOMES = {
    "CATALOG": "_catalog",
    "CheckFailedError": "_result",
    "CheckResult": "_result",
    "Pipeline": "_pipeline",
    "Report": "_report",
    "RunPage": "page",
    "SelfTest": "_self_test",
    "Status": "_result",
    "StoredReportError": "_stored",
    "TrainingMonitor": "monitor",
    "assert_finite_tensor": "forward_hooks",
    "compare_files": "compare",
    "compare_reports": "compare",
    "diagnose": "_suite",
    "explain": "_catalog",
    "load_report": "_stored",
    "require_healthy": "_suite",
    "self_test": "_self_test",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = _HOMES[name]
    elif name in __all__:
        home = name.removeprefix("check_")  # one stem: check_shift lives in shift.py
    else:
        raise AttributeError(f"module 'diagnostics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"diagnostics.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
