"""One seed for every source of randomness, and the states of all of them for an exact resume.

Python, NumPy and torch each keep their own generator, torch one per device. Seeding only one of
them is the usual reason why two "seeded" runs differ.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.device import mps_available

SEED_LIMIT = 2**32  # NumPy's global generator takes 32 bits; the others take more


def set_seed(seed: int) -> None:
    """Seed Python, NumPy, torch on the CPU and on every CUDA and MPS device there is.

    `seed` is a whole number in 0..2**32 - 1; anything else raises `ValueError`.
    """
    if not 0 <= seed < SEED_LIMIT:
        raise ValueError(f"seed must lie in 0..{SEED_LIMIT - 1}, got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # covers the CPU, and queues the seed for CUDA and MPS


def mix_seed(*numbers: int) -> int:
    """Return a seed that depends on all numbers (each >= 0) and on their order.

    torch's CPU generator keeps 32 bits of its seed, so (seed, step) cannot be packed into one.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def random_states() -> dict[str, Tensor]:
    """Return the state of every global generator as a flat dictionary of uint8 tensors.

    Tensors only, so that a `.safetensors` file can hold them and no pickle is needed. The keys
    are `python` and `numpy` (JSON in UTF-8 bytes), `torch_cpu`, `torch_cuda_<index>` for each
    CUDA device and `torch_mps` where there is one. `restore_random_states` reads them back.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached_gauss = np.random.get_state(legacy=True)
    states = {
        "python": _json_to_tensor([version, list(words), gauss]),
        "numpy": _json_to_tensor(
            [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), cached_gauss]
        ),
        "torch_cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"torch_cuda_{index}"] = state
    if mps_available():
        states["torch_mps"] = torch.mps.get_rng_state()
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    """Put every global generator back to where `random_states` found it.

    States of devices that this machine does not have are passed over: a run that moves from a GPU
    to a CPU continues, though not bit for bit. A missing or damaged state raises `ValueError`
    and leaves all generators as they were.
    """
    before = random_states()
    try:
        _restore(states)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        _restore(before)
        raise ValueError(
            "random states must be the dictionary that random_states() returned, "
            f"got one that does not load: {type(error).__name__}: {error}"
        ) from error


def _restore(states: dict[str, Tensor]) -> None:
    version, words, gauss = _tensor_to_json(states["python"])
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached_gauss = _tensor_to_json(states["numpy"])
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached_gauss))
    torch.set_rng_state(states["torch_cpu"].cpu())
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if (state := states.get(f"torch_cuda_{index}")) is not None:
                torch.cuda.set_rng_state(state.cpu(), index)
    if mps_available() and (state := states.get("torch_mps")) is not None:
        torch.mps.set_rng_state(state.cpu())


def _json_to_tensor(value: Any) -> Tensor:
    """Return JSON text as a uint8 tensor; floats survive exactly, since repr round-trips them."""
    return torch.from_numpy(np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy())


def _tensor_to_json(tensor: Tensor) -> Any:
    return json.loads(bytes(tensor.cpu().numpy()))
