"""Cost: a roofline model of how much of each resource a chain uses, by operator order and executors.

A resource's use is measured in seconds per row read from the sources, divided by the resource's capacity. The resource
with the largest use limits throughput. An operator's use depends only on the *set* of operators before it: on how many
rows they keep and how they change the sizes of columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cedar.operators.base import Effects
from cedar.optimizer.arrange import OperatorChain
from cedar.optimizer.flow import DataFlow, Load
from cedar.plan.graph import Node, Scan, chosen_fields
from cedar.plan.lower import Choice
from cedar.plan.physical import TASK_SECONDS
from cedar.plan.places import REMOTE
from cedar.plan.steps.step import Names

Use: TypeAlias = "tuple[float, float, float, float, float]"
RESOURCES = ("cores", "GIL", "process shipping", "workers", "one task at a time")
NOTHING: Use = (0.0, 0.0, 0.0, 0.0, 0.0)
INLINE = "inline"
ROUNDING = 1e-9  # relative tolerance for sums of floats that were added in different orders
_COORDINATOR = -1  # location: the rows are in the coordinator's memory


@dataclass(frozen=True)
class Capacity:
    """How much of each resource is available.

    Args:
        cores: cores that tasks may use.
        workers: how many tasks run concurrently.
        ship_bytes: bytes per second to and from a worker process.
        ship_seconds: seconds to send a task to a process and get its result, not counting the transfer of rows.
        storage: speed of storage relative to that during the measurement.
        cluster, threads: a cluster that runs tasks instead of worker processes, and its number of cores.
    """

    cores: int
    workers: int
    ship_bytes: float
    ship_seconds: float
    storage: float = 1.0
    cluster: str = ""
    threads: int = 1


def add(a: Use, b: Use) -> Use:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4])


def total(uses: Iterable[Use]) -> Use:
    result = NOTHING
    for use in uses:
        result = add(result, use)
    return result


class ChainCost:
    """The cost of a chain as a function of order and executors, for the stages that ``lower`` creates from them.

    Sets of operators are bit masks over ``chain.nodes``. A place is an executor, given as an index into ``places``. The
    location of rows is a place, or place + len(places) for rows that are still in the task that reads them.

    Args:
        places: the executors that may run operators.
        written: returns an operator's number in the pipeline as written; None if the optimizer inserted it.
    """

    def __init__(
        self,
        chain: OperatorChain,
        loads: dict[int, Load],
        flow: DataFlow,
        capacity: Capacity,
        places: Sequence[str],
        choice: Choice,
        written: Callable[[Node], int | None],
    ) -> None:
        self.chain = chain
        self.places = tuple(places)
        self.capacity = capacity
        self.loads = [loads[id(node)] for node in chain.nodes]
        self.effects = [node.effects for node in chain.nodes]
        self.size = len(self.loads)
        self.full = (1 << self.size) - 1
        self.far = [place == capacity.cluster for place in self.places]
        self.remote = [place == REMOTE or far for place, far in zip(self.places, self.far, strict=True)] * 2
        self.units = [[self._work(load, p, 0.0) for p in range(len(self.places))] for load in self.loads]
        self._tasks = [self._shipped_tasks(load, e) for load, e in zip(self.loads, self.effects, strict=True)]
        self._rates = {0: flow.rate[id(chain.base)]}
        choice = dataclasses.replace(choice, workers=lambda _: capacity.workers)
        whole = [choice.reads_all(place, chain.sources) for place in self.places]
        self._cuts = [
            [e.per_row and not all_of_it and not chain.tied >> i & 1 for all_of_it in whole]
            for i, e in enumerate(self.effects)
        ]
        order = sorted(range(self.size), key=lambda i: (written(chain.nodes[i]) or 0, i))
        sizes, needs = flow.sizes[id(chain.base)], flow.needs[id(chain.top)]
        self.columns = ColumnSizes(self.loads, self.effects, order, sizes, needs)
        self._sources = self._source_uses(loads, flow) if chain.sources else None
        self._source_rows = loads[id(chain.base)].rows

    # ---- sets --------------------------------------------------------------------------------------------------------

    def rate(self, done: int) -> float:
        """Return how many rows are left after the operators in ``done``, per row read from the sources."""
        if done not in self._rates:
            low = done & -done
            self._rates[done] = self.rate(done ^ low) * self.loads[low.bit_length() - 1].keep
        return self._rates[done]

    def weight(self, done: int, i: int) -> float:
        """Return how many rows reach operator ``i`` after ``done``, scaled by the relative size of what it reads."""
        return self.rate(done) * self.columns.scale(done, i)

    def bytes(self, done: int) -> float:
        """Return the bytes of columns that are still needed after ``done``, per row read from the sources."""
        return self.rate(done) * self.columns.live(done)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def starts(self) -> list[tuple[int, Use]]:
        """Return (place, use) for each executor that can read the base's rows; place -1 is the coordinator."""
        return [(_COORDINATOR, NOTHING)] if self._sources is None else self._sources

    def location_after_reading(self, start: int) -> int:
        """Return the location of rows after place ``start`` has read them."""
        return start if start == _COORDINATOR else start + len(self.places)

    def location_after(self, at: int, i: int, place: int) -> int:
        """Return the location of rows after operator ``i``: unchanged if it runs in the task that read them."""
        reading = at - len(self.places)
        if reading < 0:
            return place
        joins = self.chain.tied >> i & 1 or (reading == place and not self._cuts[i][place])
        return at if joins else place

    def step(self, use: Use, done: int, at: int, i: int, place: int) -> Use:
        """Return ``use`` plus what operator ``i`` uses in ``place``, for rows located ``at``, after set ``done``."""
        weight, to = self.weight(done, i), self.location_after(at, i, place)
        unit = self.units[i][to % len(self.places)]
        cores, gil, ship, workers, here = use
        here += weight * unit[4]
        cores += weight * unit[0]
        gil += weight * unit[1]
        workers += weight * unit[3]
        moved = self._moved(done, at, to, i) if to != at else 0.0
        if to < len(self.places) and self.remote[to]:
            moved += weight * self._tasks[i]
        return cores + moved / self.capacity.cores, gil, ship + moved, workers, here

    def finish(self, use: Use, at: int) -> Use:
        """Return ``use`` plus the cost of moving the chain's rows back to the coordinator."""
        if at == _COORDINATOR or not self.remote[at]:
            return use
        moved = self.bytes(self.full) / self.capacity.ship_bytes
        return add(use, (moved / self.capacity.cores, 0.0, moved, 0.0, 0.0))

    def evaluate(self, order: Sequence[int], places: Sequence[int], start: int = _COORDINATOR) -> Use:
        """Return the use of a whole chain."""
        use = next(use for at, use in self.starts() if at == start)
        at, done = self.location_after_reading(start), 0
        for i, place in zip(order, places, strict=True):
            use = self.step(use, done, at, i, place)
            done, at = done | 1 << i, self.location_after(at, i, place)
        return self.finish(use, at)

    def task_bytes(self, order: Sequence[int]) -> float:
        """Return the peak size in bytes of the rows of one task."""
        entering = self.rate(0)
        if not entering or not (self.size or self.chain.sources):
            return 0.0
        rows = self._source_rows if self.chain.sources else self.loads[order[0]].rows
        done, most = 0, self.bytes(0)
        for i in order:
            done |= 1 << i
            most = max(most, self.bytes(done))
        return rows * most / entering

    def min_use(self, i: int) -> Use:
        """Return a lower bound of operator ``i``'s use on any executor, per row that reaches it."""
        units = self.units[i]
        return tuple(min(unit[k] for unit in units) for k in range(5))  # type: ignore[return-value]

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _moved(self, done: int, at: int, to: int, i: int) -> float:
        """Return seconds for moving rows from ``at`` to ``to``, where a new stage starts with operator ``i``."""
        was, will = at != _COORDINATOR and self.remote[at], self.remote[to]
        if not was and not will:
            return 0.0
        entered = 0.0
        if will and (self.chain.batched or not self.effects[i].per_row):
            entered = self.rate(done) * self.capacity.ship_seconds / self.loads[i].rows
        return (was + will) * self.bytes(done) / self.capacity.ship_bytes + entered

    def _shipped_tasks(self, load: Load, effects: Effects) -> float:
        """Return the overhead in seconds of sending a stage's small tasks, without rows, per row that it processes."""
        small = effects.per_row and not self.chain.batched
        return min(1.0, load.busy / TASK_SECONDS) * self.capacity.ship_seconds if small else 0.0

    def _work(self, load: Load, place: int, shipping: float) -> Use:
        """Return an operator's use per row that reaches it. Transferring the row also takes a core's time."""
        busy = load.busy
        inline = place == _COORDINATOR or self.places[place] == INLINE
        remote = not inline and self.remote[place]
        far = remote and self.far[place]
        return (
            ((0.0 if far else load.cpu) + shipping) / self.capacity.cores,
            0.0 if remote else load.cpu * load.gil,
            shipping,
            0.0 if inline else busy / (self.capacity.threads if far else self.capacity.workers),
            busy if inline else 0.0,
        )

    def _source_uses(self, loads: dict[int, Load], flow: DataFlow) -> list[tuple[int, Use]]:
        node = self.chain.base
        load, inside = loads[id(node)], node.operator.where if isinstance(node.operator, Scan) else ()
        filters = [loads[id(each)] for each in inside]
        kept = 1.0
        for each in filters:
            kept *= each.keep
        rate = flow.rate[id(node)] / kept if kept else 0.0
        share = _fraction_read(node.operator, load)
        uses = []
        for place, remote in enumerate(self.remote[: len(self.places)]):
            if remote and load.serial:
                continue
            shipping = self.capacity.ship_seconds / load.rows if remote else 0.0
            use = _scale_use(self._read(load, share, place, shipping), rate)
            reaching = rate
            for each in filters:
                use = add(use, _scale_use(self._work(each, place, 0.0), reaching))
                reaching *= each.keep
            uses.append((place, use))
        return uses or [(_COORDINATOR, _scale_use(self._read(load, share, _COORDINATOR, 0.0), rate))]

    def _read(self, load: Load, share: float, place: int, shipping: float) -> Use:
        """Return the use of reading the fraction ``share`` of a row."""
        read = dataclasses.replace(load, cpu=load.cpu * share, wait=load.wait * share / self.capacity.storage)
        use = self._work(read, place, shipping)
        return add(use, (0.0, 0.0, 0.0, 0.0, read.busy)) if load.serial and not use[4] else use


