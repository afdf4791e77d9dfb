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
            question=(
                "The model has one token more than the checkpoint. Which tensors will the loader "
                "name, and how many are they if the output head shares its weights with the "
                "embedding?"
            ),
            hints=(
                (
                    "Read the two shapes in the error: one is of the file, the other of the model. "
                    "Ask which axis differs, and by how much."
                ),
                (
                    "Print config.vocab_size beside the first axis of token_embedding.weight in "
                    "the file. Healthy is the same number; here they are 88 and 87."
                ),
                (
                    "Build the model from the configuration that the checkpoint was made with, and "
                    "leave it unchanged."
                ),
            ),
            lesson=(
                "A vocabulary that differs by one is another tokenizer, and then every id may mean "
                "another token. Do not pad or cut the table to make it fit: find the tokenizer "
                "that belongs to the weights."
            ),
            guide="Loading into the wrong architecture",
        ),
        Bug(
            name="width",
            break_it=break_width,
            trips="checkpoint",
            reason="checkpoint.load_raises",
            note="Nearly every shape differs, and all of them for one reason.",
            question=(
                "Only one number of the configuration differs. How many of the tensors will the "
                "loader refuse, nearly all or only a few?"
            ),
            hints=(
                (
                    "Count the size mismatches in the error, and look for a number that all of the "
                    "wanted shapes share."
                ),
                (
                    "Print config.embedding_dim beside the last axis of token_embedding.weight in "
                    "the file. Healthy is 64 for both; here the first is 128."
                ),
                (
                    "The width belongs to the saved model, so it must come from its configuration "
                    "and not be set anew at loading."
                ),
            ),
            lesson=(
                "Many errors with one factor in common have one cause. Read a long list of "
                "mismatches for what repeats before you mend the first line of it."
            ),
            guide="Loading into the wrong architecture",
        ),
        Bug(
            name="depth",
            break_it=break_depth,
            trips="checkpoint",
            reason="checkpoint.load_raises",
            note="No shape differs; the names of one layer are missing.",
            question=(
                "The model has three layers, the checkpoint has two. Will the loader speak of "
                "shapes, of missing keys or of unexpected keys?"
            ),
            hints=(
                (
                    "Look at the names in the error rather than at shapes, and at the number that "
                    "stands in each of them."
                ),
                (
                    "Count the layers by name in the file and in the model: the largest i of "
                    "blocks.i is 1 in both when all is well."
                ),
                (
                    "The number of layers has to be that of the saved configuration; a layer that "
                    "is not in the file cannot be loaded."
                ),
            ),
            lesson=(
                "Missing names mean that the model has more than the file, unexpected names that "
                "it has less. With strict=False the extra layer would stay at its random start, "
                "and the model would run."
            ),
            guide="Loading into the wrong architecture",
        ),
        Bug(
            name="prefix",
            break_it=break_prefix,
            trips="checkpoint",
            reason="checkpoint.nothing_loaded",
            note="strict=False silences the error and loads nothing at all.",
            question=(
                "Loading raises nothing. What loss will the loaded model have on text, and what "
                "would the return value of load_state_dict have told?"
            ),
            hints=(
                "Print three names of the file beside three names of the model.",
                (
                    "Print what load_state_dict returns: healthy are two empty lists, of missing "
                    "and of unexpected keys. Here each lists every tensor."
                ),
                (
                    "The names in the file begin with the seven characters of the wrapper. They "
                    "have to be cut off before the names are compared."
                ),
            ),
            lesson=(
                "A tolerant loader turns an error into a silence. Load strictly, or count what was "
                "loaded; a loss near ln V after loading says that nothing was."
            ),
            guide="Chaotic text",
        ),
        Bug(
            name="heads",
            break_it=break_heads,
            trips="checkpoint",
            reason="checkpoint.other_configuration",
            level=2,
            note="Comparing all tensors finds no difference: the number of heads has no tensor.",
            question=(
                "All names, shapes and values agree after loading. Can the logits still differ, "
                "and which settings of a model leave no trace in its tensors?"
            ),
            hints=(
                (
                    "The tensors are right, so look at what the forward pass does with them, and "
                    "at the numbers which it takes from the configuration."
                ),
                (
                    "Compare the logits of the saved and of the loaded model on the same tokens in "
                    "eval mode. Healthy is a difference of 0; here it is about 0.1."
                ),
                (
                    "The same 64 channels can be split into 4 or into 8 heads. The number must be "
                    "the one of the saved model."
                ),
            ),
            lesson=(
                "Weights are half of a model, its settings are the other half. Save the "
                "configuration in the same file, and believe a loaded model when its outputs "
                "agree, not when its tensors do."
            ),
        ),
        Bug(
            name="reference",
            break_it=break_reference,
            trips="checkpoint",
            reason="checkpoint.saved_by_reference",
            level=2,
            note="Loaded at once it is right; loaded after more training it is the last, not best.",
            question=(
                "The best weights are kept in memory and training goes on for 100 steps. Which "
                "weights will be loaded at the end, and would a test that loads at once have "
                "noticed?"
            ),
            hints=(
                (
                    "Ask whether the kept state and the model share memory: does one change when "
                    "the other does?"
                ),
                (
                    "Keep a state, add 1 to every weight of the model, and load. In a healthy "
                    "program the values from before come back; here they have grown by 1."
                ),
                (
                    "state_dict() gives the live tensors themselves. What is kept has to be a "
                    "copy, made at that moment."
                ),
            ),
            lesson=(
                "A name for something is not a copy of it. When a snapshot is to outlive the "
                "thing, copy it, and test it by changing the thing afterwards."
            ),
            guide="Keeping the best, and stopping",
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
