"""What every test shares."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """One thread is faster at debug size, and gives the same numbers on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test starts from the same global random state, in whatever order they run."""
    torch.manual_seed(0)
