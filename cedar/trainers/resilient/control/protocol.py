"""The protocol: all keys through which workers, supervisors and the coordinator communicate.

Values are JSON in the run's store. A key's pattern has placeholders, which calling it fills in: ``DONE(line, step)``.
*Counters* only grow, by the store's ``increment``. *Decisions* are written once: the first writer wins.
docs/protocol.md describes who writes each key, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Key(str, Generic[T]):
    """A key with its placeholders filled in; ``T`` is the type of the value."""

    __slots__ = ()


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A pattern of keys, and what their values are.

    Examples:
        >>> DONE(1, 40)
        'done/1/40'
    """

    pattern: str
    about: str

    def __call__(self, *places: object) -> Key[T]:
        assert self.pattern.count("{") == len(places), f"{self.pattern} has other places than {places}"
        filled = map(str, places)
        return Key("/".join(next(filled) if part.startswith("{") else part for part in self.pattern.split("/")))


# ---- members of the run ----------------------------------------------------------------------------------------------

GENERATION: Entry[int] = Entry("generation", "counter: the newest generation")
EPOCH: Entry[dict[str, Any]] = Entry("epoch/{generation}", "who is in it, who joins and leaves, what is restored")
SETUP: Entry[dict[str, Any]] = Entry("setup", "what machines that join must have alike")
STORE: Entry[int] = Entry("store", "process of the store")
OVER: Entry[bool] = Entry("over", "the run is over")
LEFT: Entry[int] = Entry("left/{machine}", "counter: this supervisor knows that the run is over")
MACHINE: Entry[int] = Entry("machine/{machine}", "counter: signs of a supervisor")
ORDERS: Entry[int] = Entry("orders/{machine}", "counter: workers that a supervisor was asked to start")
ORDER: Entry[list[int]] = Entry("order/{machine}/{number}", "the place of such a worker")
REPORTS: Entry[int] = Entry("reports", "counter: reports to the lead")
REPORT: Entry[dict[str, Any]] = Entry("report/{number}", "one of them: machine, ready, gone, error, lost, replayed, ..")
LISTENS: Entry[list[Any]] = Entry("listens/{generation}/{worker}", "host and port of a worker")
BOUNDARY: Entry[list[Any]] = Entry("boundary/{stage}", "shape and dtype of what a stage gives to the next")

# ---- plans -----------------------------------------------------------------------------------------------------------

PLANS: Entry[int] = Entry("plans", "newest version of the plans made ahead")
COSTS: Entry[dict[str, Any]] = Entry("costs/{version}", "what they were made for")
PLAN: Entry[dict[str, Any]] = Entry("plan/{version}/{failures}", "schedule and period of one of them")
PREPARED: Entry[dict[str, Any]] = Entry("prepared/{version}/{dead}", "the plan after a failure that may come next")
PREPARED_KEYS: Entry[list[str]] = Entry("prepared", "which of these there are")
MADE: Entry[dict[str, Any]] = Entry("made/{generation}", "the plan that one worker made for all")
PERIOD: Entry[float] = Entry("period/{generation}", "period of the plan that is used")
DURATIONS: Entry[list[Any]] = Entry("durations/{worker}", "what the worker's instructions took")

# ---- steps -----------------------------------------------------------------------------------------------------------

GATE: Entry[str] = Entry("gate/{generation}/{step}", "decision: go, or pause for those who join")
PAUSE: Entry[int] = Entry("pause/{generation}", "counter: a worker wants to join")
PAUSED: Entry[int] = Entry("paused/{generation}", "counter: workers that wait for that")
VOTES: Entry[int] = Entry("votes/{generation}/{step}", "counter: workers that have come to the end of a step (sync)")
DECISION: Entry[str] = Entry("decision/{generation}/{step}", "decision: commit, or abort (sync)")
NORM: Entry[str] = Entry("norm/{since}/{step}/{stage}", "decision: squared norm of a stage's gradient, as hexadecimal")
LOSS: Entry[list[Any]] = Entry("loss/{line}/{step}/{replica}", "losses of a worker's micro-batches at the last stage")
DONE: Entry[float] = Entry("done/{line}/{step}", "when the step was done")
FINISHED: Entry[int] = Entry("finished/{generation}", "counter: workers that have taken all steps")
SAVED: Entry[int] = Entry(
    "saved/{folder}/{generation}/{version}", "counter: workers that have written their part of a checkpoint"
)
SAVED_PART: Entry[list[Any]] = Entry(
    "saved/{folder}/{generation}/{version}/{worker}", "the tensors of that part, for the index"
)
PERSISTED: Entry[int] = Entry("persisted", "steps of the newest whole checkpoint: logs from before may go")
WINDOW: Entry[int] = Entry("window/{stage}", "decision: steps that a window of this stage wants, as it was measured")

# ---- recovery --------------------------------------------------------------------------------------------------------

AT: Entry[int | None] = Entry("at/{generation}/{worker}", "steps that its state has taken; null: it has none yet")
LOGS: Entry[dict[str, Any]] = Entry("logs/{generation}/{worker}", "which boundary messages the worker has kept")
RECOVERY: Entry[dict[str, float]] = Entry(
    "recovery/{generation}/{worker}", "times of its way to the first redone F or B"
)
MISHAP: Entry[list[Any]] = Entry("mishap/{worker}/{life}", "a failure on purpose: what, and when")


def names() -> dict[str, Entry[Any]]:
    """Return all patterns by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Entry)}
