"""Measure a pipeline, operator by operator: run it as written for a while, then try who holds the GIL."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

from cedar import graph
from cedar.block import Block
from cedar.datasets.base import Read
from cedar.errors import CedarError, PipelineError, user_site
from cedar.execution.account import Account
from cedar.execution.binding import Binding
from cedar.execution.chain import Step, Timing, run_steps
from cedar.execution.compile import least_run
from cedar.execution.copying import own_copy
from cedar.execution.dealt import Share
from cedar.execution.machine import machine
from cedar.execution.metrics import Metrics, Seen
from cedar.execution.nodes import last_mode
from cedar.execution.rereading import read_of
from cedar.execution.tasks import Tasks
from cedar.execution.together import gil_share, shortest
from cedar.execution.watched import TimeUp, Watch, WatchedBinding, WatchedCompiler, WatchedRunner
from cedar.graph import Node
from cedar.numeric import NumericEnvironment
from cedar.operators.base import Env, Instances, RowOperator, StreamOperator
from cedar.plan.lower import Choice, group_size, lower
from cedar.profile import OperatorProfile, Profile, Subject
from cedar.skip import Skip
from cedar.stream import Piece

_RUN = 0.75  # of the time: the rest is for the GIL
_LEAST_SHARE = 0.01  # of the operators' time: less is not worth a look at the GIL
_CALL = 0.008  # seconds that a call should take, to be told from noise and from the GIL's switch interval


def profile(root: Node, seconds: float = 2.0, *, seed: int = 0, on_error: Skip | None = None) -> Profile:
    """Run a pipeline as written, in this thread, from the beginning of an epoch, and time each operator.

    Random operators draw what they would in a run with that seed; a ``cache()`` neither keeps nor gives anything, and
    rows that are skipped are neither counted against budgets nor quarantined.

    Args:
        root: the pipeline's last node.
        seconds: when to stop, within a block or two; the end of the epoch comes first for a small pipeline.
        seed: of the run.
        on_error: a default for every operator.

    Raises:
        PipelineError: ``seconds`` is no time.
        CedarError: whatever the pipeline itself raises.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:
        raise PipelineError(f"seconds={seconds!r}: a number of seconds above 0", site=user_site())
    here = machine()
    began = time.perf_counter()
    work = _Work(root, began + _RUN * seconds, seed, on_error)
    work.run()
    now = time.perf_counter()
    found = work.metrics.profile(work.subject, here, executor="inline", seconds=now - began)
    # Time for the costliest operators is there also when the run took longer than it should.
    return work.probed(found, max(began + seconds, now + (1 - _RUN) * seconds))


def subject(root: Node, binding: Binding | None = None) -> Subject:
    """What a profile of this pipeline is known by: its operators and their parameters; neither their code nor data."""
    binding = binding or Binding(root, None, Env(sampling=True))
    labels = {i: binding.labels[id(node)] for i, node in enumerate(binding.nodes)}
    return Subject(graph.digest([graph.topology(root), list(labels.values())]), labels)


