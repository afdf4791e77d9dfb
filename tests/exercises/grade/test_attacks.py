"""Attacks of one submission on the others of its class, each with what it gets now."""

from __future__ import annotations

HONEST = """
import torch
def check(implementation):
    inputs, targets = implementation(torch.arange(300))
    assert torch.equal(targets, inputs + 1)
"""
