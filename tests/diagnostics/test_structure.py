"""The bench: which calls are made, and which answers are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from diagnostics import Pipeline
from diagnostics._probe import Probe
from diagnostics._structure import bench
from tests.diagnostics.tiny import Bigram


class Counting(Bigram):
    """Counts its calls; copies count on their own."""

    calls = 0

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, 11), loss or None)."""
        self.calls += 1
        return super().forward(ids, targets)


def test_plain_asks_once_for_equal_tokens() -> None:
    """Equal ids in another tensor are known; other ids, and ids written into later, are not."""
    with bench(Probe(Pipeline(Counting()))) as on:
        tokens = torch.tensor([[1, 2, 3]])
        start = on.model.calls
        first = on.plain(tokens)
        assert on.plain(tokens.clone()) is first
        assert on.model.calls == start + 1
        tokens[0, 0] = 5
        assert not torch.equal(on.plain(tokens), first)
        assert on.model.calls == start + 2
        assert torch.equal(on.plain(torch.tensor([[1, 2, 3]])), first)
        assert on.model.calls == start + 2


def test_a_bench_gives_the_random_states_back() -> None:
    """Each call is seeded anew, which nobody outside notices."""
    model = Bigram()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with bench(Probe(Pipeline(model))) as on:
        on.call(torch.tensor([[1, 2, 3]]))
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)
