"""Turns the arguments of ``join`` and ``join_asof`` into a ``Join``, which reads the other table once, when needed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from cedar.core.block import frame_of
from cedar.core.boundary import canonical_type, canonical_types, table_of
from cedar.core.columns import ColumnType, blank
from cedar.core.digests import digest_of
from cedar.core.errors import PipelineError, Skip, check_names, invalid_call, missing_column, names_of, user_site
from cedar.datasets.table import from_pandas
from cedar.datasets.to_arrow import arrow_column, to_arrow_table
from cedar.operators.join import How, Join, JoinKeys, arranged
from cedar.operators.surveys import StoredTable, Survey, kept_table
from cedar.operators.weights import AS_COLUMN
from cedar.pipeline.surveying import in_order, require_rows, require_steady, sampled_types, survey
from cedar.tasks.fingerprints import key_of

if TYPE_CHECKING:
    import polars as pl

    from cedar.pipeline.core import Pipeline

Names = str | Sequence[str] | None


class Side:
    """The other table of a join, or a pipeline that is read when a run first needs its rows.

    Raises:
        PipelineError: ``other`` is neither.
    """

    def __init__(self, other: Any, method: str) -> None:
        self._pipeline: Pipeline | None = None
        if hasattr(other, "given"):
            require_rows(other, f"{method}: the other pipeline")
            self._pipeline, self.content, self.own = other, "", uuid.uuid4().hex  # no digest: the data is not read yet
            self.types = _types_of(other)
        else:
            self._table = as_table(other, method)
            self.content, self.own = digest_of(self._table), ""
            self.types = dict(canonical_types(self._table.schema, method, site=user_site()))

    def lookup(self, keys: JoinKeys, unique: bool) -> Survey[StoredTable]:
        """Return a survey that reads this side and stores it arranged for lookups by key."""

        def stored(on_error: Skip | None) -> StoredTable:
            pipeline = self._pipeline
            key = None if pipeline is None else key_of(pipeline.given, on_error, "join", keys.right, keys.time, unique)
            return kept_table(key, lambda: self._arranged(keys, unique, on_error))

        return Survey(stored)

    def _arranged(self, keys: JoinKeys, unique: bool, on_error: Skip | None) -> pa.Table:
        if self._pipeline is None:
            table = self._table
        else:
            table = to_arrow_table(survey(self._pipeline.given, None, "join", on_error), self.types)
        columns = {name: table.column(name) for name in self.types}
        return arranged(columns, keys.right, unique, keys.time)


def _types_of(other: Pipeline) -> dict[str, ColumnType]:
    known: Mapping[str, Any] = other.schema
    if any(isinstance(kind, str) for kind in known.values()):
        known = sampled_types(other)
    plain = {name: kind for name, kind in known.items() if isinstance(kind, pa.DataType)}
    return {n: plain[n] if n in plain else canonical_type(arrow_column(n, blank(known[n], 0)).type) for n in known}


def as_table(other: Any, method: str) -> pa.Table:
    """Convert an Arrow, polars or pandas table to an Arrow table; named index levels of pandas become columns.

    Raises:
        PipelineError: ``other`` is not such a table, or a column of pandas has values of several types.
    """
    if isinstance(other, pa.Table):
        return other
    if isinstance(other, pa.RecordBatch):
        return pa.Table.from_batches([other])
    if hasattr(other, "to_arrow") and hasattr(other, "get_columns"):
        return table_of(other, method, user_site())
    kind = type(other)
    if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
        return from_pandas(other, method).table
    calls = {"LazyFrame": "frame.collect()", "Pipeline": "pipeline.to_arrow()"}
    calls["RecordBatchReader"] = "reader.read_all()"
    fix = (
        f"collect it first: {calls[kind.__name__]}"
        if kind.__name__ in calls
        else "convert it: cedar.from_items(rows).to_arrow()"
    )
    tables = "a table of Arrow, polars or pandas" + (", or a pipeline" if method.startswith("join") else "")
    raise invalid_call(f"{method} takes {tables}, not {kind.__name__}", fix=fix)


def join(
    pipeline: Pipeline, other: Any, names: tuple[Names, Names, Names], how: str, validate: str, suffix: str
) -> Join:
    """Return the operator for ``Pipeline.join``; ``names`` are ``on``, ``left_on`` and ``right_on``."""
    site = user_site()
    if how not in get_args(How):
        others = {
            "right": 'swap the sides: cedar.from_polars(other).join(p, ..., how="left"); p must then fit into memory',
            "outer": _FULL_JOIN_FIX,
            "full": _FULL_JOIN_FIX,
            "cross": 'add a column of one constant to both sides, and join on it with validate="m:m"',
        }
        fix = others.get(how, f"one of {', '.join(map(repr, get_args(How)))}")
        raise PipelineError(f"join(how={how!r})", site=site, fix=fix)
    if validate not in ("m:1", "m:m"):
        fix = 'give "m:1" or "m:m"; p.unique(...) makes the keys of this side unique'
        raise PipelineError(f"join(validate={validate!r}): a pipeline's keys are not checked", site=site, fix=fix)
    require_rows(pipeline, "join")
    keys = _keys(*names)
    side = Side(other, "join")
    for name in keys.right:
        if name not in side.types:
            raise missing_column(name, list(side.types), "join: the other table", site)
    adds = how in ("left", "inner")
    given = _added_columns(pipeline, side, keys.right, suffix) if adds else ()
    several = adds and validate == "m:m"
    used = {name: side.types[name] for name in (*keys.right, *(own for own, _ in given))}
    side.types = used
    survey = side.lookup(keys, unique=adds and not several)
    return Join(keys, how, tuple(used.items()), given, several, side.content, side.own, survey)  # type: ignore[arg-type]


_FULL_JOIN_FIX = (
    'join with how="left"; take what cedar.from_polars(other).join(p, ..., how="anti") leaves, add the columns of p to '
    "it as nulls of their types, and cedar.concat both"
)


def _keys(on: Names, left_on: Names, right_on: Names) -> JoinKeys:
    left, right = (names_of("join", on) or names_of("join", each) for each in (left_on, right_on))
    both = on is not None and (left_on is not None or right_on is not None)
    if both or not left or len(left) != len(right):
        raise invalid_call(
            f"join(on={on!r}, left_on={left_on!r}, right_on={right_on!r})",
            fix='name columns: on="id", or as many in left_on= as in right_on=',
        )
    return JoinKeys(left, right)


def _added_columns(pipeline: Pipeline, side: Side, keys: Sequence[str], suffix: str) -> tuple[tuple[str, str], ...]:
    """Return pairs (name, name in the result) for the other table's columns except its keys."""
    known = set(pipeline.columns)
    return tuple((name, f"{name}{suffix}" if name in known else name) for name in side.types if name not in keys)


