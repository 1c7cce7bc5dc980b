"""The wire protocol: every name under which workers, supervisors and the lead tell each other something.

Values are JSON in the run's store. A name has places, which are filled in where it is used: ``DONE(line, step)``.
*Counters* only grow, by the store's ``count``; *decisions* are written once, and the first writer is right.
docs/protocol.md tells who writes what, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Key(str, Generic[T]):
    """A name with its places filled in; ``T`` is what the value is."""

    __slots__ = ()


@dataclass(frozen=True)
class Name(Generic[T]):
    """A kind of value.

    Example:
        >>> DONE(1, 40)
        'done/1/40'
    """

    pattern: str
    about: str

    def __call__(self, *places: object) -> Key[T]:
        assert self.pattern.count("{") == len(places), f"{self.pattern} has other places than {places}"
        filled = map(str, places)
        return Key("/".join(next(filled) if part.startswith("{") else part for part in self.pattern.split("/")))


# ---- who is there ----------------------------------------------------------------------------------------------------

GENERATION: Name[int] = Name("generation", "counter: the newest generation")
EPOCH: Name[dict[str, Any]] = Name("epoch/{generation}", "who is in it, who joins and leaves, what is restored")
SETUP: Name[dict[str, Any]] = Name("setup", "what machines that join must have alike")
STORE: Name[int] = Name("store", "process of the store")
OVER: Name[bool] = Name("over", "the run is over")
LEFT: Name[int] = Name("left/{machine}", "counter: this supervisor knows that the run is over")
MACHINE: Name[int] = Name("machine/{machine}", "counter: signs of a supervisor")
ORDERS: Name[int] = Name("orders/{machine}", "counter: workers that a supervisor was told to start")
ORDER: Name[list[int]] = Name("order/{machine}/{number}", "the place of such a worker")
REPORTS: Name[int] = Name("reports", "counter: reports to the lead")
REPORT: Name[dict[str, Any]] = Name("report/{number}", "one of them: machine, ready, gone, error, lost, replayed, ..")
LISTENS: Name[list[Any]] = Name("listens/{generation}/{worker}", "host and port of a worker")
BOUNDARY: Name[list[Any]] = Name("boundary/{stage}", "shape and dtype of what a stage gives to the next")

# ---- plans -----------------------------------------------------------------------------------------------------------

PLANS: Name[int] = Name("plans", "newest version of the plans made ahead")
COSTS: Name[dict[str, Any]] = Name("costs/{version}", "what they were made for")
PLAN: Name[dict[str, Any]] = Name("plan/{version}/{failures}", "schedule and period of one of them")
PREPARED: Name[dict[str, Any]] = Name("prepared/{version}/{dead}", "the plan after a failure that may come next")
PREPARED_KEYS: Name[list[str]] = Name("prepared", "which of these there are")
MADE: Name[dict[str, Any]] = Name("made/{generation}", "the plan that one worker made for all")
PERIOD: Name[float] = Name("period/{generation}", "period of the plan that is used")
DURATIONS: Name[list[Any]] = Name("durations/{worker}", "what the worker's instructions took")

# ---- steps -----------------------------------------------------------------------------------------------------------

GATE: Name[str] = Name("gate/{generation}/{step}", "decision: go, or pause for those who join")
PAUSE: Name[int] = Name("pause/{generation}", "counter: somebody wants to join")
PAUSED: Name[int] = Name("paused/{generation}", "counter: workers that wait for that")
VOTES: Name[int] = Name("votes/{generation}/{step}", "counter: workers that have come to the end of a step (sync)")
DECISION: Name[str] = Name("decision/{generation}/{step}", "decision: commit, or abort (sync)")
NORM: Name[str] = Name("norm/{since}/{step}/{stage}", "decision: squared norm of a stage's gradient, as hexadecimal")
LOSS: Name[list[Any]] = Name("loss/{line}/{step}/{replica}", "losses of a worker's micro-batches at the last stage")
DONE: Name[float] = Name("done/{line}/{step}", "when the step was done")
FINISHED: Name[int] = Name("finished/{generation}", "counter: workers that have taken all steps")
SAVED: Name[int] = Name("saved/{generation}/{version}", "counter: workers that have written their part of a checkpoint")
SAVED_PART: Name[list[Any]] = Name("saved/{generation}/{version}/{worker}", "the tensors of that part, for the index")
PERSISTED: Name[int] = Name("persisted", "steps of the newest whole checkpoint: logs from before may go")

# ---- recovery --------------------------------------------------------------------------------------------------------

AT: Name[int | None] = Name("at/{generation}/{worker}", "steps that its state has taken; null: it has none yet")
LOGS: Name[dict[str, Any]] = Name("logs/{generation}/{worker}", "which boundary messages the worker has kept")
RECOVERY: Name[dict[str, float]] = Name("recovery/{generation}/{worker}", "times of its way to the first redone F or B")
MISHAP: Name[list[Any]] = Name("mishap/{worker}/{life}", "a failure on purpose: what, and when")


def names() -> dict[str, Name[Any]]:
    """All of them."""
    return {name: value for name, value in globals().items() if isinstance(value, Name)}