def _scale_use(use: Use, by: float) -> Use:
    return (use[0] * by, use[1] * by, use[2] * by, use[3] * by, use[4] * by)


def _fraction_read(operator: object, load: Load) -> float:
    """Return the fraction of the measured bytes that a scan still reads."""
    if not isinstance(operator, Scan) or operator.columns is None:
        return 1.0
    names = set(chosen_fields(operator.columns, load.columns))
    for each in operator.where:
        names |= each.effects.reads or frozenset(load.columns)
    whole = sum(load.columns.values())
    return sum(size for name, size in load.columns.items() if name in names) / whole if whole else 1.0


# ---- paths -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Path:
    """A complete order of a chain, its executors (as indices into the allowed ones), and its use of resources."""

    use: Use
    order: tuple[int, ...]
    places: tuple[int, ...]
    start: int


def as_written(cost: ChainCost, place: int) -> Path:
    """Return the graph's own order, with all operators on one executor."""
    first, _ = cost.starts()[0]
    start = first if first < 0 else place
    order, places = tuple(range(cost.size)), (place,) * cost.size
    return Path(cost.evaluate(order, places, start), order, places, start)


def dominates(a: Use, b: Use) -> bool:
    """Return whether ``a`` uses no more of any resource than ``b``."""
    more = 1.0 + ROUNDING
    return (
        a[2] <= b[2] * more and a[0] <= b[0] * more and a[1] <= b[1] * more and a[3] <= b[3] * more
        and a[4] <= b[4] * more
    )  # fmt: skip


