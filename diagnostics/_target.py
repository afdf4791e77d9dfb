"""`--target module:function` and `--target file.py:function`: the user's own pipeline."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from diagnostics._pipeline import Pipeline


class TargetError(Exception):
    """The target cannot be loaded or does not give a Pipeline; the message says why."""


def load_target(target: str) -> Pipeline:
    """Import the target, call its function, and return the Pipeline it gives.

    Raises TargetError with one line: what was wanted, what came, where.
    """
    place, _, function_name = target.rpartition(":")
    relative = place.startswith(".") and not place.endswith(".py")  # relative to no package
    if not place or not function_name or relative:
        raise TargetError(f"--target wants module:function or file.py:function, got {target!r}")
    module = _load_module(place)
    function = getattr(module, function_name, None)
    if function is None:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise TargetError(
            f"{place} has no function {function_name!r}; it has "
            f"{', '.join(public[:8]) or 'no public name at all'}"
        )
    pipeline = function() if callable(function) and not isinstance(function, Pipeline) else function
    if not isinstance(pipeline, Pipeline):
        raise TargetError(
            f"{target} must return a diagnostics.Pipeline, got {type(pipeline).__name__}"
        )
    return pipeline


def describe_exception(error: BaseException) -> str:
    """Return `Kind: message (file.py:12)`, with the innermost line of the user's own code."""
    message = str(error).strip().split("\n")[0]
    if isinstance(error, SyntaxError):  # says itself where, and no line of the file has run
        return f"{type(error).__name__}: {message}"
    ours = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith("<")
        and Path(frame.filename).parent != ours
    ]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"


def _load_module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and place.startswith(error.name):
                raise TargetError(
                    f"there is no module {place!r} here; a file is named with its .py"
                ) from error
            raise
    path = Path(place).resolve()
    if not path.is_file():
        raise TargetError(f"there is no file {place}")
    sys.path.insert(0, str(path.parent))  # so that it can import what lies beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{place} cannot be read as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and deep copies look their module up
    spec.loader.exec_module(module)
    return module
