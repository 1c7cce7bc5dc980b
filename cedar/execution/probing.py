"""Who holds the GIL, found beside a run: two threads at work on sample rows hold each other up, or do not."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cedar import graph
from cedar.block import Block
from cedar.datasets.base import Read
from cedar.execution import clocks
from cedar.execution.binding import SAMPLE_ROWS, Binding
from cedar.execution.copying import own_copy
from cedar.execution.rereading import read_of
from cedar.graph import Node
from cedar.operators.base import Kernel, RowOperator, StreamOperator
from cedar.profile import Profile

_SECONDS = 0.02  # of work for each operator: several times the interval at which Python passes the GIL on
_LEAST_SHARE = 0.1  # of a row's time: less does not decide where an operator runs
_CALL = 0.005  # seconds that a call should take
_ROUNDS = 3
_TURN = 0.001  # seconds with the GIL, meanwhile
_probing = threading.Lock()  # one at a time
_SAMPLE = 0.02  # seconds for the rows that enter the operators to be made


def with_gil(profile: Profile, binding: Binding, workers: int) -> Profile:
    """The profile with the GIL share of the operators that call Python for each row and take their time: of those that
    run as one kernel, the share of that.

    Two threads in an operator that lets go of the GIL need hardly more than their own work, whatever the run does; in
    one that holds it, each waits for the other.
    """
    total = sum(figures.wall for figures in profile.operators.values()) or 1.0
    wanted = [
        run
        for run in _runs(binding)
        if all(i in profile.operators and profile.operators[i].gil is None for i in run.ordinals)
        and sum(profile.operators[i].wall for i in run.ordinals) > _LEAST_SHARE * total
    ]
    if not wanted:
        return profile
    rows = int(min(max(_SAMPLE / total, 2), SAMPLE_ROWS))
    blocks = _samples(binding, {run.ordinals[0] for run in wanted}, rows)
    operators = dict(profile.operators)
    with _short_turns():
        for run in wanted:
            wall, cpu = (sum(getattr(operators[i], clock) for i in run.ordinals) for clock in ("wall", "cpu"))
            call = _call(cpu, binding, run, blocks.get(run.ordinals[0]))
            if call is not None:
                gil = _share(wall, cpu, call, workers)
                operators |= {i: replace(operators[i], gil=gil) for i in run.ordinals}
    return replace(profile, operators=operators)


@contextmanager
def _short_turns() -> Iterator[None]:
    """The GIL goes round several times in the time that is looked at, which is short."""
    with _probing:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _TURN))
        try:
            yield
        finally:
            sys.setswitchinterval(before)


@dataclass
class _Run:
    """Operators that run as one kernel, which is what holds the GIL or does not; a source by itself."""

    ordinals: list[int]
    last: Node
    kernel: Kernel | None


def _runs(binding: Binding) -> list[_Run]:
    found: list[_Run] = []
    for i, node in enumerate(binding.nodes):
        if not node.operator.effects().per_row:
            continue
        kernel = binding.kernel(node) if isinstance(node.operator, RowOperator) else None
        below = next((run for run in found if node.inputs and run.last is node.inputs[0]), None)
        join = getattr(below.kernel, "fuse", None) if below is not None else None
        both = join(kernel) if join is not None and kernel is not None else None
        if below is not None and both is not None:
            below.ordinals.append(i)
            below.last, below.kernel = node, both
        else:
            found.append(_Run([i], node, kernel))
    return found


def _samples(binding: Binding, wanted: set[int], rows: int) -> dict[int, Block]:
    """What enters the wanted operators, for the first rows of the sources."""
    blocks: dict[int, Block] = {}
    last = max(wanted)
    found: dict[int, Block] = {}
    for i, node in enumerate(graph.walk(binding.root)):
        if i > last:
            break
        operator = node.operator
        below = [blocks[id(child)] for child in node.inputs]
        if isinstance(operator, Read):
            block = binding.sample(node)
            blocks[id(node)] = own_copy(block.slice(0, min(rows, block.slots)))
            continue
        if i in wanted:
            found[i] = below[0]
        if isinstance(operator, RowOperator):
            blocks[id(node)] = binding.kernel(node)(below[0], binding.check_env)
        elif isinstance(operator, StreamOperator):
            blocks[id(node)] = operator.sample(*below)
    return found


def _call(cpu: float, binding: Binding, run: _Run, block: Block | None) -> Callable[[], object] | None:
    """The run on some rows, which takes a few milliseconds; of a source, it reads them."""
    rows = max(int(_CALL / max(cpu, 1e-9)), 1)
    if isinstance(run.last.operator, Read):
        return read_of(binding, run.last, rows)
    kernel = run.kernel
    if block is None or not len(block) or kernel is None:
        return None
    some = block.slice(0, min(rows, block.slots))
    return lambda: kernel(some, binding.check_env)


def _share(wall: float, cpu: float, call: Callable[[], object], workers: int) -> float:
    """Of the time of a call, from the seconds that a row of it takes in the run.

    One thread waits for those of the run, too; a second one beside it adds what the call itself holds. Turns are long,
    so that this may not show: where all do the same, each waits for as many as there are others.
    """
    found = []
    for _ in range(_ROUNDS):
        one, two = _held_up(call, 1), _held_up(call, 2)
        waits = wall / max(cpu, 1e-9) - 1  # in the run; here, all its threads stand before ours at times
        if min(two, waits) > workers + 2:  # it waits for something else
            return 0.0
        found.append(max(two - one, two / (workers + 1)))
    return min(max(statistics.median(found), 0.0), 1.0)


def _held_up(call: Callable[[], object], threads: int) -> float:
    """By how many times their work so many threads are late that make the call over and over at the same time."""
    gate, began = threading.Barrier(threads), [False] * threads

    def work(me: int) -> clocks.Reading:
        gate.wait(_SECONDS * 100)
        began[me] = True
        late = time.perf_counter() + 2 * _SECONDS
        while not all(began) and time.perf_counter() < late:  # another one has no core yet
            call()
        start, entered = time.perf_counter(), clocks.now()
        while time.perf_counter() < start + _SECONDS:
            call()
        return clocks.now().since(entered)

    with ThreadPoolExecutor(threads, thread_name_prefix="cedar-probe") as pool:
        took = list(pool.map(work, range(threads)))
    return sum(each.wall for each in took) / max(sum(each.cpu for each in took), 1e-9) - 1
