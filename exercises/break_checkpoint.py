"""Break the checkpoint: lose something between saving and loading, without a word."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diagnostics import Pipeline
from diagnostics.checkpoint import compare_state_dicts
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import MiniGPT, MiniGPTConfig


def break_prefix(lab: Lab) -> Pipeline:
    """Save a wrapped model, whose names carry a prefix, and load with strict=False."""

    def save(model: nn.Module, path: Path) -> None:
        torch.save(nn.DataParallel(model).state_dict(), path)

    def load(path: Path) -> nn.Module:
        model = MiniGPT(lab.config)
        state = _read(path)
        cut = len("")  # BROKEN: was cut = len("module.")
        model.load_state_dict({name[cut:]: value for name, value in state.items()}, strict=False)
        return model

    return lab.pipeline(save=save, load=load)


def break_vocabulary(lab: Lab) -> Pipeline:
    """Load into a model with one more token than the checkpoint."""
    V = lab.config.vocab_size

    def load(path: Path) -> nn.Module:
        config = replace(lab.config, vocab_size=V + 1)  # BROKEN: was config = lab.config
        return _load_into(config, path)

    return lab.pipeline(save=_save, load=load)


def break_width(lab: Lab) -> Pipeline:
    """Load into a model of twice the embedding dimension."""

    def load(path: Path) -> nn.Module:
        config = replace(lab.config, embedding_dim=128)  # BROKEN: was config = lab.config
        return _load_into(config, path)

    return lab.pipeline(save=_save, load=load)


def break_depth(lab: Lab) -> Pipeline:
    """Load into a model with one more layer than the checkpoint."""

    def load(path: Path) -> nn.Module:
        config = replace(lab.config, num_layers=3)  # BROKEN: was config = lab.config
        return _load_into(config, path)

    return lab.pipeline(save=_save, load=load)


def break_heads(lab: Lab) -> Pipeline:
    """Load into a model with another number of heads: every tensor fits."""

    def load(path: Path) -> nn.Module:
        config = replace(lab.config, num_heads=8)  # BROKEN: was config = lab.config
        return _load_into(config, path)

    return lab.pipeline(save=_save, load=load)


def break_reference(lab: Lab) -> Pipeline:
    """Keep the best weights in memory while training goes on."""
    best: dict[Path, dict[str, Any]] = {}

    def save(model: nn.Module, path: Path) -> None:
        state = model.state_dict()  # BROKEN: was state = copy.deepcopy(model.state_dict())
        best[path] = state

    def load(path: Path) -> nn.Module:
        model = MiniGPT(lab.config)
        model.load_state_dict(copy.deepcopy(best[path]))
        return model

    return lab.pipeline(save=save, load=load)


def loading_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Save, train on by a step, load; return what the loader says and what the model predicts."""
    save, load = pipeline.save, pipeline.load
    if save is None or load is None:
        raise ValueError("the lab's pipeline holds save and load; an exercise took one away")
    model = copy.deepcopy(pipeline.model).eval()
    tokens = lab.val_ids[:32].unsqueeze(0)  # (1, T)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for parameter in model.parameters():
            parameter.mul_(1.5)  # any weights that a fresh model does not have
        before = model(tokens)[0]
        path = Path(folder) / "model.pt"
        save(model, path)
        for parameter in model.parameters():
            parameter.add_(0.1)  # training goes on
        said, distance = _try_to_load(load, path, model, lambda loaded: loaded(tokens)[0] - before)
    return {"the loader says": said, "largest difference of a logit": distance}


def _try_to_load(
    load: Callable[[Path], nn.Module], path: Path, model: nn.Module, compare: Callable[..., Any]
) -> tuple[str, str]:
    try:
        loaded = load(path).eval()
    except RuntimeError:
        built = _last_built[-1]
        difference = compare_state_dicts(built.state_dict(), model.state_dict())
        return str(difference.sentences[0]), "not reached"
    return "nothing", f"{compare(loaded).abs().max().item():.3g}"


_last_built: list[nn.Module] = []  # the model that the checkpoint did not fit


def _save(model: nn.Module, path: Path) -> None:
    torch.save(model.state_dict(), path)


def _read(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _load_into(config: MiniGPTConfig, path: Path) -> nn.Module:
    model = MiniGPT(config)
    _last_built[:] = [model]
    model.load_state_dict(_read(path), strict=True)
    return model


EXERCISE = Exercise(
    name="break_checkpoint",
    question=(
        "A checkpoint loads without an error and without a warning. Which differences between "
        "the model that was saved and the model that came back can there still be?"
    ),
    bugs=(
        Bug(
            name="vocabulary",
            break_it=break_vocabulary,
            trips="checkpoint",
            reason="checkpoint.load_raises",
            note="The good case: strict loading refuses, and the two shapes tell what changed.",
        ),
        Bug(
            name="width",
            break_it=break_width,
            trips="checkpoint",
            reason="checkpoint.load_raises",
            note="Nearly every shape differs, and all of them for one reason.",
        ),
        Bug(
            name="depth",
            break_it=break_depth,
            trips="checkpoint",
            reason="checkpoint.load_raises",
            note="No shape differs; the names of one layer are missing.",
        ),
        Bug(
            name="prefix",
            break_it=break_prefix,
            trips="checkpoint",
            reason="checkpoint.nothing_loaded",
            note="strict=False silences the error and loads nothing at all.",
        ),
        Bug(
            name="heads",
            break_it=break_heads,
            trips="checkpoint",
            reason="checkpoint.other_configuration",
            level=2,
            note="Comparing all tensors finds no difference: the number of heads has no tensor.",
        ),
        Bug(
            name="reference",
            break_it=break_reference,
            trips="checkpoint",
            reason="checkpoint.saved_by_reference",
            level=2,
            note="Loaded at once it is right; loaded after more training it is the last, not best.",
        ),
    ),
    hint="Save, change the model, load, and compare the logits of both in eval mode.",
    lesson=(
        "Build the model from the configuration in the file, load strictly, copy what stays in "
        "memory, and believe a checkpoint when its logits are equal, not when it loads."
    ),
    symptom=loading_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
