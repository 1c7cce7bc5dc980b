from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

import cedar
from cedar import Skip, col
from cedar.core.errors import RowError
from cedar.operators.algebra import length_changing, per_value
from cedar.operators.base import Effects, RowOperator
from cedar.operators.transform import Transform
from tests.operators.toy_groups import GROUP, grouped_names, invariants, plain, run, same, toy
from tests.toy_sessions import sessions


@per_value
def add_one(ids):
    return [i + 1 for i in ids]


@length_changing
def first_two(ids):
    return ids[:2]


@pytest.mark.heavy
@pytest.mark.parametrize("plan", ["off", "auto"])
@pytest.mark.parametrize("format", ["numpy", "torch"])
@pytest.mark.parametrize("place", ["first", "middle", "batched"])
def test_batches_hold_groups_of_the_same_values_in_the_same_order(plan, format, place):
    def build(mark):
        p = toy()
        p = p.dedup(GROUP) if mark and place == "first" else p
        p = p.map(add_one, "a", dtype=list[int]).filter(col("row") % 7 != 3).map(first_two, "a", dtype=list[int])
        p = p.dedup(GROUP) if mark and place == "middle" else p
        p = p.shuffle(seed=3, window=32, by="session").batch(10, last="keep")
        return p.dedup(GROUP) if mark and place == "batched" else p

    ours, theirs = (run(build(mark), plan=plan, format=format) for mark in (True, False))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert grouped_names(one) == {"a", "b"}
        assert one["a"] is one["b"]
        invariants(one)
        same(plain(one), other)


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_how_rows_are_cut_into_blocks_and_where_they_are_worked_on_does_not_show(executor):
    p = toy(512).dedup(GROUP).map(first_two, "a", dtype=list[int]).batch(64)
    expected = run(toy(512).map(first_two, "a", dtype=list[int]).batch(64).dedup(GROUP), plan="off", executor="inline")
    found = run(p, executor=executor, workers=2)
    assert [batch["a"] for batch in found] == [batch["a"] for batch in expected]


