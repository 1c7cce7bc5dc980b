"""Rows behind filters, counted from the filters' columns before an epoch: ``loader(counts="exact")``."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import PipelineError, PlanError, ResumeError, RowError, Skip, col
from cedar.datasets import parquet
from cedar.datasets.manifest import CountKey, load_counts, save_counts
from cedar.engine.delivery.state import seal
from cedar.operators.map import FilterFunction
from cedar.plan.data import Plan
from cedar.plan.graph import Node
from cedar.store import folder
from cedar.store.keep import user_place
from cedar.store.place import INSIDE, name_of
from tests.how_much import cases

_ROWS, _GROUP = 60, 7
Reads = list[tuple[str, int, int]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for number in range(4):
        write(folder / f"day={number}" / "part.parquet", number)
    return folder


def write(path: Path, number: int, rows: int = _ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(number)
    ids = np.arange(number * 1000, number * 1000 + rows)
    x = [None if value == 9 else value for value in draw.integers(0, 10, rows).tolist()]
    text = [f"{i} " + "a long text " * 20 for i in ids]
    table = pa.table({"text": text, "id": ids, "x": pa.array(x, pa.int64()), "s": [str(v) for v in x]})
    pq.write_table(table, path, row_group_size=_GROUP)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Every column of a row group that is read: file, row group, leaf."""
    found: Reads = []
    plain = parquet._read_group

    def read(file: Any, footer: Any, part: int, leaves: list[int], *options: Any) -> Any:
        found.extend((file.path, part, leaf) for leaf in leaves)
        return plain(file, footer, part, leaves, *options)

    monkeypatch.setattr(parquet, "_read_group", read)
    return found


def few(data: Path) -> cedar.Pipeline:
    return cedar.read_parquet(str(data)).filter(col("x") < 3)


def exact(pipeline: cedar.Pipeline, rank: int = 0, world: int = 1, **options: Any) -> cedar.Loader:
    options = {"executor": "inline", "plan": "off"} | options
    return pipeline.loader(rank=rank, world=world, counts="exact", **options)


def ids(loader: cedar.Loader) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


# ---- what is delivered ----------------------------------------------------------------------------------------------

Row = dict[str, Any]
FILTERS: dict[str, tuple[Callable[[cedar.Pipeline], cedar.Pipeline], Callable[[Row], bool]]] = {
    "some": (lambda p: p.filter(col("x") < 3), lambda r: r["x"] is not None and r["x"] < 3),
    "a function": (lambda p: p.filter(even, "x"), lambda r: even(r["x"])),
    "two columns": (
        lambda p: p.filter((col("x") + col("id")) % 3 == 0),
        lambda r: r["x"] is not None and (r["x"] + r["id"]) % 3 == 0,
    ),
    "a folder": (lambda p: p.filter(col("day") > 1), lambda r: r["day"] > 1),
    "a folder or more": (
        lambda p: p.filter((col("day") == 1) | (col("x") == 4)),
        lambda r: r["day"] == 1 or r["x"] == 4,
    ),
    "none": (lambda p: p.filter(col("id") > 10**6), lambda r: False),
    "by statistics": (lambda p: p.filter(col("id") > 1040), lambda r: r["id"] > 1040),
    "all": (lambda p: p.filter(col("id") >= 0), lambda r: True),
}


def even(x: int | None) -> bool:
    return x is not None and x % 2 == 0


