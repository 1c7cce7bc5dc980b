"""What an operator is: a frozen declaration, its effects, and how to bind it to a run.

A *row operator* works on one block at a time and keeps no state: its kernel is block in, block out, safe to retry and
safe to run anywhere. A *stream operator* needs order or state across blocks and runs in the coordinator.
"""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.buffers import BatchPlace
from cedar.core.columns import ColumnType
from cedar.core.cursor import Keys, hash_ints, no_keys
from cedar.core.errors import PipelineError, Site
from cedar.core.limits import DEFAULT, Limits
from cedar.core.numeric import NumericEnvironment
from cedar.core.skip import Skip
from cedar.core.stream import Stream
from cedar.operators.marks import Marks
from cedar.operators.surveys import Survey

if TYPE_CHECKING:
    from cedar.operators.chains import Link

Schema: TypeAlias = "dict[str, ColumnType] | None"  # None if even the names are unknown
RowCounts = Literal["1:1", "1:0..1", "1:n", "stream"]
Algebra = Literal["pointwise", "spatial", "resampling", "per-value", "length"]
"""pointwise: each element of the value by itself, whatever its place (brightness, normalize); spatial: moves or drops
elements by their place alone (crop, flip); resampling: computes new elements from several (resize); per-value: each
item of a list by itself (vocabulary lookup); length: keeps a run of the items of a list (truncate)."""


@dataclass(frozen=True)
class Effects:
    """What the optimizer may rely on.

    Args:
        reads: columns read; None means the whole row.
        writes: columns written or removed; None means the whole row.
        random: True when the result depends on the operator's generator.
        rows: rows in : rows out.
        per_row: True when Python runs once per row, so that small blocks are worth their overhead.
        cost: a hint, seconds per row, where the operator knows.
        survivors: the only columns that survive next to those written; None: all others do.
        algebra: what a transform of one column does to it; decides which transforms of that column commute.
        waits: False for what does nothing but compute: where it takes longer than its work, others are in its way, and
            more workers would be in each other's.
        keyed: True when the result depends on row keys, though not on the epoch.
    """

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    random: bool = False
    rows: RowCounts = "1:1"
    per_row: bool = False
    cost: float | None = None
    survivors: frozenset[str] | None = None
    algebra: Algebra | None = None
    waits: bool = True
    keyed: bool = False


