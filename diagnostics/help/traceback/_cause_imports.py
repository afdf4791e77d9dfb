"""Causes of imports that fail: a file with a library's name, a library that is not there."""

from __future__ import annotations

import re
import sys

from diagnostics._text import say
from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted

_COURSE = frozenset({"torch", "numpy", "tqdm", "safetensors"})
_THIRD_PARTY = frozenset({
    "transformers", "tokenizers", "datasets", "accelerate", "evaluate", "peft", "sklearn", "scipy",
    "pandas", "matplotlib", "lightning", "wandb", "tiktoken", "einops", "triton", "torchvision",
})  # fmt: skip
_LIBRARIES = _COURSE | sys.stdlib_module_names | _THIRD_PARTY
_INSTALL_NAMES = {
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "cv2": "opencv-python",
}


def _partly_loaded(clues: Clues) -> Explanation | None:
    """A file of the user's that has a library's name is imported in its place."""
    match = re.search(
        r"partially initialized module '([\w.]+)'|module '([\w.]+)' has no attribute"
        r"|cannot import name '\w+' from '([\w.]+)'|No module named "
        r"'([\w]+)\.[\w.]+'; '\w+' is not a package",
        clues.message,
    )
    if match is None:
        return None
    named = next(group for group in match.groups() if group).partition(".")[0]
    shadow = _shadow(clues, named)
    if shadow is None:
        if match[1] is None:
            return None
        return Explanation(
            name="import.circular",
            cause=say(
                "{module} was used before its import had finished: files that import each other",
                module=match[1],
            ),
            evidence=quoted(match.group()),
            next_step=say("move one of the imports into the function that needs it"),
        )
    return Explanation(
        name="import.shadowed",
        cause=say(
            "the file {name} has the name of a library, and is imported in its place",
            name=shadow.name,
        ),
        evidence=f"{quoted(match.group())} and the file {quoted(shadow.place)}",
        next_step=say("rename {name} and delete the __pycache__ beside it", name=shadow.name),
    )


def _shadow(clues: Clues, named: str) -> Frame | None:
    """Return an own frame whose file is named as a library; or the file of the message."""
    for frame in clues.trace.frames:
        stem = frame.name.removesuffix(".py")
        imports_itself = any(
            f is not frame and re.search(rf"\b(?:import|from) {re.escape(stem)}\b", f.code)
            for f in clues.trace.frames
        )
        is_named_so = frame.is_own and frame.name.endswith(".py") and stem in _LIBRARIES
        if is_named_so and (imports_itself or stem == named):
            return frame
    path = re.search(
        r"from '[\w.]+' \(([^)\n]+\.py)\)|\(consider renaming '([^'\n]+)'", clues.message
    )
    file = (path[1] or path[2]) if path else ""
    candidate = Frame(file=file)
    is_named_so = bool(file) and candidate.is_own
    return candidate if is_named_so and candidate.name.removesuffix(".py") in _LIBRARIES else None


def _no_module(clues: Clues) -> Explanation | None:
    match = re.search(r"No module named '([\w.]+)'", clues.message)
    if match is None or not clues.kinds & {"ModuleNotFoundError", "ImportError"}:
        return None
    name, _, inner = match[1].partition(".")
    if not re.fullmatch(r"[A-Za-z_]\w{0,60}", name):
        return None
    if name in {"minigpt", "diagnostics", "exercises"}:
        cause, step = (
            say("{name} is not installed in this Python", name=name),
            say("python -m pip install -e . where the course's pyproject.toml is"),
        )
    elif inner and (name in _LIBRARIES or name in _INSTALL_NAMES):
        cause = say(
            "the {name} that is installed here has no {full}: another version, or a "
            "file named {name}.py in its place",
            name=name,
            full=match[1],
        )
        step = say(
            'python -c "import {name}; print({name}.__version__, {name}.__file__)"', name=name
        )
    elif name in _COURSE or name in _INSTALL_NAMES or name in _THIRD_PARTY:
        cause = say("{name} is not installed in the Python that runs this", name=name)
        step = say("python -m pip install {name}", name=_INSTALL_NAMES.get(name, name))
    else:
        cause = say(
            "this Python finds no {name}: a file or package of yours in another "
            "folder, a misspelling, or a library that is not installed here",
            name=name,
        )
        step = say('python -c "import sys; print(sys.executable, sys.path)"')
    return Explanation(
        name="import.missing", cause=cause, evidence=quoted(match.group()), next_step=step
    )


RULES: tuple[Rule, ...] = (_partly_loaded, _no_module)