@pytest.mark.heavy
@settings(max_examples=cases(6), deadline=None)
@given(
    st.lists(st.sampled_from(sorted(FILTERS)), min_size=1, max_size=3),
    st.sampled_from(["plain", "shuffle", "window", "map", "take"]),
    st.sampled_from(["keep", "drop", "pad"]),
    st.integers(1, 9),
    st.integers(2, 5),
    st.integers(0, 1 << 16),
)
def test_batches_are_those_of_plain_python_at_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], above: str, last: Any, size: int, world: int, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "property"
    if not folder.exists():
        for number in range(3):
            write(folder / f"day={number}" / "part.parquet", number, rows=20 + 11 * number)
    draw = random.Random(seed)
    rows = cedar.read_parquet(str(folder))
    expected = rows.to_arrow().to_pylist()
    p = rows
    for name in names:
        p = FILTERS[name][0](p)
        expected = [row for row in expected if FILTERS[name][1](row)]
    p = p.select("id")
    if above == "shuffle":
        p = p.shuffle(seed=seed)
    elif above == "window":
        p = p.shuffle(seed=seed, window=draw.choice([3, 10, 40]))
    elif above == "map":
        p = p.map(lambda value: value, "id")
    elif above == "take":
        p = p.take(7)
        expected = expected[:7]
    p = p.batch(size, last=last)
    plan = draw.choice(["off", "auto"])

    def taken(loader: cedar.Loader) -> list[list[int]]:
        return [[i for i, v in zip(b["id"].tolist(), b.get("valid", [True] * size), strict=False) if v] for b in loader]

    one = taken(exact(p, plan=plan))
    assert one == taken(p.loader(rank=0, world=1, executor="inline", plan="off"))
    whole = len(expected) // size * size if last == "drop" else len(expected)
    assert len(list(itertools.chain(*one))) == whole
    if above != "shuffle" and above != "window":
        assert list(itertools.chain(*one)) == [row["id"] for row in expected][:whole]
    loaders = [exact(p, rank, world, plan=plan) for rank in range(world)]
    lengths = [len(loader) for loader in loaders]
    ranks = [taken(loader) for loader in loaders]
    assert [len(batches) for batches in ranks] == lengths
    assigned = [batch for batches in ranks for batch in batches if batch]
    assert sorted(assigned) == sorted(one) if last != "drop" else all(batch in one for batch in assigned)
    # Stop at any steps, and continue at another number of ranks.
    states, seen = [], []
    for rank in range(world):
        loader = exact(p, rank, world, plan="off")
        seen += [batch["id"].tolist() for batch in itertools.islice(loader, draw.randint(0, 3))]
        states.append(json.loads(json.dumps(loader.state_dict())))
    if last == "keep":
        again = draw.randint(1, 4)
        for rank in range(again):
            loader = exact(p, rank, again, plan=plan)
            loader.load_state_dict(states if again != world else states[rank])
            loader.set_epoch(min(state["epoch"] for state in states))  # the rest of it, be it nothing
            seen += [batch["id"].tolist() for batch in loader]
        assert sorted(seen) == sorted(one)


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_other_executors_and_sources_that_join(data: Path, executor: str) -> None:
    left, right = (
        few(data).select("id"),
        cedar.read_parquet(f"{data}/day=1").filter(lambda s: s == "4", "s").select("id"),
    )
    p = cedar.concat(left, cedar.mix([(right, 1.0), (few(data).select("id"), 1.0)], stop="all")).shuffle(seed=2)
    p = p.batch(5, last="keep")
    one = ids(p.loader(rank=0, world=1, executor="inline", plan="off"))
    loaders = [exact(p, rank, 3, executor=executor, workers=2, plan="auto") for rank in range(3)]
    assert sum(map(len, loaders)) == len(one)
    assert sorted(batch for loader in loaders for batch in ids(loader)) == sorted(one)


def moved(p: cedar.Pipeline, above: str) -> Plan:
    """A plan in which the filter comes after another operator."""
    chain = []
    node = p.node
    while node.inputs:
        chain.append(node)
        node = node.inputs[0]
    (lowest, *rest) = chain[::-1]
    place = next(i for i, each in enumerate(rest) if each.operator.name == above)
    for each in (*rest[: place + 1], lowest, *rest[place + 1 :]):
        node = Node(each.operator, (node,), each.site, each)
    return Plan(p.node, node)


@pytest.mark.heavy
@pytest.mark.parametrize("filtered", [lambda p: p.filter(even, "x"), lambda p: p.filter(col("x") < 5)])
def test_a_plan_that_moves_the_filter_delivers_the_same(data: Path, filtered: Any) -> None:
    p = filtered(cedar.read_parquet(str(data))).map(lambda text: text.upper(), "text").select("id", "text", "x")
    p = p.shuffle(seed=1, window=20).batch(4, last="keep").select("id")
    one = ids(exact(p))
    whole = [exact(p, rank, 2, plan=moved(p, "map")) for rank in range(2)]
    assert sorted(batch for loader in whole for batch in ids(loader)) == sorted(one)
    for above in ("shuffle", "batch"):
        with pytest.raises(PlanError):
            exact(p)._epochs.job.binding.lowered(moved(p, above).root)
        assert ids(exact(p, plan=moved(p, above))) == one  # as written


