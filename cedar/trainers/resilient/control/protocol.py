"""The protocol: all keys through which workers, supervisors and the coordinator communicate.

Values are JSON in the run's store. To fill in a pattern's placeholders, call it: ``DONE(line, step)``. *Counters* are
only changed by the store's ``increment``. *Decisions* are written once: the first writer wins.
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
    """A pattern of keys, and a description of their values.

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
EPOCH: Entry[dict[str, Any]] = Entry("epoch/{generation}", "members, joining and leaving workers, what is restored")
SETUP: Entry[dict[str, Any]] = Entry("setup", "settings that must be equal on all machines")
STORE: Entry[int] = Entry("store", "process id of the store")
OVER: Entry[bool] = Entry("over", "the run is over")
LEFT: Entry[int] = Entry("left/{machine}", "counter: 1 once this supervisor knows that the run is over")
MACHINE: Entry[int] = Entry("machine/{machine}", "counter: heartbeats of a supervisor")
ORDERS: Entry[int] = Entry("orders/{machine}", "counter: workers that a supervisor must start")
ORDER: Entry[list[int]] = Entry("order/{machine}/{number}", "place of such a worker in the grid")
REPORTS: Entry[int] = Entry("reports", "counter: reports to the coordinator")
REPORT: Entry[dict[str, Any]] = Entry("report/{number}", "a report: machine, ready, gone, error, lost, replayed, ..")
LISTENS: Entry[list[Any]] = Entry("listens/{generation}/{worker}", "host and port of a worker")
BOUNDARY: Entry[list[Any]] = Entry("boundary/{stage}", "shape and dtype of a stage's output")

# ---- plans -----------------------------------------------------------------------------------------------------------

PLANS: Entry[int] = Entry("plans", "newest version of the plans made ahead")
COSTS: Entry[dict[str, Any]] = Entry("costs/{version}", "costs that this version's plans are for")
PLAN: Entry[dict[str, Any]] = Entry("plan/{version}/{failures}", "schedule and period of a plan")
PREPARED: Entry[dict[str, Any]] = Entry("prepared/{version}/{dead}", "plan for a failure that may come next")
PREPARED_KEYS: Entry[list[str]] = Entry("prepared", "keys of all prepared plans")
MADE: Entry[dict[str, Any]] = Entry("made/{generation}", "plan that one worker made for all")
PERIOD: Entry[float] = Entry("period/{generation}", "period of this generation's plan")
DURATIONS: Entry[list[Any]] = Entry("durations/{worker}", "measured times of the worker's instructions")

# ---- steps -----------------------------------------------------------------------------------------------------------

GATE: Entry[str] = Entry("gate/{generation}/{step}", "decision: go, or pause for workers that join")
PAUSE: Entry[int] = Entry("pause/{generation}", "counter: a worker wants to join")
PAUSED: Entry[int] = Entry("paused/{generation}", "counter: workers that have paused for it")
VOTES: Entry[int] = Entry("votes/{generation}/{step}", "counter: workers that have reached the end of a step (sync)")
DECISION: Entry[str] = Entry("decision/{generation}/{step}", "decision: commit, or abort (sync)")
NORM: Entry[str] = Entry("norm/{since}/{step}/{stage}", "decision: squared norm of a stage's gradient, as hexadecimal")
LOSS: Entry[list[Any]] = Entry("loss/{line}/{step}/{replica}", "losses of a worker's micro-batches at the last stage")
DONE: Entry[float] = Entry("done/{line}/{step}", "time at which the step was done")
FINISHED: Entry[int] = Entry("finished/{generation}", "counter: workers that have taken all steps")
SAVED: Entry[int] = Entry(
    "saved/{folder}/{generation}/{version}", "counter: workers that have written their part of a checkpoint"
)
SAVED_PART: Entry[list[Any]] = Entry(
    "saved/{folder}/{generation}/{version}/{worker}", "tensors in that part, for the index"
)
PERSISTED: Entry[int] = Entry("persisted", "steps of the newest complete checkpoint; older logs can be deleted")
WINDOW: Entry[int] = Entry("window/{stage}", "decision: steps in a window, from this stage's measurement")

# ---- recovery --------------------------------------------------------------------------------------------------------

AT: Entry[int | None] = Entry("at/{generation}/{worker}", "steps that the worker's state has taken; null: no state yet")
LOGS: Entry[dict[str, Any]] = Entry("logs/{generation}/{worker}", "boundary messages that the worker has logged")
RECOVERY: Entry[dict[str, float]] = Entry(
    "recovery/{generation}/{worker}", "times of the worker's recovery, up to the first redone F or B"
)
MISHAP: Entry[list[Any]] = Entry("mishap/{worker}/{life}", "kind and time of an injected failure")


def names() -> dict[str, Entry[Any]]:
    """Return all patterns by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Entry)}
