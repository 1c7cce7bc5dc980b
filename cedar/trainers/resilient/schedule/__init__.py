"""The schedule language: what every worker of a pipeline does in one step, in order. Imports no torch.

**The grid.** ``Worker(stage, replica)``: ``stages`` x ``replicas`` places. A micro-batch (replica, micro_batch) belongs
to its home pipeline ``replica``; at a stage whose home worker is dead, a live worker of the same stage works it.

**A schedule** is one ordered list of instructions for each live worker (``schedule.work[worker]``), for one set of dead
workers. Every step repeats the same lists. An instruction is a tuple ``(kind, replica, micro_batch, peer)``;
docs/schedules.md tells what each kind does, and what it waits for.

**What an executor may rely on** once ``validate(schedule)`` has returned:

1. A worker does its list from first to last. Every worker ends with ALL_REDUCE, STEP (a *serving* stage has neither).
2. SEND never blocks: post it and go on. RECV blocks until its message is there. Receives may be posted earlier than
   they stand in the list, as long as their order *within each ordered pair of workers* stays.
3. An ordered pair of workers carries either activations (to stage + 1) or gradients (to stage - 1), never both; its
   n-th receive is its n-th send. So no tags are needed, and one communicator for each direction is enough.
   ``Facts.channels`` holds these orders; ``pairs`` lists every pair that any set of dead workers may use.
4. With blocking FIFO receives no worker waits for ever, in this step or when such steps follow each other.
5. Each (replica, micro-batch) is worked exactly once at each stage, backward where forward was: ``schedule.route``.
6. Between F and the end of B_WEIGHT a worker keeps at most ``schedule.caps[stage]`` activations (None: no limit). What
   is received and not yet computed on comes on top: ``Facts.held``.
7. ``sync``: vote between ALL_REDUCE and STEP, over everybody. ``staggered``: no vote; a stage may be one step ahead.
8. ``tied``: the ALL_REDUCE of the first and of the last stage is one meeting of both.
9. ``serve(schedule, stages)``: the lists by which a step is redone when ``stages`` have taken it already: they do F and
   B_INPUT with the weights from before, and neither B_WEIGHT, ALL_REDUCE nor STEP.

Plain data: ``save`` and ``load`` write JSON. ``timeline`` says when each instruction starts and ends for given costs;
``gantt`` and ``chart`` draw that.

Example:
    >>> from cedar.trainers.resilient.planner import Problem, plan
    >>> schedule = plan(Problem(stages=2, replicas=2, micro_batches=2, dead=frozenset({Worker(1, 1)}))).schedule
    >>> schedule.route(1, 1, 0)
    Worker(stage=1, replica=0)
    >>> validate(schedule).live[Worker(1, 0)] <= 4
    True
"""

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
from cedar.trainers.resilient.schedule.pictures import chart, gantt
from cedar.trainers.resilient.schedule.timeline import Costs, Span, Timeline, timeline
from cedar.trainers.resilient.schedule.validator import Facts, validate

__all__ = [
    "CLOSING", "COMPUTING", "KINDS", "MODES", "RECEIVING", "SENDING", "Costs", "Facts", "Instruction", "Kind", "Mode",
    "Schedule", "ScheduleError", "Span", "Timeline", "Worker", "chart", "from_plain", "gantt", "grid", "load", "pairs",
    "save", "serve", "timeline", "to_plain", "validate",
]  # fmt: skip
