"""Break the shapes: an axis that vanishes, rows that change places, a tensor left on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from exercises._symptom import train_briefly
from minigpt import MiniGPT

STEPS = 100
Logits = tuple[Tensor, Tensor | None]


def break_flattened(lab: Lab) -> Pipeline:
    """Return the view that was made for the loss."""

    class Flattening(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> Logits:
            logits, _ = super().forward(token_ids)  # (B, T, V)
            if targets is None:
                return logits, None
            flat = logits.flatten(0, 1)  # (B * T, V)
            loss = functional.cross_entropy(flat, targets.flatten())
            return flat, loss  # BROKEN: was return logits, loss

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Flattening))


def break_transposed(lab: Lab) -> Pipeline:
    """Return the layout that cross_entropy likes, classes second."""

    class Transposing(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> Logits:
            logits, loss = super().forward(token_ids, targets)
            return logits.transpose(1, 2), loss  # BROKEN: was return logits, loss

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Transposing))


def break_squeezed(lab: Lab) -> Pipeline:
    """Squeeze without naming the axis: only a batch of one, or one token, shows it."""

    class Squeezing(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> Logits:
            logits, loss = super().forward(token_ids, targets)
            return logits.squeeze(), loss  # BROKEN: was return logits, loss

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Squeezing))


def break_rows_mixed(lab: Lab) -> Pipeline:
    """Swap two axes by reshape: the shape is right, the rows are not."""

    class Mixing(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> Logits:
            B, T = token_ids.shape
            time_first = super().forward(token_ids)[0].transpose(0, 1)  # (T, B, V)
            logits = time_first.reshape(B, T, -1)  # BROKEN: was logits = time_first.transpose(0, 1)
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Mixing))


def break_wrong_device(lab: Lab) -> Pipeline:
    """Make the positions without a device: on a CPU nothing is wrong."""

    class Careless(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> Logits:
            T = token_ids.shape[1]
            device = None  # BROKEN: was device = token_ids.device
            positions = torch.arange(T, device=device)
            x = self.token_embedding(token_ids) + self.position_embedding(positions)  # (B, T, C)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.final_norm(x))  # (B, T, V)
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Careless))


def shape_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the shape of the logits at some sizes, and the loss after a short training."""
    figures: dict[str, str] = {}
    model = pipeline.model.eval()
    for B, T in ((3, 7), (1, 7), (3, 1)):
        ids = lab.train_ids[: B * T].view(B, T)
        with torch.no_grad():
            shapes = [tuple(model(ids)[0].shape), tuple(model(ids, ids)[0].shape)]
        figures[f"logits for ids ({B}, {T}), without and with targets"] = " and ".join(
            map(str, shapes)
        )
    _, losses = train_briefly(lab, pipeline, STEPS)
    return {**figures, f"training loss after {STEPS} steps": f"{losses[-10:].mean():.3f} nats"}