# ---- columns ---------------------------------------------------------------------------------------------------------


class ColumnSizes:
    """The sizes of a chain's columns after any set of its operators.

    An operator that reads and writes a column changes its size by the same factor in every legal order. An operator
    that only writes a column sets its size. Columns that the same operators read, and none writes, form one bundle.

    Args:
        written: operators in the order as written; the factors are computed from this order.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        effects: Sequence[Effects],
        written: Sequence[int],
        base: dict[str, float],
        needs: Names,
    ) -> None:
        names = set(base)
        for load, effect in zip(loads, effects, strict=True):
            names |= (effect.writes if effect.writes is not None else frozenset(load.columns)) | (
                effect.reads or frozenset()
            )
        bundles: dict[tuple[int, int], float] = {}
        self._written: dict[str, _Column] = {}
        for name in sorted(names):
            column = _Column.of(name, loads, effects, written, base.get(name, 0.0), needs)
            if column.changes:
                self._written[name] = column
            else:
                key = (column.readers, column.ends)
                bundles[key] = bundles.get(key, 0.0) + column.base
        self._bundles = [(readers, ends, size) for (readers, ends), size in bundles.items() if size]
        before = {i: sum(1 << j for j in written[:k]) for k, i in enumerate(written)}
        self._scaled = [self._varying(i, effect, before[i]) for i, effect in enumerate(effects)]
        self._live: dict[int, float] = {}

    def _varying(self, i: int, effects: Effects, before: int) -> tuple[list[_Column], int, float]:
        """Return which columns an operator reads that others write, the operators before it, and the bytes it reads."""
        read = [c for name, c in self._written.items() if effects.reads is not None and name in effects.reads]
        others = [c for c in read if any(change[0] != 1 << i for change in c.changes)]
        size = sum(c.size(before) for c in read) + sum(s for readers, _, s in self._bundles if readers >> i & 1)
        return (read, before, size) if others and size > 0 else ([], before, 0.0)

    def scale(self, done: int, i: int) -> float:
        """Return bytes per row that operator ``i`` reads after ``done``, relative to the order as written."""
        read, before, size = self._scaled[i]
        if not read or done == before:
            return 1.0
        change = sum(c.size(done) - c.size(before) for c in read)
        return max(0.0, 1.0 + change / size)

    def change(self, i: int) -> tuple[float, float]:
        """Return bytes of columns that operator ``i`` reads and writes, before and after it in the order as written."""
        both = [c for c in self._written.values() if c.readers >> i & 1 and any(bit == 1 << i for bit, *_ in c.changes)]
        before = self._scaled[i][1]
        return sum(c.size(before) for c in both), sum(c.size(before | 1 << i) for c in both)

    def live(self, done: int) -> float:
        """Return the bytes per row after ``done`` that a later operator or the output still needs."""
        if done not in self._live:
            size = sum(s for readers, ends, s in self._bundles if _live(done, readers, ends))
            size += sum(c.size(done) for c in self._written.values() if _live(done, c.readers, c.ends))
            self._live[done] = size
        return self._live[done]


@dataclass(frozen=True)
class _Column:
    """One column of a chain.

    Args:
        base: bytes per row at the chain's input.
        readers: bit mask of operators that read it.
        ends: bit mask of operators that drop or overwrite it, so that no later operator needs its value. One more bit,
            after those of all operators, is set if nothing above the chain needs the column.
        changes: (operator bit, its output size, its factor or None), in the order as written.
    """

    base: float
    readers: int
    ends: int
    changes: tuple[tuple[int, float, float | None], ...]

    @staticmethod
    def of(
        name: str,
        loads: Sequence[Load],
        effects: Sequence[Effects],
        written: Sequence[int],
        base: float,
        needs: Names,
    ) -> _Column:
        size, readers = base, 0
        ends = 0 if needs is None or name in needs else 1 << len(loads)
        changes: list[tuple[int, float, float | None]] = []
        for i in written:
            load, effect = loads[i], effects[i]
            reads = effect.reads is None or name in effect.reads
            readers |= reads << i
            writes = effect.writes is None or name in effect.writes
            kept = effect.survivors is None or name in effect.survivors
            ends |= (not reads and (writes or not kept)) << i
            if not writes or not load.measured or _passed_on(name, load, effect):
                continue
            given = load.columns.get(name, 0.0)
            factor = given / size if reads and size and effect.writes is not None else None
            changes.append((1 << i, given, factor))
            size = given
        return _Column(base, readers, ends, tuple(changes))

    def size(self, done: int) -> float:
        size = self.base
        for bit, given, factor in self.changes:
            if done & bit:
                size = given if factor is None else size * factor
        return size


def _live(done: int, readers: int, ends: int) -> bool:
    """Return whether a column's value is still needed: an operator reads it, or it is in the chain's output."""
    left = (readers | ends) & ~done
    return not left or bool(readers & left & -left)


def _passed_on(name: str, load: Load, effects: Effects) -> bool:
    """Return whether a selection of columns by name keeps this column unchanged."""
    return effects.writes is None and effects.reads is not None and name in effects.reads and name not in load.columns
