"""Stages whose backward is split in two parts, with their weights and optimizers."""

from cedar.trainers.resilient.model.engine import Engine, Key, Loss, Signature
from cedar.trainers.resilient.model.stage import Stage, Transformer, token_loss
from cedar.trainers.resilient.model.state import AdamW, Layout, Optimizer, State

__all__ = [
    "AdamW", "Engine", "Key", "Layout", "Loss", "Optimizer", "Signature", "Stage", "State", "Transformer", "token_loss",
]  # fmt: skip
