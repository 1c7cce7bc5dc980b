"""The schedule language: for each worker of a pipeline, the ordered instructions of a step. Imports no torch.

docs/schedules.md describes what each instruction does and waits for, and what an executor may assume.

Examples:
    >>> from cedar.trainers.resilient.planner import Problem, plan
    >>> schedule = plan(Problem(stages=2, replicas=2, micro_batches=2, dead=frozenset({Worker(1, 1)}))).schedule
    >>> schedule.route(1, 1, 0)
    Worker(stage=1, replica=0)
    >>> validate(schedule).live[Worker(1, 0)] <= 4
    True
"""

from cedar.trainers.resilient.schedule.durations import Durations
from cedar.trainers.resilient.schedule.language import (
    CLOSING,
    COMPUTING,
    KINDS,
    MODES,
    RECEIVING,
    SENDING,
    Instruction,
    Kind,
    Mode,
    Schedule,
    ScheduleError,
    Worker,
    from_plain,
    grid,
    load,
    pairs,
    save,
    serve,
    to_plain,
)  # fmt: skip
from cedar.trainers.resilient.schedule.timeline import Costs, Span, Timeline, timeline
from cedar.trainers.resilient.schedule.validator import Facts, validate

__all__ = [
    "CLOSING", "COMPUTING", "KINDS", "MODES", "RECEIVING", "SENDING", "Costs", "Durations", "Facts", "Instruction",
    "Kind", "Mode", "Schedule", "ScheduleError", "Span", "Timeline", "Worker", "from_plain", "grid", "load",
    "pairs", "save", "serve", "timeline", "to_plain", "validate",
]  # fmt: skip
