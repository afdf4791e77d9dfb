"""What a replay has found: the place where finite numbers became others, and its sentence."""

from __future__ import annotations

from dataclasses import dataclass

from diagnostics._text import Text, say

SELF = "the model itself"


@dataclass
class Finding:
    """The first place where finite numbers became others. Empty where nothing was found.

    phase: "forward", "backward", or "" when the replay was finite throughout.
    module: full path.    operation: torch's name, such as "aten._softmax.default".
    place: the user's line.    parameter: the first whose gradient is not finite.
    """

    phase: str = ""
    module: str | None = None
    kind: str | None = None
    operation: str | None = None
    place: str | None = None
    parameter: str | None = None
    inputs_finite: bool | None = None
    nan: int = 0
    infinite: int = 0
    total: int = 0
    loss: float | None = None
    trouble: str | None = None  # why the replay could not be made, or ended early
    loss_is_ours: bool = False  # the model gives no loss: cross-entropy of its logits was taken

    def sentence(self) -> Text:
        """Say it in one sentence."""
        if self.phase and (self.module or self.operation):
            what = say(
                "in the {phase} pass {module} is the first module to give numbers that are not "
                "finite",
                phase=self.phase,
                module=self.module or SELF,
            )
            if self.operation is None:
                return what
            place = say(" at {place}", place=self.place) if self.place else say("")
            return say("{what}, in {op}{place}", what=what, op=self.operation, place=place)
        if self.phase and self.parameter is not None:
            return say("the first gradient that is not finite is that of {p}", p=self.parameter)
        if self.trouble is not None:
            return say("the step could not be run again: {trouble}", trouble=self.trouble)
        if self.loss_is_ours:
            return say(
                "run again, the model is finite and so is a cross-entropy of its logits: the fault "
                "is in how the loop makes its loss, or in what it does after backward"
            )
        return say("run again, the step is finite: its dropout or its weights were others")