class _Work:
    """One measurement: the run, and what it leaves to look at."""

    def __init__(self, root: Node, deadline: float, seed: int, on_error: Skip | None) -> None:
        self._env = Env(seed, 0, Instances(), numeric=NumericEnvironment.of_caller())
        self.metrics = Metrics()
        self._watch = Watch(deadline, self.metrics)
        self._binding = WatchedBinding(root, on_error, self._env, self._watch)
        self.subject = subject(root, self._binding)
        self.metrics.labels = dict(self.subject.labels)

    def run(self) -> None:
        """Until the time is up or the epoch ends; errors are those of a run."""
        account = Account(self._binding, self.metrics, 0, None, user_site())
        try:
            ended = self._blocks()
            self._watch.close()
            self._again(ended)
            if not ended:
                self._as_if_ended()
        except CedarError as error:
            account.locate(error)
            raise

    def _blocks(self) -> bool:
        """True where the epoch ended before the time."""
        tasks = Tasks(WatchedRunner(self._watch), self._env, Metrics())
        root = self._binding.root
        # As if there were no ``cache()``: what an operator costs is asked, not what a cache saves.
        physical = lower(root, Choice(on_error=self._binding.on_error, splits=self._binding.splits, caches=False))
        compiler = WatchedCompiler(physical, self._binding, tasks, self._watch)
        top, dealt = compiler.top(Share(chunk=least_run(self._binding), last=last_mode(root)))
        flow = top.open([dealt.start(), 0])
        try:
            while isinstance(flow.pull(True), Piece):
                self._watch.check()
            return True
        except TimeUp:
            return False
        finally:
            flow.close()

    def _again(self, ended: bool) -> None:
        """A second call where there was one only, since the first may have loaded a model.

        Operators that rows did not reach in time get the rows of the sample.
        """
        self._watch.deadline = math.inf
        for i, node in enumerate(self._binding.nodes):
            if not isinstance(node.operator, RowOperator):
                continue
            seen, block = self.metrics.seen.setdefault(i, Seen()), self._watch.kept.get(i)
            if block is None and not ended:
                block = self._binding.sample(node.inputs[0])
            if block is None or seen.calls > 1:
                continue
            block = own_copy(block)
            passed = (seen.rows_in, seen.rows_out) if seen.calls else None
            step = Step(self._binding.kernel(node), (i,), self._binding.labels[id(node)], node.site)
            for _ in range(2 - seen.calls):
                run_steps((step,), block, self._env, Timing())
            seen.rows_in, seen.rows_out = passed or (seen.rows_in, seen.rows_out)

    def _as_if_ended(self) -> None:
        """Count the rows that were read but not worked on, as they would have come through."""
        rows: dict[int, float] = {}
        for i, node in enumerate(self._binding.nodes):
            entering = [rows[id(child)] for child in node.inputs]
            below = (
                min(entering) if isinstance(node.operator, StreamOperator) and node.operator.paired else sum(entering)
            )
            seen = self.metrics.seen.get(i)
            if seen is None or not seen.rows_in:
                rows[id(node)] = below
                continue
            keep = seen.rows_out / seen.rows_in
            seen.rows_in = max(seen.rows_in, int(below))
            seen.rows_out = int(seen.rows_in * keep)
            rows[id(node)] = seen.rows_out

    # ---- beside the run ----------------------------------------------------------------------------------------------

    def probed(self, found: Profile, deadline: float) -> Profile:
        """With the GIL share and the cost of a call of each operator that matters, costliest first, as time goes."""
        operators = dict(found.operators)
        shares = found.shares
        for i in sorted(shares, key=lambda i: -shares[i]):
            block, node = self._watch.kept.get(i), self._binding.nodes[i]
            if shares[i] < _LEAST_SHARE:
                continue
            if block is not None:
                operators[i] = self._probed(i, operators[i], block, deadline, found.machine.cores)
            elif isinstance(node.operator, Read) and node.operator.effects().per_row and found.machine.cores > 1:
                operators[i] = self._probed_read(node, operators[i], deadline)
        return replace(found, operators=operators)

    def _probed_read(self, node: Node, figures: OperatorProfile, deadline: float) -> OperatorProfile:
        rows = max(int(_CALL / figures.wall), 1) if figures.wall > 0 else 1
        call = read_of(self._binding, node, rows)
        return figures if call is None else replace(figures, gil=gil_share(call, figures.wall * rows, deadline))

    def _probed(self, i: int, figures: OperatorProfile, block: Block, deadline: float, cores: int) -> OperatorProfile:
        node, kernel = self._binding.nodes[i], self._binding.bound(self._binding.nodes[i])
        whole = self._binding.batched[id(node.inputs[0])] or group_size(node) or not block.aligned
        per_call, block = 0.0, own_copy(block)
        if not whole:  # what sees batches or groups gets a whole one
            rows = int(_CALL / figures.wall) if figures.wall > 0 else block.slots
            per_call = shortest(partial(kernel, block.slice(0, 1), self._env), deadline)
            block = block.slice(0, min(max(rows, 1), block.slots))
        call = partial(kernel, block, self._env)
        gil: float | None = None
        if getattr(kernel, "pooled", False):  # two threads would wait for the library's own, not for the GIL
            gil = 0.0
        elif cores > 1:
            gil = gil_share(call, figures.wall * len(block), deadline)
        return replace(figures, gil=gil, call=min(per_call, figures.wall * figures.rows / figures.calls))
