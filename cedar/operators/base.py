"""The base classes of operators, which declare their effects and create the code that runs.

A *row operator* works on one block at a time and keeps no state. Its kernel maps a block to a block and can be retried
in any worker. A *stream operator* needs order or state across blocks and runs in the coordinator process.
"""

from __future__ import annotations

import dataclasses
import pickle
from abc import abstractmethod
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import as_column
from cedar.core.buffers import BatchPlace
from cedar.core.columns import UNKNOWN, Column, ColumnType, type_of
from cedar.core.cursor import hash_ints, no_keys
from cedar.core.dtypes import type_from_dtype
from cedar.core.errors import PipelineError, Site, Skip
from cedar.core.groups import GroupColumn
from cedar.core.limits import DEFAULT, Limits
from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import Abstract, Stream
from cedar.operators.instances import Instances
from cedar.operators.marks import Marks


@dataclass(frozen=True)
class Env:
    """The information about the run that a kernel receives. Results must not depend on workers or block size."""

    seed: int = 0
    epoch: int = 0
    instances: Instances = field(default_factory=Instances)
    sampling: bool = False  # True during type inference, which ignores failing rows silently
    watch: Literal["", "detail", "whole", "audit"] = ""  # how the task measures ("whole": all rows) or audits operators
    marks: Marks | None = None  # records the task's current operator and row, in case its process crashes
    call_in_subprocess: Callable[..., Any] | None = None  # runs calls on sample rows that may crash (see Call.run)
    numeric: NumericEnvironment | None = None  # for user functions; None if the pipeline has none
    limits: Limits = DEFAULT  # memory limits of a task
    place: BatchPlace | None = None  # the memory in the batch for the task's rows, to which kernels may write directly
    unsteady: dict[int, str] | None = None  # collects warnings of nondeterministic operators on samples; None: off

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process; fields that are equal for all tasks are pickled and unpickled only once."""
        common = _packed(self.seed, self.epoch, self.sampling, self.numeric, self.limits)
        return _unpickled_env, (common, self.watch, self.marks)  # other fields stay in this process

    def draw_seed(self, operator_seed: int) -> int:
        """Return the 64-bit seed of a random operator's draws, to be combined with each row's key."""
        return hash_ints(self.seed, self.epoch, operator_seed)


@lru_cache(maxsize=16)
def _packed(*common: Any) -> bytes:
    return pickle.dumps(common)


@lru_cache(maxsize=16)
def _unpacked(common: bytes) -> Any:
    return pickle.loads(common)  # noqa: S301 - pickled by the parent process


def _unpickled_env(common: bytes, watch: Any, marks: Marks | None) -> Env:
    seed, epoch, sampling, numeric, limits = _unpacked(common)
    return Env(seed, epoch, Instances(), sampling, watch, marks, None, numeric, limits)


class Kernel(Protocol):
    """A function that applies an operator to one block. It can be pickled, and keeps no state between calls."""

    def __call__(self, block: Block, env: Env, /) -> Block: ...


class BlockKernel(Abstract):
    """Everything that cedar asks of a kernel. The defaults hold for a kernel that is only a function of a block."""

    encodes: ClassVar[bool] = False  # encodes batches to bytes, an expensive step

    @abstractmethod
    def __call__(self, block: Block, env: Env, /) -> Block:
        """Apply the operator to a block."""

    @property
    def row_wise(self) -> bool:
        """Whether splitting a block does not change results."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether a library does the work in its own threads."""
        return False

    @property
    def inexact(self) -> bool:
        """Whether results may differ from those of running the fused ``parts`` of the step separately."""
        return False

    @property
    def samples_parts(self) -> bool:
        """Whether its fused parts are measured on a few rows, and it runs on all; otherwise only the parts run."""
        return False

    @property
    def row_bytes(self) -> int:
        """The number of bytes per row that it can write directly into the batch's memory; 0 if it cannot."""
        return 0

    @property
    def timeout(self) -> float | None:
        """The time limit of one call of the user's function, in seconds; None if there is none."""
        return None

    def fuse(self, above: BlockKernel) -> BlockKernel | None:
        """Return a kernel that does the work of this one and of the next; None if they cannot be fused."""
        return None

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Return each live row's random choices by name; [] if nothing is random."""
        return []


