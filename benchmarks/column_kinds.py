"""Columns of every kind through every source, operator, executor, format and sink, next to plain Python.

    python -m benchmarks.column_kinds [--cases 20000] [--seed 0] [--form]

A case is one pipeline over columns of random kinds (``column_kinds_data``). Its rows must be those that plain Python
makes of them, or it is refused with an error that names the column. Anything else is a failure, and is printed
with its seed: ``--cases 1 --seed N`` runs it again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pyarrow.types as pt

import cedar
from benchmarks.column_kinds_data import NAMES, Refused, draw_column, expected, model, same, seen
from benchmarks.harness import add_form
from cedar.core.boundary import as_column, canonical_type, polars_type, type_of_series

Columns: TypeAlias = dict[str, list[Any]]
_ROWS = [0, 1, 1, 2, 5, 9, 70]
_EXECUTORS = ["inline", "inline", "inline", "threads", "threads"]
_PROCESSES = 400  # of so many cases, one runs on processes


@dataclass
class Case:
    """A pipeline, and the rows that plain Python says it has."""

    draw: random.Random
    folder: Path
    pipeline: Any = None
    columns: Columns = field(default_factory=dict)
    kinds: dict[str, Any] = field(default_factory=dict)
    ordered: bool = True
    steps: list[str] = field(default_factory=list)
    doubts: set[str] = field(default_factory=set)  # columns that a refusal may name
    arrays: set[str] = field(default_factory=set)  # columns that pad made
    groups: set[str] = field(default_factory=set)  # columns that dedup marked

    @property
    def rows(self) -> int:
        return len(self.columns["id"])

    def others(self) -> list[str]:
        return [name for name in self.columns if name != "id"]

    def pick(self, fits: Callable[[Any], bool] | None = None) -> str | None:
        names = [name for name in self.others() if fits is None or fits(self.kinds[name])]
        return self.draw.choice(names) if names else None

    def keep(self, rows: Sequence[int]) -> None:
        self.columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}

    def doubt(self, wrong: Callable[[pa.DataType], bool]) -> None:
        self.doubts |= {name for name, kind in self.kinds.items() if _holds(kind, wrong)}


def _holds(kind: Any, wrong: Callable[[pa.DataType], bool]) -> bool:
    if not isinstance(kind, pa.DataType):
        return False
    return wrong(kind) or any(_holds(kind.field(i).type, wrong) for i in range(kind.num_fields))


def _not_in_polars(kind: pa.DataType) -> bool:
    offset = pt.is_timestamp(kind) and (kind.tz or "").endswith(":30")  # of whole hours there are zones
    return bool(pt.is_interval(kind) or pt.is_decimal256(kind) or offset)


def _not_in_parquet(kind: pa.DataType) -> bool:
    return bool(pt.is_interval(kind) or (pt.is_struct(kind) and not kind.num_fields))


def _is_empty_list(kind: pa.DataType) -> bool:
    return bool(pt.is_fixed_size_list(kind) and not kind.list_size)


# ---- sources ---------------------------------------------------------------------------------------------------------


def _table(case: Case) -> pa.Table:
    """Columns of random kinds under odd names, and ``id``, the number of the row."""
    draw = case.draw
    rows = draw.choice(_ROWS)
    names = draw.sample(NAMES, draw.randint(1, 3))
    if draw.random() < 0.1:
        names = ["a.b", "a"]
    made: dict[str, Any] = {"id": pa.array(range(rows), pa.int64())}
    for name in names:
        while name not in made:
            try:
                column = draw_column(draw, rows, draw.choice([0, 0, 1, 2, 3]))
                case.columns[name] = model(column)
                made[name] = column
            except (pa.ArrowException, NotImplementedError):  # pyarrow cannot make, or show, some nested arrays
                continue
    case.columns["id"] = list(range(rows))
    case.columns = {name: case.columns[name] for name in made}
    case.kinds = {name: canonical_type(column.type) for name, column in made.items()}
    return pa.table(made)


def _from_arrow(case: Case) -> None:
    table = _table(case)
    if case.draw.random() < 0.3 and all(column.num_chunks == 1 for column in table.columns):
        table = table.to_batches()[0] if table.num_rows else table
    case.pipeline = cedar.from_arrow(table)
    assert case.pipeline.schema == case.kinds, (case.pipeline.schema, case.kinds)


def _from_polars(case: Case) -> None:

    from cedar.core.boundary import to_frame

    table = _table(case)
    wrong = [name for name, kind in case.kinds.items() if _holds(kind, _not_in_polars)]
    table = table.drop_columns(wrong)
    for name in wrong:
        del case.columns[name], case.kinds[name]
    frame = to_frame({name: as_column(table.column(name)) for name in table.column_names})
    case.pipeline = cedar.from_polars(frame)
    case.kinds = dict(case.pipeline.schema)


def _from_items(case: Case) -> None:
    _table(case)
    rows = [dict(zip(case.columns, values, strict=True)) for values in zip(*case.columns.values(), strict=True)]
    case.pipeline = cedar.from_items(rows, dtypes=case.kinds)
    if not rows:
        case.pipeline = cedar.from_arrow(pa.table({n: as_column(pa.nulls(0, k)) for n, k in case.kinds.items()}))


def _parquet(case: Case) -> None:
    table = _table(case)
    if any(_holds(field.type, _is_empty_list) for field in table.schema):  # which pyarrow dies of where it writes them
        table = pa.table({name: as_column(table.column(name)) for name in table.column_names})
    path = case.folder / "t.parquet"
    options = {"row_group_size": case.draw.choice([1, 3, 100]), "version": case.draw.choice(["1.0", "2.4", "2.6"])}
    try:
        pq.write_table(table, path, store_schema=case.draw.random() < 0.8, **options)
        pq.read_table(path)
    except (pa.ArrowException, OSError, NotImplementedError):  # what Parquet cannot hold, or pyarrow not read back
        case.pipeline = cedar.from_arrow(table)
        return
    case.pipeline = cedar.read_parquet(str(path))
    case.kinds = dict(case.pipeline.schema)
    back = pq.read_table(path)  # without the schema, some kinds come back as others
    case.columns = {name: model(back.column(i)) for i, name in enumerate(back.column_names)}


def _ipc(case: Case) -> None:
    table = _table(case)
    path = case.folder / "t.arrow"
    make = case.draw.choice([pa.ipc.new_file, pa.ipc.new_stream])
    try:
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=case.draw.choice([1, 3, 100]))
        back = (pa.ipc.open_file if make is pa.ipc.new_file else pa.ipc.open_stream)(path).read_all()
        back.validate(full=True)
        case.columns = {
            name: model(back.column(i)) for i, name in enumerate(back.column_names)
        }  # dictionaries that are
        # slices are written as others
    except (pa.ArrowException, OSError, NotImplementedError):  # of chunks with differing dictionaries, and nested ones
        case.pipeline = cedar.from_arrow(table)
        return
    case.pipeline = cedar.read_arrow(str(path))
    assert case.pipeline.schema == case.kinds, (case.pipeline.schema, case.kinds)


def _jsonl(case: Case) -> None:
    draw = case.draw
    rows = draw.choice(_ROWS[1:])
    values: dict[str, Callable[[], Any]] = {
        "int": lambda: draw.choice([0, -1, 2**53 + 1, 2**63 - 1, -(2**63), draw.randint(-9, 9)]),
        "float": lambda: draw.choice([0.5, 1e300, -2.0]),
        "str": lambda: draw.choice(["", "a", "Öl", "🙂"]),
        "bool": lambda: draw.random() < 0.5,
        "list": lambda: [draw.choice([1, 2**53 + 1]) for _ in range(draw.randint(0, 3))],
        "struct": lambda: {"b": draw.randint(0, 9), "c": [draw.choice(["x", "y"])]},
        "null": lambda: None,
    }
    case.columns = {"id": list(range(rows))}
    for name in draw.sample([name for name in NAMES if name != "nul\0l"], 3):
        make, nulls = values[draw.choice(list(values))], draw.choice([0.0, 0.3])
        case.columns[name] = [None if draw.random() < nulls else make() for _ in range(rows)]
    path = case.folder / "t.jsonl"
    lines = (dict(zip(case.columns, each, strict=True)) for each in zip(*case.columns.values(), strict=True))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    case.pipeline = cedar.read_jsonl(str(path))
    case.kinds = dict(case.pipeline.schema)


def _csv(case: Case) -> None:
    draw = case.draw
    rows = draw.choice(_ROWS[1:])
    values: list[tuple[str, Callable[[], Any]]] = [
        ("int64", lambda: draw.choice([0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])),
        ("uint64", lambda: draw.choice([0, 2**63, 2**64 - 1])),
        ("float64", lambda: draw.choice([0.5, 1e300, -2.0])),
        ("string", lambda: draw.choice(["a", "b c", 'q"', "a,b", "line\nbreak", "Öl"])),
        ("bool", lambda: draw.random() < 0.5),
    ]
    case.columns = {"id": list(range(rows))}
    dtypes = {}
    for name in draw.sample([name for name in NAMES if name not in ("nul\0l", "")], 2):
        dtypes[name], make = draw.choice(values)
        nulls = draw.choice([0.0, 0.3])
        case.columns[name] = [None if draw.random() < nulls else make() for _ in range(rows)]
    path = case.folder / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(case.columns)
        writer.writerows(zip(*case.columns.values(), strict=True))
    case.pipeline = cedar.read_csv(str(path), dtypes=dtypes)
    case.kinds = dict(case.pipeline.schema)


SOURCES = [_from_arrow, _from_arrow, _from_polars, _from_items, _parquet, _parquet, _ipc, _ipc, _jsonl, _csv]


# ---- operators -------------------------------------------------------------------------------------------------------


def _select(case: Case) -> None:
    names = [name for name in case.columns if name == "id" or (case.draw.random() < 0.5 and not _is_pattern(name))]
    case.draw.shuffle(names)
    case.pipeline = case.pipeline.select(*names)
    case.columns = {name: case.columns[name] for name in names}
    case.kinds = {name: case.kinds[name] for name in names}


def _is_pattern(name: str) -> bool:
    """What polars takes for more than one column, and cedar with it."""
    return name == "*" or (name.startswith("^") and name.endswith("$"))


def _drop(case: Case) -> None:
    name = case.pick()
    if name is not None:
        case.pipeline = case.pipeline.drop(name)
        del case.columns[name], case.kinds[name]


def _rename(case: Case) -> None:
    name = case.pick()
    free = [new for new in NAMES if new not in case.columns]
    if name is None:
        return
    new = case.draw.choice(free)
    case.pipeline = case.pipeline.rename({name: new})
    for part in (case.columns, case.kinds):
        items = list(part.items())
        part.clear()
        part.update((new if key == name else key, value) for key, value in items)
    case.groups = {new if key == name else key for key in case.groups}
    case.arrays = {new if key == name else key for key in case.arrays}


def _filter(case: Case) -> None:
    keeps: Callable[[int], bool] = lambda each: each % 3 != 1  # noqa: E731
    case.pipeline = case.pipeline.filter(cedar.col("id") % 3 != 1)
    case.keep([row for row, each in enumerate(case.columns["id"]) if keeps(each)])


def _filter_fn(case: Case) -> None:
    case.pipeline = case.pipeline.filter(_is_kept, "id")
    case.keep([row for row, each in enumerate(case.columns["id"]) if _is_kept(each)])


def _is_kept(each: int) -> bool:
    return each % 4 != 2


def _copy(case: Case) -> None:
    """A column again under another name, or computed by polars as it is."""
    import polars as pl

    case.doubt(_not_in_polars)
    case.doubts |= case.arrays
    name = case.pick()
    if name is None or _is_pattern(name):
        return
    free = [new for new in NAMES if new not in case.columns]
    new = case.draw.choice([name, *free])
    if case.draw.random() < 0.5:
        case.pipeline = case.pipeline.with_columns(**{new: name})
    else:
        through = pl.when(pl.col("id") >= 0).then(pl.col(name))
        case.pipeline = case.pipeline.with_columns(**{new: through})
    case.kinds[new] = case.kinds[name] if name in case.doubts else _through_polars(case.kinds[name])
    case.columns[new] = list(case.columns[name])


def _is_null(case: Case) -> None:
    name = case.pick()
    if name is None or _is_pattern(name):
        return
    case.doubts |= {name} if name in case.arrays or _holds(case.kinds[name], _not_in_polars) else set()
    case.pipeline = case.pipeline.with_columns(is_null=cedar.col(name).is_null())
    case.columns["is_null"] = [value is None for value in case.columns[name]]
    case.kinds["is_null"] = pa.bool_()


def _as_it_is(value: Any) -> Any:
    return value


def _map(case: Case) -> None:
    name = case.pick()
    if name is not None:
        case.pipeline = case.pipeline.map(_as_it_is, name, dtype=case.kinds[name])


def _map_row(case: Case) -> None:
    case.pipeline = case.pipeline.map(_as_it_is, dtype=dict(case.kinds))


def _twice(value: Any) -> list[Any]:
    return [value, value]


def _flat_map(case: Case) -> None:
    name = case.pick()
    if name is not None:
        case.pipeline = case.pipeline.flat_map(_twice, name, dtype=case.kinds[name])
        case.keep([row for row in range(case.rows) for _ in range(2)])


def _map_batches(case: Case) -> None:
    format = case.draw.choice(["arrow", "polars", "numpy", "torch"])
    name = case.pick()
    if name is None:
        return
    if format == "polars":
        case.doubts |= {name} if _holds(case.kinds[name], _not_in_polars) else set()
    if format in ("numpy", "torch"):
        if not (pt.is_integer(case.kinds[name]) or pt.is_floating(case.kinds[name])):
            return
        if any(value is None for value in case.columns[name]):
            case.doubts.add(name)
            if pt.is_floating(case.kinds[name]):
                return
    size = case.draw.choice([None, 1, 2, 7])
    case.pipeline = case.pipeline.map_batches(_as_it_is, name, format=format, size=size)
    if format == "polars" and name not in case.doubts:
        case.kinds[name] = _through_polars(case.kinds[name])


def _through_polars(kind: pa.DataType) -> pa.DataType:
    found = polars_type(kind)
    assert found is not None
    return type_of_series(found)


def _shuffle(case: Case) -> None:
    case.pipeline = case.pipeline.shuffle(seed=case.draw.randint(0, 9))
    case.ordered = False


def _cache(case: Case) -> None:
    where = case.draw.choice(["memory", str(case.folder / "cache")])
    case.pipeline = case.pipeline.cache(where)


def _take(case: Case) -> None:
    n = case.draw.randint(0, case.rows + 1)
    if case.ordered:
        case.pipeline = case.pipeline.take(n)
        case.keep(range(min(n, case.rows)))


def _skip(case: Case) -> None:
    n = case.draw.randint(0, case.rows + 1)
    if case.ordered:
        case.pipeline = case.pipeline.skip(n)
        case.keep(range(n, case.rows) if n < case.rows else [])


def _concat(case: Case) -> None:
    case.pipeline = cedar.concat(case.pipeline, case.pipeline)
    case.keep([*range(case.rows), *range(case.rows)])


def _mix(case: Case) -> None:
    case.pipeline = cedar.mix([(case.pipeline, 0.5), (case.pipeline, 0.5)], stop="all")
    case.keep([*range(case.rows), *range(case.rows)])
    case.ordered = False


def _zip(case: Case) -> None:
    if "beside" in case.columns:
        return
    case.pipeline = cedar.zip(case.pipeline, case.pipeline.select("id").rename({"id": "beside"}))
    if case.ordered:
        case.columns["beside"], case.kinds["beside"] = list(case.columns["id"]), pa.int64()
    else:
        case.pipeline = case.pipeline.drop("beside")


def _repeat(case: Case) -> None:
    case.pipeline = case.pipeline.repeat(2)
    case.keep([*range(case.rows), *range(case.rows)])


def _is_list(kind: Any) -> bool:
    return isinstance(kind, pa.DataType) and (pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _is_numbers(kind: Any) -> bool:
    if not _is_list(kind):
        return False
    inner = kind.value_type
    return bool(pt.is_integer(inner) or pt.is_floating(inner) or pt.is_boolean(inner))


def _dedup(case: Case) -> None:
    name = case.pick(lambda kind: isinstance(kind, pa.DataType) and pt.is_large_list(kind))
    if name is not None and name not in case.groups:
        case.pipeline = case.pipeline.dedup(case.draw.choice(["auto", [[name]]]))
        case.groups.add(name)


def _pad(case: Case) -> None:
    name = case.pick(_is_numbers)
    if name is None or name in case.groups:
        return
    to, kind = 4, case.kinds[name].value_type
    if pt.is_fixed_size_list(case.kinds[name]):
        to = max(to, case.kinds[name].list_size)
    broken = any(v is None or (None in v and not pt.is_floating(kind)) for v in case.columns[name])
    case.pipeline = case.pipeline.pad(name, to=to, value=1)
    if broken:
        case.doubts.add(name)
    fill = 1.0 if pt.is_floating(kind) else True if pt.is_boolean(kind) else 1
    gap = math.nan if pt.is_floating(kind) else None
    case.columns[name] = [
        [gap if item is None else item for item in value or []] + [fill] * (to - len(value or []))
        for value in case.columns[name]
    ]
    case.kinds[name] = pa.list_(kind, to)
    case.arrays.add(name)


OPERATORS = [
    _select, _drop, _rename, _filter, _filter_fn, _copy, _copy, _is_null, _map, _map, _map_row, _flat_map, _map_batches,
    _shuffle, _cache, _take, _skip, _concat, _mix, _zip, _repeat, _dedup, _dedup, _pad,
]  # fmt: skip


# ---- sinks -----------------------------------------------------------------------------------------------------------


def _compare(case: Case, found: Columns) -> None:
    assert list(found) == list(case.columns), (list(found), list(case.columns))
    order: Sequence[int] = range(case.rows)
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, case.rows)
    if not case.ordered:
        ids = found["id"]
        found = {n: [v[i] for i in sorted(range(len(ids)), key=ids.__getitem__)] for n, v in found.items()}
        order = sorted(order, key=case.columns["id"].__getitem__)
    for name, values in found.items():
        wanted = [case.columns[name][row] for row in order]
        for row, (one, other) in enumerate(zip(values, wanted, strict=True)):
            assert same(_plain(one), _plain(other)), (
                f"column {name!r} of {case.kinds[name]}, row {row}: {one!r} for {other!r}"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def _iterate(case: Case) -> None:
    rows = list(case.pipeline)
    assert len(rows) == case.rows, (len(rows), case.rows)
    found = {name: [row[name] for row in rows] for name in (rows[0] if rows else case.columns)}
    _compare(case, found)


def _to_arrow(case: Case) -> None:
    table = case.pipeline.to_arrow()
    table.validate(full=True)
    if not case.rows and not table.column_names:
        return
    _compare(case, {name: model(table.column(i)) for i, name in enumerate(table.column_names)})


def _write(case: Case) -> None:
    case.doubt(_not_in_parquet)
    url = case.folder / "out"
    case.pipeline.write_parquet(str(url))
    parts = [pq.read_table(path) for path in sorted(url.glob("*.parquet"))]
    table = pa.concat_tables(parts) if parts else None
    if table is None:
        assert not case.rows
        return
    _compare(case, {name: model(table.column(i)) for i, name in enumerate(table.column_names)})


def _load(case: Case) -> None:
    """Batches in a format, on an executor."""
    draw = case.draw
    format = draw.choice(["numpy", "torch", "arrow"])
    executor = draw.choice(_EXECUTORS)
    if draw.randrange(_PROCESSES) == 0:
        executor = draw.choice(["processes", "processes", "processes", "dask"])
    size = draw.choice([1, 3, 8])
    pipeline = case.pipeline.batch(size, last="keep")
    case.steps.append(f"{format} on {executor}")
    refused = set()
    for name, values in case.columns.items():
        try:
            case.columns[name] = expected(values, case.kinds[name], format)
        except Refused:
            refused.add(name)
    case.doubts |= refused
    options: dict[str, Any] = {"workers": 2} if executor != "inline" else {}
    if not case.doubts and draw.random() < 0.3:
        options["on_error"] = cedar.Skip(max_rate=1.0)  # under which a fault of ours would only drop rows
    plan = draw.choice(["off", "off", "off", "auto"])
    found: Columns = {name: [] for name in case.columns}
    with pipeline.loader(format=format, executor=executor, plan=plan, **options) as loader:
        for batch in loader:
            held = dict(zip(batch.schema.names, batch.columns, strict=True)) if format == "arrow" else batch
            assert list(held) == list(case.columns), (list(held), list(case.columns))
            rows = len(held["id"])
            for name, column in held.items():
                if hasattr(column, "inverse_lookup"):
                    column = column.expand()[name]
                found[name] += seen(column, case.kinds[name], rows)
    assert not refused or not case.rows, f"not refused: {refused}"
    _compare(case, found)


def _bucket(case: Case) -> None:
    name = case.pick(lambda kind: pt.is_large_string(kind) or pt.is_large_list(kind))
    if name is None:
        return _iterate(case)
    if any(value is None for value in case.columns[name]):
        case.doubts.add(name)
    ids: list[int] = []
    with case.pipeline.bucket_by_length(name, [2], [2, 3]).loader(format="arrow", executor="inline") as loader:
        for batch in loader:
            found = model(batch.column(batch.schema.get_field_index(name)))
            assert len({len(value) < 2 for value in found}) == 1, found
            ids += batch.column(batch.schema.get_field_index("id")).to_pylist()
    assert sorted(ids) == sorted(case.columns["id"])
    return None


def _pack(case: Case) -> None:
    name = case.pick(_is_numbers)
    if name is None or name in case.groups or not case.ordered or {"positions", "segment_ids"} & set(case.columns):
        return _iterate(case)
    refused = any(value is None or None in value for value in case.columns[name])
    case.doubts |= {name} if refused else set()
    rows = list(case.pipeline.pack(3, name))
    assert not refused or not case.rows, f"not refused: {name}"
    tokens = [token for value in case.columns[name] for token in value]
    found = [token for row in rows for token in row[name].tolist()]
    assert same(found[: len(tokens)], tokens), (found, tokens)
    assert len(rows) == -(-len(tokens) // 3)
    return None


def _padded_batch(case: Case) -> None:
    """The last batch filled up with blank rows."""
    found: Columns = {name: [] for name in case.columns}
    if "valid" in case.columns:
        return _iterate(case)
    with case.pipeline.batch(4, last="pad").loader(format="arrow", executor="inline") as loader:
        for batch in loader:
            assert batch.num_rows == 4
            batch.validate(full=True)
            rows = sum(batch.column(batch.schema.get_field_index("valid")).to_pylist())
            for name in found:
                found[name] += model(batch.column(batch.schema.get_field_index(name)))[:rows]
    return _compare(case, found)


SINKS = [_iterate, _to_arrow, _write, _bucket, _pack, _padded_batch, *[_load] * 6]


# ---- running ---------------------------------------------------------------------------------------------------------


def run(seed: int, folder: Path) -> tuple[list[str], str | None]:
    """What a case did, and what is wrong with it; None if all is as promised."""
    case = Case(random.Random(seed), folder)
    draw = case.draw
    source = draw.choice(SOURCES)
    steps = [draw.choice(OPERATORS) for _ in range(draw.choice([0, 1, 1, 2, 3]))]
    sink = draw.choice(SINKS)
    try:
        for step in (source, *steps, sink):
            case.steps.append(step.__name__.strip("_"))
            step(case)
    except cedar.CedarError as error:
        text = str(error)
        if any(repr(name)[1:-1] in text for name in case.doubts):
            return [*case.steps, "refused"], None
        return case.steps, f"{type(error).__name__}: {text}"
    except Exception as error:  # noqa: BLE001 - whatever comes raw is what is looked for
        return case.steps, f"raw {type(error).__name__}: {error}"
    except BaseException as error:  # polars' panics
        if type(error).__name__ != "PanicException":
            raise
        return case.steps, f"raw {type(error).__name__}: {error}"
    return case.steps, None


def run_many(seeds: Sequence[int]) -> tuple[Counter[str], dict[int, str]]:
    """How often each step was taken, and what is wrong, by seed."""
    taken: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="kinds") as folder:
        for seed in seeds:
            own = Path(folder) / str(seed)
            own.mkdir()
            steps, problem = run(seed, own)
            taken.update(set(steps))
            if problem is not None:
                wrong[seed] = f"{' > '.join(steps)}: {problem}"
                print(f"{seed}: {wrong[seed]}"[:1500], flush=True)  # now: a later case may end the process
    return taken, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    add_form(parser, "300 cases")
    options = parser.parse_args(arguments)
    cases = options.form.pick(options.cases, 300)
    begin = time.perf_counter()
    taken, wrong = run_many(range(options.seed, options.seed + cases))
    print(f"{cases:,} cases in {time.perf_counter() - begin:.0f} s: {len(wrong)} wrong, {taken['refused']:,} refused")
    print(", ".join(f"{step} {count:,}" for step, count in sorted(taken.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
