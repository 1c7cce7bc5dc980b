"""Stand-ins: a pipeline and a plan of it over few rows, with stand-ins for the functions of the user.

A rewrite is right if it is right for any functions that keep to the effects they declare. So a check need not call
those of the user, which may be slow, or do more than return: a stand-in reads the same columns and gives a value that
depends on all of what it reads, and on nothing else. Sizes of batches, windows and limits shrink with the rows.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.columns import OBJECT, UNKNOWN, TensorType, objects
from cedar.datasets.base import Read
from cedar.operators.base import Operator, Resizable, RowOperator, Schema
from cedar.operators.cache import Cache, StoresRows
from cedar.operators.expressions import Select
from cedar.operators.flat_map import FlatMap
from cedar.operators.map import FilterFunction, Map
from cedar.operators.map_batches import MapBatches
from cedar.operators.outputs import declared_types
from cedar.operators.transform import Transform
from cedar.plan import graph
from cedar.plan.graph import Node, Scan, chosen_fields
from tests.oracle.sample_rows import SampleRows, values_of

_FEW = 4  # sizes up to it stay
_FAILS = 5  # one call in so many, where rows that fail are skipped
_LARGE = 64  # values of a tensor, above which a stand-in for it is an object: nothing waits for made-up pixels


class NoStandIn(Exception):
    """Some operator has none."""


@dataclass
class TwinGraphs:
    """Makes twins of a pipeline's graph and of its plans, whose operators correspond as those of the originals do.

    Args:
        root: the pipeline as written.
        rows: the sample rows of its sources, by the id of their node.
        skips: whether rows may be skipped where a node fails.
        functions: those of the user stay unchanged.
        instead: operators of the pipeline as written that others stand for, by the id of their node.
        without: columns that the sample rows do not have; nothing but the optimizer names them.
        vague: labels of operators whose stand-ins promise less than they do: that they commute with others, by their
            algebra, or that they work row by row, as transforms do. A difference may be the stand-ins' own.
    """

    root: Node
    rows: Mapping[int, SampleRows]
    skips: Callable[[Node], bool] = lambda _: False
    functions: bool = True
    instead: Mapping[int, Operator] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    vague: set[str] = field(default_factory=set)
    _written: dict[int, Node] = field(default_factory=dict)  # the twin of a node of the pipeline as written
    _operators: dict[int, tuple[Operator, Operator]] = field(default_factory=dict)
    _ordinals: dict[int, int] = field(default_factory=dict)
    _schemas: dict[int, Schema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ordinals = {id(node): i for i, node in enumerate(graph.walk(self.root))}
        self._schemas = graph.schemas(self.root)

    def written(self) -> Node:
        """The twin of the pipeline as written."""
        return self._of(self.root, self._written)

    def plan(self, root: Node) -> Node:
        """The twin of a plan's graph; ``written`` comes first."""
        return self._of(root, {})

    def _of(self, root: Node, done: dict[int, Node]) -> Node:
        for node in graph.walk(root):
            if id(node) in self._written:
                done[id(node)] = self._written[id(node)]
            else:
                inputs = tuple(done[id(child)] for child in node.inputs)
                origin = None if node.origin is None else self._written[id(node.origin)]
                done[id(node)] = Node(self._operator(node), inputs, node.site, origin, node.place)
        return done[id(root)]

    def _operator(self, node: Node) -> Operator:
        operator = self.instead.get(id(node), node.operator)
        if id(operator) not in self._operators:
            self._operators[id(operator)] = operator, self._made(node, operator)
        return self._operators[id(operator)][1]

    def _made(self, node: Node, operator: Operator) -> Operator:
        if isinstance(operator, Read):
            return self._read(node)
        if isinstance(operator, StoresRows):
            return Cache("memory") if operator.storage != "auto" else operator
        operator = operator.resized(self._few) if isinstance(operator, Resizable) else operator
        if node.projection is not None and id(node.logical) not in self._ordinals:
            return Select(tuple(item for item in node.projection if item not in self.without))
        if isinstance(operator, RowOperator):
            return self._row_operator(node, operator)
        if operator.calls_functions and not type(operator).__module__.startswith("cedar."):
            raise NoStandIn(operator.label())
        return operator

    def _few(self, n: int, least: int, spread: int) -> int:
        """A number that fits the sample, another one for another number, mostly; functions see sizes near their own."""
        if self.functions:
            total = min((len(next(iter(r.rows.values()), ())) for r in self.rows.values()), default=0)
            return min(n, max(total // 2, 1))
        return n if n <= _FEW else least + n % spread

    def _read(self, node: Node) -> Operator:
        operator, rows = node.operator, self.rows[id(node.logical)]
        if not isinstance(operator, Scan):
            return Read(rows)
        columns = operator.columns
        if columns is not None and self.without:
            columns = tuple(c for c in columns if next(iter(chosen_fields([c], [*self.without]))) not in self.without)
        below = Node(Read(rows))
        where = []
        for each in operator.where:
            below = Node(each.operator, (below,), each.site, self._written[id(each.logical)])
            where.append(below)
        return Scan(rows, columns, tuple(where))

    def _row_operator(self, node: Node, operator: RowOperator) -> Operator:
        if self.functions:
            return operator
        salt, fails = self._ordinals.get(id(node.logical), -1), self.skips(node)
        if operator.calls_functions and not type(operator).__module__.startswith("cedar."):
            raise NoStandIn(operator.label())
        if isinstance(operator, Map):
            return self._map(node, operator, salt, fails)
        if isinstance(operator, FilterFunction):
            return dataclasses.replace(operator, fn=_KeepStandIn(salt, fails))
        if isinstance(operator, FlatMap):
            return _flat_map(operator, salt, fails)
        if isinstance(operator, MapBatches):
            if operator.format == "torch":
                raise NoStandIn(operator.label())
            return dataclasses.replace(operator, fn=_Blocks(salt, operator.written, operator.size is not None))
        return operator

    def _map(self, node: Node, operator: Map, salt: int, fails: bool) -> Map:
        marked = operator.effects().algebra is not None
        read = self._schemas.get(id(node.logical.inputs[0])) or {}
        if not isinstance(operator.fn, Transform):
            if marked:
                self.vague.add(operator.label())
            kept = {name: read[name] for name in operator.written if name in operator.columns and name in read}
            return _map(operator, kept, salt, fails, node.logical.inputs[0].batched)
        ours = type(operator.fn).__module__.startswith("cedar.")
        if marked and ours and all(_told(read.get(name, UNKNOWN)) for name in operator.columns):
            return operator  # what it does to values of these types is what it promises
        self.vague.add(operator.label())
        made = self._schemas.get(id(node.logical)) or {}
        types = {name: made.get(name, UNKNOWN) for name in operator.written}
        return _map(operator, types, salt, fails, node.logical.inputs[0].batched)


# ---- functions -------------------------------------------------------------------------------------------------------


def _told(kind: Any) -> bool:
    """Values can be made up that a transform of the type takes: bytes would have to be files."""
    return isinstance(kind, pa.DataType) and not pa.types.is_large_binary(kind)


def _map(operator: Map, known: Mapping[str, Any], salt: int, fails: bool, batched: bool) -> Map:
    """Args: known: types of what it writes; where a function declares some, these hold."""
    form = operator.form
    declared = declared_types(operator.fn, form, operator.written, operator.dtype)
    types = {name: _holds(kind) for name, kind in known.items()} | {name: kind for name, (kind, _) in declared.items()}
    kinds = [types.get(name, UNKNOWN) for name in operator.written]
    if form == "dict":
        return dataclasses.replace(
            operator, fn=_Values(salt, fails, "dict", tuple(types.items()), batched), timeout=None
        )
    dtypes = tuple(pa.int64() if kind is UNKNOWN else kind for kind in kinds)
    fn = _Values(salt, fails, form, tuple(zip(operator.written, dtypes, strict=True)), batched)
    given: Any = dtypes[0] if form == "value" else dtypes
    random = operator.effects().random
    return dataclasses.replace(
        operator, fn=fn, into=operator.written, dtype=_dtype(given), timeout=None, random=random, exact=True
    )


def _holds(kind: Any) -> Any:
    """The type, or objects where values are described further than by a type, as images are, or would be large."""
    small = kind is UNKNOWN or isinstance(kind, pa.DataType)
    return kind if small or (isinstance(kind, TensorType) and math.prod(kind.shape) <= _LARGE) else OBJECT


def _dtype(given: Any) -> Any:
    return tuple(map(_dtype, given)) if isinstance(given, tuple) else object if given == OBJECT else given


def _flat_map(operator: FlatMap, salt: int, fails: bool) -> FlatMap:
    if not operator.columns or operator.form != "value":
        raise NoStandIn(operator.label())
    kinds = [kind for kind, _ in operator._declared().values()]
    kind = kinds[0] if kinds else pa.int64()
    return dataclasses.replace(
        operator, fn=_ListStandIn(salt, fails, "value", (("", kind),)), dtype=_dtype(kind), timeout=None
    )


@dataclass(frozen=True)
class _StandIn:
    """A function of what it is given, and of draws where it gets some.

    Args:
        salt: tells functions apart.
        fails: raises on some values.
    """

    salt: int
    fails: bool

    @property
    def __name__(self) -> str:
        return f"stand-in {self.salt}"

    def draw(self, values: Any, rng: Any) -> int:
        drawn = None if rng is None else int(rng.integers(1 << 30))
        order = [list(each) for each in values if isinstance(each, dict)]  # a function of rows sees it
        checksum = zlib.crc32(repr((self.salt, drawn, order, _plain(values))).encode())
        if self.fails and checksum % _FAILS == 0:
            raise ValueError("a stand-in fails")
        return checksum // _FAILS


@dataclass(frozen=True)
class _KeepStandIn(_StandIn):
    def __call__(self, *values: Any, rng: Any = None) -> bool:
        return self.draw(values, rng) % 3 > 0


@dataclass(frozen=True)
class _Values(_StandIn):
    form: str
    kinds: tuple[tuple[str, Any], ...]
    batched: bool = False

    def __call__(self, *values: Any, rng: Any = None) -> Any:
        draw = self.draw(values, rng)
        made = [_value(kind, draw + i) for i, (_, kind) in enumerate(self.kinds)]
        if self.form == "dict":
            (row,) = values
            if self.batched:
                made = [np.array([each] * _length(row)) for each in made]
            return {**row, **dict(zip((name for name, _ in self.kinds), made, strict=True))}
        if self.batched:
            made = [_repeated(kind, each, len(values[0])) for (_, kind), each in zip(self.kinds, made, strict=True)]
        return made[0] if self.form == "value" else tuple(made)


@dataclass(frozen=True)
class _ListStandIn(_Values):
    def __call__(self, *values: Any, rng: Any = None) -> list[Any]:
        draw = self.draw(values, rng)
        # More than one on the average: as many rows as before would hide that a limit is counted elsewhere.
        return [_value(self.kinds[0][1], draw // 5 + i) for i in range(draw % 5)]


@dataclass(frozen=True)
class _Blocks:
    salt: int
    into: tuple[str, ...]
    together: bool  # rows are seen in groups, and a result may depend on all of them

    @property
    def __name__(self) -> str:
        return f"stand-in {self.salt}"

    def __call__(self, given: Any) -> Any:
        names = list(given.column_names if isinstance(given, pa.Table) else getattr(given, "columns", given))
        columns = [_listed(given[name]) for name in names]
        rows = [(names, row) for row in zip(*columns, strict=True)]
        whole = repr(rows) if self.together else ""
        checksums = [zlib.crc32(f"{self.salt} {row!r} {whole}".encode()) for row in rows]
        made = {name: np.array([n + i for n in checksums], dtype=np.int64) for i, name in enumerate(self.into)}
        if not self.into:
            made = {name: given[name] for name in names} | {"drawn": np.array(checksums, dtype=np.int64)}
        return pa.table(made) if isinstance(given, pa.Table) else made if isinstance(given, dict) else type(given)(made)


def _repeated(kind: Any, value: Any, rows: int) -> Any:
    if isinstance(kind, pa.DataType) and pa.types.is_nested(kind):
        return pa.array([value] * rows, kind)
    return objects([value] * rows) if kind == OBJECT else np.array([value] * rows)


def _length(row: dict[str, Any]) -> int:
    return len(next(iter(row.values()), ()))


def _listed(column: Any) -> list[Any]:
    values = (
        column.to_pylist()
        if hasattr(column, "to_pylist")
        else column.to_list()
        if hasattr(column, "to_list")
        else list(column)
    )
    return [_plain(each) for each in values]


def _plain(given: Any) -> Any:
    """Alike for values that are alike, whatever holds them."""
    if isinstance(given, np.ndarray):
        return given.tolist()
    if isinstance(given, np.generic):
        return given.item()
    if isinstance(given, dict):
        return {name: _plain(each) for name, each in sorted(given.items())}
    if isinstance(given, tuple | list):
        return [_plain(each) for each in given]
    return given


def _value(kind: Any, draw: int) -> Any:
    if kind == OBJECT or kind is UNKNOWN:
        return ("object", draw)
    if isinstance(kind, TensorType):
        return np.full(kind.shape, draw % 97).astype(kind.dtype)
    if pa.types.is_integer(kind):
        return draw % (1 << min(kind.bit_width - 1, 31))
    if pa.types.is_floating(kind):
        return draw % 1009 / 8
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return f"s{draw % 1009}"
    return values_of(kind, np.array([draw])).to_pylist()[0]
