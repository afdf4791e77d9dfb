"""An instructor's own implementations: `<folder>/<check>.py` with functions right_* and wrong_*.

They stand beside the public ones, are only used for grading, and never leave the grader's side.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from pathlib import Path

from exercises.contracts._contract import Contract, Implementation, Right, Wrong

RIGHT, WRONG = "right_", "wrong_"


def contract_of(check: str) -> Contract:
    """Return the contract of a check."""
    contract: Contract = importlib.import_module(f"exercises.contracts.{check}").CONTRACT
    return contract


def private_implementations(folder: Path, check: str) -> Mapping[str, Implementation]:
    """Return the functions right_* and wrong_* of a file by name; empty without a file.

    Raises what the file raises: an instructor wants to see it.
    """
    path = folder / f"{check}.py"
    if not path.is_file():
        return {}
    module = types.ModuleType(f"private_{check}")
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # noqa: S102
    return {
        name: function
        for name, function in vars(module).items()
        if name.startswith((RIGHT, WRONG)) and callable(function)
    }


def implementation_of(check: str, name: str, private: str | None) -> Implementation:
    """Return one implementation of a contract by its name; private: the folder that it is in."""
    if private is not None:
        return private_implementations(Path(private), check)[name]
    contract = contract_of(check)
    codes: tuple[Right | Wrong, ...] = (*contract.rights, *contract.wrongs)
    return {code.name: code.implementation for code in codes}[name]