EXERCISE = Exercise(
    name="break_shapes",
    question=(
        "Your model trains, so its shapes must be right. Which sizes did you never try: a batch "
        "of one, a prompt of one token, a machine with a GPU?"
    ),
    bugs=(
        Bug(
            name="flattened",
            break_it=break_flattened,
            trips="shapes",
            reason="shapes.flattened",
            note="The loss is right. Whoever reads the logits of a training step reads nonsense.",
            question=(
                "For ids of shape (3, 7) and 87 tokens: which shape do the logits have without "
                "targets, and which with them? Will the training loss differ from the healthy one?"
            ),
            hints=(
                (
                    "Look at what the branch with targets returns, and at which names it has made "
                    "on its way to the loss."
                ),
                (
                    "Print the shape of the logits for ids (3, 7), once without and once with "
                    "targets. Healthy is (3, 7, 87) both times; here the second has two axes."
                ),
                (
                    "The view with one axis for all positions is for the loss alone. What goes "
                    "back to the caller are the logits with their three axes."
                ),
            ),
            lesson=(
                "A view that was made for one call should keep a name of its own and end with that "
                "call. The same question asked in two ways, with targets and without, has to give "
                "the same logits."
            ),
        ),
        Bug(
            name="transposed",
            break_it=break_transposed,
            trips="shapes",
            reason="shapes.transposed",
            note="argmax over the last axis now chooses a position, not a token.",
            question=(
                "The loss agrees to the last digit. Which shape do the logits have for ids of "
                "shape (3, 7), and what does argmax over the last axis choose from?"
            ),
            hints=(
                (
                    "Look at the order of the axes of the logits, at sizes where B, T and V all "
                    "differ."
                ),
                (
                    "Print the shape for ids (3, 7): healthy is (3, 7, 87), and here 87 stands in "
                    "the middle. At T = 87 the two could not be told apart."
                ),
                (
                    "The logits have to be returned with the classes on the last axis. If the loss "
                    "wants another layout, give it one in the call of the loss."
                ),
            ),
            lesson=(
                "Two functions may want the same numbers in two layouts. Convert at the call, and "
                "let one layout be the one that is passed around."
            ),
        ),
        Bug(
            name="squeezed",
            break_it=break_squeezed,
            trips="shapes",
            reason="shapes.squeezed",
            level=2,
            note="Training never sees it: its batches have eight rows. Generation starts with one.",
            question=(
                "Try in your head B = 3 with T = 7, B = 1 with T = 7, and B = 3 with T = 1: for "
                "which of them are the logits as they should be? Would training notice?"
            ),
            hints=(
                "Look for an operation that acts on an axis only if its size is 1.",
                (
                    "Print the shape of the logits for ids (1, 7) and (3, 1). Healthy are (1, 7, "
                    "87) and (3, 1, 87); here each lacks the axis of size 1."
                ),
                (
                    "Return the logits with all three axes, whatever their sizes. An axis that "
                    "really has to go should be named by its number."
                ),
            ),
            lesson=(
                "An axis of size 1 is an axis. Operations that decide by size, such as a squeeze "
                "without a number, work until the day a batch or a prompt has length 1."
            ),
        ),
        Bug(
            name="rows_mixed",
            break_it=break_rows_mixed,
            trips="shapes",
            reason="shapes.rows_mixed",
            level=2,
            note=(
                "The shape is perfect, and each row alone is perfect. In a batch, most logits "
                "belong to another row."
            ),
            question=(
                "The shape is right for every size. Will the training loss after 100 steps be "
                "equal to the healthy one, lower or higher, and what would a batch of one row show?"
            ),
            hints=(
                (
                    "Look at how the logits come back from (T, B, V) to (B, T, V), and whether any "
                    "axis is moved there."
                ),
                (
                    "Compute row 1 of a batch of three alone, and compare with row 1 in the batch. "
                    "Healthy is equal; here only few places agree, for 18 of 21 hold the logits of "
                    "another place."
                ),
                (
                    "The two first axes have to change places. A reshape to the wanted sizes reads "
                    "the same memory in the same order."
                ),
            ),
            lesson=(
                "A right shape says nothing about which number stands where. Compare a row alone "
                "with the same row in a batch, at B, T and V that differ."
            ),
        ),
        Bug(
            name="wrong_device",
            break_it=break_wrong_device,
            trips="shapes",
            reason="shapes.wrong_device",
            level=2,
            note="Not one number differs on a CPU. The meta device shows what a GPU would refuse.",
            question=(
                "Which number on your CPU differs from the healthy one? If none does, what would "
                "you run to find the fault without owning a GPU?"
            ),
            hints=(
                "Look at the tensors that forward makes by itself, and not at those it is given.",
                (
                    "Move a copy of the model and the ids to the device meta, and print the device "
                    "of every tensor that forward makes. Healthy is meta for all of them; here one "
                    "stays on the cpu."
                ),
                (
                    "The positions must be made on the device of the ids that they belong to, for "
                    "every call."
                ),
            ),
            lesson=(
                "A tensor that is made inside forward needs its device from an input. The meta "
                "device needs no hardware, so on any machine you can see which tensor is left "
                "behind."
            ),
        ),
    ),
    hint="Choose B, T and V all different, and one of them 1; then ask one row alone.",
    lesson=(
        "A shape is right when it is right for every size. Try 1, try sizes that cannot be "
        "confused, compare a row alone with the same row in a batch, and try another device "
        "before you own one."
    ),
    symptom=shape_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