@dataclass(frozen=True)
class FunctionKernel(BlockKernel):
    """A kernel that is only a function, such as that of a user's operator; it may have a method ``describe``.

    Args:
        function: the kernel.
        rows: the declared ratio of rows; with "1:1", the function must return as many rows as it receives.
        types: the declared types of the columns that the function writes; UNKNOWN fits every type.
    """

    function: Kernel
    rows: RowCounts = "1:n"
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    def __call__(self, block: Block, env: Env, /) -> Block:
        result: Any = self.function(block, env)
        if not isinstance(result, Block):
            raise TypeError(f"the kernel returned {type(result).__name__}, not a Block")
        if self.rows == "1:1" and result.slots != block.slots:
            raise ValueError(f"the kernel returned {result.slots} rows for {block.slots}, but effects() declares 1:1")
        new = {
            name: checked_result(name, column, len(result), self.types.get(name, UNKNOWN))
            for name, column in result.columns.items()
            if column is not block.columns.get(name)
        }
        return result.with_columns(new) if new else result

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        describe = getattr(self.function, "describe", None)
        return [] if describe is None else describe(block, env)


def block_kernel(kernel: Kernel, rows: RowCounts = "1:n", types: Mapping[str, ColumnType] | None = None) -> BlockKernel:
    """Return a kernel that has everything that cedar asks of one, and whose results are checked if it is a user's."""
    return kernel if isinstance(kernel, BlockKernel) else FunctionKernel(kernel, rows, types or {})


def checked_result(name: str, values: Any, rows: int, declared: ColumnType) -> Column:
    """Return the column that code outside cedar made from a block with this number of rows.

    Raises:
        TypeError: ``values`` is not a column, or not of the declared type.
        ValueError: there is not one value per row.
    """
    column = values if isinstance(values, GroupColumn) else as_column(values)
    if len(column) != rows:
        raise ValueError(f"column {name!r} has {len(column)} value(s) for {rows} row(s)")
    kind = type_of(column)
    if declared is not UNKNOWN and rows and kind not in (type_from_dtype(declared), pa.null()):
        raise TypeError(f"column {name!r} is {kind}, but {declared} is declared")
    return column


Schema: TypeAlias = "dict[str, ColumnType] | None"  # None if even the column names are unknown
RowCounts = Literal["1:1", "1:0..1", "1:n", "stream"]
GroupUse = Literal["expanded", "kept", "once"]
"""expanded: the operator gets plain columns; kept: it accepts deduplicated ones; once: it also runs only once for all
rows that are equal in the columns that it reads, as these determine its result."""
Algebra = Literal["pointwise", "spatial", "resampling", "per-value", "length"]
"""pointwise: maps each element, independently of its position (brightness, normalize); spatial: moves or drops
elements by position only (crop, flip); resampling: computes new elements from several others (resize); per-value: maps
each list item independently (vocabulary lookup); length: keeps a contiguous run of list items (truncate)."""


@dataclass(frozen=True)
class Effects:
    """What the optimizer may assume about an operator.

    Args:
        reads: the columns that the operator reads; None means the whole row.
        writes: the columns that the operator writes or removes; None means the whole row.
        random: True if the result depends on the operator's random generator.
        rows: the ratio of input rows to output rows.
        per_row: True if Python code runs once per row, so that the overhead of small blocks is not significant.
        survivors: the columns that remain in addition to those written; None if all others remain.
        algebra: the kind of change that a transform of one column makes; it decides which transforms commute.
        waits: False if the operator never waits for I/O. If it then takes longer than its CPU time, all cores are busy,
            and more workers would not help.
    """

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    random: bool = False
    rows: RowCounts = "1:1"
    per_row: bool = False
    survivors: frozenset[str] | None = None
    algebra: Algebra | None = None
    waits: bool = True


