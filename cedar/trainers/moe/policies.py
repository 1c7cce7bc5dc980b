"""When replicas follow popularity: a policy turns the counts of a step into what the next one is placed by.

That popularity, the *basis*, is a policy's whole state: a placement is a function of it, and is never saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["symi", "static", "periodic", "ema", "oracle"]
Basis = tuple[int, ...]

_ONE = 1 << 16  # an average keeps 16 binary digits behind the point, in whole numbers


@dataclass(frozen=True)
class Policy:
    """How a placement follows the counts.

    Args:
        kind: ``symi`` (the counts of the last step, arXiv 2504.19925), ``static`` (all experts alike, for good),
            ``periodic`` (the counts of every ``every``-th step), ``ema`` (a moving average), ``oracle`` (the counts of
            the step itself: a bound that only a single rank can reach, since there no weight has to travel).
        every: steps between two changes of ``periodic``.
        decay: of the past, at each step of ``ema``.

    Example:
        >>> Policy("periodic", every=2).follow((1, 1), (7, 3), step=0)
        (1, 1)
        >>> Policy("periodic", every=2).follow((1, 1), (7, 3), step=1)
        (7, 3)
    """

    kind: Kind = "symi"
    every: int = 10
    decay: float = 0.9

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"there is no policy {self.kind!r}; known: {', '.join(get_args(Kind))}")
        if self.every < 1:
            raise ValueError(f"every is {self.every}: give 1 or more")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay is {self.decay}: give 0 or more, and less than 1")

    def start(self, experts: int) -> Basis:
        """The basis before the first step."""
        return (0,) * experts

    def follow(self, basis: Basis, counts: Sequence[int], step: int) -> Basis:
        """The basis after a step that saw these counts; a step without tokens changes nothing."""
        counts = tuple(int(count) for count in counts)
        if not any(counts) or self.kind == "static":
            return basis
        if self.kind == "periodic":
            return counts if (step + 1) % self.every == 0 else basis
        if self.kind == "ema":
            past = round(self.decay * _ONE) if any(basis) else 0
            return tuple((b * past + c * _ONE * (_ONE - past)) // _ONE for b, c in zip(basis, counts, strict=True))
        return counts
