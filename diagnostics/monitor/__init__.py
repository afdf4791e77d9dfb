"""A monitor for any training loop: it watches, speaks once per problem, and says where it broke.

    monitor = TrainingMonitor(model, optimizer, clip_norm=1.0)
    for inputs, targets in batches:
        ...                                   # forward, backward, clip, optimizer.step()
        monitor.step(loss, inputs=inputs, targets=targets)
    print(monitor.summary())

One file per thing that is watched: `losses`, `gradients`, `rates`, `parameters`, `activations`,
`modes`, `batches`, `evaluations`. What they say is an `Event`. `replay` finds the first module and
operation that gave a number that is not finite, and `postmortem` writes it down.
"""

from __future__ import annotations

from diagnostics.monitor.adapters import lightning_callback, transformers_callback
from diagnostics.monitor.events import Event
from diagnostics.monitor.losses import unigram_entropy
from diagnostics.monitor.training_monitor import TrainingMonitor
from diagnostics.monitor.update import Update

__all__ = [
    "Event",
    "TrainingMonitor",
    "Update",
    "lightning_callback",
    "transformers_callback",
    "unigram_entropy",
]