@dataclass(frozen=True)
class Bound:
    """What ``bind`` receives about the operator's position in the pipeline.

    Args:
        index: the operator's ordinal in the logical DAG, inputs first.
        label: the operator's name in error messages, such as ``map(decode)``.
        site: the line of user code that added the operator.
        draw: the seed of a random operator, derived from its ordinal among the random operators or from its name.
        on_error: the policy for failing rows; None stops the run at the first one.
        batched: True after a ``batch``, where a block is one batch and functions receive arrays.
        sample: returns up to 64 input rows of the operator, from split 0. It reads data, so call it only if a type or a
            check needs it.
        types: the column types of the input, if they are known without running.
        env: the environment for calls on the sample; the run reuses instances that these calls construct.
        wide: returns a few thousand rows with the named columns, and how they are batched later (for ``dedup``).
        further: yields blocks of the rows after the sample, for a function that returned no items on the sample.
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
    wide: Callable[[tuple[str, ...], str | None], tuple[Block, Any]] = lambda _names, _session: (
        Block({}, no_keys()),
        None,
    )
    further: Callable[[], Iterator[Block]] = lambda: iter(())

    def refusal(self, problem: str, *, fix: str | None = None) -> PipelineError:
        """Return the error for an operator that cannot run at this position."""
        return PipelineError(f"{self.label}: {problem}", site=self.site, fix=fix)

    def refuse_batches(self) -> None:
        """Raise PipelineError if the input is batched."""
        if self.batched:
            raise self.refusal("its input gives batches", fix="call it before batch()")


class Operator(Abstract):
    """Base class of operators. Subclasses are frozen dataclasses that declare what the operator reads and writes."""

    name: ClassVar[str]
    inputs: ClassVar[int | None] = 1  # the number of inputs; None means any number

    def label(self) -> str:
        """Return the operator's name in messages and plans."""
        return self.name

    @abstractmethod
    def effects(self) -> Effects: ...

    @abstractmethod
    def schema(self, *inputs: Schema) -> Schema:
        """Return the output's column names and types without running; UNKNOWN for types that only a run reveals."""

    def parameters(self) -> dict[str, Any]:
        """Return JSON-serializable parameters that determine row order and count; resuming fails if they changed."""
        return {}

    def code(self) -> tuple[Any, ...]:
        """Return the operator's functions and expressions; resuming warns if their code changed."""
        return ()

    # ---- capabilities: further properties that the optimizer and executor use; the defaults are the safe choice -----

    @property
    def may_fail(self) -> bool:
        """Whether the operator may fail on a row; a policy such as ``Skip`` drops that row."""
        return True

    @property
    def group_use(self) -> GroupUse:
        """How the operator uses columns of a group that ``dedup`` made."""
        return "expanded"

    @property
    def named(self) -> str | None:
        """The name that keys the draws of a random operator; None uses its position among the random operators."""
        return None

    @property
    def calls_functions(self) -> bool:
        """Whether the operator runs user code, whose results may depend on the numeric environment."""
        ours = type(self).__module__.startswith("cedar.")
        return not ours or any(callable(item) for item in self.code())


class Resizable(Abstract):
    """An operator with sizes, which plans are checked with on a few rows."""

    @abstractmethod
    def resized(self, few: Callable[[int, int, int], int]) -> Self:
        """Return a copy for a check on a few rows, in which ``few(n, least, spread)`` replaces each size n."""


class RowOperator(Operator):
    """Base class of operators that process one block at a time and keep no state."""

    on_error: Skip | None = None  # the operator's own policy for rows on which it fails

    @abstractmethod
    def bind(self, bound: Bound) -> Kernel:
        """Return the kernel with fixed result types; raises PipelineError if the operator's position is invalid."""