# ---- what is read ---------------------------------------------------------------------------------------------------


def test_counting_reads_the_columns_of_filters_alone_and_once(data: Path, reads: Reads) -> None:
    p = few(data).filter(lambda s: s != "1", "s").select("text").batch(4, last="keep")
    loader = exact(p)
    assert reads == []  # nothing before it is asked for
    assert len(loader) > 0
    counted = list(reads)
    groups = {(file, part) for file, part, _ in counted}
    assert sorted(counted) == sorted((*group, leaf) for group in groups for leaf in (2, 3))  # x and s, each once
    assert 9 < len(groups) < 36  # where statistics say that nothing is left, not even these
    list(loader)
    epoch = reads[len(counted) :]
    assert len([read for read in epoch if read[2] == 0]) == 36  # "off" reads all columns of all row groups, once
    reads.clear()
    assert len(exact(p, 1, 2)) > 0
    assert reads == []


def test_row_groups_that_statistics_leave_out_are_not_read(data: Path, reads: Reads) -> None:
    p = cedar.read_parquet(str(data)).filter(col("id") >= 3050).batch(4, last="keep")
    assert len(exact(p)) == 3
    assert {(Path(file).parent.name, part) for file, part, _ in reads} == {("day=3", 7), ("day=3", 8)}


def test_counts_are_kept_and_those_of_changed_files_are_not_used(data: Path, reads: Reads) -> None:
    p = few(data).batch(4, last="keep")
    first = len(exact(p))
    reads.clear()
    assert len(exact(few(data).batch(4, last="keep"))) == first
    assert reads == []
    loader = exact(p)
    assert len(loader) == first
    assert "stored by an earlier run" in loader.explain().split("\n")[0]
    write(data / "day=1" / "part.parquet", 17)
    changed = few(data).batch(4, last="keep")
    assert len(exact(changed)) == len(ids(changed.loader(rank=0, world=1, executor="inline", plan="off")))
    counted = {file for file, _, leaf in reads if leaf != 0}
    assert any("day=1" in file for file in counted)
    reads.clear()
    assert len(exact(cedar.read_parquet(str(data)).filter(col("x") < 4).batch(4, last="keep"))) > first
    assert len({file for file, _, _ in reads}) == 4  # another filter


def test_only_files_that_changed_are_counted_again(data: Path, reads: Reads) -> None:
    p = few(data).batch(4, last="keep")
    len(exact(p))
    write(data / "day=1" / "part.parquet", 17)
    write(data / "day=9" / "part.parquet", 5)
    reads.clear()
    loader = exact(few(data).batch(4, last="keep"))
    assert len(loader) > 0
    assert {Path(file).parent.name for file, _, _ in reads} == {"day=1", "day=9"}
    assert "in 2 of 5 files" in loader.explain().split("\n")[0]


def test_ranks_at_once_count_once(data: Path, reads: Reads) -> None:
    p = few(data).batch(4, last="keep")
    with ThreadPoolExecutor(4) as ranks:
        lengths = list(ranks.map(lambda rank: len(exact(p, rank, 4)), range(4)))
    counted = list(reads)
    assert sum(lengths) == len(ids(p.loader(rank=0, world=1, executor="inline", plan="off")))
    assert len(set(counted)) == len(counted) > 0


def test_counts_are_kept_beside_a_manifest(data: Path, tmp_path: Path, reads: Reads) -> None:
    manifest = str(tmp_path / "day.manifest")
    p = cedar.read_parquet(str(data), manifest=manifest).filter(col("x") < 3).batch(4, last="keep")
    first = len(exact(p))
    assert (tmp_path / "day.manifest.counts" / INSIDE).is_dir()
    assert not (tmp_path / "cache").exists()
    reads.clear()
    again = cedar.read_parquet(str(data), manifest=manifest).filter(col("x") < 3).batch(4, last="keep")
    assert len(exact(again)) == first
    assert reads == []


def kept_files(tmp_path: Path) -> list[Path]:
    group = name_of("counts", "").partition("-")[0]
    return list((tmp_path / "cache" / "cedar" / INSIDE).glob(f"{group}-*.arrow"))


