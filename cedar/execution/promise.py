"""Promise: how fast a plan should be, and whether it is."""

from __future__ import annotations

from cedar.execution.looks import missed
from cedar.graph import Node
from cedar.plan.data import Plan


class Promise:
    """What the current plan was predicted to do, in rows per second.

    A plan that missed its prediction, and that is the best by new figures all the same, is expected to go on as it did:
    what operators do not show one by one, such as what they take from each other's caches, is in its speed alone. So a
    plan is measured again when it changes, not as often as it is looked at.
    """

    def __init__(self) -> None:
        self._rate: float | None = None
        self._root: Node | None = None
        self._factor = 1.0  # how many times as fast as predicted the plan was found to be

    def by(self, plan: Plan) -> None:
        """What a plan that takes over, or of which more is known, promises."""
        if plan.root is not self._root:
            self._root, self._factor = plan.root, 1.0
        self._rate = None if plan.prediction is None else plan.prediction.rows_per_second

    def missed(self, speed: float | None) -> bool:
        """The plan is not as fast as it should be, or faster. From now on it is expected to be as fast as this.

        Args:
            speed: rows per second; None where that is not known.
        """
        if speed is None or not self._rate or not missed(speed, self._rate * self._factor):
            return False
        self._factor = speed / self._rate
        return True
