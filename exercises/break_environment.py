"""Break the environment: hooks, modes and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import MiniGPT


def break_gradients_off(lab: Lab) -> Pipeline:
    """Switch gradients off for an evaluation, as a statement, and forget it."""
    lab.undo_later(lambda: torch.set_grad_enabled(True))
    torch.set_grad_enabled(False)  # BROKEN: was torch.set_grad_enabled(True)
    return lab.pipeline()


def break_hook(lab: Lab) -> Pipeline:
    """Look at a layer's output, and hand a detached one back."""
    largest: list[float] = []

    def observe(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        largest.append(float(output.detach().abs().max()))
        return output.detach()  # BROKEN: was return None

    model = lab.pipeline().model
    last_norm = [module for module in model.modules() if isinstance(module, nn.LayerNorm)][-1]
    last_norm.register_forward_hook(observe)
    return lab.pipeline(model=model)


def break_inference(lab: Lab) -> Pipeline:
    """Build the model in a mode that is meant for serving."""
    with torch.inference_mode():  # BROKEN: was with torch.enable_grad():
        model = MiniGPT(lab.config)
    return lab.pipeline(model=model)


def break_half_state(lab: Lab) -> Pipeline:
    """Load the optimizer's state in half precision beside weights in single precision."""

    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = lab.make_optimizer(model)
        for parameter in model.parameters():
            loaded = torch.zeros_like(parameter)
            state = loaded.half()  # BROKEN: was state = loaded
            optimizer.state[parameter] = {"exp_avg_sq": state}
        return optimizer

    return lab.pipeline(make_optimizer=make_optimizer)


def show_learning(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the loss, how many weights get a gradient, and what the optimizer keeps."""
    model = pipeline.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        inputs, targets = lab.get_batch(lab.train_ids)
    assert pipeline.make_optimizer is not None
    optimizer = pipeline.make_optimizer(model)
    kept = {state["exp_avg_sq"].dtype for state in optimizer.state.values()}
    try:
        _, loss = model(inputs, targets)
        loss.backward()
    except RuntimeError as error:
        return {"loss": "not reached", "weights with a gradient": str(error), "state": "none"}
    parameters = list(model.parameters())
    reached = sum(parameter.grad is not None for parameter in parameters)
    model.zero_grad(set_to_none=True)
    return {
        "loss": f"{loss.item():.3f} nats",
        "weights with a gradient": f"{reached} of {len(parameters)} tensors",
        "type of the optimizer's state": ", ".join(map(str, kept)) or "made at the first step",
    }


EXERCISE = Exercise(
    name="break_environment",
    question=(
        "A hook was meant to look, not to touch. The loss before and after is the same number. "
        "Where would you see that most of the model no longer learns?"
    ),
    bugs=(
        Bug(
            name="gradients_off",
            break_it=break_gradients_off,
            trips="environment",
            reason="environment.grad_disabled",
            note="Every loss is right. What is missing shows at the first backward, far away.",
            question=(
                "An evaluation has run before the training, and every loss that it printed is "
                "right. At which line will a person first notice that something is different: "
                "forward, loss, backward or step?"
            ),
            hints=(
                (
                    "Ask torch about the process and not about the model: its switches outlive "
                    "the function that set them."
                ),
                (
                    "Print torch.is_grad_enabled() and loss.requires_grad before the first "
                    "backward. Healthy is True for both."
                ),
                (
                    "After the evaluation the switch has to stand as it stood before. It should "
                    "be turned on at this place."
                ),
            ),
            lesson=(
                "A switch of the whole process that is set by a statement stays set. Use a "
                "with-block, which puts it back, also when an error ends it early."
            ),
        ),
        Bug(
            name="inference",
            break_it=break_inference,
            trips="environment",
            reason="environment.inference_weights",
            note="The forward pass works; the first backward says something about saving tensors.",
            question=(
                "The model is built and its forward pass gives the right loss. What is it about a "
                "weight, other than its numbers, that can make training impossible?"
            ),
            hints=(
                (
                    "Compare the weights with those of a model that you build yourself: the "
                    "values are of the same kind, so look at their flags."
                ),
                (
                    "Count the parameters with is_inference() being True. Healthy is 0 of 29; "
                    "moving or copying the values in place does not change the flag."
                ),
                "The model must be built in a mode in which its weights can get a gradient later.",
            ),
            lesson=(
                "Some modes mark the tensors that are made in them, for good. Use a mode for "
                "serving around the serving call only, never around the building or loading of a "
                "model."
            ),
        ),
        Bug(
            name="hook",
            break_it=break_hook,
            trips="environment",
            reason="environment.hook_changes_output",
            level=2,
            note="Every logit stays the same bit for bit: only the gradient is cut.",
            question=(
                "The loss is the same in every bit, with and without the hook. How many of the 29 "
                "weight tensors get a gradient, and which ones do you expect to be left out?"
            ),
            hints=(
                (
                    "Run one backward with the hook and one without it, and compare which "
                    "parameters have a gradient."
                ),
                (
                    "Count the parameters whose grad is not None. Healthy is 29 of 29; those in "
                    "front of the layer that is watched are missing here."
                ),
                (
                    "What a forward hook returns replaces the output, unless it is None. A hook "
                    "that only looks has nothing to hand back."
                ),
            ),
            lesson=(
                "Equal losses prove an equal forward pass and nothing else. Whatever stands "
                "between loss and weights has to be checked by comparing gradients."
            ),
        ),
        Bug(
            name="half_state",
            break_it=break_half_state,
            trips="environment",
            reason="environment.optimizer_state_dtype",
            level=2,
            note="Squares of gradients below 0.0002 are 0 in float16, and Adam divides by them.",
            question=(
                "Loss and gradients are those of the healthy run, and nothing has been trained "
                "yet. What does the optimizer remember between two steps, and what does it divide "
                "by?"
            ),
            hints=(
                (
                    "Look past the model: print what optimizer.state holds for one parameter, "
                    "with the types."
                ),
                (
                    "Compare the type of each tensor of the state with that of its parameter, for "
                    "example exp_avg_sq. Healthy is torch.float32 for both."
                ),
                (
                    "The state must be kept as it was loaded, in the type of the parameter, "
                    "without a conversion to fewer bits."
                ),
            ),
            lesson=(
                "An optimizer keeps small numbers: squares of gradients leave the range of half "
                "precision long before the gradients do. Check types of its state after loading, "
                "as you do for weights."
            ),
        ),
    ),
    hint="Ask of each object: what does it return, in which mode was it made, of which type is it?",
    lesson=(
        "Whatever a hook returns takes the place of the output; an observer returns None. Compare "
        "gradients, not only losses, with and without it, and remove it in a finally block."
    ),
    symptom=show_learning,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
