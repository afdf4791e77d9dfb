"""Overfit: a model that can learn at all memorises one batch, down to the floor of that batch.

Why it matters
    It is the cheapest end-to-end test there is: data, model, loss and gradients have to work
    together. A model that cannot learn 256 tokens by heart will not learn a million.

How it is measured
    A fresh model (or a copy of the given one) is trained on one batch, at most 8 x 32 tokens,
    with our own AdamW at 3e-3, gradients clipped to norm 1 and dropout off, and thrown away. When
    that does not succeed, a second rate is tried before judging. What counts is accuracy in eval
    mode, and 100 % of what is learnable: rows that begin alike and go on differently cannot both
    be right, so the ceiling of the accuracy and the floor of the loss are computed from the
    batch. Where the loss comes to rest is compared with what a model could reach that ignores
    everything (ln V), the whole input (entropy of the targets), all but the position, or all but
    the last k tokens.

What it cannot see
    Nearly every silent bug: a model without a mask, with misplaced positions or with dropout that
    is never on memorises a batch as well. Passing proves that learning is possible, not that the
    right thing is learnt. The user's own optimizer is for `optimizer`.

Break it
    python -m exercises.break_overfit
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from diagnostics._overfit_curve import judge_curve
from diagnostics._probe import Batch, Probe, ln
from diagnostics._pipeline import Pipeline
from diagnostics._result import CheckResult, Status
from diagnostics._text import say
