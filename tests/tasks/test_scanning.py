"""A scan gives the rows, keys and types that reading everything and filtering it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.block import concat_blocks
from cedar.core.errors import CedarError, RowError, Skip, SourceError
from cedar.datasets.base import BaseSource, Chunk, Split
from cedar.datasets.csv import read_csv
from cedar.datasets.files import read_files
from cedar.datasets.parquet import read_parquet
from cedar.datasets.table import from_arrow
from cedar.operators.base import Bound, Env
from cedar.operators.expressions import FilterExpression, select
from cedar.tasks.chain import KernelStep, Timing, run_steps
from cedar.tasks.reading import Reader
from cedar.tasks.scanning import FilterHits, scan_reader

ROWS = 1000
ALWAYS = 1.0  # the filters are expected to leave nothing: the other columns always wait


def table() -> pa.Table:
    draw = np.random.default_rng(0)
    return pa.table(
        {
            "n": np.arange(ROWS),
            "x": draw.random(ROWS),
            "text": [f"t{i % 50}" for i in range(ROWS)],
            "tags": [list(range(i % 4)) for i in range(ROWS)],
            "at": [None if i % 9 == 0 else {"b": i, "c": f"c{i}"} for i in range(ROWS)],
        }
    )


@dataclass(frozen=True)
class Cut(BaseSource):
    """A source whose chunks are cut otherwise for other columns, and that counts what it is asked to read."""

    inner: object
    columns: tuple[str, ...] | None = None
    asked: list = field(default_factory=list)
    second_read_cost_bytes = 1 << 19
    selects = "columns"

    def splits(self):
        return [Split(0, i, i + 250, 250, part=i) for i in range(0, ROWS, 250)]

    def schema(self):
        known = self.inner.schema()
        return known if self.columns is None else {n: known[n] for n in self.columns}

    def select(self, columns):
        return Cut(self.inner, tuple(columns), self.asked)

    def url(self, file):
        return "cut"

    def read(self, split):
        self.asked.append((split.part, self.columns))
        names = list(self.schema())
        step = 10 + 17 * len(names)
        for start in range(split.start, split.stop, step):
            stop = min(start + step, split.stop)
            part = self.inner.table.slice(start, stop - start)
            yield Chunk({n: part.column(n).combine_chunks() for n in names}, length=stop - start)


@pytest.fixture(params=["parquet", "table", "cut"])
def source(request, tmp_path: Path):
    if request.param == "parquet":
        pq.write_table(table(), tmp_path / "t.parquet", row_group_size=128)
        return read_parquet(tmp_path / "t.parquet")
    whole = from_arrow(table())
    return whole if request.param == "table" else Cut(whole)


def step(operator, policy=None):
    bound = Bound(1, operator.label(), None, 0, policy, False, lambda: None, None)
    return KernelStep(operator.bind(bound), (1,), operator.label())


def steps_of(predicates, policy=None):
    return [step(FilterExpression(p), policy) for p in predicates]


def as_written(reader, split, columns, predicates, policy=None):
    """All rows read, then the filters one by one, then the columns."""
    steps = steps_of(predicates, policy) + ([] if columns is None else [step(select(*columns))])
    return concat_blocks([run_steps(steps, block, Env(), Timing()) for block in reader.blocks(split, 2)])


def check_same(scan, reader, split, columns, predicates, policy=None):
    expected = as_written(reader, split, columns, predicates, policy)
    found = concat_blocks(list(scan.read_blocks(split, 2, Env(), Timing())))
    assert list(found.columns) == list(expected.columns)
    assert found.types == expected.types
    for name, column in expected.columns.items():
        assert found.columns[name].equals(column), name
    assert np.array_equal(found.keys.hash(7), expected.keys.hash(7))
    assert found.dead == expected.dead
    return len(found)


n, x, text = pl.col("n"), pl.col("x"), pl.col("text")
CASES = [
    (None, []),
    (None, [x > 0.5]),
    (None, [x > 2]),
    (None, [n >= 0]),
    (None, [n < 3]),
    (None, [n < 130, x > 0.2, text != "t7"]),
    (["text", "n"], []),
    (["tags", "n"], [x > 0.9]),
    (["n", "x", "text"], [x > 0.9]),
    (["x"], [x > 0.9]),
    (["at", "tags"], [(n % 100 == 3) & (text == "t3")]),
    (["n"], [pl.col("tags").list.len() == 3]),
    (["tags"], [pl.lit(True)]),
    ([], [x > 0.5]),
    (["n", "at"], [pl.col("at").struct.field("b") > 900]),
]


@pytest.mark.heavy
@pytest.mark.parametrize("empty", [0.0, ALWAYS])
@pytest.mark.parametrize(("columns", "predicates"), CASES)
def test_the_rows_that_reading_everything_gives(source, columns, predicates, empty):
    reader = Reader(source, 3)
    scan = scan_reader(reader, columns, steps_of(predicates), predicates, empty)
    scan = cloudpickle.loads(cloudpickle.dumps(scan))
    for split in source.splits():
        check_same(scan, reader, split, columns, predicates)


def test_blocks_without_rows_keep_their_types(source):
    (block,) = scan_reader(Reader(source, 0), ["tags", "n"], steps_of([n < 0]), [n < 0]).read_blocks(
        source.splits()[0], 0, Env(), Timing()
    )
    assert block.types == {"tags": pa.large_list(pa.int64()), "n": pa.int64()}
    assert block.slots == 0


def test_other_columns_are_not_read_where_no_row_is_left():
    source = Cut(from_arrow(table()))
    scan = scan_reader(Reader(source, 0), ["text", "n"], steps_of([n >= 750]), [n >= 750], ALWAYS)
    timing = Timing()
    for split in source.splits():
        list(scan.read_blocks(split, 0, Env(), timing))
    assert [part for part, columns in source.asked if columns == ("text",)] == [750]
    assert [part for part, columns in source.asked if columns == ("n",)] == [0, 250, 500, 750]
    assert timing.rows_read == ROWS
    assert any(part == ("operator", (1,)) and wall > 0 for part, wall, _ in timing.parts)


def test_a_second_read_is_not_tried_where_every_split_keeps_rows():
    source = Cut(from_arrow(table()))
    scan = scan_reader(Reader(source, 0), ["text", "n"], steps_of([x > 0.5]), [x > 0.5], ALWAYS)
    object.__setattr__(scan, "rest_bytes", 1e4)
    for split in source.splits() * 5:
        check_same(scan, Reader(source, 0), split, ["text", "n"], [x > 0.5])
    assert source.asked[-1][1] == ("text", "n", "x")


def test_luck():
    selectivity = FilterHits(1.0)
    assert selectivity.worth(1 << 20, 1 << 19)
    assert selectivity.worth(None, 1 << 19)
    for _ in range(20):
        selectivity.see(False)
    assert not selectivity.worth(1 << 20, 1 << 19)
    selectivity.see(True)
    assert selectivity.worth(8 << 20, 1 << 19)


def test_row_groups_are_passed_over_by_their_statistics(tmp_path: Path, monkeypatch):
    pq.write_table(table(), tmp_path / "t.parquet", row_group_size=100)
    source = read_parquet(tmp_path / "t.parquet")
    reader = Reader(source, 0)
    scan = scan_reader(reader, ["text"], steps_of([n > 250, n < 320]), [n > 250, n < 320])
    timing = Timing()
    found = [check for s in source.splits() for check in scan.read_blocks(s, 0, Env(), timing) if check.slots]
    assert sum(b.slots for b in found) == 69
    assert timing.rows_read == 200


def test_parts_of_structs(tmp_path: Path):
    pq.write_table(table(), tmp_path / "t.parquet", row_group_size=128)
    source = read_parquet(tmp_path / "t.parquet")
    field = pl.col("at").struct.field("b")
    scan = scan_reader(Reader(source, 0), ["n", "at.b"], steps_of([field > 500]), [field > 500], ALWAYS)
    block = concat_blocks([b for s in source.splits() for b in scan.read_blocks(s, 0, Env(), Timing())])
    assert list(block.columns) == ["n", "at"]
    kept = [i for i in range(501, ROWS) if i % 9]
    assert block.columns["at"].to_pylist() == [{"b": i} for i in kept]
    assert block.columns["n"].to_pylist() == kept


@pytest.mark.parametrize("empty", [0.0, ALWAYS])
def test_a_filter_that_fails_fails_as_written(source, empty):
    failing = (text.str.slice(1).cast(pl.Int64) < 40) & (text.str.replace("t7", "u").str.slice(1).cast(pl.Int64) >= 0)
    reader = Reader(source, 0)
    scan = scan_reader(reader, ["n"], steps_of([failing]), [failing], empty)
    split = source.splits()[0]
    with pytest.raises(RowError) as found:
        list(scan.read_blocks(split, 2, Env(), Timing()))
    with pytest.raises(RowError) as expected:
        as_written(reader, split, ["n"], [failing])
    assert str(found.value) == str(expected.value)
    assert found.value.row == expected.value.row


@pytest.mark.heavy
@pytest.mark.parametrize("empty", [0.0, ALWAYS])
def test_rows_that_fail_under_a_policy_leave_their_slots(source, empty):
    failing = text.str.replace("t7", "u").str.slice(1).cast(pl.Int64) >= 0
    reader = Reader(source, 0)
    scan = scan_reader(reader, ["n", "text"], steps_of([failing], Skip()), [failing], empty)
    for split in source.splits():
        check_same(scan, reader, split, ["n", "text"], [failing], Skip())


def test_sources_that_know_nothing_of_columns():
    class Plain(BaseSource):
        def splits(self):
            return [Split(0, 0, 3, 3)]

        def read(self, split):
            yield Chunk({"n": pa.array([1, 2, 3]), "x": pa.array([4, 5, 6])})

    reader = Reader(Plain(), 0)
    scan = scan_reader(reader, ["x"], steps_of([n > 1]), [n > 1])
    assert check_same(scan, reader, Split(0, 0, 3, 3), ["x"], [n > 1]) == 2
    assert not list(scan_reader(reader, ["x"], steps_of([n > 9]), [n > 9]).read_blocks(Split(), 0, Env(), Timing()))


def test_paths_are_filtered_before_files_are_read(tmp_path: Path):
    for i in range(40):
        (tmp_path / f"{i:02}.bin").write_bytes(b"x" * i)
    source = read_files(str(tmp_path / "*.bin"))
    splits = source.splits()
    wanted = pl.col("path").str.ends_with("39.bin")
    scan = scan_reader(Reader(source, 0), None, steps_of([wanted]), [wanted], ALWAYS)
    (tmp_path / "00.bin").unlink()
    found = [b for s in splits for b in scan.read_blocks(s, 0, Env(), Timing()) if b.slots]
    assert [b.columns["bytes"].to_pylist() for b in found] == [[b"x" * 39]]


def test_a_streaming_split_is_read_once(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b,c\n" + "".join(f"{i},{i * 2},{i * 3}\n" for i in range(50)))
    source = read_csv(tmp_path / "t.csv")
    reader = Reader(source, 0)
    scan = scan_reader(reader, ["c", "a"], [], [])
    (split,) = source.splits()
    check_same(scan, reader, split, ["c", "a"], [])
    assert [b.slots for b in scan.read_blocks(split, 0, Env(), Timing())] == [50]


def test_data_that_change_between_the_two_reads():
    class Shrinking(Cut):
        def select(self, columns):
            return Shrinking(self.inner, tuple(columns), self.asked)

        def read(self, split):
            chunks = list(super().read(split))
            yield from chunks if "n" in self.schema() else chunks[:1]

    source = Shrinking(from_arrow(table()))
    scan = scan_reader(Reader(source, 0), None, steps_of([n >= 0]), [n >= 0], ALWAYS)
    with pytest.raises(SourceError, match="rows, but the first read had"):
        list(scan.read_blocks(source.splits()[0], 0, Env(), Timing()))


def test_an_error_of_the_source_names_the_users_line(tmp_path: Path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(), path)
    source = read_parquet(path)
    scan = scan_reader(Reader(source, 0), ["n"], steps_of([x > 0.5]), [x > 0.5])
    (split,) = source.splits()
    path.unlink()
    with pytest.raises(CedarError):
        list(scan.read_blocks(split, 0, Env(), Timing()))
