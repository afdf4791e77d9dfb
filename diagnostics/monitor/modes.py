"""Train and eval mode while the loop trains."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from diagnostics._state import some
from diagnostics._text import say
from diagnostics.monitor.events import Speaker

STEPS = 2  # in a row: one may be the update right after an evaluation


def depends_on_mode(module: nn.Module) -> bool:
    """Whether a module itself, not its children, computes something else in eval mode."""
    name = type(module).__name__.lower()
    if "batchnorm" in name:
        return True
    return any(
        isinstance(value, float) and 0 < value < 1 and ("drop" in key or ("drop" in name))
        for key, value in vars(module).items()
    )


@dataclass
class ModeWatch:
    """Counts updates that were made in eval mode, wholly or in parts."""

    speaker: Speaker
    _whole: int = 0

    def see(self, step: int, model: nn.Module) -> None:
        """Look at the mode of the whole model, in every update."""
        self._whole = 0 if model.training else self._whole + 1
        if self._whole < STEPS:
            return
        if self.speaker.said("eval_mode"):
            self.speaker.speak("eval_mode", step, say(""), say(""))
            return
        matters = [n for n, m in model.named_modules() if depends_on_mode(m)]
        self.speaker.speak(
            "eval_mode",
            step,
            say("the model is in eval mode while it trains"),
            say("model.train() before each update"),
            cause=say("dropout and batch norm are off in {names}", names=some(matters))
            if matters
            else say("nothing in it depends on the mode yet; dropout would be off"),
            modules=matters,
        )

    def look(self, step: int, model: nn.Module) -> None:
        """Look at every module: parts may have been left in eval mode.

        A part without trainable parameters may be so on purpose: a frozen encoder, or LoRA's base.
        """
        if not model.training:
            return
        left = [
            path
            for path, module in model.named_modules()
            if not module.training and depends_on_mode(module) and _is_trained(model, path)
        ]
        if left:
            self.speaker.speak(
                "partly_eval_mode",
                step,
                say(
                    "{n:module is|modules are} in eval mode while the model trains: {names}",
                    n=len(left),
                    names=some(left),
                ),
                say("train mode in all of them"),
                cause=say("eval() was called on a part, and train() was not called after it"),
                measured=float(len(left)),
                modules=left,
            )


def _is_trained(model: nn.Module, path: str) -> bool:
    """Whether the nearest enclosing module that has parameters trains any of them."""
    while True:
        module = model.get_submodule(path)
        parameters = list(module.parameters())
        if parameters or not path:
            return any(p.requires_grad for p in parameters)
        path = path.rpartition(".")[0]
