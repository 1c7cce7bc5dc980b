"""A transformer in stages, whose backward comes in two parts."""

from cedar.trainers.resilient.model.dropout import Place, dropout
from cedar.trainers.resilient.model.engine import Engine
from cedar.trainers.resilient.model.layout import Layout
from cedar.trainers.resilient.model.stage import Stage, Transformer
from cedar.trainers.resilient.model.state import AdamW, State

__all__ = ["AdamW", "Engine", "Layout", "Place", "Stage", "State", "Transformer", "dropout"]