def kept(tmp_path: Path) -> tuple[Path, CountKey]:
    (found,) = kept_files(tmp_path)
    place = user_place()
    assert place is not None
    return found, CountKey(place, found.stem)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-1],
        lambda whole: b"x" + whole[1:],
        lambda whole: whole[:50] + bytes([whole[50] ^ 1]) + whole[51:],
    ],
)
def test_damaged_counts_are_made_anew(
    data: Path, tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    p = few(data).batch(4, last="keep")
    first = len(exact(p))
    path, _ = kept(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert len(exact(p)) == first
    assert "will be recomputed" in caplog.text
    assert path.read_bytes() == whole


@pytest.mark.heavy
@pytest.mark.parametrize("wrong", [[], [-1] * 9, [100] * 9, [None] * 9, [0] * 8])
def test_kept_counts_that_cannot_be_are_not_used(data: Path, tmp_path: Path, wrong: list[Any]) -> None:
    p = few(data).batch(4, last="keep")
    first = len(exact(p))
    _, key = kept(tmp_path)
    counts = load_counts(key)
    changed: dict[str, Any] = counts | {next(iter(counts)): wrong}
    save_counts(key, changed)
    assert len(exact(p)) == first


def test_kept_counts_that_are_wrong_end_the_run_by_name(data: Path, tmp_path: Path) -> None:
    p = few(data).batch(4, last="keep")
    len(exact(p))
    _, key = kept(tmp_path)
    save_counts(key, {mark: (left[0] + 1, *left[1:]) for mark, left in load_counts(key).items()})
    with pytest.raises(PipelineError, match=r"leaves \d+ rows of .*part.parquet, rows 0 to 7; it left") as caught:
        ids(exact(p))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_a_place_that_cannot_be_written_is_said(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(folder, "tail", full)
    assert len(exact(few(data).batch(4))) > 0
    assert "no space left" in caplog.text


def test_the_counts_that_were_not_used_the_longest_make_room(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(part: int) -> set[str]:
        len(exact(cedar.read_parquet(str(data / f"day={part}")).filter(col("x") < 3).batch(4)))
        return {path.name for path in kept_files(tmp_path)}

    (first,) = count(0)
    inside = tmp_path / "cache" / "cedar" / INSIDE
    os.utime(inside / first, (1, 1))
    (second,) = count(1) - {first}
    os.utime(inside / second, (2, 2))
    assert count(0) == {first, second}  # used again, which it remembers
    place = user_place()
    assert place is not None
    monkeypatch.setattr(place, "_limit", 2 << 20)  # each counts for a megabyte
    left = count(2)
    assert second not in left
    assert first in left
    assert len(left) == 2


def test_what_others_wrote_beside_a_manifest_stays(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "day.manifest.counts"
    mine.write_text("of mine")
    p = cedar.read_parquet(str(data), manifest=str(tmp_path / "day.manifest")).filter(col("x") < 3)
    assert len(exact(p.batch(4))) > 0
    assert mine.read_text() == "of mine"
    assert "entries cannot be saved in" in caplog.text


# ---- what is refused ------------------------------------------------------------------------------------------------


class Odd:
    """Holds state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


REFUSED: dict[str, tuple[Callable[[cedar.Pipeline], cedar.Pipeline], str]] = {
    "random": (
        lambda p: p.apply(FilterFunction(lambda x, rng: rng.random() < 0.5, ("x",), random=True)),
        "draws at random",
    ),
    "row": (lambda p: p.filter(lambda row: row["x"] == 1), "reads the whole row"),
    "class": (lambda p: p.filter(Odd, "x"), "an object, whose state"),
    "object": (lambda p: p.filter(Odd(), "x"), "an object, whose state"),
    "map below": (lambda p: p.map(lambda x: x, "x").filter(col("x") == 1), "comes after map"),
    "shuffle below": (lambda p: p.shuffle(seed=1).filter(col("x") == 1), "comes after shuffle"),
    "flat_map": (lambda p: p.flat_map(lambda x: [x], "x"), "only after a run"),
    "pack": (lambda p: p.map(lambda x: [1], "x", into="l").select("l").pack(4, "l"), "only after a run"),
    "batches": (lambda p: p.batch(2).filter(lambda x: True, "x"), "comes after batch"),
    "refill": (lambda p: p.filter(col("x") == 1, on_error=Skip(refill=True)), "refill=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_counted_is_refused_at_its_line(data: Path, name: str) -> None:
    change, why = REFUSED[name]
    p = change(cedar.read_parquet(str(data)))
    with pytest.raises(PipelineError, match=why) as caught:
        exact(p)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert 'counts="exact"' in str(caught.value)


def test_other_sources_and_policies_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot read some columns without the others"):
        exact(cedar.from_items([{"x": 1}]).filter(col("x") == 1))
    (tmp_path / "a.txt").write_text("a\nb\n")
    with pytest.raises(PipelineError, match="metadata do not include"):
        exact(cedar.read_text(str(tmp_path / "a.txt")))
    with pytest.raises(PipelineError, match="refill=True"):
        exact(few(data), on_error=Skip(refill=True))
    with pytest.raises(PipelineError, match="counts='all' is not known"):
        few(data).loader(counts="all")  # type: ignore[arg-type]
    shared = few(data)
    with pytest.raises(PipelineError, match="other operators read"):
        rows = cedar.read_parquet(str(data))
        exact(cedar.concat(rows.filter(col("x") == 1), rows.filter(col("x") == 2)))
    assert len(exact(cedar.zip(shared.select("id"), shared.select("x")).batch(3))) > 0
    assert len(exact(cedar.from_items([{"x": 1}] * 8).batch(2))) == 4  # nothing to count


def test_a_filter_that_says_another_thing_of_a_row_ends_the_run(data: Path) -> None:
    rng = random.Random(1)
    p = cedar.read_parquet(str(data)).filter(lambda x: rng.random() < 0.5, "x").select("id").batch(4)
    with pytest.raises(PipelineError, match="must decide the same for a row each time"):
        ids(exact(p))


# ---- rows that fail -------------------------------------------------------------------------------------------------


def picky(x: int | None) -> bool:
    return 10 / (x if x is not None else 1) > 2  # fails for 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["function", "expression"])
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_rows_that_fail_in_a_filter(data: Path, kind: str, plan: Any) -> None:
    rows = cedar.read_parquet(str(data))
    p = rows.filter(picky, "x") if kind == "function" else rows.filter(col("s").cast(int) > 3)
    p = p.select("id").batch(4, last="keep")
    loader = exact(p, plan=plan)
    assert loader.units() == -(-slots(kind) // 4)  # counting does not fail
    with pytest.raises(RowError) as caught:
        ids(loader)
    assert "part.parquet" in str(caught.value)
    skipping = [exact(p, rank, 3, plan=plan, on_error=Skip()) for rank in range(3)]
    found = [batch for loader in skipping for batch in ids(loader)]
    assert sorted(found) == sorted(ids(p.loader(rank=0, world=1, executor="inline", plan="off", on_error=Skip())))
    assert any(loader.report().skipped for loader in skipping)


def slots(kind: str) -> int:
    """Rows that pass, and those that fail."""
    total = 0
    for number in range(4):
        draw = np.random.default_rng(number)
        x = draw.integers(0, 10, _ROWS)
        total += int(((x < 5) | (x == 9)).sum()) if kind == "function" else int((x > 3).sum())
    return total


# ---- states and words -----------------------------------------------------------------------------------------------


def test_states_of_the_other_mode_and_of_other_counts_are_refused_by_name(data: Path) -> None:
    p = few(data).batch(4, last="keep")
    loader, other = exact(p), p.loader(rank=0, world=1, executor="inline", plan="off")
    with pytest.raises(ResumeError, match='of a loader with counts="auto", and this one has counts="exact"'):
        loader.load_state_dict(other.state_dict())
    with pytest.raises(ResumeError, match='of a loader with counts="exact", and this one has counts="auto"'):
        other.load_state_dict(loader.state_dict())
    changed = cedar.read_parquet(str(data)).filter(col("x") < 4).batch(4, last="keep")
    with pytest.raises(ResumeError, match="filters keep different rows"):
        exact(changed).load_state_dict(loader.state_dict())
    assert "counts" not in other.state_dict()
    state = {name: value for name, value in loader.state_dict().items() if name != "check"}
    with pytest.raises(ResumeError, match="'counts' has an invalid value"):
        loader.load_state_dict(seal(state | {"counts": 3}))


def test_explain_says_what_was_counted_and_offers_it(data: Path) -> None:
    p = few(data).batch(4)
    assert p.explain().startswith("NOTE   row counts are unknown; known with loader(counts=")
    assert 'loader(counts="exact")' in p.explain()
    loader = exact(p)
    first = len(loader)
    told = loader.explain()
    assert told.startswith("COUNTS the rows after filter([(col(")
    assert "% of the bytes of read_parquet" in told.split("\n")[0]
    assert f"{first} batches in an epoch" in told
    assert "NOTE" not in told
    two = p.loader(rank=0, world=2, executor="inline", plan="off")
    assert 'or loader(counts="exact"), which reads' in two.explain()
    assert 'counts="exact"' not in p.filter(lambda row: True).explain()


# ---- operators between, and other files -----------------------------------------------------------------------------

BETWEEN: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "drop": lambda p: p.drop("text").filter(col("x") < 3),
    "select": lambda p: p.select("id", "x").filter(col("x") < 3),
    "rename": lambda p: p.rename({"s": "t"}).filter(col("x") < 3),
    "with_columns": lambda p: p.with_columns(twice=col("id") + col("id")).filter(col("x") < 3),
    "function": lambda p: p.drop("text").filter(lambda x: x is not None and x < 3, "x"),
    "several": lambda p: p.filter(col("x") < 5).drop("text").filter(lambda i: i % 3 > 0, "id").rename({"x": "y"}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_filters_are_counted_behind_what_leaves_all_rows(data: Path, name: str, plan: str) -> None:
    p = BETWEEN[name](cedar.read_parquet(str(data))).shuffle(seed=2).batch(4, last="keep")
    alone = ids(p.loader(rank=0, world=1, executor="inline", plan="off", deal="global"))
    loaders = [exact(p, rank, 3, plan=plan) for rank in range(3)]
    assert sum(len(loader) for loader in loaders) == len(alone)
    assert sorted(itertools.chain(*(ids(loader) for loader in loaders))) == sorted(alone)
    assert "COUNTS the rows after" in loaders[0].explain()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.rename({"x": "y"}).filter(col("y") < 3), "asks for 'y', which rename.* writes"),
        (lambda p: p.with_columns(x=col("id") * 2).filter(col("x") < 3), "asks for 'x', which with_columns.* writes"),
        (lambda p: p.with_columns(n=col("s").cast(int)).filter(col("x") < 3), "comes after with_columns"),
        (lambda p: p.cache("memory").filter(col("x") < 3), "comes after cache"),
    ],
)
def test_filters_of_what_was_made_or_may_fail_are_refused(data: Path, change: Any, why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        exact(change(cedar.read_parquet(str(data))))


def test_filters_of_arrow_files_are_counted(tmp_path: Path) -> None:
    table = pa.table({"id": range(300), "x": [i * 7 % 10 for i in range(300)], "text": ["long " * 50] * 300})
    for name in ("a", "b"):
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
    p = cedar.read_arrow(str(tmp_path)).filter(col("x") < 3).batch(4, last="keep")
    alone = ids(p.loader(rank=0, world=1, executor="inline", plan="off", deal="global"))
    loaders = [exact(p, rank, 2) for rank in range(2)]
    assert sorted(itertools.chain(*map(ids, loaders))) == sorted(alone)
    assert "their columns alone of read_arrow" in loaders[0].explain()
    assert "their counts were stored by an earlier run" in loaders[1].explain()
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(PipelineError, match="cannot read some columns|metadata do not include"):
        exact(cedar.read_arrow(str(tmp_path / "c.arrow")).filter(col("x") < 3))


def test_filters_of_vortex_files_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("vortex", reason="the extra [vortex] is not installed")
    table = [{"id": i, "x": i * 7 % 10, "text": "long " * 50} for i in range(300)]
    cedar.from_items(table).write(str(tmp_path / "v"), format="vortex", executor="inline")
    p = cedar.read_vortex(str(tmp_path / "v")).filter(col("x") < 3).batch(4, last="keep")
    alone = ids(p.loader(rank=0, world=1, executor="inline", plan="off", deal="global"))
    assert sorted(itertools.chain(*(ids(exact(p, rank, 2)) for rank in range(2)))) == sorted(alone)
