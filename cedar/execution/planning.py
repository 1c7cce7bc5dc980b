"""Plans: the plan of a run, how it does, and the one that takes over at a window's end."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from functools import cached_property, partial

from cedar.columns import OBJECT
from cedar.datasets.base import Read
from cedar.execution import processes
from cedar.execution.alone import Alone
from cedar.execution.binding import Binding
from cedar.execution.calling import Calls, Over, beside
from cedar.execution.checking import Unclear, check_effects, check_plan
from cedar.execution.executors import available_cpus
from cedar.execution.known import Known
from cedar.execution.looks import Looks, alike
from cedar.execution.metrics import Metrics
from cedar.execution.promise import Promise
from cedar.execution.runner import Runner
from cedar.execution.watcher import Watcher
from cedar.graph import Node
from cedar.operators.base import RowOperator
from cedar.plan.alike import rewritten, signature
from cedar.plan.data import Decision, Plan
from cedar.plan.planner import Difference, Planner
from cedar.profile import Profile

_log = logging.getLogger("cedar")
_CALLS = 3  # of each operator before a plan is made: the first may load a model
_TASKS = 6  # after so many, operators that no row reaches are not waited for
_DETAILS = 6  # tasks of each stage that measure each operator by itself
_EVERY = 64  # later, one task in so many does
_AUDITS = 0.03  # of the time: what is delivered is computed again as written, now and then
_CHECK_SECONDS = 0.05  # of work on sample rows, before a plan takes over
_CHECK_SHARE = 0.05  # of what is left of a job, at most
_MISSED = 0.7  # of the speed of the plan before: less, and that comes back
_ENOUGH = 1.5  # times as fast: a plan that takes over before anybody asks who holds the GIL
_TRIAL = 0.25  # seconds before a plan's speed says something
_START_SECONDS = 20  # for processes to start; then the run waits for them
_STALLED = 0.1  # of the time: where the trainer waits less than this, nothing is to be gained
_FEW_ROWS = 16  # that functions are called on for a plan that the user gave, where nothing else tells
_CHOSEN = "chosen from what was measured"
_PATIENCE = 0.25  # seconds: who waits for the first batch has the cores, and the GIL, to himself for so long
_WORTH = 0.25  # seconds of waiting that are left: less does not pay for the making of a plan


class Plans:
    """Of one loader.

    Args:
        planner: makes plans; None keeps the first.
        first: the plan to start with.
        binding: the bound operators of the pipeline as written.
        metrics: the loader's.
        world: ranks that share the run.
    """

    def __init__(
        self, planner: Planner | None, first: Plan, binding: Binding, metrics: Metrics, world: int = 1
    ) -> None:
        self.planner = planner
        self.current = first
        self.history: list[str] = []  # what was changed while running, and why
        self._known = Known(binding, metrics)
        self._alone = Alone(self._known, metrics)
        self._binding = binding
        self._metrics = metrics
        self._written = Plan.as_written(binding.root)
        self._watcher = Watcher()
        self._next: Plan | None = None
        self._warming: tuple[Plan, float] | None = None  # a plan whose processes start, and since when
        self._before: tuple[Plan, float] | None = None  # the plan before this one, and its rows per second
        self._left: list[tuple[Plan, Profile]] = []  # plans of this epoch that were given up, and what was known then
        self._promise = Promise()  # of the current plan
        self._thread: threading.Thread | None = None
        self._looks = Looks()
        self._fresh: int | None = None  # after so many tasks, new figures were waited for: the old ones do not hold
        self._runner: Runner | None = None
        self._calls: Calls | None = None  # of the run under way
        self._one_pass = any(getattr(_source(node), "one_pass", False) for node in binding.sources)
        self._settled = False  # an error, or an audit, decided: no other plan is taken
        self._broken = False  # the optimizer failed: it is not asked again
        self._began = 0.0  # of this iteration, by time.perf_counter()
        self._returns = False  # the next plan is the one before
        self.audits = _AUDITS  # a share of the time; 1 and more is always
        self._audited = (0.0, 0.0)  # seconds that audits of this plan took, and what the next one should take
        self._since = 0.0  # the current plan runs, by time.perf_counter()
        self._world = world
        self._admitted = False  # the first plan was compared with the pipeline as written
        self._lock = threading.Lock()

    @property
    def factors(self) -> dict[tuple[str, ...], float]:
        """Rows per row held, of each group of columns in the batches handed over."""
        return self._metrics.factors

    @property
    def rewrites(self) -> bool:
        """The current plan is not the pipeline as written."""
        return self.current.root is not self._binding.root

    def watcher(self, runner: Runner) -> Watcher:
        """For the streams of the current plan, or of the next one where that is ready."""
        self._admit()
        self._warmed()
        with self._lock:
            if self._next is not None:
                self._take(self._next)
            threads = self._alone.stop()
            if threads is not None and self.current.workers in (None, 1):
                self.current = replace(self.current, workers=threads)
            live = self.planner is not None
            fresh = live and (not self._looks.taken or not self._known.pace.seconds)
            self._runner = runner
            self._resize()  # an epoch's runner has as many workers as the first had: no news of the operators
            self._watcher = Watcher(
                details=_DETAILS if fresh else 0,
                every=_EVERY if live else 0,
            )
            self._since, self._audited = time.perf_counter(), (0.0, 0.0)
            return self._watcher

    def _admit(self) -> None:
        """The first plan runs once it is compared with the pipeline as written; until then, that does."""
        if self._admitted:
            return
        self._admitted = True
        plan = self.current
        if not rewritten(self._binding.root, plan.root):
            return
        try:
            self.current = self._admitted_of(plan)
        except Exception as error:  # noqa: BLE001 - the pipeline as written always runs
            self.current = self._refused(plan, f"the check failed: {type(error).__name__}: {error}")
        if self.current is not plan:
            _log.warning("the plan is not taken as it was: %s", self.current.decisions[-1].why)

    def _admitted_of(self, plan: Plan) -> Plan:
        if self.planner is not None:
            return self.planner.admit(plan, self._first_check)
        found = self._first_check(plan)
        return plan if found is None else self._refused(plan, found.what)

    def _refused(self, plan: Plan, why: str) -> Plan:
        decision = Decision("plan", "all of it", applied=False, why=why)
        return replace(self._written, decisions=(*plan.decisions, decision))

    def _first_check(self, plan: Plan) -> Difference | None:
        """By what operators declare: no function of the user is called, as far as that tells."""
        try:
            return check_effects(self._binding, plan, self._world, strict=self.planner is not None)
        except Unclear as why:
            if self.planner is None:
                return check_plan(self._binding, plan, _FEW_ROWS, self._world)
            return Difference(f"not before it is compared on rows of the run ({why})")

    def _take(self, plan: Plan) -> None:
        speed = self._speed()
        self._before = (self.current, speed) if speed is not None and not self._returns else None
        self._left.append((self.current, self.profile()))
        self.current, self._next, self._returns = plan, None, False
        self._promise.by(self.current)
        self._known.renew()

    def _resize(self) -> None:
        """As many tasks at once as the plan wants; to be called by the thread that submits."""
        wanted, known = self.current.workers, self._known
        if self.planner is None or self._runner is None or wanted is None or wanted == known.workers:
            return
        if 1 < wanted < known.workers:  # threads that were added stay, unless all but one would wait for the GIL
            return
        if self._runner.resize(wanted):
            known.workers = wanted
            known.pace.renew()

    def _speed(self) -> float | None:
        """Rows read per second of late; None in a plan's first moments, or where the trainer is slower."""
        pace = self._known.pace
        return None if pace.seconds < _TRIAL or self._content() else pace.speed

    # ---- while running -----------------------------------------------------------------------------------------------

    def start(self, runner: Runner) -> None:
        """An iteration begins, with an executor of its own: there is an epoch to read, and a look worth taking."""
        self._runner, self._fresh, self._began = runner, None, time.perf_counter()
        self._looks.begin(self._metrics.elapsed)
        self._left.clear()
        self._known.start(runner)

    def reads(self, share: float) -> None:
        """The share of the rows that this rank reads, 0 to 1."""
        self._known.share = share

    def poll(self) -> None:
        """Called now and then by the run: plans when enough was seen; cheap."""
        if self._calls is not None:
            self._calls.serve()
        if self.planner is None:
            return
        self._resize()
        self._warmed()
        news = self._known.pace.look() or not self._looks.taken
        busy = self._next or self._warming or (self._thread is not None and self._thread.is_alive())
        if not news or self._settled or self._broken or busy:
            return
        if self._alone.tries:
            self._try_alone()
        elif self.planner.most_workers is not None and self._alone.due() and not (self._content() or not self._local):
            self._alone.begin()
        else:
            self._consider()

    def _try_alone(self) -> None:
        """One thread may do more than several: a trial goes on, or ends."""
        threads = self._alone.step(self._runner.ahead if self._runner is not None else 0)
        if threads is not None:
            self.current = replace(self.current, workers=threads)
        if not self._alone.tries and self._alone.better:
            self.history.append(self._alone.why)
            self._closely()  # by the figures of one thread, processes may be worth their start

    def _consider(self) -> None:
        """Look for another plan, where it is time to and worth it."""
        looks, elapsed = self._looks, self._metrics.elapsed
        if not looks.taken or self._fresh is not None:
            if self._enough() and self._worth() and self._settled_in():
                self._ask()
        elif looks.due(elapsed) and not self._back():
            if looks.early:
                if not self._content() and self._worth():
                    self._ask()
            elif self._worth() and self._promise.missed(self._speed()):
                self._closely()
            else:
                looks.checked(elapsed)

    def _enough(self) -> bool:
        """Each operator was seen often enough; those that no row reaches are sought for a while."""
        seen = self._metrics.seen
        wanted = [
            self._binding.index[id(n)] for n in self._binding.nodes if isinstance(n.operator, (RowOperator, Read))
        ]
        calls = [seen[i].calls if i in seen else 0 for i in wanted]
        self._watcher.seeking = min(calls, default=_CALLS) < _CALLS
        tasks = self._metrics.tasks - (self._fresh or 0)
        return bool(calls) and (min(calls) >= _CALLS or (max(calls) > 0 and tasks >= _TASKS * 2))

    def _settled_in(self) -> bool:
        """The first batch is there, or takes so long that a plan cannot wait for it."""
        return self._metrics.batches > 0 or time.perf_counter() - self._began > _PATIENCE

    def _worth(self) -> bool:
        """Enough waiting is left for a plan to pay for its making."""
        return self._known.rest() >= _WORTH

    def _content(self) -> bool:
        """The trainer is what limits the run: no plan makes it faster."""
        return self._known.pace.waiting < _STALLED

    def _back(self) -> bool:
        """Go back from a plan that is slower than the one before it."""
        speed = self._speed()
        if self._before is None or speed is None or speed >= _MISSED * self._before[1]:
            return False
        plan, there = self._before
        self._looks.end(self._metrics.elapsed)
        self._returns = True
        if self.planner is not None:
            self.planner.keep(plan)
        self._change(plan, f"{speed:,.0f} rows/s, {there:,.0f} under the plan before: back to that")
        return True

    def _closely(self) -> None:
        """Figures that led to a wrong prediction are measured anew; a look follows."""
        self._metrics.renew()
        self._fresh = self._metrics.tasks
        self._before = None  # its speed was that of other costs
        self._watcher.closely(_DETAILS)

    def _ask(self) -> None:
        known = self._known
        self._looks.took(self._metrics.elapsed)
        self._fresh, self._watcher.seeking = None, False
        horizon, rest = known.horizon(), known.rest()
        if self._calls is None:
            self._calls = Calls(inline=known.executor == "inline")
        self._thread = beside(self._improve, self._calls, horizon, rest)

    def _improve(self, calls: Calls, horizon: float | None, rest: float) -> None:
        assert self.planner is not None
        try:
            raw = self._known.figures()
            profile = self._known.completed(raw, self._local)
            plan = self._better(calls, profile, horizon, rest)
            little = plan is None or self._gain(plan, profile) < _ENOUGH
            if little and not self._one_pass and self._known.asks(raw, horizon):
                calls.make(partial(self._known.ask, raw))
                profile = self._known.completed(raw, self._local)
                plan = self._better(calls, profile, horizon, rest)
            if plan is not None and plan.root is self.current.root:
                self.current = plan  # with more to tell, or more threads
                self._promise.by(self.current)
            elif plan is not None and self._given_up(plan, profile):
                self.planner.keep(self.current)
            elif plan is not None:
                self._warm(plan)
        except Over:
            self._looks.untaken()  # the next epoch may see the end of it
        except Exception:  # noqa: BLE001 - a plan is never worth a run
            self._broken = True
            _log.warning("the optimizer failed: the run goes on with the plan that it has", exc_info=True)

    def _better(self, calls: Calls, profile: Profile, horizon: float | None, rest: float) -> Plan | None:
        """What the planner makes of the figures, compared on as many sample rows as the rest of the job is worth."""
        assert self.planner is not None
        per_row = sum(f.wall for f in profile.operators.values()) or 1e-6
        seconds = min(_CHECK_SECONDS, _CHECK_SHARE * rest)
        rows = int(min(max(seconds / per_row / 3, 8), 1024))  # as written twice, and as planned

        def check(plan: Plan) -> Difference | None:
            try:
                found = check_effects(self._binding, plan, self._world, going=calls.check)
            except Unclear:
                found = None
            return found or calls.make(partial(check_plan, self._binding, plan, rows, self._world))

        plan = self.planner.improve(profile, horizon, check, self._known.guesses)
        return replace(plan, workers=1) if plan is not None and self._alone.better and not plan.in_processes else plan

    def _gain(self, plan: Plan, profile: Profile) -> float:
        """How many times as fast as the current plan another one should be."""
        assert self.planner is not None
        there = self.planner.foretell(self.current, profile).prediction
        if plan.root is self.current.root or plan.prediction is None or there is None:
            return 1.0
        return plan.prediction.rows_per_second / max(there.rows_per_second, 1e-9)

    def _given_up(self, plan: Plan, profile: Profile) -> bool:
        """The plan was left in this epoch, and nothing that is known of it has changed."""
        logical = self._binding.root
        wanted = signature(logical, plan.root)
        return any(signature(logical, left.root) == wanted and alike(known, profile) for left, known in self._left)

    def _warm(self, plan: Plan) -> None:
        """The run goes on as it is, into the next epoch too, until the processes of the next plan are there."""
        if not plan.in_processes:
            self._change(plan, _CHOSEN)
            return
        workers = self._known.processes  # threads may be more, where they wait, or one alone
        processes.warm(workers, at_once=max(1, min(workers, available_cpus()) - 1))  # threads go on with one core
        self._warming = plan, time.perf_counter()

    def _warmed(self) -> None:
        """A plan whose processes are there is the next one."""
        if self._warming is not None:
            plan, since = self._warming
            if processes.ready(self._known.processes) or time.perf_counter() > since + _START_SECONDS:
                self._warming = None
                self._change(plan, _CHOSEN)

    def _change(self, plan: Plan, why: str, last: bool = False) -> None:
        with self._lock:
            if self._settled:
                return
            self._settled = last
            self._next = plan
            self.history.append(why)
            self._watcher.fence = last or not self._one_pass

    # ---- audits ------------------------------------------------------------------------------------------------------

    def audit_due(self, opening: float) -> bool:
        """Whether what is delivered next should be computed as written, too.

        Args:
            opening: seconds that the first rows took, which an audit takes at least.
        """
        if not self.rewrites or self._settled or not self._auditable:
            return False
        again = math.inf if self._streams else max(self._audited[1], opening)  # no place in a stream is found at once
        return self.audits >= 1 or self.audit_seconds >= again

    @property
    def audit_seconds(self) -> float:
        """What an audit may take now."""
        if self.audits >= 1:
            return math.inf
        return (time.perf_counter() - self._since) * self.audits - self._audited[0]

    @cached_property
    def _streams(self) -> bool:
        return any(split.streaming for source in self._binding.sources for split in self._binding.splits(source))

    @cached_property
    def _auditable(self) -> bool:
        """Rows can be read again, and are the same then: not those of iterators, nor objects that functions change."""
        if self._one_pass:
            return False
        held = [n for n in self._binding.sources if getattr(_source(n), "holds_objects", False)]
        return not any(OBJECT in self._binding.types(n).values() for n in held)

    def audit(self, seconds: float, found: str | None, *, done: bool = True) -> None:
        """What an audit took and found; where there is a difference, the rest of the run is as written.

        Args:
            done: False where it was given up, as it took too long: the next one may take twice as long.
        """
        self._metrics.audited += done
        self._audited = (self._audited[0] + seconds, seconds if done else 2 * seconds)
        if found is None:
            return
        self._metrics.differences.append(found)
        _log.warning(
            "the optimized plan gives other rows than the pipeline as written (%s): these were delivered as written, "
            "and the plan is given up; earlier rows may be concerned",
            found,
        )
        plan = self.planner.refuse(self.current, found) if self.planner is not None else self._written
        self._change(plan, f"an audit found a difference: {found}", last=True)

    def failed(self, error: Exception) -> bool:
        """Go on with the pipeline as written, where the error is raised again if it is one; False if that runs."""
        if not self.rewrites:
            return False
        with self._lock:
            self._next, self._settled = None, True
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

    def told(self) -> Plan:
        """The current plan, with what the latest figures say of it."""
        current, planner = self.current, self.planner
        if planner is None or self._broken or self._settled or current.prediction is None:
            return current
        try:
            return planner.foretell(current, self.profile())
        except Exception:  # noqa: BLE001 - it was asked for news, not for trouble
            _log.warning("the optimizer failed to predict what the plan does", exc_info=True)
            return current

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
        """What was measured so far, and what follows from it."""
        return self._known.profile(self._local)

    @property
    def _local(self) -> bool:
        return not self.current.in_processes


def _source(node: Node) -> object:
    return getattr(node.operator, "source", None)
