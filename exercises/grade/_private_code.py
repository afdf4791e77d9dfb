"""An instructor's private implementations, looked at before a class is graded with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from diagnostics._catalog import CATALOG
from exercises.contracts._contract import Contract, Implementation, first_fault
from exercises.contracts._private import RIGHT, contract_of, private_implementations
from minigpt._cli import CommandError, describe_error

SEEDS = range(3)


def doubts_about(folder: Path) -> Iterator[str]:
    """Yield what an instructor should look at: code whose name and behaviour do not agree.

    Raises CommandError for a folder that is not there, a file that cannot be loaded or holds no
    implementation, a name that is no check's, and a right_* that is not right.
    """
    if not folder.is_dir():
        raise CommandError(f"--private {folder}: there is no such folder")
    for path in sorted(folder.glob("*.py")):
        if path.stem not in CATALOG:
            raise CommandError(f"--private {path}: there is no check {path.stem!r}")
        try:
            found = private_implementations(folder, path.stem)
        except Exception as error:
            raise CommandError(f"--private {path}: {describe_error(error)}") from error
        if not found:
            raise CommandError(f"--private {path} has no function right_* or wrong_*")
        for name, implementation in found.items():
            yield from _doubts(contract_of(path.stem), name, implementation)


def _doubts(contract: Contract, name: str, implementation: Implementation) -> Iterator[str]:
    faults = [_fault(contract, implementation, seed) for seed in SEEDS]
    if name.startswith(RIGHT) and any(faults):
        fault = next(filter(None, faults))
        raise CommandError(
            f"--private {contract.check}.py: {name} breaks the promise, so every honest check "
            f"would score 0: {fault}"
        )
    elif not name.startswith(RIGHT) and not all(faults):
        yield f"{contract.check}: our own check accepts {name} with some seed"


def _fault(contract: Contract, implementation: Implementation, seed: int) -> str | None:
    torch.manual_seed(seed)
    try:
        finding = first_fault(contract, implementation)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return finding.claim if finding is not None else None
