"""Plans: the plan of a run, how it does, and the one that takes over at a window's end."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from functools import partial

from cedar import graph
from cedar.datasets.base import Read
from cedar.execution import processes
from cedar.execution.binding import Binding
from cedar.execution.calling import Calls, Over, beside
from cedar.execution.checking import check_plan
from cedar.execution.machine import machine
from cedar.execution.measure import subject
from cedar.execution.metrics import Metrics
from cedar.execution.probing import with_gil
from cedar.execution.runner import Runner
from cedar.execution.watcher import Watcher
from cedar.graph import Node
from cedar.operators.base import RowOperator
from cedar.plan.data import Decision, Plan
from cedar.plan.planner import Planner
from cedar.profile import Profile

_log = logging.getLogger("cedar")
_CALLS = 3  # of each operator before a plan is made: the first may load a model
_TASKS = 6  # after so many, operators that no row reaches are not waited for
_DETAILS = 6  # tasks of each stage that measure each operator by itself
_EVERY = 64  # later, one task in so many does
_AUDITS = 100  # of the tasks with an order of their own, one in so many is run both ways
_CHECK_SECONDS = 0.05  # of work on sample rows, before a plan takes over
_MISSED = 0.7  # of the speed of the plan before: less, and that comes back
_TRIAL = 1.0  # seconds before a plan's speed is judged
_LOOKS = (0.0, 0.5, 3.0)  # seconds after which a plan is looked for, with what is known by then
_UNSURE = (0.4, 0.9)  # a share of the GIL between these is asked for again
_HELD = 0.4  # of an operator's time
_START_SECONDS = 20  # for processes to start; then the run waits for them
_LONG = 1.5  # times as long as the start of processes
_STALLED = 0.1  # of the time: where the trainer waits less than this, nothing is to be gained


@dataclass
class _Span:
    """What was read, and waited for, since a plan took over."""

    rows: int
    elapsed: float
    waited: float


class Plans:
    """Of one loader.

    Args:
        planner: makes plans; None keeps the first.
        first: the plan to start with.
        binding: the bound operators of the pipeline as written.
        metrics: the loader's.
    """

    def __init__(self, planner: Planner | None, first: Plan, binding: Binding, metrics: Metrics) -> None:
        self.planner = planner
        self.current = first
        self.history: list[str] = []  # what was changed while running, and why
        self.workers, self.executor = 1, "threads"
        self._binding = binding
        self._metrics = metrics
        self._written = Plan.as_written(binding.root)
        self._watcher = Watcher()
        self._next: Plan | None = None
        self._before: tuple[Plan, float] | None = None  # the plan before this one, and its rows per second
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._asked_at = 0.0
        self._calls: Calls | None = None  # of the run under way
        self._one_pass = any(getattr(_source(node), "one_pass", False) for node in binding.sources)
        self._settled = False  # an error, or an audit, decided: no other plan is taken
        self._broken = False  # the optimizer failed: it is not asked again
        self._found = 0
        self._gil: dict[int, float] = {}  # by ordinal, once somebody asked
        self._before_epoch = 0  # rows read in earlier epochs
        self._began: _Span | None = None
        self._lock = threading.Lock()

    @property
    def rewrites(self) -> bool:
        """The current plan is not the pipeline as written."""
        return self.current.root is not self._binding.root

    def watcher(self, runner: Runner) -> Watcher:
        """For the streams of the current plan, or of the next one where that is ready."""
        with self._lock:
            if self._next is not None:
                self._take(self._next)
            wanted = self.current.workers
            if self.planner is not None and wanted is not None and wanted > self.workers and runner.resize(wanted):
                self.workers = wanted
            live = self.planner is not None
            self._watcher = Watcher(
                details=_DETAILS if live and not self._asked else 0,
                every=_EVERY if live else 0,
                audits=_AUDITS if self.rewrites else 0,
            )
            return self._watcher

    def _take(self, plan: Plan) -> None:
        speed = self._speed()
        self._before = (self.current, speed) if speed is not None else None
        self.current, self._next, self._began = plan, None, None

    def _span(self) -> _Span:
        m = self._metrics
        return _Span(m.rows_read, m.elapsed, m.waited)

    def _speed(self) -> float | None:
        """Rows read per second under the current plan; None in its first moments, or where the trainer is slower."""
        began = self._began
        if began is None:
            return None
        now = self._span()
        seconds = now.elapsed - began.elapsed
        if seconds < _TRIAL / 4 or now.waited - began.waited < _STALLED * seconds:
            return None
        return (now.rows - began.rows) / seconds

    # ---- while running -----------------------------------------------------------------------------------------------

    def start(self, runner: Runner) -> None:
        """An iteration begins, with an executor of its own: there is an epoch to read, and a look worth taking."""
        self.executor, self.workers = runner.name, runner.workers
        self._before_epoch, self._asked_at = self._metrics.rows_read, self._metrics.elapsed
        self._asked = min(self._asked, len(_LOOKS) - 1)

    def poll(self) -> None:
        """Called now and then by the run: plans when enough was seen; cheap."""
        if self._began is None:
            self._began = self._span()
        if self._calls is not None:
            self._calls.serve()
        if self._metrics.differences[self._found :]:
            self._refuse()
        if self.planner is None or self._settled or self._broken or self._thread is not None or self._next is not None:
            return
        if not self._asked:
            if self._enough():
                self._ask()
        elif self._asked < len(_LOOKS):
            self._judge()

    def _enough(self) -> bool:
        seen = self._metrics.seen
        wanted = [
            self._binding.index[id(n)] for n in self._binding.nodes if isinstance(n.operator, (RowOperator, Read))
        ]
        calls = [seen[i].calls if i in seen else 0 for i in wanted]
        return bool(calls) and (min(calls) >= _CALLS or self._metrics.tasks >= _TASKS * 2)

    def _judge(self) -> None:
        """Go back from a plan that is slower than the one before it; look again when more is known."""
        began = self._began
        if began is None or self._metrics.elapsed - self._asked_at < _LOOKS[self._asked]:
            return
        speed = self._speed()
        if self._before is not None and speed is not None and speed < _MISSED * self._before[1]:
            plan, there = self._before
            self._asked = len(_LOOKS)
            self._change(plan, f"{speed:,.0f} rows/s, {there:,.0f} under the plan before: back to that")
        elif not self._content():
            self._ask()

    def _content(self) -> bool:
        """The trainer is what limits the run: no plan makes it faster."""
        m, began = self._metrics, self._began
        assert began is not None
        return m.waited - began.waited < _STALLED * (m.elapsed - began.elapsed)

    def _ask(self) -> None:
        self._asked += 1
        self._asked_at = self._metrics.elapsed
        profile = self.profile()
        remaining = self._remaining()
        if self._calls is None:
            self._calls = Calls(inline=self.executor == "inline")
        self._thread = beside(self._improve, self._calls, profile, remaining)

    def _improve(self, calls: Calls, profile: Profile, remaining: float | None) -> None:
        assert self.planner is not None
        try:
            if self.workers > 1 and not self._one_pass and self._long(profile, remaining):
                if not self._gil or any(_UNSURE[0] < gil < _UNSURE[1] for gil in self._gil.values()):
                    probed = calls.make(partial(with_gil, profile, self._binding, self.workers))
                    for i, figures in probed.operators.items():  # a run that was not busy holds nobody up
                        self._gil[i] = max(self._gil.get(i) or 0.0, figures.gil or 0.0)
                profile = _with(profile, self._gil)
            per_row = sum(f.wall for f in profile.operators.values()) or 1e-6
            rows = int(min(max(_CHECK_SECONDS / per_row / 3, 8), 1024))  # as written twice, and as planned
            plan = self.planner.improve(
                profile, remaining, lambda plan: calls.make(partial(check_plan, self._binding, plan, rows))
            )
            if plan is not None and plan.root is self.current.root:
                self.current = plan  # with more to tell
            elif plan is not None:
                self._warm(plan, calls)
                self._change(plan, "chosen from what was measured")
        except Over:
            self._asked -= 1  # the next epoch may see the end of it
        except Exception:  # noqa: BLE001 - a plan is never worth a run
            self._broken = True
            _log.warning("the optimizer failed: the run goes on with the plan that it has", exc_info=True)
        finally:
            self._thread = None

    def _warm(self, plan: Plan, calls: Calls) -> None:
        """The run goes on as it is until the processes of the next plan are there."""
        if not any(node.place == "processes" for node in graph.walk(plan.root)):
            return
        processes.warm(self.workers)
        end = time.perf_counter() + _START_SECONDS
        while not processes.ready(self.workers) and time.perf_counter() < end and not calls.over:
            time.sleep(0.01)

    def _long(self, profile: Profile, remaining: float | None) -> bool:
        """Enough is left to do for other processes to be worth their start."""
        per_row = sum(figures.cpu for figures in profile.operators.values())
        return remaining is None or remaining * per_row > _LONG * profile.machine.start_seconds

    def _change(self, plan: Plan, why: str, last: bool = False) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = last
            self._next = plan
            self.history.append(why)
            self._watcher.fence = last or not self._one_pass

    def _refuse(self) -> None:
        """An audit found other rows: what it concerns is refused for good, and said aloud."""
        what = self._metrics.differences[self._found]
        self._found = len(self._metrics.differences)
        _log.warning(
            "a block of the optimized plan has other rows than the pipeline as written (%s): for this block the rows "
            "as written were delivered, and the plan is given up; earlier blocks may be concerned",
            what,
        )
        plan = self.planner.refuse(self.current, what) if self.planner is not None else self._written
        self._change(plan, f"an audit found a difference: {what}", last=True)
        self._asked = len(_LOOKS)

    def failed(self, error: Exception) -> bool:
        """Go on with the pipeline as written, where the error is raised again if it is one; False if that runs."""
        if not self.rewrites:
            return False
        with self._lock:
            self._next, self._asked, self._settled = None, len(_LOOKS), True
            self.history.append(f"as written after an error: {type(error).__name__}")
            decision = Decision("plan", "all of it", applied=False, why=f"an error: {str(error).splitlines()[0]}")
            self.current = replace(self._written, decisions=(*self.current.decisions, decision))
        return True

    def close(self) -> None:
        """The run ends: a plan that is being made calls none of the user's functions any more."""
        if self._calls is not None:
            self._calls.end()
            self._calls = None

    # ---- what is known -----------------------------------------------------------------------------------------------

    def notes(self) -> list[str]:
        """What a report says of plans: changes, and what checks found."""
        m = self._metrics
        counted = [(m.fell_back, "run again in the order as written"), (m.audited, "audited")]
        told = [f"{number} task(s) {what}" for number, what in counted if number]
        return [*(f"plan changed: {why}" for why in self.history), *told, *(f"audit: {d}" for d in m.differences[:3])]

    def measured(self) -> float | None:
        """Rows read per second under the current plan, where that says something of it."""
        return self._speed()

    def profile(self) -> Profile:
        """What was measured so far."""
        return self._metrics.profile(
            subject(self._binding.root, self._binding),
            machine(measure=False),
            workers=self.workers,
            executor=self.executor,
        )

    def _remaining(self) -> float | None:
        """Rows of this epoch that are still to be read, where metadata tells."""
        rows = [split.rows for source in self._binding.sources for split in self._binding.splits(source)]
        if any(r is None for r in rows):
            return None
        total = sum(r or 0 for r in rows)
        return max(0.0, total - self._metrics.rows_read + self._before_epoch) if total else math.inf


def _with(profile: Profile, gil: dict[int, float]) -> Profile:
    """With what is known of who holds the GIL; who does waits for it, not for anything else."""
    operators = {
        i: replace(f, gil=gil.get(i), wall=f.cpu if gil.get(i, 0.0) > _HELD else f.wall)
        for i, f in profile.operators.items()
    }
    return replace(profile, operators=operators)


def _source(node: Node) -> object:
    return getattr(node.operator, "source", None)
