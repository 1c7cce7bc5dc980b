"""Profile a pipeline: run it as written for a limited time, and measure each operator in every task."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from cedar.core.errors import CedarError, invalid_call, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import Piece
from cedar.engine.account import DeliveryCounter
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler, min_run_units
from cedar.engine.machine import machine
from cedar.engine.metrics import CallTimes, Metrics
from cedar.engine.nodes import deal_mode
from cedar.engine.observations import gil_share, with_gil
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import Share
from cedar.engine.task_context import Tasks, TimeUp, Watcher
from cedar.operators.base import Env, RowOperator
from cedar.operators.expressions import ByExpressions
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.profile import Profile
from cedar.store.cache import Store
from cedar.tasks.chain import KernelStep, Timing, own_copy, run_steps

_SEPARATE_FRACTION = 0.75  # fraction of the time to measure operators separately; threads (for the GIL) use the rest
_MIN_SECONDS = 0.1  # a run on threads that is shorter than this many seconds is not evaluated
_CALLS = 3  # calls on one row to measure the cost of a call; the fastest counts


def profile(root: Node, seconds: float = 2.0) -> Profile:
    """Run a pipeline as written, in this thread, from the beginning of an epoch, and time each operator.

    Random operators draw as in a run with seed 0. A ``cache()`` neither stores nor returns rows. Skipped rows are
    neither counted against limits nor quarantined.

    Args:
        root: the pipeline's last node.
        seconds: approximate seconds to measure; a small pipeline may reach the end of the epoch earlier.

    Raises:
        PipelineError: ``seconds`` is not a positive finite number.
        CedarError: the pipeline raised an error.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:
        raise invalid_call(f"seconds={seconds!r}: a number of seconds above 0")
    here, began = machine(), time.perf_counter()
    work = _ProfilePass(root)
    account = DeliveryCounter(work.binding, work.metrics, 0, None, user_site())
    try:
        work.measure_operators(began + _SEPARATE_FRACTION * seconds)
        took = time.perf_counter() - began
        measured = work.metrics.profile(work.binding.subject, here, executor="inline", seconds=took)
        # Measure threads for their full time even if the first part took longer than planned.
        return work.measure_threads(measured, (1 - _SEPARATE_FRACTION) * seconds) if here.cores > 1 else measured
    except CedarError as error:
        account.locate(error)
        raise


class _ProfilePass:
    """One measurement of a pipeline."""

    def __init__(self, root: Node) -> None:
        self._env = Env(numeric=NumericEnvironment.of_caller())
        self.binding = Binding(root, None, self._env)
        self.metrics = Metrics(labels=dict(self.binding.subject.labels))

    def _epoch(self, runner: Runner, metrics: Metrics, watcher: Watcher) -> bool:
        """Run an epoch; return True if it ended before the time was up."""
        root, binding = self.binding.root, self.binding
        # Run without ``cache()``, to measure the cost of each operator rather than what a cache saves.
        listed = binding.splits
        choice = Choice(splits=listed, caches=False, settled=listed.settled)
        physical = lower(root, choice)
        compiler = Compiler(physical, binding, Tasks(runner, self._env, metrics, watcher), Store())
        top, assigned = compiler.top(Share(chunk=min_run_units(binding), last=deal_mode(root)))
        flow = top.open([assigned.start(), 0])
        try:
            while isinstance(flow.pull(True), Piece):
                pass
            return True
        except TimeUp:
            return False
        finally:
            flow.close()
            runner.close()

    # ---- operators one by one ----------------------------------------------------------------------------------------

    def measure_operators(self, until: float) -> None:
        """Measure each operator until time is up or the epoch ends. Repeat single calls, which may load models."""
        ended = self._epoch(Runner("inline", 1), self.metrics, Watcher(whole=True, until=until))
        counted = {i: (seen.rows_in, seen.rows_out) for i, seen in self.metrics.seen.items()}
        rows = self.metrics.rows_read
        if ended and any(seen.calls < 2 for seen in self.metrics.seen.values()):
            self._epoch(Runner("inline", 1), self.metrics, Watcher(whole=True, until=until))
        for i, node in enumerate(self.binding.nodes):
            if isinstance(node.operator, RowOperator) and (i in counted or not ended):
                self._call_on_sample(i, node)
        for i, (rows_in, rows_out) in counted.items():
            self.metrics.seen[i].rows_in, self.metrics.seen[i].rows_out = rows_in, rows_out
        self.metrics.rows_read = rows
        if not ended:
            self._as_if_ended()

    def _call_on_sample(self, i: int, node: Node) -> None:
        """Call an operator on sample rows until it has been called at least twice, including its calls in the run."""
        seen = self.metrics.seen.setdefault(i, CallTimes())
        step = KernelStep(self.binding.kernel(node), (i,), self.binding.labels[id(node)], node.site)
        for _ in range(2 - seen.calls):
            timing = Timing()
            block = own_copy(self.binding.sample(node.inputs[0]))
            run_steps((step,), block, replace(self._env, watch="whole"), timing)
            timed = timing.seen.get(i)
            first = seen.first
            if timed is not None and (first is None or timed.wall * first.rows_in < first.wall * timed.rows_in):
                seen.add(timed)

    def _as_if_ended(self) -> None:
        """Scale operators' row counts up to all rows that were read; the run stopped before processing some of them."""
        rows: dict[int, float] = {}
        for i, node in enumerate(self.binding.nodes):
            entering = [rows[id(child)] for child in node.inputs]
            below = min(entering) if node.row_use.rows == "paired" else sum(entering)
            seen = self.metrics.seen.get(i)
            if seen is None or not seen.rows_in:
                rows[id(node)] = below
                continue
            keep = seen.rows_out / seen.rows_in
            seen.rows_in = max(seen.rows_in, int(below))
            rows[id(node)] = seen.rows_out = int(seen.rows_in * keep)

    # ---- all of them on threads --------------------------------------------------------------------------------------

    def measure_threads(self, measured: Profile, seconds: float) -> Profile:
        """Add to the profile how long operators hold the GIL, from a run on threads, and the cost of expressions."""
        began, worked, cores = time.perf_counter(), time.process_time(), measured.machine.cores
        if measured.operators:
            self._epoch(Runner("threads", cores), Metrics(), Watcher(until=began + seconds))
        took, worked = time.perf_counter() - began, time.process_time() - worked
        queries = [i for i in measured.operators if isinstance(self.binding.nodes[i].operator, ByExpressions)]
        calls = {i: self._call_seconds(i) for i in queries}
        operators = {i: replace(figures, call=calls.get(i, 0.0)) for i, figures in measured.operators.items()}
        measured = replace(measured, operators=operators)
        if took < _MIN_SECONDS:
            return measured
        nodes = self.binding.nodes
        return with_gil(measured, nodes, gil_share(measured, nodes, self.metrics.time, worked / took, cores))

    def _call_seconds(self, i: int) -> float:
        """Return the seconds of one call of an operator on one row; 0 for operators on batches."""
        node, durations = self.binding.nodes[i], []
        block = self.binding.sample(node.inputs[0])
        if node.inputs[0].batched or not block.slots:
            return 0.0
        for _ in range(_CALLS):
            began = time.perf_counter()
            self.binding.bound(node)(block.slice(0, 1), self._env)
            durations.append(time.perf_counter() - began)
        return min(durations)