STREAMS = {
    "shuffle": lambda p, _: p.shuffle(seed=1, window=24).batch(7, last="keep"),
    "shuffle by": lambda p, _: p.shuffle(seed=1, by="session", interleave=2, window=48).batch(7, last="keep"),
    "pad batch": lambda p, _: p.take(20).batch(8, last="pad"),
    "pad": lambda p, _: p.batch(8).pad("a"),
    "take": lambda p, _: p.skip(3).take(30).batch(8, last="keep"),
    "take batches": lambda p, _: p.batch(8).skip(1).take(2),
    "repeat": lambda p, _: p.take(10).repeat(3).batch(8, last="keep"),
    "concat": lambda p, q: cedar.concat(p, q).batch(8),
    "mix": lambda p, q: cedar.mix([(p, 0.5), (q, 0.5)], seed=2).batch(8),
    "zip": lambda p, _: cedar.zip(p, toy().select(other="row")).batch(8),
    "sample": lambda p, _: p.sample(n=40, seed=1).batch(8),
    "bucket": lambda p, _: p.bucket_by_length("a", [6], [4, 4]),
    "pack": lambda p, _: p.pack(16, "a").batch(2),
    "flat_map": lambda p, _: p.flat_map(lambda row: [row, row + 1], "row", dtype=int).batch(8),
    "rename": lambda p, _: p.rename({"a": "c"}).batch(8),
    "drop": lambda p, _: p.drop("a").batch(8),
    "select": lambda p, _: p.select("b", n=col("a").list.len()).batch(8),
    "map_batches": lambda p, _: p.map_batches(lambda t: t, "a").batch(8),
    "map": lambda p, _: p.map(lambda ids: [len(ids)], "a", dtype=list[int]).batch(8),
    "map of batches": lambda p, _: p.batch(8).map(lambda ids: ids.lengths(), "a", into="n"),
    "function of rows": lambda p, _: p.filter(lambda ids: len(ids) % 2 == 0, "a").batch(8, last="keep"),
    "cache": lambda p, _: p.cache("memory").batch(8),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", STREAMS)
def test_every_operator_carries_groups(name):
    build, other = STREAMS[name], toy(48, seed=9)
    ours = run(build(toy().dedup(GROUP), other.dedup(GROUP)), plan="off", executor="inline")
    theirs = run(build(toy(), other), plan="off", executor="inline")
    assert len(ours) == len(theirs) > 0
    for one, two in zip(ours, theirs, strict=True):
        invariants(one)
        same(plain(one), two)
    marked = {"rename": {"c", "b"}, "drop": {"b"}, "select": {"b"}, "pad": {"b"}, "pack": set()}
    assert grouped_names(ours[0]) == marked.get(name, {"a", "b"})


def test_rows_sinks_and_arrow_have_plain_lists(tmp_path):
    table = sessions(30, 5, 0.9)
    p = cedar.from_arrow(table).dedup(GROUP)
    assert p.to_arrow().equals(table.cast(p.to_arrow().schema))
    assert list(p) == table.to_pylist()
    (batch,) = run(p.batch(30), format="arrow")
    assert batch["a"].to_pylist() == table["a"].to_pylist()
    assert (
        cedar.read_parquet(p.write_parquet(str(tmp_path / "out"))).to_arrow()["b"].to_pylist() == table["b"].to_pylist()
    )


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_cache_keeps_values_and_inverse_and_gives_the_same_rows(where, tmp_path):
    place = str(tmp_path) if where == "folder" else where
    p = toy().dedup(GROUP).map(add_one, "a", dtype=list[int]).cache(place).batch(16)
    expected = run(toy().map(add_one, "a", dtype=list[int]).batch(16), plan="off")
    with p.loader(plan="off", executor="inline") as loader:
        for _ in range(2):
            for one, two in zip(loader, expected, strict=True):
                invariants(one)
                same(plain(one), two)
    if where == "folder":
        kept = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        wide = cedar.from_arrow(sessions(4000, 16, 1.0, length=60)).dedup(GROUP)
        list(wide.cache(str(tmp_path / "wide")))
        size = sum(file.stat().st_size for file in (tmp_path / "wide").rglob("*") if file.is_file())
        assert kept > 0
        assert size < 4000 * 2 * 60 * 8 / 6  # its lists are kept once, not 16 times


def test_columns_that_nobody_reads_are_not_read_for_a_group(tmp_path):
    files = cedar.from_arrow(sessions(256, 8, 0.9)).write_parquet(str(tmp_path / "log"))
    p = cedar.read_parquet(files).dedup(GROUP, session="session").select("a", "row").batch(32)
    assert "session" not in p.explain().partition("PHYSICAL")[2].partition("UNITS")[0].replace("of a session", "")
    ours, theirs = run(p), run(cedar.read_parquet(files).select("a", "row").batch(32), plan="off")
    for one, two in zip(ours, theirs, strict=True):
        invariants(one)
        assert grouped_names(one) == {"a"}
        same(plain(one), two)


@pytest.mark.parametrize(("plan", "before"), [("off", False), ("auto", False), ("off", True)])
def test_groups_are_found_among_more_rows_than_are_worked_on_at_a_time(tmp_path, monkeypatch, plan, before):
    """Unless work comes ``before`` they are found, on every row as it is."""
    monkeypatch.setattr("cedar.datasets.parquet._CHUNK_BYTES", 40 * 4096)
    files = cedar.from_arrow(sessions(16_384, 8, 0.9)).write_parquet(str(tmp_path / "log"))
    seen = []

    class Seen(Transform):
        def columns(self, *columns):
            seen.append(len(columns[0]))
            return columns[0]

        def result(self, *types):
            return types[0]

    p = cedar.read_parquet(files).select("a", "b", "row")
    if before:
        p = p.map(Seen(), "row")
    p = p.dedup(GROUP)
    if not before:
        p = p.map(Seen(), "row")
    with p.batch(64).loader(plan=plan, executor="inline") as loader:
        assert sum(len(batch["row"]) for batch in loader) == 16_384
    assert (max(seen) > 4096) is not before


def test_a_group_is_moved_to_a_device_once():
    batch = run(toy().dedup(GROUP).batch(8), format="torch", device="cpu")[0]
    assert batch["a"] is batch["b"]
    assert batch["a"].inverse_lookup.device.type == "cpu"


def test_a_batch_can_be_read_again():
    with toy().dedup(GROUP).batch(8).loader(format="torch") as loader:
        batches = list(loader)
        loader.set_epoch(0)
        assert loader.read(3)["a"] == batches[3]["a"]


def test_groups_are_the_same_on_every_number_of_ranks():
    p = toy(512).dedup(GROUP).shuffle(seed=2, by="session", window=64).batch(16)
    whole = {tuple(batch["row"].tolist()): batch["a"] for batch in run(p)}
    for rank in range(2):
        for batch in run(p, rank=rank, world=2):
            assert batch["a"] == whole[tuple(batch["row"].tolist())]


def test_a_null_list_is_the_same_error_as_without_groups():
    rows = [{"a": [1]}, {"a": [1]}, {"a": None}, {"a": []}]
    errors = []
    for p in (cedar.from_items(rows), cedar.from_items(rows).dedup([["a"]])):
        with pytest.raises(RowError) as raised:
            run(p.batch(4), format="torch")
        errors.append((raised.value.what, raised.value.row.row))
    assert errors[0] == errors[1] == (errors[0][0], 2)
    assert [r["a"] for r in cedar.from_items(rows).dedup([["a"]])] == [[1], [1], None, []]


def test_resume_in_the_middle_of_an_epoch():
    p = toy().dedup(GROUP).shuffle(seed=1, by="session", window=24).batch(8)
    whole = run(p)
    first = p.loader()
    taken = [batch for _, batch in zip(range(3), first, strict=False)]
    state = first.state_dict()
    first.close()
    with p.loader() as second:
        second.load_state_dict(state)
        rest = list(second)
    assert [batch["a"] for batch in taken + rest] == [batch["a"] for batch in whole]


def test_functions_of_one_value_are_called_once_for_equal_rows(tmp_path):
    calls = []

    @per_value
    def counted(ids):
        calls.append(ids)
        return [i + 1 for i in ids]

    table = sessions(160, 16, 1.0)
    list(cedar.from_arrow(table).dedup(GROUP).map(counted, "a", dtype=list[int]).batch(160).loader(plan="off"))
    assert len(set(map(tuple, calls))) == 10
    assert len(calls) < 40  # a session may lie in several blocks


@pytest.mark.parametrize("batched", [False, True])
def test_functions_of_batches_see_unique_rows_where_they_are_marked(batched):
    sizes = []

    @per_value
    def counted(ids):
        sizes.append(len(ids))
        return cedar.JaggedTensor(ids.values + 1, ids.offsets) if batched else ids

    p = cedar.from_arrow(sessions(32, 8, 1.0)).dedup(GROUP).batch(16)
    p = p.map(counted, "a", dtype=list[int]) if batched else p.map(lambda ids: sizes.append(len(ids)) or ids, "a")
    batches = run(p, plan="off", executor="inline")
    assert set(sizes[-2:]) == ({2} if batched else {16})
    assert batches[0]["a"].unique == 2


def test_random_functions_and_those_without_a_mark_see_every_row():
    @per_value
    def drawn(ids, rng):
        return [int(rng.integers(1 << 30)) for _ in ids]

    p = cedar.from_arrow(sessions(32, 32, 1.0)).dedup(GROUP).map(drawn, "a", random=True, dtype=list[int]).batch(32)
    (batch,) = run(p, plan="off")
    assert batch["a"].unique == 32


def test_a_row_that_fails_is_blamed_or_skipped_as_without_groups():
    @per_value
    def picky(ids):
        if ids[0] == 2:
            raise ValueError("no twos")
        return ids

    rows = [{"a": [1]}, {"a": [2]}, {"a": [2]}, {"a": [1]}, {"a": [3]}]
    p = cedar.from_items(rows).dedup([["a"]])
    with pytest.raises(RowError, match="no twos") as raised:
        run(p.map(picky, "a", dtype=list[int]).batch(5))
    assert raised.value.row.row == 1
    with p.map(picky, "a", dtype=list[int], on_error=Skip()).batch(5).loader() as loader:
        (batch,) = loader
        assert batch["a"].expand()["a"].to_list() == [[1], [1], [3]]
        assert loader.report().skipped == {"map(picky)": 2}


def test_an_operator_from_elsewhere_sees_plain_columns():
    @dataclass(frozen=True)
    class Double(RowOperator):
        name = "double"

        def effects(self):
            return Effects(frozenset({"a"}), frozenset({"a"}))

        def schema(self, *inputs):
            return inputs[0]

        def bind(self, bound):
            def kernel(block, env):
                assert isinstance(block.columns["a"], pa.Array)
                lists = [[2 * i for i in ids] for ids in block.columns["a"].to_pylist()]
                return block.with_columns({"a": pa.array(lists, pa.large_list(pa.int64()))})

            return kernel

    batches = run(toy().dedup(GROUP).apply(Double()).batch(8))
    assert batches[0]["a"].expand()["a"].to_list() == [
        [2 * i for i in ids] for ids in toy().batch(8).loader().__iter__().__next__()["a"].to_list()
    ]
    assert grouped_names(batches[0]) == {"a", "b"}
