"""balance: the rows of each step are those that the ranks have without it, and they cost the ranks about the same."""

from __future__ import annotations

import random
from collections import Counter
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import PipelineError, ResumeError, RowError, col
from cedar.operators.balance import assign_rows
from tests import toy_pipelines
from tests.how_much import SEED, cases
from tests.toy_runs import rows_of, run

CASES = cases(10)
GROUP = max(5, CASES // 20)

Batches = list[dict[str, Any]]


def texts(n: int, seed: int = 0) -> list[int]:
    """Lengths as texts have them: lognormal."""
    return np.floor(np.exp(np.random.default_rng(seed).normal(5, 1, n))).astype(int).tolist()  # type: ignore[no-any-return]


def numbers(n: int = 640) -> cedar.Pipeline:
    return cedar.from_items([{"i": i, "n": length} for i, length in enumerate(texts(n))])


def of_ranks(p: cedar.Pipeline, world: int, **options: Any) -> list[Batches]:
    return [run(p.loader(rank=rank, world=world, executor="inline", **options))[0] for rank in range(world)]


def ids(batches: Batches) -> list[list[int]]:
    return [batch["i"] for batch in batches]


# ---- where rows go ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "rows"), [(0.5, 8), (1.0, 8), (1.0, 16), (1.5, 8)])
def test_steps_are_close_to_what_no_placement_can_be_below(sigma: float, rows: int) -> None:
    draw, slowest, bounds = np.random.default_rng(0), [], []
    for _ in range(100):
        costs = draw.lognormal(5, sigma, 8 * rows)
        slowest.append(max(costs[slots].sum() for slots in assign_rows(list(costs.reshape(8, rows)))) / costs.sum() * 8)
        ordered = np.sort(costs)  # the largest row has others next to it, at best the smallest
        bounds.append(max(1.0, (ordered[-1] + ordered[: rows - 1].sum()) / costs.sum() * 8))
    assert np.mean(slowest) < np.mean(bounds) + 0.03


def model(costs: list[list[float]]) -> list[list[int]]:
    """Longest first, to the batch that costs least and has room; NaN stays."""
    flat = [(cost, b) for b, batch in enumerate(costs) for cost in batch]
    loads, room = [0.0] * len(costs), [sum(cost == cost for cost in batch) for batch in costs]
    goes = [b for _, b in flat]
    for slot in sorted((s for s, (cost, _) in enumerate(flat) if cost == cost), key=lambda s: -flat[s][0]):
        best = min((b for b in range(len(costs)) if room[b]), key=lambda b: loads[b])
        goes[slot], loads[best], room[best] = best, loads[best] + flat[slot][0], room[best] - 1
    return [[s for s, b in enumerate(goes) if b == batch] for batch in range(len(costs))]


@given(st.lists(st.lists(st.integers(0, 9) | st.just(float("nan")), max_size=6), min_size=1, max_size=5))
def test_rows_go_longest_first_to_the_batch_that_costs_least(costs: list[list[float]]) -> None:
    assert [rows.tolist() for rows in assign_rows([np.array(each, dtype=float) for each in costs])] == model(costs)


def test_eight_ranks_cost_the_same_within_5_percent() -> None:
    p = numbers(16 * 8 * 12).shuffle(seed=3).batch(16)

    def slowest(pipeline: cedar.Pipeline) -> float:
        costs = np.array([[sum(batch["n"]) for batch in batches] for batches in of_ranks(pipeline, 8)])
        return float((costs.max(axis=0) / costs.mean(axis=0)).mean())

    assert slowest(p) > 1.4
    assert slowest(p.balance("n")) < 1.05


@pytest.mark.parametrize(
    "by",
    ["n", col("n") * 3, lambda row: float(row["n"]), "text", "list", "bytes", "array", "images"],
    ids=["column", "expression", "function", "text", "list", "bytes", "array", "images"],
)
def test_what_rows_cost(by: Any) -> None:
    lengths = [9, 1, 7, 2, 3, 8, 1, 2]
    columns: dict[str, list[Any]] = {
        "text": ["é" * n for n in lengths],
        "list": [[0] * n for n in lengths],
        "bytes": [b"x" * n for n in lengths],
        "array": [np.zeros((2, 3)) for _ in lengths],
        "images": [np.zeros((n, 5)) for n in lengths],
    }
    name = by if isinstance(by, str) and by in columns else "text"
    p = cedar.from_items([{"i": i, "n": n, name: columns[name][i]} for i, n in enumerate(lengths)])
    if name == "images":
        p = p.map(lambda image: image, "images", dtype=object)
    costs = [1.0] * 8 if name == "array" else [float(n) for n in lengths]
    expected = model([costs[:2], costs[2:4], costs[4:6], costs[6:]])
    ranks = of_ranks(p.select("i", "n", name).batch(2, last="keep").balance(by).drop(name), 4)
    assert [ids(batches) for batches in ranks] == [[batch] for batch in expected]


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_a_step_keeps_its_rows_in_random_pipelines(first: int) -> None:
    for seed in range(first, min(first + GROUP, SEED + CASES)):
        draw = random.Random(seed)
        toy, world = toy_pipelines.build(draw, balanced=True), draw.randint(2, 4)
        options: dict[str, Any] = {"seed": draw.randint(0, 3), "epoch": draw.randint(0, 2)}
        try:
            check_steps(toy, world, draw, options)
        except Exception as error:
            error.add_note(f"CEDAR_SEED={seed} CEDAR_CASES=1; {toy.names}")
            raise


def check_steps(toy: toy_pipelines.Toy, world: int, draw: random.Random, options: dict[str, Any]) -> None:
    whole = run(toy.pipeline.loader(**options))[0]
    if toy.last == "drop":
        whole = whole[: len(whole) // world * world]
    ranks = of_ranks(toy.pipeline, world, **options)
    padded = toy.last == "pad"
    assert sum(map(len, ranks)) == (-(-len(whole) // world) * world if padded else len(whole))
    for step, batches in enumerate(zip_longest(*ranks)):
        there = [batch for batch in batches if batch is not None]
        wanted = whole[step * world : (step + 1) * world]
        assert rows_of(there, padded) == rows_of(wanted, padded), step
        assert [len(b["x"]) for b in there][: len(wanted)] == [len(b["x"]) for b in wanted]
    for rank in range(world):  # on other executors, under a plan, however often resumed: the same
        got, state = run(toy.pipeline.loader(rank=rank, world=world, plan="off", **options), draw.randint(0, 3))
        for stop in (draw.randint(1, 3), None):
            loader = toy.pipeline.loader(rank=rank, world=world, executor="threads", workers=2, **options)
            loader.load_state_dict(state)
            if state["epoch"] == options["epoch"]:
                loader.set_epoch(options["epoch"])
                more, state = run(loader, stop)
                got += more
        assert got == ranks[rank]


@pytest.mark.heavy
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("last", ["drop", "keep", "pad"])
def test_ranks_change_between_steps(known: bool, last: Any) -> None:
    p = numbers(107).shuffle(seed=2, window=30)
    p = (p if known else p.filter(lambda n: n >= 0, "n")).batch(4, last=last).balance("n")
    got: list[Batches] = []
    states: list[Any] = []
    for world, stop in ((3, 2), (2, 3), (4, 1), (3, None)):
        loaders = [p.loader(rank=rank, world=world, executor="inline") for rank in range(world)]
        for loader in loaders:
            if states:
                loader.load_state_dict(states)
        ran = [run(loader, stop) for loader in loaders]
        got += [batches for batches, _ in ran]
        states = [state for _, state in ran]
    rows = rows_of([batch for batches in got for batch in batches], last == "pad")
    full = rows_of([{"i": [i], "n": [n]} for i, n in enumerate(texts(107))])
    padded = Counter({row.replace("}", ', "valid": true}'): n for row, n in full.items()}) if last == "pad" else full
    assert not rows - padded
    assert (padded - rows).total() < (3 * 4 if last == "drop" else 1)


def test_ranks_that_stopped_at_other_steps_go_on_as_many() -> None:
    p = numbers(64).batch(4).balance("n")
    states = [run(p.loader(rank=rank, world=2), 2 + rank)[1] for rank in range(2)]
    loader = p.loader(rank=0, world=4)
    loader.load_state_dict(states)
    with pytest.raises(ResumeError, match=r"whole steps, but the ranks had taken \[2, 3\] batches"):
        run(loader)
    own = p.loader(rank=1, world=2)
    own.load_state_dict(states[1])
    assert run(own)[0] == run(p.loader(rank=1, world=2))[0][3:]


def test_steps_go_on_in_the_next_epoch() -> None:
    p = numbers(64).shuffle().batch(4).balance("n")
    loaders = [p.loader(rank=rank, world=4, steps=3, executor="inline") for rank in range(4)]
    epochs = [[run(loader)[0] for loader in loaders] for _ in range(4)]
    seen = Counter(i for epoch in epochs for batches in epoch for batch in batches for i in batch["i"])
    assert set(seen.values()) == {3}  # 4 * 3 steps of 16 rows
    with pytest.raises(PipelineError, match="next epoch before others") as caught:
        numbers().batch(4, last="keep").balance("n").loader(steps=3)
    assert caught.value.site is not None


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_batches_are_read_again_and_rows_found(known: bool) -> None:
    p = numbers(96).shuffle(seed=4, window=40)
    p = (p if known else p.filter(lambda n: n >= 0, "n")).batch(4).balance("n")
    ranks = of_ranks(p, 3)
    with p.loader(rank=1, world=3, executor="inline") as loader:
        for rank, step in ((1, 5), (0, 2), (2, 7), (1, 0)):
            assert loader.read(step, rank)["i"].tolist() == ranks[rank][step]["i"]
        for step, i in ((0, 0), (6, 3)):
            row = loader.locate(step, i).row.row
            assert row == ranks[1][step]["i"][i]
            [place] = loader.where("from_items(list of 96)", row)
            assert (place.rank, place.step, place.index) == (1, step, i)


def test_skipped_rows_stay_in_their_batch() -> None:
    def fails(i: int) -> int:
        if i % 5 == 0:
            raise ValueError(i)
        return i

    p = numbers(60).map(fails, "i", dtype=int, on_error=cedar.Skip()).batch(5).balance("n")
    ranks = of_ranks(p, 3)
    assert [[len(batch["i"]) for batch in batches] for batches in ranks] == [[4] * 4] * 3
    loaders = [p.loader(rank=rank, world=3) for rank in range(3)]
    assert sum(len(list(loader)) for loader in loaders) == 12
    assert [loader.report().skipped for loader in loaders] == [{"map(fails)": 4}] * 3


# ---- what ranks do ---------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_what_costs_do_not_need_runs_on_a_ranks_own_rows(tmp_path: Any) -> None:
    pq.write_table(pa.table({"i": range(1600), "n": texts(1600)}), tmp_path / "a.parquet", row_group_size=100)
    called = []

    def decode(i: int) -> int:
        called.append(i)
        return i * 2

    p = cedar.read_parquet(str(tmp_path / "a.parquet")).map(decode, "i", into="twice", dtype=int)
    p = p.with_columns(c=col("twice") + 1).shuffle(seed=1).batch(10).balance("n")
    loaders = [p.loader(rank=rank, world=4, executor="inline") for rank in range(4)]
    got = [run(loader)[0] for loader in loaders]
    sampled = len(called) - 1600
    assert 0 <= sampled <= 4 * 200  # of the first rows, for types and checks
    assert got == of_ranks(p, 4, plan="off")
    text = loaders[0].explain()
    assert text.startswith("RANKS  each of the 4 ranks reads and computes the whole epoch")
    assert "balance('n') moves rows between ranks" in text
    assert "above balance('n') (for a rank's own rows alone)" in text
    assert "who gets which follows" in text


def test_what_costs_need_stays_below() -> None:
    p = numbers(80).map(lambda n: n + 1, "n", dtype=int).batch(5).balance("n")
    text = p.loader(rank=0, world=2).explain()
    assert "may write" in text
    assert "for a rank's own rows alone" not in text


def test_one_rank_gets_what_there_was(caplog: pytest.LogCaptureFixture) -> None:
    p = numbers(80).shuffle(seed=1).batch(5)
    assert run(p.balance("n").loader())[0] == run(p.loader())[0]
    assert p.balance("n").count() == p.count()
    assert not caplog.records


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda p: p.balance("n"), "its input gives rows"),
        (lambda p: p.batch(2).balance("m"), "balance.*'m'"),
        (lambda p: p.batch(2).balance(3), r"balance\(by=3\)"),
        (lambda p: p.batch(2).balance(lambda a, b: a), "argument"),
        (lambda p: p.batch(2).balance("n", over="hosts"), "over='hosts'"),
        (lambda p: p.batch(2).balance(col("n").sum()), r"balance\(by\)"),
        (lambda p: p.batch(2).balance("n").take(3), "take.* above it changes which batches"),
        (lambda p: p.batch(2).balance("n").balance("n"), "above it changes which batches"),
        (lambda p: p.batch(2).balance("n").filter(lambda n: len(n) > 1, "n"), "filter.* above it changes"),
        (lambda p: p.batch(2).map(lambda n: n + n.sum(), "n").balance("n"), "sees whole batches"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_at_the_users_line(build: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says) as caught:
        run(build(numbers(8)).loader())
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_slices_of_one_batch_are_not_moved() -> None:
    with pytest.raises(PipelineError, match="split_batches=True"):
        numbers().batch(4).balance("n").loader(rank=0, world=2, split_batches=True)


@pytest.mark.parametrize(
    ("values", "by", "says"),
    [
        ([1.0, None], "n", "the cost of a row is null"),
        ([1.0, float("nan")], "n", "the cost of a row is nan"),
        ([1, -2], "n", "the cost of a row is -2"),
        (["a", None], "n", "missing or has no length"),
        ([1, 2], lambda row: 1 / (2 - row["n"]), "division by zero"),
        ([1, 2], lambda row: float("inf"), "the cost of a row is inf"),
    ],
)
def test_a_row_without_a_cost_is_named(values: list[Any], by: Any, says: str) -> None:
    p = cedar.from_items([{"n": value} for value in values]).batch(1).balance(by)
    with pytest.raises(RowError, match=says) as caught:
        of_ranks(p, 2)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert caught.value.row is not None


def test_a_function_gives_numbers() -> None:
    with pytest.raises(PipelineError, match="must return a number, but it returned str"):
        of_ranks(numbers(8).batch(2).balance(lambda row: "long"), 2)
