"""Break the numbers: NaN in a weight, an overflow, a row that sees nothing, a norm that grows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, FeedForward


def break_bad_weight(lab: Lab) -> Pipeline:
    """Put one NaN into one bias, as a step with a NaN gradient does."""

    def edit(model: MiniGPT) -> nn.Module:
        value = math.nan  # BROKEN: was value = 0.0
        with torch.no_grad():
            model.blocks[1].feed_forward.expand.bias[0] = value  # type: ignore[union-attr,operator]
        return model

    return lab.pipeline(edit_model=edit)


def break_overflow(lab: Lab) -> Pipeline:
    """Write softplus by hand: exp of 89 is more than float32 can hold."""

    class Softplus(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            sharp = 1000 * self.expand(x)
            smooth = (1 + sharp.exp()).log()  # BROKEN: was smooth = functional.softplus(sharp)
            return self.output(smooth / 1000)

    return lab.pipeline(edit_model=lambda model: retype(model, FeedForward, Softplus))


def break_masked_row(lab: Lab) -> Pipeline:
    """Hide the diagonal too: position 0 may read nothing, and the softmax of nothing is NaN."""

    class Blind(CausalSelfAttention):
        def forward(self, x: Tensor, cache: object = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
                for part in self.query_key_value(x).split(C, dim=2)
            )  # (B, H, T, D)
            scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, T)
            first_hidden = 0  # BROKEN: was first_hidden = 1
            hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(first_hidden)
            weights = functional.softmax(scores.masked_fill(hidden, -math.inf), dim=-1)
            return self.output((weights @ values).transpose(1, 2).reshape(B, T, C))

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Blind))


def break_norm_scale(lab: Lab) -> Pipeline:
    """Square the variance where its root is meant: everything stays finite."""

    class HandMadeLayerNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.square().mean(-1, keepdim=True)
            power = 2  # BROKEN: was power = 0.5
            normed = centred / (variance + self.eps) ** power
            return normed * self.weight + self.bias

    return lab.pipeline(edit_model=lambda model: retype(model, nn.LayerNorm, HandMadeLayerNorm))


def number_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Run one batch and show what a person would print first: loss, logits, sizes."""
    model = pipeline.model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)  # the same batch for the healthy and the broken model
        inputs, targets = lab.get_batch(lab.train_ids)
    sizes: dict[str, float] = {}

    def keep(name: str) -> None:
        module = model.get_submodule(name)
        module.register_forward_hook(lambda _, __, out: sizes.update({name: _rms(out)}))

    for name in ("token_embedding", "blocks.0", "blocks.1", "final_norm"):
        keep(name)
    with torch.no_grad():
        logits, loss = model(inputs, targets)
    bad = int((~logits.isfinite()).sum())
    return {
        "loss before training (ln V = " + f"{math.log(logits.shape[-1]):.3f})": f"{loss:.3f}",
        "logits that are not finite": f"{bad} of {logits.numel()}",
        **{f"size (RMS) after {name}": f"{size:.4g}" for name, size in sizes.items()},
    }


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


EXERCISE = Exercise(
    name="break_forward_hooks",
    question=(
        "The loss is NaN. It was computed from all modules. Which one do you look at first, and "
        "how do you know that it is the culprit and not the first victim?"
    ),
    bugs=(
        Bug(
            name="bad_weight",
            break_it=break_bad_weight,
            trips="forward_hooks",
            reason="forward_hooks.bad_weight",
            note="One number of 115,000 is NaN, and so is every logit.",
            question=(
                "One number out of 115,000 is NaN. How many of the 22,272 logits of a batch will "
                "be: one, one row of them, or all?"
            ),
            hints=(
                (
                    "Look at the weights before you look at any output: a module can be bad before "
                    "anything is computed."
                ),
                (
                    "Count the values that are not finite in each parameter, with its name. "
                    "Healthy is 0 for all; here one bias of block 1 holds one."
                ),
                (
                    "Every number of that bias has to be finite; a fresh bias is 0. In a real run "
                    "go back to the last checkpoint whose weights are finite."
                ),
            ),
            lesson=(
                "A NaN does not stay where it is: the next matrix product carries it into every "
                "number of the token, and the next attention into every later token. Look at "
                "weights before outputs."
            ),
            guide="NaN: stop, name, go back",
        ),
        Bug(
            name="overflow",
            break_it=break_overflow,
            trips="forward_hooks",
            reason="forward_hooks.non_finite",
            note="The formula is right on paper. On paper exp(89) is a number.",
            question=(
                "exp grows fast, and float32 ends near 3.4e38. For which values of sharp does the "
                "marked formula stop being finite, and does softplus itself get large there?"
            ),
            hints=(
                (
                    "Look at the intermediate results of the feed-forward part, and not at its "
                    "end: which of them is the first that is infinite?"
                ),
                (
                    "Print the largest value of sharp and of its exponential. Anything above 88.7 "
                    "becomes infinite in float32; here sharp goes well beyond."
                ),
                (
                    "Use torch's own function for the smooth relu, which returns its input where "
                    "that is large. By hand, take the larger of x and 0 out before the exponential."
                ),
            ),
            lesson=(
                "A formula can be right and not computable: the result is small, and a step on the "
                "way is not. Use the library's stable version of softmax, softplus and logsumexp."
            ),
        ),
        Bug(
            name="masked_row",
            break_it=break_masked_row,
            trips="forward_hooks",
            reason="forward_hooks.non_finite",
            level=2,
            note=(
                "NaN is born between two modules: the first one to give it has only passed on "
                "what it read."
            ),
            question=(
                "Which positions of a row get NaN in the first attention, one or all? And at which "
                "module will a hook report it first?"
            ),
            hints=(
                (
                    "Look between two modules: the first one with a bad output has read a bad "
                    "input already. The softmax has no hook."
                ),
                (
                    "Count the keys that each position may read, for T = 4. Healthy are 1, 2, 3, "
                    "4; here position 0 may read none, and the sum of its exponentials is 0."
                ),
                (
                    "What is hidden has to begin one place after the diagonal, so that every "
                    "position reads at least itself."
                ),
            ),
            lesson=(
                "A softmax needs at least one key that is not hidden. Where padding or windows can "
                "hide a whole row, decide what that row returns, before the softmax decides for "
                "NaN."
            ),
        ),
        Bug(
            name="norm_scale",
            break_it=break_norm_scale,
            trips="forward_hooks",
            reason="forward_hooks.norm_scale",
            level=2,
            note="Nothing is NaN, so a check for finite numbers is content.",
            question=(
                "All numbers stay finite. What size will the output of the first norm have for the "
                "small inputs of a fresh model: about 1, far below 1 or far above?"
            ),
            hints=(
                (
                    "Look at the sizes of the activations from module to module, and ask of each "
                    "norm what it is for."
                ),
                (
                    "Feed one norm rows of RMS 1 and of RMS 3, and print the RMS that comes out. "
                    "Healthy is 1 for both; here it depends on what went in."
                ),
                (
                    "The centred row has to be divided by the root of its variance, which has the "
                    "same unit as the row itself."
                ),
            ),
            lesson=(
                "Finite is not yet right. A norm makes one promise, rows of size 1 whatever comes "
                "in, and two rows of different size are enough to test it."
            ),
        ),
    ),
    hint="Ask each module two questions: is what you give finite, and was what you read finite?",
    lesson=(
        "Look at weights first, then at modules from the first to the last. The culprit is the "
        "first whose output is bad and whose input was good; where the input was bad already, "
        "look between it and the module before. And finite is not yet sane: a norm has one job."
    ),
    symptom=number_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
