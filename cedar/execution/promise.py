"""Promise: how fast a plan should be, and whether it is."""

from __future__ import annotations

from cedar.execution.looks import missed
from cedar.graph import Node
from cedar.plan.data import Plan


class Promise:
    """What the current plan was predicted to do, in rows per second.

    A plan that missed its prediction, and that is the best by new figures all the same, is expected to go on as it did:
    what operators do not show one by one, such as what they take from each other's caches, is in its speed alone. So a
    plan is measured again when its speed changes, not as often as it is looked at.
    """

    def __init__(self) -> None:
        self._rate: float | None = None
        self._root: Node | None = None
        self._found: float | None = None  # how fast it was, where it missed its prediction

    def by(self, plan: Plan) -> None:
        """What a plan that takes over, or of which more is known, promises."""
        if plan.root is not self._root:
            self._root, self._found = plan.root, None
        self._rate = None if plan.prediction is None else plan.prediction.rows_per_second

    def missed(self, speed: float | None) -> bool:
        """The plan is not as fast as it should be, or faster. From now on it is expected to be as fast as this.

        Args:
            speed: rows per second; None where that is not known.
        """
        expected = self._found or self._rate
        if speed is None or not expected or not missed(speed, expected):
            return False
        self._found = speed
        return True
