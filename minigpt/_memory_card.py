"""The configuration of a checkpoint, read from its header: no weight is touched, no torch needed.

A `.safetensors` file begins with eight bytes that say how long the header is; the header is JSON,
and the text under `card` in its metadata is JSON again.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from minigpt._memory_sizes import ModelSizes

HEADER_LIMIT = 100_000_000  # bytes; the safetensors library refuses longer headers too
SETTING_NAMES = (
    "batch_size",
    "accumulation_steps",
    "dtype",
    "matmul_precision",
    "evaluation_windows",
    "processes",
)


def read_card(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers of the model, and those of the run where the file has them.

    Raises ValueError for a file without such a header, OSError for one that cannot be read.
    """
    if path.suffix == ".pt":
        raise ValueError(f"{path} is a .pt file, which has no header; give its sizes by flags")
    try:
        card = json.loads(_read_header(path)["__metadata__"]["card"])
        config = dict(card["config"])
        settings = (card.get("trainer_state") or {}).get("settings") or {}
        run = {name: settings[name] for name in SETTING_NAMES if name in settings}
        names = {field.name for field in dataclasses.fields(ModelSizes)}
        sizes = dataclasses.asdict(ModelSizes(**{n: v for n, v in config.items() if n in names}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        raise ValueError(f"{path} is no whole checkpoint of minigpt ({reason})") from None
    return sizes, run


def _read_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, path.stat().st_size - 8):
            raise ValueError("no .safetensors header")
        header = json.loads(file.read(length))
    return dict(header)
