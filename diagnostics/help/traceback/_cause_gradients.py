"""Causes of gradients that cannot be computed, and of numbers that are none or too many."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_DETACHED = re.compile(r"\.item\(\)|\.detach\(\)|\.data\b|\.numpy\(\)|argmax|torch\.tensor\(")


def _no_gradient(clues: Clues) -> Explanation | None:
    said = "element 0 of tensors does not require grad and does not have a grad_fn"
    if said not in clues.message:
        return None
    code = clues.own.code if clues.own else ""
    cut = _DETACHED.search(code)
    if cut and cut.start() < code.find("backward"):
        return Explanation(
            name="gradient.detached",
            cause=say(
                "the loss was cut off from the model: the line itself uses {cut}", cut=cut.group()
            ),
            evidence=f"{quoted(said)} and {quoted(code)}",
            next_step=say(
                "call backward() on the loss tensor itself, without {cut}", cut=cut.group()
            ),
        )
    return Explanation(
        name="gradient.none",
        cause=say(
            "nothing that the loss was computed from asks for a gradient; the text "
            "does not say which of these it is"
        ),
        others=(
            say("the forward pass ran under torch.no_grad() or inference_mode()"),
            say("every parameter is frozen (requires_grad=False)"),
            say("the loss was made from .item(), .detach(), argmax, .long() or a new tensor"),
        ),
        evidence=quoted(said),
        next_step=say("python -m diagnostics --only gradients"),
    )


def _in_place(clues: Clues) -> Explanation | None:
    match = re.search(
        r"modified by an inplace operation: \[(?P<what>[\w.]+ \[[\d, ]*\])\], which is output "
        r"\d+ of (?P<node>\w+), is at version (?P<is>\d+); expected version (?P<was>\d+)",
        clues.message,
    )
    if match is None:
        return None
    if match["node"] in {"AsStridedBackward0", "AsStrided", "TBackward0", "T"}:
        cause = say(
            "a transposed tensor, most often a linear layer's weight, was changed between the "
            "forward and the backward pass, as an optimizer step between them does"
        )
        step = say("call every backward() before optimizer.step()")
    else:
        cause = say(
            "the output of {node} was changed in place (+=, mul_, x[...] = ...) after "
            "the forward pass had kept it for the gradient",
            node=match["node"].removesuffix("Backward0"),
        )
        step = say(
            "run once under torch.autograd.set_detect_anomaly(True), which names the "
            "line of {node}",
            node=match["node"],
        )
    return Explanation(
        name="gradient.in_place", cause=cause, evidence=quoted(match.group()), next_step=step
    )


RULES: tuple[Rule, ...] = (
    _no_gradient,
    _in_place,
    rule(
        "gradient.in_place_leaf",
        "RuntimeError",
        r"modified by an inplace operation: \[(?P<what>[\w.]+ \[[\d, ]*\])\] is at version \d+; "
        r"expected version \d+",
        "a parameter, a buffer or an input ({what}) was changed in place between the forward and "
        "the backward pass, as an optimizer step or a running average does",
        "move that change after backward()",
    ),
    rule(
        "gradient.number",
        "AttributeError",
        r"'(?P<kind>float|int|float64)' object has no attribute 'backward'",
        "the loss is a plain number ({kind}), which remembers no computation; .item() gives one",
        "call backward() on the loss tensor, before .item()",
    ),
    rule(
        "gradient.not_finite",
        "RuntimeError",
        r"The total norm of order [\d.]+ for gradients from `parameters` is non-finite",
        "at least one gradient is NaN or infinite",
        "python -m diagnostics --only forward_hooks gradients",
    ),
    rule(
        "gradient.twice",
        "RuntimeError",
        r"Trying to backward through the graph a second time",
        "backward() was called twice on the same computation, or a tensor of an "
        "earlier step (a hidden state, a running loss) is a part of this one's",
        "detach what is carried from step to step: state = state.detach()",
    ),
    rule(
        "gradient.leaf",
        "RuntimeError",
        r"a leaf Variable that requires grad is being used in an in-place operation"
        r"|a view of a leaf Variable that requires grad is being used in an "
        r"in-place operation",
        "a parameter is changed in place while its gradient is recorded",
        "put the change under `with torch.no_grad():`",
    ),
    rule(
        "gradient.not_scalar",
        "RuntimeError",
        r"grad can be implicitly created only for scalar outputs",
        "backward() was called on a tensor of several numbers; a loss with reduction='none' is one",
        "call loss.mean().backward()",
    ),
    rule(
        "gradient.inference",
        "RuntimeError",
        r"Inference tensors cannot be saved for backward|Inplace update to "
        r"inference tensor outside InferenceMode",
        "a tensor that was made under torch.inference_mode() is used where gradients are recorded",
        "make it under torch.no_grad() instead, or clone it before use",
    ),
    rule(
        "gradient.nan",
        "RuntimeError",
        r"Function '(?P<node>\w+)' returned nan values in its (?P<at>\d+)(?:st|nd|rd|th) output",
        "the gradient of {node} became NaN; the frames above a warning `Error "
        "detected in {node}` name the forward line",
        "python -m diagnostics --only forward_hooks gradients",
    ),
    rule(
        "number.probabilities",
        "RuntimeError",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        "the probabilities that are sampled from are not numbers, infinite or "
        "negative: logits without a softmax, logits that were not finite, or a temperature of 0",
        "python -m diagnostics --only forward_hooks generation sampling",
    ),
    rule(
        "number.all_zero",
        "RuntimeError",
        r"invalid multinomial distribution \(sum of probabilities <= 0\)",
        "every token that could be sampled has probability 0, as after a filter such as top-p "
        "that removed all",
        "python -m diagnostics --only sampling",
    ),
    rule(
        "number.not_finite",
        "FloatingPointError",
        r"(?P<what>[\w.\[\] -]{1,60}) must be finite, got [^\n]{1,80}",
        "{what} holds NaN or infinity",
        "python -m diagnostics --only forward_hooks gradients",
    ),
    rule(
        "number.update",
        "NonFiniteError",
        r"^[^\n;]{1,160}",
        "a loss or a gradient became NaN or infinite; no update was made with it, "
        "and the last good checkpoint is still there",
        "python -m diagnostics --only forward_hooks gradients",
    ),
    rule(
        "number.item",
        "RuntimeError",
        r"a Tensor with (?P<count>\d+) elements cannot be converted to Scalar",
        "one number was asked of a tensor with {count}",
        "reduce it first, tensor.mean().item(), or name one entry, tensor[0].item()",
    ),
    rule(
        "number.ambiguous",
        "RuntimeError",
        r"Boolean value of Tensor with more than one value is ambiguous",
        "`if`, `and` or `in` was given a tensor of several numbers",
        "say which is meant: (a == b).all() or .any()",
    ),
    rule(
        "gradient.numpy",
        "RuntimeError",
        r"Can't call numpy\(\) on Tensor that requires grad",
        "NumPy cannot follow gradients",
        "detach it first: tensor.detach().cpu().numpy()",
    ),
)
