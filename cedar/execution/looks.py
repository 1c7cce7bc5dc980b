"""Looks: when another plan is looked for, and whether a look is worth its time."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.profile import Profile

_FIRST = (0.0, 0.5, 3.0)  # seconds after which plans are looked for, with what is known by then
_NEAR = 1.3  # times as fast, or as slow, as predicted: beyond, the figures do not hold any more
_PAUSE, _LONGEST = 1.0, 60.0  # seconds between two checks of a prediction: doubled with every look that it leads to
_SHARE = 0.05  # of the time of all operators: one that takes less decides no plan


@dataclass
class Looks:
    """When to look, in seconds that the iteration has run.

    The first looks come early. Later ones come where a plan misses its prediction, and more and more seldom, so that
    noise cannot keep the optimizer busy.
    """

    taken: int = 0
    at: float = 0.0
    pause: float = _PAUSE
    last: float = 0.0

    def begin(self, elapsed: float) -> None:
        """An epoch: worth a look, at once where the run is twice as long as at the last one: so is what may come."""
        self.taken, self.pause = min(self.taken, len(_FIRST) - 1), _PAUSE
        self.at = elapsed - (_FIRST[self.taken] if elapsed >= 2 * self.last else 0.0)

    @property
    def early(self) -> bool:
        """Looks come by the clock."""
        return self.taken < len(_FIRST)

    def due(self, elapsed: float) -> bool:
        """It is time for an early look, or to compare a plan with its prediction."""
        return elapsed - self.at >= (_FIRST[self.taken] if self.early else self.pause)

    def checked(self, elapsed: float) -> None:
        """The plan keeps what it promised."""
        self.at = elapsed

    def took(self, elapsed: float) -> None:
        """A look was taken."""
        self.pause = self.pause if self.early else min(2 * self.pause, _LONGEST)
        self.taken, self.at, self.last = self.taken + 1, elapsed, elapsed

    def untaken(self) -> None:
        """The last look came to nothing."""
        self.taken -= 1

    def end(self, elapsed: float) -> None:
        """No early look comes any more."""
        self.taken, self.at = max(self.taken, len(_FIRST)), elapsed
        self.pause = min(2 * self.pause, _LONGEST)


def missed(measured: float, promised: float) -> bool:
    """A prediction, in rows per second, was wrong by more than 30%."""
    return measured * _NEAR < promised or measured > promised * _NEAR


def alike(a: Profile, b: Profile) -> bool:
    """No figure that decides anything has changed by more than 30% from one profile to the other."""
    shares = (a.shares, b.shares)
    for i in {*a.operators, *b.operators}:
        if max(share.get(i, 0.0) for share in shares) < _SHARE:
            continue
        one, other = a.operators.get(i), b.operators.get(i)
        if one is None or other is None:
            return False
        pairs = ((one.cpu, other.cpu), (one.wall, other.wall), (one.keep, other.keep))
        if any(min(pair) > 0 and missed(*pair) for pair in pairs):
            return False
    return True