def join_asof(pipeline: Pipeline, other: Any, on: str, by: Names, tolerance: Any, suffix: str) -> Join:
    """Return the operator for ``Pipeline.join_asof``."""
    require_rows(pipeline, "join_asof")
    site = user_site()
    side = Side(other, "join_asof")
    check_names("join_asof", on)
    groups = names_of("join_asof", by)
    for name in (on, *groups):
        if name not in side.types:
            raise missing_column(name, list(side.types), "join_asof: the other table", site)
    keys = JoinKeys(groups, groups, on, tolerance)
    given = _added_columns(pipeline, side, (*groups, on), suffix)
    return Join(
        keys, "left", tuple(side.types.items()), given, False, side.content, side.own, side.lookup(keys, unique=False)
    )


WEIGHT = "__class_weight"


def class_weights(pipeline: Pipeline, column: str) -> Join:
    """Return an operator that adds ``WEIGHT``: 1 / (the number of rows with the same value of ``column``)."""
    check_names("balance_classes", column, fix=f"give the name of a column; {AS_COLUMN}")
    require_steady(pipeline, (column,), "balance_classes")
    if column not in pipeline.columns:
        raise missing_column(column, pipeline.columns, "balance_classes", user_site())
    rows = pipeline.select(column)
    keys, types = JoinKeys((column,), (column,)), _types_of(rows) | {WEIGHT: pa.float64()}
    node, site = in_order(rows.given), user_site()

    def counted(on_error: Skip | None) -> pa.Table:
        import polars as pl

        counts: list[pl.DataFrame] = []
        for frame in map(frame_of, survey(node, None, "balance_classes", on_error)):
            counts = [pl.concat([*counts, frame.group_by(column).len(WEIGHT)]).group_by(column).sum()]
        if nulls := sum(frame.filter(pl.col(column).is_null())[WEIGHT].sum() for frame in counts):
            what = f"balance_classes({column!r}): the column has {nulls:,} null(s), which belong to no class"
            raise PipelineError(what, site=site, fix=f"first filter(col({column!r}).is_not_null()), or fill the nulls")
        found = counts[0].with_columns((1 / pl.col(WEIGHT)).alias(WEIGHT)).to_arrow() if counts else None
        columns = {name: pa.nulls(0, kind) if found is None else found.column(name) for name, kind in types.items()}
        return arranged(columns, keys.right, unique=True)

    def stored(on_error: Skip | None) -> StoredTable:
        return kept_table(key_of(node, on_error, "balance_classes", column), lambda: counted(on_error))

    return Join(keys, "left", tuple(types.items()), ((WEIGHT, WEIGHT),), False, "", uuid.uuid4().hex, Survey(stored))
