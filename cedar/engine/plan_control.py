"""Plans: report measurements of a run to the controller, and carry out the actions that it requests."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from cedar.control.controller import (
    Action,
    Candidate,
    ControllerSettings,
    Look,
    Observation,
    Prepare,
    State,
    Switch,
    at_end,
    recall,
    step,
)
from cedar.core.boundary import first_line
from cedar.core.packages import loaded
from cedar.datasets.base import Read
from cedar.engine.audit import AuditBudget
from cedar.engine.background import Calls, RunOver, WorkerWarmup, start_background_thread
from cedar.engine.binding import Binding
from cedar.engine.first_rows import FirstRows
from cedar.engine.metrics import Metrics
from cedar.engine.observations import RunMeasurements
from cedar.engine.runner import Runner
from cedar.engine.task_context import CALLS, DETAILS, EVERY, Watcher, is_remote
from cedar.executors.recovery.waiting import Patience
from cedar.operators import native as kernels
from cedar.operators.base import RowOperator
from cedar.plan import graph
from cedar.plan.data import Decision, Difference, Plan
from cedar.plan.graph import source_of
from cedar.profile import Profile

if TYPE_CHECKING:
    from cedar.engine.plan_results import PlanResults, ResultsStore
    from cedar.optimizer.planner import AutoPlanner

_log = logging.getLogger("cedar")
_STALLED = 0.1  # if the trainer waits less than this fraction of the time, throughput measures only the trainer
_WHOLE = "all of it"  # subject of a decision that rejects a rule entirely


class Plans:
    """Chooses, checks and switches the plans of one loader.

    Args:
        planner: creates plans; None keeps the first plan.
        first: the plan to start with.
        binding: the bound operators of the pipeline as written.
        metrics: the counters of the loader.
        world: number of ranks that share the run.
        patience: how long to wait for a call that hangs.
    """

    _finalizing = staticmethod(sys.is_finalizing)  # at interpreter exit, modules may be unloaded

    def __init__(
        self,
        planner: AutoPlanner | None,
        first: Plan,
        binding: Binding,
        metrics: Metrics,
        world: int = 1,
        patience: Patience | None = None,
    ) -> None:
        self.planner = planner
        self.current = first
        self.history: list[str] = []  # reasons for changes of the plan during the run
        self.settings = ControllerSettings()
        self.figures = RunMeasurements(binding, metrics)
        self.binding = binding
        self.metrics = metrics
        self._world, self._patience = world, patience
        self._admitted = False  # whether the first plan was compared with the pipeline as written
        self._lock = threading.Lock()
        # State of the running plan and of the next one.
        self._watcher = Watcher()
        self._runner: Runner | None = None
        self._calls: Calls | None = None  # calls of user functions for planning in the current run
        self._next: Plan | None = None
        self._settled = False  # True after an error or a failed audit: the plan does not change any more
        self._broken = False  # True once the optimizer has failed: it is not used again
        # State of the controller, and of the work that it requested.
        self._default = 0  # number of concurrent tasks if the plan does not set it
        self._known = [first]  # all plans; the key of a plan is its index here
        self._key = "0"  # key of the current plan
        self._state = State(self._key)
        self._since = self._waited_before = self._rows_before = 0.0  # totals when the current plan began
        metrics.taken = self._note_task
        self._due = self.settings.least_gain  # elapsed seconds until the controller's next step; see ``_observe``
        self._jobs: deque[Callable[[Calls], None]] = deque([] if planner is None else [self._load_results])
        self._thread: threading.Thread | None = None
        self._renewed = 0  # number of finished tasks when measurements were last marked as old
        self._candidates: tuple[Candidate, ...] | None = None
        self._results: ResultsStore | None = None  # of earlier runs; None until they are loaded
        self._earlier: PlanResults | None = None  # these results, until the controller receives them

    @cached_property
    def first_rows(self) -> FirstRows:
        """Compares plans with the pipeline as written, on a few rows."""
        strict = self.planner is not None
        return FirstRows(self.binding, self._world, strict=strict, patience=self._patience)

    @cached_property
    def audits(self) -> AuditBudget:
        """Decides when to compare delivered rows with the pipeline as written."""
        return AuditBudget(self.binding)

    @cached_property
    def _warming(self) -> WorkerWarmup:
        return WorkerWarmup()

    @property
    def rewrites(self) -> bool:
        """Whether the current plan differs from the pipeline as written."""
        return self.current.root is not self.binding.root

    def watcher(self, runner: Runner) -> Watcher:
        """Switch to the next plan if one is ready, and return the watcher for the streams of the current plan."""
        self._admit(runner)
        with self._lock:
            if self._next is not None:
                self.current, self._next = self._next, None
                self._restart_measuring()
                self._renew()
            live = self.planner is not None
            self._runner = runner
            self._resize()  # each epoch's runner starts with the default number of workers
            self._watcher = Watcher(DETAILS if live and not self._state.looks else 0, EVERY if live else 0)
            if self.rewrites:
                self.audits.restart()
            return self._watcher

    def _earlier_plan(self, runner: Runner) -> Plan | None:
        """Return the plan that an earlier run ended with, if its worker processes are ready and it passes the check."""
        processes = loaded("cedar.executors.processes")
        if self.planner is None or runner.inline or not processes or not processes.ready(runner.workers_elsewhere):
            return None
        with suppress(Exception):  # the run can begin with the initial plan
            self._load_results()
            self._jobs.clear()  # which had only that job
            if self._earlier and self.first_rows.difference(plan := self._earlier.plans[0][0]) is None:
                return plan
        return None

    def _admit(self, runner: Runner) -> None:
        """Choose the first plan, and compare it with the pipeline as written. Parts that fail are run as written."""
        if self._admitted:
            return
        self._admitted = True
        plan, planner = self.current, self.planner
        try:
            if (earlier := self._earlier_plan(runner)) is not None:
                self.current = plan = earlier
            elif self.rewrites and planner is not None:
                self.current = planner.admit(plan, self.first_rows.difference)
            elif self.rewrites and (found := self.first_rows.difference(plan)) is not None:
                self.current = self._rejected(plan, found.what)
        except Exception as error:  # noqa: BLE001 - the pipeline as written can always run
            self.current = self._rejected(plan, f"the check failed: {type(error).__name__}: {error}")
        self._known = [self.current]
        if self.current is not plan:
            _log.warning("the plan was changed: %s", self.current.decisions[-1].why)

    def _rejected(self, plan: Plan, why: str, rule: str = "plan", subject: str = _WHOLE) -> Plan:
        decision = Decision(rule, subject, applied=False, why=why)
        return replace(self.first_rows.written, decisions=(*plan.decisions, decision))

    def _renew(self) -> None:
        """Mark measurements as old, so that newer ones replace them."""
        self.metrics.renew()
        self._renewed = self.metrics.tasks

    def _restart_measuring(self) -> None:
        self._key = self._key_of(self.current)
        self._since, self._waited_before = self.metrics.time.so_far(time.perf_counter())
        self._rows_before = self.figures.finished
        self.figures.renew()

    def _resize(self) -> None:
        """Apply the plan's number of concurrent tasks. Must be called by the thread that submits tasks."""
        wanted, figures = self.current.workers or self._default, self.figures
        if self.planner is None or self._runner is None or wanted == figures.workers:
            return
        if self._runner.resize(wanted):
            figures.workers = wanted
            self.metrics.time.lanes = self._runner.lanes

    def _key_of(self, plan: Plan) -> str:
        """Return a plan's key, which is equal for plans with the same stages, executors and number of workers."""
        for i, known in enumerate(self._known):
            if (plan.workers or self._default) == (known.workers or self._default) and self._same_stages(plan, known):
                return str(i)
        self._known.append(plan)
        return str(len(self._known) - 1)

    def _same_stages(self, a: Plan, b: Plan) -> bool:
        return a.root is b.root or self.binding.lowered(a.root) == self.binding.lowered(b.root)

    # ---- while running -----------------------------------------------------------------------------------------------

    def start(self, runner: Runner) -> None:
        """Begin an iteration that uses ``runner``."""
        self._runner, self._default = runner, runner.workers
        self.figures.start(runner)
        self.metrics.taken = self._note_task

    def poll(self) -> None:
        """Let the controller take a step if one is due. A run with a planner calls this between batches."""
        if self._calls is not None:
            self._calls.serve()
        self._observe()

    def _note_task(self) -> None:
        """Record a finished task, and let the controller take a step if one is due."""
        measuring = self.figures.note_task()
        if self.planner is not None:
            self._observe()
        elif measuring:
            self.metrics.taken = None

    def _observe(self) -> None:
        """Take a step of the controller if ``settings.poll`` seconds have passed since the previous one.

        The first step is taken after ``settings.least_gain`` seconds, since no plan saves that much in a shorter run.
        """
        now, waited = self.metrics.time.so_far(time.perf_counter())
        if now < self._due or self._settled or self._broken:
            return
        self._due = now + self.settings.poll
        try:
            self._step(now, waited)
        except Exception:  # noqa: BLE001 - a planning error must not stop the run
            self._give_up()

    def _step(self, now: float, waited: float) -> None:
        if self._results is None:
            self._start_next_job()
            return
        seen = self._observation(now, waited)
        if self._earlier is not None:  # pass the results of earlier runs to the controller
            earlier, self._earlier = self._earlier, None
            results, start, wait = {}, {}, self.profile().machine.start_seconds
            for plan, result in earlier.plans:
                key = self._key_of(plan)
                results[key], start[key] = result, wait if plan.in_processes else 0.0
            self._state = recall(self._state, results, earlier.pace, start)
        self._state, actions = step(self._state, seen, self.settings)
        self._candidates = None if seen.candidates is not None else self._candidates
        for action in actions:
            self._carry_out(action)
        self._start_next_job()

    def _observation(self, now: float, waited: float) -> Observation:
        seen, progress, figures = self.figures.seen, self.figures.progress, self.figures
        ready, unfit = self._warming.settled()
        return Observation(
            now, self._key, self._since, figures.finished - self._rows_before, waited - self._waited_before,
            progress.rows, seen.elapsed, seen.waited, progress.tasks, figures.workers, figures.rest(),
            self._measured_enough(), figures.planned, self._candidates, ready, unfit, figures.opening,
        )  # fmt: skip

    def _measured_enough(self) -> bool:
        """Whether each operator was measured often enough; operators that no row reaches are ignored after a while."""
        if kernels.is_compiling():
            self._renew()  # until kernels are compiled, substitutes run, whose measurements must not be used later
            return False
        calls = self._calls_seen()
        seeking = frozenset(i for i, number in calls.items() if number < CALLS)
        self._watcher.seeking = seeking if not self._state.looks else frozenset()
        tasks = self.metrics.tasks - self._renewed
        return bool(calls) and (not seeking or (max(calls.values()) > 0 and tasks >= CALLS * 4))

    def _calls_seen(self) -> dict[int, int]:
        """Return the number of measured calls of each operator that tasks run."""
        seen, nodes = self.metrics.seen, enumerate(self.binding.nodes)
        measured = [i for i, node in nodes if isinstance(node.operator, (RowOperator, Read))]
        return {i: seen[i].calls if i in seen else 0 for i in measured}

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Look):
            self._jobs.append(self._search)
            if self._state.looks:  # this is not the first search: measure again for it
                self._renew()
                self._watcher.measure_more(DETAILS)
        elif isinstance(action, Prepare):
            self._jobs.append(partial(self._prepare, action.key))
        elif isinstance(action, Switch):
            plan = self._known[int(action.key)]
            if self._same_stages(plan, self.current):  # only the number of concurrent tasks differs
                with self._lock:
                    self.current = replace(self.current, workers=plan.workers)
                self._resize()
                self._restart_measuring()
                self.history.append(action.why)
            else:
                self._schedule_switch(plan, action.why)

    # ---- in the background -------------------------------------------------------------------------------------------

    def _start_next_job(self) -> None:
        """Start the next job in a background thread, unless one is still running."""
        if not self._jobs or (self._thread is not None and self._thread.is_alive()):
            return
        if self._jobs[0] == self._search and not self._measured_enough():
            return
        if self._calls is None:
            self._calls = Calls(inline=self.figures.executor == "inline")
        self._thread = start_background_thread(self._run_job, self._jobs.popleft(), self._calls)

    def _run_job(self, job: Callable[[Calls], None], calls: Calls) -> None:
        try:
            with self.figures.during_planning():
                job(calls)
        except RunOver:
            self._jobs.appendleft(job)  # retry it in the next epoch
        except Exception:  # noqa: BLE001 - a planning error must not stop the run
            self._give_up()

    def _give_up(self) -> None:
        self._broken = True
        _log.warning("the optimizer failed: the run continues with its current plan", exc_info=True)

    def _load_results(self, _: Calls | None = None) -> None:
        """Load what earlier runs of the same pipeline measured on this machine."""
        from cedar.engine.plan_results import ResultsStore

        assert self.planner is not None
        results = ResultsStore(self.binding.root, self.binding.on_error)
        self._earlier = results.load((*self.planner.limits, self.first_rows.world))
        self.figures.gil = None if self._earlier is None else self._earlier.gil
        self._results = results

    def _search(self, _: Calls) -> None:
        """Search for faster plans with the cost model, and pass them to the controller as candidates."""
        assert self.planner is not None
        profile, runs, current = self.profile(), self._key, self.current
        plans, running = [], current
        for plan in self.planner.candidates(profile):
            if self.planner.most_workers is None:
                plan = replace(plan, workers=None)  # the user set the number of workers
            key = self._key_of(plan)
            if key == runs:  # the candidate is the running plan, with newer decisions
                running = replace(plan, root=current.root, sweeps=current.sweeps, workers=current.workers)
            else:
                self._known[int(key)] = plan
                plans.append((key, plan))
        running = self.planner.with_prediction(running, profile)  # predict it from the latest measurements
        with self._lock:
            if self._key == runs and not self._settled:
                self.current = running
        if running.prediction is not None:
            plans.append((runs, running))
        # Fraction of source rows that are decoded, since readers skip rows that cannot pass; 1 until a split was read.
        entered = (self.metrics.rows_entered / max(self.figures.read, 1) or 1.0) * self.figures.crowded
        kept = _caches(running)
        candidates = []
        for key, plan in plans:
            assert plan.prediction is not None
            seconds = entered / max(plan.prediction.rows_per_second, 1e-9)  # per source row, the controller's unit
            alike = not (_uses_processes(plan) or _uses_processes(running))
            alike = alike and (plan.workers or self._default) == self.figures.workers
            start = profile.machine.start_seconds if plan.in_processes else 0.0
            candidates.append(Candidate(key, seconds, start, bool(_caches(plan) - kept), alike))
        self._candidates = tuple(candidates)

    def _prepare(self, key: str, calls: Calls) -> None:
        """Compare a plan with the pipeline as written on the first rows, and start the worker processes it needs."""
        assert self.planner is not None
        plan, profile = self._known[int(key)], self.profile()

        def check(plan: Plan) -> Difference | None:
            return calls.run(lambda: self.first_rows.difference(plan, calls.check))

        sound = self.planner.checked(plan, profile, check)
        with self._lock:
            reported = self.current.decisions
            news = (d for d in sound.decisions if not d.applied and d.what == _WHOLE and d not in reported)
            self.current = replace(self.current, decisions=(*reported, *news))
        if self._key_of(sound) == self._key or (sound is not plan and not self.first_rows.rewrites(sound)):
            self._warming.unfit |= {key}
            return
        # Nothing is measured yet if an earlier run proposed the plan.
        self._known[int(key)] = self.planner.with_prediction(sound, profile) if profile.operators else sound
        if sound.in_processes:
            self._warming.begin(key, sound, self.figures.processes)  # the number of processes, not of threads
        else:
            self._warming.ready |= {key}

    def _schedule_switch(self, plan: Plan, why: str, last: bool = False) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = last
            self._next = plan
            self.history.append(why)
            self._watcher.fence = last or not any(source_of(node).one_pass for node in self.binding.sources)

    # ---- audits ------------------------------------------------------------------------------------------------------

    def audit_due(self, opening: float) -> bool:
        """Whether to audit the next piece now. ``opening`` is the seconds until the first rows arrived."""
        return not self._settled and self.audits.due(opening)

    def audit(self, seconds: float, why: str | None, *, done: bool = True) -> None:
        """Record an audit. If it found a difference, the rest of the run uses the pipeline as written.

        Args:
            seconds: duration of the audit.
            why: the difference; None if there is none.
            done: False if the audit was stopped for taking too long; the next one is expected to take twice as long.
        """
        self.metrics.audited += done
        self.audits.record(seconds, done=done)
        if why is None:
            return
        self.metrics.differences.append(why)
        _log.warning(
            "the optimized plan gives different rows than the pipeline as written (%s): the audited rows were "
            "delivered as written, and the plan is not used any more; earlier rows may be affected",
            why,
        )
        plan = self._rejected(self.current, why, "audit", "the plan")  # unknown which rule caused the difference
        self._schedule_switch(plan, f"an audit found a difference: {why}", last=True)

    def failed(self, error: Exception) -> bool:
        """Switch to the pipeline as written after an error; False if it is already running, so the error is real."""
        if not self.rewrites:
            return False
        with self._lock:
            self._next, self._settled = None, True
            self.history.append(f"as written after an error: {type(error).__name__}")
            self.current = self._rejected(self.current, f"an error: {first_line(error)}")
        return True

    def close(self) -> None:
        """End the run. After that, the planner no longer calls the user's functions."""
        self.metrics.time.running = False
        if self._finalizing():
            return
        if self._results is not None and not (self._broken or self._settled):
            now, waited = self.metrics.time.so_far(time.perf_counter())
            tries, state = self._state.phase == "tries", self._state
            state = at_end(state, self._observation(now, waited)) if tries else state
            self._results.save(state, self._known, now, self.figures.gil)
        if self._calls is not None:
            self._calls.end()
            self._calls = None

    # ---- reports -----------------------------------------------------------------------------------------------------

    def describe(self) -> Plan:
        """Return the current plan with predictions from the latest measurements."""
        current, planner = self.current, self.planner
        if planner is None or self._broken or self._settled or not min(self._calls_seen().values(), default=0):
            return current
        try:
            return planner.with_prediction(current, self.profile())
        except Exception:  # noqa: BLE001 - a failed prediction must not prevent a report
            _log.warning("the optimizer failed to predict the plan", exc_info=True)
            return current

    def notes(self) -> list[str]:
        """Return lines for a report: plan changes, and what checks and audits found."""
        m = self.metrics
        counted = [(m.fell_back, "run again in the order as written"), (m.audited, "audited")]
        reported = [f"{number} task(s) {outcome}" for number, outcome in counted if number]
        changes, audits = [f"plan changed: {why}" for why in self.history], [f"audit: {d}" for d in m.differences[:3]]
        return changes + reported + audits

    def measured(self) -> float | None:
        """Return rows read per second under the current plan; None if unknown, or if the trainer limits the speed."""
        seen = self.figures.seen
        progress, waits = self.figures.progress, seen.waited >= _STALLED * seen.elapsed
        return progress.rows / seen.elapsed if waits and progress.tasks >= self.settings.tasks else None

    def profile(self) -> Profile:
        """Return the profile computed from the measurements so far."""
        return self.figures.profile(not self.current.in_processes)


def _uses_processes(plan: Plan) -> bool:
    return any(is_remote(node.place) for node in graph.walk(plan.root))


def _caches(plan: Plan) -> set[str]:
    """Return what a plan caches."""
    return {d.what for d in plan.decisions if d.applied and d.rule == "cache_place"}
