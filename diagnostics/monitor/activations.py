"""Units that are never active, and attention that is collapsed or uniform.

A look runs the model once more on some rows of the batch, in eval mode and without gradients, and
listens to the functions that are called: `relu`, `gelu`, `silu`, `softmax` and
`scaled_dot_product_attention`. The model, its mode and the random states stay as they are.

What it cannot see: activations and attention inside compiled code or other people's kernels
(flash-attn, xformers, flex attention), and anything when `step` is not given `inputs`.

Shapes: B batch, H heads, T queries, S keys, C units, R rows of all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._guard import kept_random_states
from diagnostics._text import say
from diagnostics.monitor.calls import Forward, call, hooks_set_aside, rows_of, unwrapped, words_of
from diagnostics.monitor.ear import Ear
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.values import Values

ROWS = 8  # of a batch
LOOKS = 3  # a unit must be silent in all of them
TOKENS_MIN = 256  # fewer rows and a unit may be silent by chance
DEAD_SHARE_MAX = 0.8  # of a layer; a healthy ReLU layer of 64 units measured: 0.58 at update 40
COLLAPSED = 0.01  # entropy of every head, as a share of the largest possible one
UNIFORM = 1e-5  # distance from it; fresh models measured: 1e-3 and more after some updates
UNIFORM_STEPS = 200


@dataclass
class Layer:
    """What was seen of one activation or one attention so far."""

    active: Tensor | None = None  # (C,) bool, on the model's device
    tokens: int = 0
    looks: int = 0


@dataclass
class ActivationWatch:
    """Looks into a forward pass from time to time."""

    speaker: Speaker
    values: Values
    forward: Forward | None = None
    layers: dict[str, Layer] = field(default_factory=dict)
    attentions_seen: int = 0
    trouble: str | None = None  # why there are no looks any more
    _collapsed: dict[str, int] = field(default_factory=dict)
    _uniform: int = 0

    def look(self, step: int, model: nn.Module, inputs: Any, targets: Any) -> None:
        """Run the model on the first rows and note what its units and heads do."""
        if self.trouble is not None:
            return
        inner = unwrapped(model)
        ear = Ear(inner)
        modes = [(module, module.training) for module in inner.modules()]
        try:
            inputs, targets = rows_of(inputs, ROWS), rows_of(targets, ROWS)
            with kept_random_states(), torch.no_grad(), hooks_set_aside(inner):
                for module, _ in modes:
                    module.training = False
                with ear.listening(inner):
                    call(inner, inputs, targets, self.forward)
        except Exception as error:  # any: it is the user's model, and looking is a courtesy
            self.trouble = words_of(error)
            return
        finally:
            for module, mode in modes:
                module.training = mode
        self._note_units(step, ear.units)
        self._note_attention(step, ear.entropies)

    def _note_units(self, step: int, units: dict[str, list[tuple[Tensor, int]]]) -> None:
        for place, calls in units.items():
            layer = self.layers.setdefault(place, Layer())
            for active, tokens in calls:
                if layer.active is not None and layer.active.shape == active.shape:
                    active = layer.active | active
                layer.active = active
                layer.tokens += tokens
            layer.looks += 1
        due = {
            place: layer
            for place, layer in self.layers.items()
            if layer.looks >= LOOKS and layer.tokens >= TOKENS_MIN
        }
        known = [layer.active for layer in due.values() if layer.active is not None]
        if known:
            self.values.ask(
                [1 - active.float().mean() for active in known],
                lambda told: self._judge_dead(
                    step,
                    dict(zip(due, told, strict=True)),
                    dict(zip(due, (active.numel() for active in known), strict=True)),
                    {place: layer.tokens for place, layer in due.items()},
                ),
            )
        for place in due:
            self.layers[place] = Layer()

    def _judge_dead(
        self, step: int, shares: dict[str, float], widths: dict[str, int], tokens: dict[str, int]
    ) -> None:
        dead = {place: share for place, share in shares.items() if share > DEAD_SHARE_MAX}
        if not dead:
            return
        worst = max(dead, key=lambda place: dead[place])
        self.speaker.speak(
            "dead_units",
            step,
            say(
                "{n} of {all} units of {place} were inactive for all of {tokens} tokens",
                n=round(dead[worst] * widths[worst]),
                all=widths[worst],
                place=worst,
                tokens=tokens[worst],
            ),
            say("at most {limit:%}", limit=DEAD_SHARE_MAX),
            cause=say("a bias or an update pushed their input below 0 for every token"),
            measured=dead[worst],
            shares=dead,
        )

    def _note_attention(self, step: int, entropies: dict[str, Tensor]) -> None:
        self.attentions_seen = max(self.attentions_seen, len(entropies))
        places = list(entropies)
        lows = [e.min() for e in entropies.values()]
        highs = [e.max() for e in entropies.values()]
        self.values.ask(
            [*highs, *lows],
            lambda told: self._judge_attention(
                step, places, told[: len(places)], told[len(places) :]
            ),
        )

    def _judge_attention(
        self, step: int, places: list[str], highs: list[float], lows: list[float]
    ) -> None:
        for place, high in zip(places, highs, strict=True):
            self._collapsed[place] = self._collapsed.get(place, 0) + 1 if high < COLLAPSED else 0
            if self._collapsed[place] >= LOOKS:
                self.speaker.speak(
                    "attention_collapsed",
                    step,
                    say(
                        "every head of {place} reads one token: entropy {high:%} of the largest",
                        place=place,
                        high=high,
                    ),
                    say("more than {limit:%} in some head", limit=COLLAPSED),
                    cause=say("scores are so large that softmax passes no gradient back"),
                    measured=high,
                )
        flat = bool(lows) and step >= UNIFORM_STEPS and min(lows) > 1 - UNIFORM
        self._uniform = self._uniform + 1 if flat else 0
        if self._uniform >= LOOKS - 1:
            self.speaker.speak(
                "attention_uniform",
                step,
                say("every head of every layer reads all tokens alike"),
                say("weights that depend on the token"),
                cause=say("queries or keys are 0 or constant, or the scores are scaled to nothing"),
                measured=min(lows),
            )
