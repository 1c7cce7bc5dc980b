"""Synthetic session logs with a given amount of repetition and a known click model."""

from cedar.datasets.clicklog.drawing import write_sessions
from cedar.datasets.clicklog.spec import ClickLog, ListFeature, Written

__all__ = ["ClickLog", "ListFeature", "Written", "write_sessions"]
