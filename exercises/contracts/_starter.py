"""The files that students start from: one implementation to repair, one check to write."""

from __future__ import annotations

import inspect
import re
import textwrap

from exercises._exercise import MARK
from exercises.contracts._contract import Contract, Wrong

IMPORTS = """\
from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
"""


def starter_source(contract: Contract, wrong: Wrong, *, healed: bool = False) -> str:
    """Return a file with one wrong implementation, unmarked; healed: its solution."""
    code = textwrap.dedent(inspect.getsource(wrong.implementation))
    code = re.sub(r"^def \w+", "def implementation", code, count=1)
    code = re.sub(r'\n    """.*?"""', "", code, count=1, flags=re.DOTALL)  # it says what is wrong
    lines = [_unmarked(line, healed) for line in code.splitlines()]
    title = f"Repair the one line that breaks the promise of {contract.check}."
    return f"{_docstring(contract, title)}\n{IMPORTS}\n\n" + "\n".join(lines) + "\n"


def check_source(contract: Contract) -> str:
    """Return a file with a check to write."""
    title = f"Write a check that accepts every correct implementation of {contract.check}."
    body = '''
def check(implementation):
    """Raise an error when the implementation breaks its promise; return when it keeps it."""
    raise NotImplementedError("call the implementation, and assert what must hold")
'''
    return f"{_docstring(contract, title)}\n{IMPORTS}\n{body}"


def _docstring(contract: Contract, title: str) -> str:
    signature = textwrap.fill(contract.signature, 88, subsequent_indent="    ")
    promise = textwrap.fill(contract.promise, 88)
    return f'"""{title}\n\n{signature}\n\n{promise}\n"""\n'


def _unmarked(line: str, healed: bool) -> str:
    if MARK not in line:
        return line
    broken, healthy = line.split(MARK)
    indent = line[: len(line) - len(line.lstrip())]
    return indent + healthy.strip() if healed else broken.rstrip()