@dataclass(frozen=True)
class StreamContext:
    """The information about the run that a stream operator receives. A *unit* is a row, or a batch after ``batch``.

    ``submit(fn, *args)`` runs work in the executor and returns a Future. ``index`` is the operator's ordinal.
    ``row_bytes`` estimates the bytes of one input unit from source metadata. ``types`` returns the input column types,
    from the sample if needed. ``refills`` is True if the next row replaces a skipped row of a batch. ``balance`` uses
    ``ranks``, the number of ranks, which get one unit each per step, and ``assigned``, the unit at which steps begin.
    In a lane, ``ranks`` is the number of lanes, which ``repeat`` reads one after another.
    With ``parts``, output keys of ``pack`` list the keys of the packed rows. For ``mix``, ``weights`` replaces its own
    weights, ``drawn`` lists (first unit, weights) if they changed, and ``step`` maps a unit to the loader's step.
    ``stored_as()`` returns a key of the operator and its input rows in this epoch, for results that are stored; None if
    code or data cannot be identified.
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
    stored_as: Callable[[], str | None] = lambda: None

    def hash_seed(self, operator_seed: int) -> int:
        return hash_ints(self.seed, self.epoch, operator_seed, 0x5EED)


@dataclass(frozen=True)
class Mixing:
    """How a stream operator reorders rows.

    Args:
        rows, bytes: the size of the windows within which rows are shuffled; None for both shuffles the whole input.
        seed: the seed of the order.
        by: a column; rows with equal values in it stay together as a group.
        interleave: the number of groups that are interleaved.
    """

    rows: int | None = None
    bytes: int | None = None
    seed: int = 0
    by: str | None = None
    interleave: int = 1


@dataclass(frozen=True)
class Ordering:
    """How a stream operator buffers and orders rows.

    Args:
        mixing: how it reorders rows; None if it keeps their order or does not declare it.
        windowed: whether it needs ``ends_window`` on pieces of its input.
        preserves_windows: whether it reads inputs one after the other and keeps their shuffle windows intact.
        moves_rows: whether it buffers and reorders rows, so that it should run before operators that enlarge rows.
        reports_splits_started: whether output pieces report how much of a lane was started, as input pieces do.
    """

    mixing: Mixing | None = None
    windowed: bool = False
    preserves_windows: bool = False
    moves_rows: bool = False
    reports_splits_started: bool = False


@dataclass(frozen=True)
class RowUse:
    """How a stream operator uses the rows of its inputs.

    Args:
        rows: "each": each row is used once; "first", "rest": only the first ones are used, or the others;
            "repeated": the input is read more than once; "drawn": rows are drawn at random; "joined": an output row may
            consist of several input rows; "paired": row i of all inputs together becomes output row i; "mixed": rows
            come from all inputs by weights, which may change during a run; "balanced": rows move between the batches
            of different ranks at the same step.
        counts: the reason why filters may not move before the operator; None if they may.
        unsteady: the reason why the operator delivers different rows in each epoch; None if it does not, or if its
            effects are random.
        lanes: whether the outputs for all lanes of an epoch together equal the output for the epoch.
    """

    rows: Literal["each", "first", "rest", "repeated", "drawn", "joined", "paired", "mixed", "balanced"] = "each"
    counts: str | None = "counts rows"
    unsteady: str | None = None
    lanes: bool = False


class StreamOperator(Operator):
    """Base class of operators that need order or state across blocks. They run in the coordinator without retries."""

    local: bool = False  # True if the operator works on each lane separately, although it counts rows

    # ---- capabilities, like those of ``Operator`` ----

    @property
    def ordering(self) -> Ordering:
        """How the operator buffers and orders rows."""
        return Ordering()

    @property
    def row_use(self) -> RowUse:
        """How the operator uses the rows of its inputs."""
        return RowUse()

    def endless(self, *inputs: bool) -> bool:
        """Return whether the output is endless, given whether each input is."""
        return all(inputs)

    def effects(self) -> Effects:
        """Return the effects; by default, the operator may read and write any column."""
        return Effects(rows="stream")

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    @abstractmethod
    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream: ...

    def sample(self, *inputs: Block) -> Block:
        """Return a sample of the output from samples of the inputs; only column names and types matter."""
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        """Return whether the output consists of batches, given whether each input does."""
        return bool(inputs and inputs[0])


class Mergeable:
    """A row operator whose fields determine its results; equal ones with the same input are computed only once."""

    def merge_key(self) -> Hashable:
        """Return a key, which is equal for operators that compute the same."""
        return by_content(self)

    def computes(self) -> Hashable | None:
        """Return a key that identifies the computation regardless of the names of output columns; None if unknown."""
        return None


def by_content(operator: Any, but: Container[str] = ()) -> Hashable:
    """Return a key of a dataclass: expressions compare by content, functions by identity, constants by type and value.

    Args:
        but: the names of fields to leave out of the key.
    """
    return type(operator), tuple(
        _key(getattr(operator, f.name)) for f in dataclasses.fields(operator) if f.name not in but
    )


def _key(value: Any) -> Hashable:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_key(getattr(value, f.name)) for f in dataclasses.fields(value))
    if hasattr(value, "meta") and hasattr(value.meta, "serialize"):
        return value.meta.serialize(format="binary")  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, str | int | float | bool | None):
        return type(value), repr(value)
    return id(value)
