"""What an entry is keyed by: the work, the code and the data, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.errors import Skip
from cedar.datasets.base import Read
from cedar.operators.base import Effects, RowOperator
from cedar.operators.cache import Cache
from cedar.operators.expressions import Select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.store.cache import RECORD, Store
from cedar.store.place import INSIDE
from cedar.tasks.cached import KeptReader
from cedar.tasks.chain import Program
from cedar.tasks.fingerprints import record_of, why_missing
from cedar.tasks.reading import Reader
from tests.store.toy_stored import entries

LIMIT: Any = [10]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"x": range(30), "y": range(30)}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def keeper(
    p: cedar.Pipeline | Node, where: str, on_error: Skip | None = None, root: Node | None = None, version: Any = None
) -> KeptReader:
    node = p if isinstance(p, Node) else p.node
    source = graph.sources(node)[0].operator
    assert isinstance(source, Read)
    reader = Reader(source.source, 0, on_error=on_error)
    store = Store()
    record = record_of(node, root, version, store.digests)
    return KeptReader(reader, Program(), store, "memory" if record.unknown else where, record)


def group(p: cedar.Pipeline | Node, **how: Any) -> str:
    kept = keeper(p, "kept", **how)
    return kept._group(kept._identity())


def closing(value: Any) -> Any:
    return lambda x: (x, value)[0]


def limited(x: int) -> int:
    return int(min(x, LIMIT[0]))


def test_equal_pipelines_share_their_entries(file: Path) -> None:
    def build() -> cedar.Pipeline:
        return cedar.read_parquet(str(file)).map(closing([1, {"a"}]), "x", dtype=int).filter(col("y") > 3)

    assert group(build()) == group(build())
    assert group(build().cache("memory")) == group(build().cache("elsewhere")), "where it is kept is no part of it"


def test_what_changes_the_rows_changes_the_key(file: Path) -> None:
    p = cedar.read_parquet(str(file))
    pipelines = [
        p, cedar.read_parquet(str(file), columns=["x", "y"]), p.select("x"), p.filter(col("x") > 3),
        p.filter(col("x") > 4), p.map(closing([1]), "x", dtype=int), p.map(closing([2]), "x", dtype=int),
        p.map(closing({"a": {1}}), "x", dtype=int), p.map(closing({"a": {2}}), "x", dtype=int),
        p.map(closing(closing([1])), "x", dtype=int), p.map(closing([1]), "y", dtype=int),
        p.map(closing([1]), "x", dtype=float), p.map(closing([1]), "x", dtype=int, on_error=Skip()),
        p.map(closing([1]), "x", dtype=int, on_error=Skip(refill=True)),
        p.map(closing([1]), "x", dtype=int, on_error=Skip(blocks=True)),
    ]  # fmt: skip
    assert len({group(q) for q in pipelines}) == len(pipelines)
    assert group(p, on_error=Skip(blocks=True)) != group(p, on_error=Skip()), "which may lose more rows"
    assert group(p, on_error=Skip()) != group(p), "skipped rows must not serve a run in which they are errors"
    assert group(p, on_error=Skip(0.1)) == group(p, on_error=Skip(0.2, quarantine="q")), "budgets do not change rows"


def test_the_class_of_an_own_operator_changes_the_key(file: Path) -> None:
    def times(by: int, **fields: Any) -> RowOperator:
        def kernel(block: Any, env: Any) -> Any:
            return block.with_columns({"x": pa.array(block.columns["x"].to_numpy() * by)})

        @dataclasses.dataclass(frozen=True)
        class Times(RowOperator):
            paths: int = 0  # a name that sources use for something else
            name = "times"

            def effects(self) -> Effects:
                return Effects(frozenset({"x"}), frozenset({"x"}))

            def schema(self, *inputs: Any) -> Any:
                return inputs[0]

            def bind(self, bound: Any) -> Any:
                return kernel

        return Times(**fields)

    p = cedar.read_parquet(str(file))
    assert group(p.apply(times(2))) == group(p.apply(times(2)))
    assert len({group(p.apply(each)) for each in (times(2), times(3), times(2, paths=1))}) == 3


def test_how_operators_are_connected_changes_the_key(file: Path, tmp_path: Path) -> None:
    """Two pipelines of equal operators and files, one with a function on the first input, one on the second."""
    pq.write_table(pa.table({"x": range(100, 130), "y": range(30)}), tmp_path / "b.parquet")
    a, b = cedar.read_parquet(str(file)), cedar.read_parquet(str(tmp_path / "b.parquet"))

    def zeroed(p: cedar.Pipeline) -> cedar.Pipeline:
        return p.with_columns(x=col("x") * 0)

    def delivered(first: cedar.Pipeline, second: cedar.Pipeline) -> list[list[int]]:
        joined = cedar.concat(first, second).with_columns(y=col("y") + 0)
        cached = joined.cache(str(tmp_path / "kept")).shuffle(seed=1)
        return [sorted(p.to_arrow()["x"].to_pylist()) for p in (cached, joined.unique("x"))]

    assert delivered(zeroed(a), b) == [[0] * 30 + [*range(100, 130)], [0, *range(100, 130)]]
    assert delivered(a, zeroed(b)) == [sorted([*range(30), *[0] * 30]), [*range(30)]]
    assert delivered(zeroed(a), a) == [sorted([*range(30), *[0] * 30]), [*range(30)]]
    assert delivered(a, zeroed(a)) == [sorted([*range(30), *[0] * 30]), [*range(30)]]


def test_options_of_a_reader_change_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    path = str(tmp_path / "a.csv")
    given = [{}, {"null_values": ["1"]}, {"columns": ["x"]}, {"dtypes": {"x": "float64"}}]
    assert len({group(cedar.read_csv(path, **options)) for options in given}) == len(given)


def test_a_changed_global_changes_the_key(file: Path, monkeypatch: Any) -> None:
    p = cedar.read_parquet(str(file)).map(limited, "x", dtype=int)
    before = group(p)
    monkeypatch.setitem(globals(), "LIMIT", [20])
    assert group(p) != before


def test_a_changed_file_changes_the_key(file: Path) -> None:
    before = group(cedar.read_parquet(str(file)))
    assert group(cedar.read_parquet(str(file))) == before
    os.utime(file, (1, 1))
    assert group(cedar.read_parquet(str(file))) != before


# ---- plans -----------------------------------------------------------------------------------------------------------


def moved(node: Node, *inputs: Node, **changes: Any) -> Node:
    return dataclasses.replace(node, inputs=inputs, origin=node.logical, **changes)


def test_the_order_of_a_plan_does_not_change_the_key(file: Path) -> None:
    written = cedar.read_parquet(str(file)).map(closing(1), "x", dtype=int).filter(col("y") > 3).node
    mapped = written.inputs[0]
    (read,) = mapped.inputs
    plan = moved(mapped, moved(written, read), place="processes")
    assert group(plan, root=written) == group(written, root=written) == group(written)
    assert group(mapped, root=written) != group(written)


def test_a_column_that_a_plan_drops_does_not_change_the_key(file: Path) -> None:
    written = cedar.read_parquet(str(file)).map(closing(1), "x", dtype=int).node
    plan = Node(Select(("x",)), (written,))
    assert group(plan, root=written) == group(written)
    assert keeper(plan, "kept", root=written).record.columns == ("x",)
    assert keeper(written, "kept", root=written).record.columns == ("x", "y")
    cached = Node(Cache(), (written,))
    assert group(cached, root=written) == group(written), "a cache that the optimizer put in"


def test_an_operator_that_a_plan_changed_changes_the_key(file: Path) -> None:
    written = cedar.read_parquet(str(file)).filter(col("y") > 3).node
    other = cedar.read_parquet(str(file)).filter((col("y") > 3) & (col("x") > 1)).node
    assert group(moved(written, *written.inputs, operator=other.operator), root=written) != group(written)


def test_a_function_that_counts_in_a_list_keeps_its_key_within_a_loader(file: Path) -> None:
    calls: list[int] = []
    p = cedar.read_parquet(str(file)).map(lambda x: calls.append(x) or x, "x", dtype=int).node
    store = Store()
    records = []
    for _ in range(2):
        records.append(record_of(p, None, None, store.digests))
        calls.append(1)
    assert records[0] == records[1]
    assert record_of(p, None, None, {}) != records[0]


# ---- why -------------------------------------------------------------------------------------------------------------


def reason(p: cedar.Pipeline, where: str, **how: Any) -> str:
    kept = keeper(p, where, **how)
    source = kept.reader.plain.source
    return kept.describe(source.splits())


def test_a_miss_says_why(file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    where = str(tmp_path / "kept")

    def build(scale: Any = 1, more: int = 3) -> cedar.Pipeline:
        p = cedar.read_parquet(str(file)).map(closing(scale), "x", dtype=int).map(limited, "y", dtype=int)
        return p.filter(col("x") > more).cache(where)

    assert reason(build(), where) == "miss: nothing is kept there yet"
    list(build())
    assert reason(build(), where) == "hit: all 1 split(s) are kept"
    changed = reason(build(scale=[2]), where)
    assert changed.startswith("miss: the value of 'value', which the function closes over, of map(<lambda>)")
    assert "filter" in reason(build(more=5), where)
    with monkeypatch.context() as patched:
        patched.setitem(globals(), "LIMIT", [20])
        assert reason(build(), where) == "miss: the global 'LIMIT' of map(limited) changed"
        patched.setattr("cedar.tasks.fingerprints.versions", lambda: {"polars": "0"})
        assert "polars was" in reason(build(), where)
    assert reason(build(), where, on_error=Skip()) == "miss: on_error changed"
    assert "map(abs) is new" in reason(build().map(abs, "x", dtype=int), where)
    entries(Path(where))[0].unlink()
    assert reason(build(), where) == "miss: what was kept there was removed, or made room for others"
    os.utime(file, (1, 1))
    assert reason(build(), where).startswith("miss: the data changed")
    for path in (Path(where) / INSIDE).glob("*.arrow"):
        path.write_text("{")
    assert reason(build(), where) == "miss: nothing is kept there yet"
    assert "before the first epoch" in reason(build(), "memory")


# ---- functions that cannot be read -----------------------------------------------------------------------------------


def test_functions_that_cannot_be_read_are_kept_for_one_loader_and_named(file: Path, tmp_path: Path) -> None:
    where = tmp_path / "kept"
    calls: list[int] = []

    def build(**how: Any) -> cedar.Pipeline:
        held = (calls.append(i) for i in range(1000))  # a generator: nothing can tell what it will do
        return cedar.read_parquet(str(file)).map(lambda x: next(held) or x, "x", dtype=int).cache(str(where), **how)

    p = build()
    assert len({group(p), group(p), group(build())}) == 3, "nothing else is served"
    with p.loader(executor="inline", plan="off") as loader:
        first = list(loader)
        once = len(calls)
        assert [dict(row) for row in first] == [dict(row) for row in loader], "the next epoch of the same loader is"
    assert len(calls) == once
    assert not where.exists()
    text = " ".join(build().explain().split())
    assert "map(<lambda>): <lambda>.closure.held: a generator: cannot read all of its state" in text
    assert "version=" in text


def test_a_version_stands_for_the_functions(file: Path, tmp_path: Path) -> None:
    where = str(tmp_path / "kept")

    def build(value: Any, version: str | None, least: int = 3) -> cedar.Pipeline:
        p = cedar.read_parquet(str(file)).map(closing(value), "x", dtype=int)
        return p.filter(col("y") > least).cache(where, version=version)

    list(build(iter([1]), "1"))
    assert reason(build(iter("ab"), "1"), where, version="1") == "hit: all 1 split(s) are kept"
    assert "the version of map(<lambda>) changed" in reason(build(2, "2"), where, version="2")
    assert "filter" in reason(build(1, "1", least=4), where, version="1"), "expressions are seen still"
    for wrong in ("", 3):
        with pytest.raises(cedar.PipelineError, match="version"):
            build(1, wrong)  # type: ignore[arg-type]


STALE = {  # what changes behind a function's back
    "import": ("def fn(x):\n    import own_helper\n    return own_helper.scale() * x", "helper"),
    "dict": ("class D(dict): pass\nd = D()\nd.scale = {n}\nfn = lambda x: d.scale * x", ""),
    "list": ("class L(list): pass\nd = L()\nd.scale = {n}\nfn = lambda x: d.scale * x", ""),
    "array": (("import numpy\nclass A(numpy.ndarray): pass\nd = numpy.zeros(1).view(A)\nd.scale = {n}\n"
              "fn = lambda x: d.scale * x"), ""),
    "named tuple": (("import typing\nclass P(typing.NamedTuple):\n    a: int = 1\n    def go(self): return {n}\n"
                    "p = P()\nfn = lambda x: p.go() * x"), ""),
    "proxy": ("import types\nd = types.MappingProxyType(dict(scale={n}))\nfn = lambda x: d['scale'] * x", ""),
    "factory": (("import collections\nd = collections.defaultdict(lambda: {n})\n"
                "fn = lambda x: d.copy()['scale'] * x"), ""),
    "deep": (("d = {n}\nfor _ in range(99): d = [d]\n"
             "def fn(x):\n    e = d\n    while isinstance(e, list): e = e[0]\n    return e * x"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_no_results_of_old_code(name: str, file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    source, helper = STALE[name]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python tells old bytecode by size and whole seconds alone
    monkeypatch.syspath_prepend(str(tmp_path))
    for n in (2, 3):
        (tmp_path / "own_scales.py").write_text(f"def scale():\n    return {n}\n")
        (tmp_path / "own_helper.py").write_text("import own_scales\ndef scale():\n    return own_scales.scale()\n")
        for module in ("own_helper", "own_scales"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        if helper and n == 2:
            importlib.import_module("own_helper")
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source.replace("{n}", str(n)), "own.py", "exec"), space)
        p = cedar.read_parquet(str(file)).map(space["fn"], "x", dtype=int).cache(str(tmp_path / "kept"))
        with p.loader(executor="inline") as loader:
            assert sum(row["x"] for row in loader) == n * sum(range(30))


def test_the_last_records_are_compared_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    store = Store()
    place: Any = store.place(str(tmp_path))
    for number in range(70):
        record = {"group": f"{number:016x}", "operators": [], "data": "", "versions": {}}
        place.put(f"{number:016x}{RECORD}", lambda _, record=record: record, {})
        os.utime(place.path(f"{number:016x}{RECORD}"), (number, number))
    Path(place.path(f"{69:016x}{RECORD}")).write_bytes(b"torn")
    groups = [int(r["group"], 16) for r in store.records(str(tmp_path))]
    assert groups == [*range(6, 69)]
    assert store.kept([f"{0:016x}-{1:016x}"], str(tmp_path)) == 0
    assert (
        why_missing([{"group": "x"}], {"group": "y", "operators": []})
        == "what is kept there comes from other pipelines"
    )