class Instances:
    """Instances of the classes given to ``map``: made at most once per worker, kept between blocks and epochs.

    In the caller's process they are made one after another, and only while the caller waits for a batch: a trainer's
    own draws from the global generators do not meet a constructor's.
    """

    apart = True  # what is at work in this process, that the caller may be at work next to

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an iteration may end as garbage, in the middle of another one
        self._changed = threading.Condition(self._lock)
        self._idle: dict[int, list[Any]] = {}
        self._making = False
        self._waiting = 0  # threads, for what may change
        self._away: int | None = None  # the thread of the caller, while it is at work with a batch
        self._runs = 0

    @contextmanager
    def borrow(self, operator: int, make: Callable[[], Any]) -> Iterator[Any]:
        """An instance that no other thread uses meanwhile.

        Raises:
            PipelineError: the run ended before one could be made.
        """
        with self._lock:
            idle, run = self._idle.setdefault(operator, []), self._runs
            self._wait_for(lambda: idle or run != self._runs or self._may_make())
            if not idle and run != self._runs:
                raise PipelineError("the run ended while an instance of a class was waited for")
            instance = idle.pop() if idle else None
            self._making = self._making or instance is None
        if instance is None:
            try:
                instance = make()
            finally:
                with self._lock:
                    self._making = False
                    self._tell()
        try:
            yield instance
        finally:
            with self._lock:
                idle.append(instance)
                self._tell()

    def _wait_for(self, change: Callable[[], object]) -> None:
        self._waiting += 1
        self._changed.wait_for(change)
        self._waiting -= 1

    def _tell(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _may_make(self) -> bool:
        return not self._making and self._away in (None, threading.get_ident())

    def leave(self) -> None:
        """The caller goes to work with a batch, once no instance is being made."""
        if not self.apart:
            return
        with self._lock:
            if self._making:
                self._wait_for(lambda: not self._making)
            self._away = threading.get_ident()

    def enter(self) -> None:
        """The caller waits for a batch."""
        if self._away is None:
            return
        with self._lock:
            self._away = None
            self._tell()

    def end(self) -> None:
        """The run ended: who waits for an instance waits no more."""
        with self._lock:
            self._away = None
            self._runs += 1
            self._tell()

    def __reduce__(self) -> tuple[Any, ...]:
        return Instances, ()  # each process makes its own


@dataclass(frozen=True)
class Env:
    """What a kernel may know of the run: nothing that depends on workers, executor or block size."""

    seed: int = 0
    epoch: int = 0
    instances: Instances = field(default_factory=Instances)
    sampling: bool = False  # types are being inferred: failing rows are passed over without a word
    watch: Literal["", "detail", "whole", "audit"] = ""  # of the task: measure operators, all its rows too; or check
    marks: Marks | None = None  # of the task: where it says what it is at, should its process die
    apart: Callable[..., Any] | None = None  # of samples: makes calls where their process may die (see Call.run)
    numeric: NumericEnvironment | None = None  # of functions; None if there are none
    limits: Limits = DEFAULT  # of what a task holds
    place: BatchPlace | None = None  # of the task's rows in their batch, for arrays that leave it
    unsteady: dict[int, str] | None = None  # of samples: by operator, what two calls showed; None makes no second call

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process, once for each task: what all tasks have in common is pickled, and loaded, once."""
        common = _packed(self.seed, self.epoch, self.sampling, self.numeric, self.limits)
        return _arrived, (common, self.watch, self.marks)  # instances and ``apart`` are of this process

    def draw_seed(self, operator_seed: int) -> int:
        """The 64-bit word that a random operator's draws are keyed by, before the row key joins."""
        return hash_ints(self.seed, self.epoch, operator_seed)


@lru_cache(maxsize=16)
def _packed(*common: Any) -> bytes:
    return pickle.dumps(common)


@lru_cache(maxsize=16)
def _unpacked(common: bytes) -> Any:
    return pickle.loads(common)  # noqa: S301 - from the process that this one works for


def _arrived(common: bytes, watch: Any, marks: Marks | None) -> Env:
    seed, epoch, sampling, numeric, limits = _unpacked(common)
    return Env(seed, epoch, Instances(), sampling, watch, marks, None, numeric, limits)


class Kernel(Protocol):
    """What an operator does to one block. Picklable with cloudpickle; holds no state between calls."""

    def __call__(self, block: Block, env: Env, /) -> Block: ...


@dataclass(frozen=True)
class Bound:
    """An operator's place in a pipeline, given to ``bind``.

    Args:
        index: the operator's ordinal in the logical DAG, inputs first.
        label: what error messages call it, such as ``map(decode)``.
        site: the user's line.
        draw: the seed of a random operator: from its ordinal among the random operators, or its name.
        on_error: the policy for failing rows; None stops at the first.
        batched: True below a ``batch``: a block is one batch, and functions see arrays.
        sample: returns up to 64 rows of split 0 as this operator's input will look; costs a read, so call it only when
            a type or a check needs it.
        types: the column types of the input where they are known without running.
        env: for calls on the sample; its instances are kept for the run where it is the run's.
        wide: returns some thousand rows with the named columns, for estimates (``dedup``), and what becomes of them.
        further: the rows behind the sample, some at a time, for an operator that gave no result on the sample.
    """

    index: int
    label: str
    site: Site | None
    draw: int
    on_error: Skip | None
    batched: bool
    sample: Callable[[], Block]
    types: Schema
    env: Env = field(default_factory=lambda: Env(sampling=True))
    wide: Callable[[tuple[str, ...], str | None], tuple[Block, Any]] = lambda _names, _session: (_no_rows(), None)
    further: Callable[[], Iterator[Block]] = lambda: iter(())


def _no_rows() -> Block:
    return Block({}, no_keys())


class Operator(ABC):
    """A node of the logical DAG: a frozen dataclass that says what it does, and what it reads, writes and assumes."""

    name: ClassVar[str]
    inputs: ClassVar[int | None] = 1  # None: any number

    def label(self) -> str:
        """What messages and plans call it."""
        return self.name

    @abstractmethod
    def effects(self) -> Effects: ...

    @abstractmethod
    def schema(self, *inputs: Schema) -> Schema:
        """The output's names and types without running; UNKNOWN where only a run can tell."""

    def parameters(self) -> dict[str, Any]:
        """JSON-able parameters that fix the order and the number of rows; a resume refuses when they changed."""
        return {}

    def code(self) -> tuple[Any, ...]:
        """Functions and expressions whose change is worth a warning at resume."""
        return ()

    # ---- capabilities: what else the optimizer and the executor may rely on; the defaults promise nothing ----------

    @property
    def may_fail(self) -> bool:
        """Some row may make it fail; with a policy for such rows, that row then goes missing here."""
        return True

    @property
    def exact_rows(self) -> int | None:
        """It must see exactly so many rows at a time."""
        return None

    @property
    def appends(self) -> bool:
        """Columns that it writes and does not read come after the others."""
        return True

    @property
    def renames(self) -> Mapping[str, str]:
        """New names, by old ones; a column that is renamed alone does not count as read."""
        return {}

    @property
    def projection(self) -> tuple[str, ...] | None:
        """The columns that it keeps, where that is all it does."""
        return None

    @property
    def filters(self) -> bool:
        """It drops rows, and does nothing else."""
        return False

    @property
    def condition(self) -> Any:
        """The polars expression that is true on the rows that stay, where it filters by one: a source may apply it."""
        return None

    @property
    def by_expressions(self) -> bool:
        """``code()`` are polars expressions: they run in one query with others, and tell which fields they read."""
        return False

    @property
    def storage(self) -> str | None:
        """Where the rows that arrive are kept for later epochs: "auto", "memory", a directory or a URL."""
        return None

    @property
    def grouping(self) -> tuple[tuple[str, ...], ...] | None:
        """The groups of columns that it deduplicates; () finds them in a sample, None makes none."""
        return None

    @property
    def group_aware(self) -> bool:
        """It passes on the columns of a deduplicated group as such."""
        return False

    @property
    def unique_reads(self) -> tuple[str, ...] | None:
        """The columns that its result depends on alone: it is done once for rows that are equal in these."""
        return None

    @property
    def link(self) -> Link | None:
        """The transform of whole columns that it is, which may join others in a chain."""
        return None

    def merge_key(self) -> Hashable | None:
        """Equal operators on the same rows are computed once; None: only one and the same object is equal to itself.

        ``by_content`` of cedar.operators.merging makes one of a dataclass's fields.
        """
        return None

    def computes(self) -> Hashable | None:
        """What it computes, whatever columns the result goes into; None if there is no telling."""
        return None

    def fitted(self, columns: Container[str]) -> Operator | None:
        """The same where only these columns are left; None if nothing is left to do."""
        return self

    def loosened(self) -> Operator:
        """The same, with results that differ by what its transform tolerates at most."""
        return self

    @property
    def results(self) -> Sequence[str | None]:
        """The columns that it computes one by one, so that it can do without some; None if there may be several."""
        return ()

    def never_fails(self, result: int, types: Schema) -> bool:
        """Whether computing that one of its ``results`` fails on no row, and does nothing else."""
        return False

    survey: Survey[Any] | None = None
    """What the kernel needs to know of all rows: made when a run begins."""

    def keeps_keys(self, keys: Keys, on_error: Skip | None) -> npt.NDArray[np.bool_] | None:
        """Which rows a filter leaves, where their keys alone say so; None if they do not.

        ``on_error`` is the policy of the run that asks, for operators with a survey.
        """
        return None

    def resized(self, few: Callable[[int, int, int], int]) -> Operator:
        """The same for a check on a few rows, where it counts: ``few(n, least, spread)`` in the place of a number n."""
        return self

    def without(self, results: Container[int]) -> Operator | None:
        """The same without some of its ``results``; None if nothing is left to do."""
        return self

    @property
    def calls_functions(self) -> bool:
        """It runs code of the user's, whose results may depend on the numeric environment."""
        ours = type(self).__module__.startswith("cedar.")
        return not ours or any(callable(item) for item in self.code())


class RowOperator(Operator):
    """Works on one block at a time."""

    calls: ClassVar[Literal["", "values", "keeps", "items", "blocks"]] = ""
    """How it calls the function in its field ``fn``: for values of a row, to keep it, for its items, or for blocks."""

    @property
    def keeps_rows(self) -> bool:
        """True when slots in and slots out are the same."""
        return self.effects().rows == "1:1"

    def policy(self) -> Skip | None:
        """This operator's own ``on_error``."""
        return None

    @abstractmethod
    def bind(self, bound: Bound) -> Kernel:
        """The kernel, with types fixed; raises PipelineError where the operator cannot work here."""


@dataclass(frozen=True)
class StreamContext:
    """What a stream operator may know of the run.

    ``submit(fn, *args)`` runs work in the executor and returns a Future; ``index`` is the operator's ordinal;
    ``row_bytes`` estimates the bytes of one input unit from the metadata of the sources; ``types`` are the input's
    column types, resolved by the sample where needed; ``refills`` says that dead slots may come that the next row
    replaces. For operators that work ``over_ranks``: so many ``ranks`` take units in turns, from unit ``assigned`` on.
    For those that join rows: ``parts`` asks that keys tell of which. For those that mix: ``weights`` in place of their
    own, by which they draw from unit 0 on, or from those that ``drawn`` says; and ``step`` of the loader at a unit.
    """

    seed: int
    epoch: int
    index: int
    site: Site | None
    submit: Callable[..., Any]
    row_bytes: float
    types: Callable[[], dict[str, ColumnType]]
    refills: bool = False
    ranks: int = 1
    assigned: int = 0
    parts: bool = False
    weights: tuple[Any, ...] = ()
    drawn: Sequence[Any] = ()
    step: Callable[[int], int] = lambda unit: unit

    def hash_seed(self, operator_seed: int) -> int:
        return hash_ints(self.seed, self.epoch, operator_seed, 0x5EED)


@dataclass(frozen=True)
class Mixing:
    """How a stream operator puts rows into another order.

    Args:
        rows, bytes: of the windows within which it does; of neither: in the whole input.
        seed: of the order.
        by: rows that are equal in this column stay together.
        interleave: such groups that are mixed with each other.
    """

    rows: int | None = None
    bytes: int | None = None
    seed: int = 0
    by: str | None = None
    interleave: int = 1


class StreamOperator(Operator):
    """Needs order or state across blocks: runs in the coordinator and is never retried."""

    windowed: ClassVar[bool] = False  # True: wants ``ends_window`` marks on its input
    local: bool = False  # True: works on each lane alone, though it counts rows

    # ---- capabilities, as those of ``Operator`` ----
    alike: ClassVar[bool] = False  # its inputs must have the same columns
    paired: ClassVar[bool] = False  # row i of every input makes row i: as many rows of each are read
    recounts: ClassVar[bool] = False  # rows out have no fixed ratio to rows in
    moves_rows: ClassVar[bool] = False  # rows are held and moved about one by one: better before they grow
    keeps_windows: ClassVar[bool] = False  # one input after the other: windows below it are windows above it
    tells_begun: ClassVar[bool] = False  # its pieces say how much of a lane was begun for them, as those below do
    any_order: ClassVar[bool] = False  # takes rows as they come, and is where the last that it used ends
    over_ranks: ClassVar[bool] = False  # it moves rows between the units that ranks get at one step, in turns
    shares: ClassVar[bool] = False  # of the lanes of an epoch it makes, together, what it makes of the epoch
    batch_rows: int | None = None  # the rows of the batches that it makes
    last: str | None = "keep"  # the end of an epoch: "drop", "keep", "pad", or None: equal steps on all ranks
    most_rows: int | None = None  # of a unit that it makes
    first: int | None = None  # it takes the first so many units
    cuts: ClassVar[bool] = False  # it leaves units by their place in the order of its input
    repeats: ClassVar[bool] = False  # its input is read more than once
    mixes: ClassVar[bool] = False  # it draws from its inputs by weights, which may change
    joins: ClassVar[bool] = False  # a row of it may hold several of its input
    shuffles: ClassVar[bool] = False  # its rows come in another order in each epoch

    def keeping_rest(self) -> StreamOperator:
        """The same with every row at the end of an epoch, for ranks that need not take equally many steps."""
        return self

    @property
    def unsteady(self) -> str | None:
        """Why it gives other rows in each epoch; None if it gives the same."""
        return None

    @property
    def mixing(self) -> Mixing | None:
        """How it puts rows into another order; None if it keeps theirs, or says nothing of it."""
        return None

    @property
    def counts_rows(self) -> str | None:
        """Why rows may not be filtered before it; None if they may."""
        return "counts rows"

    def endless(self, *inputs: bool) -> bool:
        """Whether its rows have no end, by whether those of its inputs have none."""
        return all(inputs)

    def effects(self) -> Effects:
        """By default it may read and write any column."""
        return Effects(rows="stream")

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    @abstractmethod
    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream: ...

    def sample(self, *inputs: Block) -> Block:
        """What a sample of the inputs looks like on the other side; only types and column names matter."""
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        """Whether the output's unit is the batch, given the inputs'."""
        return bool(inputs and inputs[0])
