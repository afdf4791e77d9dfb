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
        ),
        Bug(
            name="transposed",
            break_it=break_transposed,
            trips="shapes",
            reason="shapes.transposed",
            note="argmax over the last axis now chooses a position, not a token.",
        ),
        Bug(
            name="squeezed",
            break_it=break_squeezed,
            trips="shapes",
            reason="shapes.squeezed",
            level=2,
            note="Training never sees it: its batches have eight rows. Generation starts with one.",
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
        ),
        Bug(
            name="wrong_device",
            break_it=break_wrong_device,
            trips="shapes",
            reason="shapes.wrong_device",
            level=2,
            note="Not one number differs on a CPU. The meta device shows what a GPU would refuse.",
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
