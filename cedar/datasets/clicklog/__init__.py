"""Synthetic logs of sessions: how much they repeat is given, and so is the model that clicks."""

from cedar.datasets.clicklog.drawing import write_sessions
from cedar.datasets.clicklog.spec import ClickLog, ListFeature, Written

__all__ = ["ClickLog", "ListFeature", "Written", "write_sessions"]
