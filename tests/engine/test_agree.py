"""Ranks end an epoch at the same step: in threads that talk through a folder, and processes with torch.distributed."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.engine.agree import BLOCK, Agreement, board
from tests.how_much import LONG
from tests.toy_crew import each_apart
from tests.toy_pipelines import Source
from tests.toy_runs import run


def at_once(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank's work gives, all of them at once."""
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, range(world)))


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    pytest.importorskip("distributed")
    with cedar.Service(workers=1) as made:
        yield made.address


@pytest.fixture(params=["folder", "service", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where ranks can talk."""
    if request.param == "folder":
        return str(tmp_path)
    if request.param == "store":
        return pytest.importorskip("torch.distributed").HashStore()
    return request.getfixturevalue("service")


def talk(place: Any, counts: list[int], pads: bool, run: str = "toy/1") -> list[list[int | None]]:
    def rank(number: int) -> list[int | None]:
        there = board(place, run, number, len(counts))
        agreement = Agreement(there, len(counts), pads, 30, None)
        units: Iterator[int | None] = iter(range(counts[number]))
        return list(agreement.through(units, lambda: None))

    return at_once(len(counts), rank)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(6))
def test_all_ranks_take_as_many_steps(seed: int, place: Any) -> None:
    draw = random.Random(seed)
    counts = [draw.randint(0, 3 * BLOCK) for _ in range(draw.randint(2, 4))]
    for pads in (False, True):
        end = max(counts) if pads else min(counts)
        expected = [[i if i < count else None for i in range(end)] for count in counts]
        assert talk(place, counts, pads) == expected  # under one name: words of the run before do not count


def test_units_that_are_no_steps_are_delivered_after_the_last_step_too(place: Any) -> None:
    own = [[-1, 0, 1, -2, 2, -3, -4], [0, 1, 2, -5, 3, -6], []]

    def rank(number: int) -> tuple[list[int], int]:
        agreement = Agreement(board(place, f"skipped/{ranks}", number, ranks), ranks, False, 30, None)
        got = list(agreement.through(iter(own[number]), lambda: 0, lambda unit: unit >= 0))
        return got, agreement.undelivered

    ranks = 2
    assert at_once(ranks, rank) == [(own[0], 0), ([0, 1, 2, -5], 1)]
    ranks = 3
    assert at_once(ranks, rank) == [([-1], 3), ([], 4), ([], 0)]


def test_words_of_a_job_that_was_killed_do_not_count(place: Any) -> None:
    def ended(number: int) -> list[int]:
        there = board(place, "killed/1", number, 2)
        units = Agreement(there, 2, False, 30, None).through(iter(range(3)), lambda: -1)
        return list(itertools.islice(units, 2))  # and nothing is left to say so

    assert at_once(2, ended) == [[0, 1]] * 2
    assert talk(place, [6, 9], False, "killed/1") == [[0, 1, 2, 3, 4, 5]] * 2


def test_a_board_leaves_nothing_behind_once_all_have_met_again(place: Any) -> None:
    if isinstance(place, str) and not Path(place).is_dir():
        pytest.skip("the service forgets by itself")

    def words() -> int:
        kept = isinstance(place, str)
        return sum(path.is_file() for path in Path(place).rglob("*")) if kept else place.num_keys()

    left = []
    for number in range(6):
        talk(place, [9, 14], False, f"again/{number}")
        left.append(words())
    assert max(left) < 16, left


def test_another_loader_of_the_pipeline_takes_no_word_from_one_that_goes_on(place: Any) -> None:
    def rank(number: int) -> list[int]:
        outer = Agreement(board(place, "nested/1", number, 2), 2, False, 30, None)
        got = []
        for unit in outer.through(iter(range(3 * BLOCK)), lambda: -1):
            got.append(unit)
            if unit == BLOCK + 1:
                for run in range(2, 5):
                    inner = Agreement(board(place, f"nested/{run}", number, 2), 2, False, 30, None)
                    assert len(list(inner.through(iter(range(6 - number)), lambda: -1))) == 5
        return got

    assert at_once(2, rank) == [list(range(3 * BLOCK))] * 2


@pytest.mark.parametrize("met", [True, False])
def test_who_waits_for_others_waits_no_more_once_the_loader_is_closed(met: bool, place: Any) -> None:
    agreement = Agreement(board(place, "closed/1", 0, 2), 2, False, 600, None)
    other = Agreement(board(place, "closed/1", 1, 2), 2, False, 600, None)
    with ThreadPoolExecutor(1) as pool, pytest.raises(cedar.WorkerError, match="the loader was closed"):
        if met:
            came = pool.submit(next, other.through(iter(range(100)), lambda: 0))
        threading.Timer(1.0, agreement.stop).start()
        for unit in agreement.through(iter(range(100)), lambda: 0):
            assert met
            assert unit < 3 * BLOCK
            if not unit:
                came.result()


def test_a_rank_that_is_gone_is_named_by_all_others(place: Any) -> None:
    def rank(number: int) -> str:
        there = board(place, "gone/1", number, 3)
        units = iter(Agreement(there, 3, False, 1.0, None).through(iter(range(100)), lambda: 0))
        if number == 1:
            next(units)
            return "gone"
        with pytest.raises(cedar.WorkerError) as caught:
            for _ in units:
                pass
        return str(caught.value)

    told = at_once(3, rank)
    assert told[1] == "gone"
    assert all("rank(s) 1 did not reach step" in each and "timeout=" in each for each in (told[0], told[2]))


def test_a_rank_that_never_came_is_named_alone(place: Any) -> None:
    def rank(number: int) -> str:
        there = board(place, "never/1", number, 3)
        with pytest.raises(cedar.WorkerError) as caught:
            next(Agreement(there, 3, False, (0.5, 0.7)[number // 2], None).through(iter(range(100)), lambda: 0))
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        first, last = pool.map(rank, (0, 2))
    assert "rank(s) 1 did not reach step 0" in first
    assert "a different rank or a world other than 3" in first
    assert "rank(s) 0, 1 did not reach" in last or "rank(s) 1 did not reach" in last


# ---- loaders ---------------------------------------------------------------------------------------------------------


def odd(last: Any = "drop", splits: int = 13, size: int = 4) -> cedar.Pipeline:
    """Lanes of other lengths: of splits of 24 rows some keep many."""
    source = cedar.from_source(Source(0, [24] * splits, True)).select("id", "x")
    return source.filter(lambda i: (i // 1000) % 3 != 1 or i % 5 == 0, "id").shuffle(seed=1).batch(size, last=last)


def kept(pipeline: cedar.Pipeline) -> set[int]:
    return {i for batch in run(pipeline.loader(executor="inline"))[0] for i in batch["id"]}


@pytest.mark.heavy
@pytest.mark.parametrize("last", ["drop", "pad"])
def test_ranks_share_and_end_together(last: Any, place: Any) -> None:
    p = odd(last)
    loaders = [p.loader(rank=rank, world=3, agree=place, executor="inline", timeout=60) for rank in range(3)]
    seen: Counter[int] = Counter()
    for _ in range(4):
        parts = at_once(3, lambda rank: run(loaders[rank])[0])
        assert len({len(part) for part in parts}) == 1
        batches = [batch for part in parts for batch in part]
        assert all(len(batch["id"]) == 4 for batch in batches)
        here = Counter(i for b in batches for i, v in zip(b["id"], b.get("valid", [True] * 4), strict=True) if v)
        if last == "pad":
            assert here == Counter(kept(p))
        seen += here
    assert max(seen.values()) <= 4
    notes = [note for loader in loaders for note in loader.report().notes]
    assert any("opened the next" in note for note in notes) == (last == "drop")
    assert any("they open the next" in note for note in notes) == (last == "drop")
    everything = 4 * 13 * 24
    assert all(loader.report().rows_read < 0.75 * everything for loader in loaders)


@pytest.mark.heavy
def test_what_was_left_over_opens_the_next_epoch(place: Any) -> None:
    """Two epochs deliver, in order, what each rank would have delivered of them alone."""
    p = odd()
    whole = odd("keep")
    loaders = [p.loader(rank=rank, world=3, agree=place, executor="inline", timeout=60) for rank in range(3)]
    epochs = [at_once(3, lambda rank: run(loaders[rank])[0]) for _ in range(3)]
    for rank in range(3):
        lanes = [run(whole.loader(rank=rank, world=3, epoch=epoch, executor="inline"))[0] for epoch in range(3)]
        expected = [batch for lane in lanes for batch in lane if len(batch["id"]) == 4]
        got = [batch for parts in epochs for batch in parts[rank]]
        assert got == expected[: len(got)]


@pytest.mark.heavy
@pytest.mark.parametrize("after", [3, 2, 4])
def test_states_with_something_left_over_resume(after: int, tmp_path: Path) -> None:
    p = odd(size=1)
    loaders = [p.loader(rank=rank, world=3, agree=tmp_path / "a", executor="inline", timeout=60) for rank in range(3)]
    epochs = [at_once(3, lambda rank: run(loaders[rank])[0]) for _ in range(1)]
    heads = at_once(3, lambda rank: run(loaders[rank], 5))
    got = Counter(i for part in epochs[0] for batch in part for i in batch["id"])
    got += Counter(i for part, _ in heads for batch in part for i in batch["id"])
    states = [state for _, state in heads]
    again = [
        p.loader(rank=rank, world=after, agree=tmp_path / "b", executor="inline", timeout=60) for rank in range(after)
    ]
    for rank, loader in enumerate(again):
        loader.load_state_dict(states[rank] if after == 3 else states)
    for _ in range(2):
        parts = at_once(after, lambda rank: run(again[rank])[0])
        assert len({len(part) for part in parts}) == 1
        got += Counter(i for part in parts for batch in part for i in batch["id"])
    assert set(got) == kept(p)
    assert max(got.values()) <= 3


@pytest.mark.heavy
def test_a_break_begins_the_epoch_again_with_what_was_left_over(place: Any) -> None:
    p = odd()
    loaders = [p.loader(rank=rank, world=2, agree=place, executor="inline", timeout=60) for rank in range(2)]
    at_once(2, lambda rank: run(loaders[rank])[0])
    for loader in loaders:
        loader.set_epoch(1)  # as with torch's samplers
    heads = at_once(2, lambda rank: run(loaders[rank], 2)[0])
    again = at_once(2, lambda rank: run(loaders[rank])[0])
    assert [part[:2] for part in again] == heads


def test_nothing_is_asked_of_ranks_that_need_not_talk(tmp_path: Path) -> None:
    source = cedar.from_items([{"x": i} for i in range(64)])
    for p, options in (
        (source.batch(4), {"rank": 0, "world": 2}),  # counts are known
        (odd(), {}),  # one rank
    ):
        assert run(p.loader(agree=tmp_path, executor="inline", **options))[0]
    assert not list(tmp_path.iterdir())
    assert run(odd("keep").loader(agree=tmp_path, executor="inline", rank=0, world=2))[0]
    (position,) = tmp_path.iterdir()  # for the states of the other rank
    assert position.name.endswith("at-0")


# ---- processes that talk through torch.distributed, or a service -----------------------------------------------------


def take_part(rank: int, world: int, gone: int, place: str, tell: Any) -> None:
    """A rank in its own process; ``place`` is the port of a store, or a service."""
    dist: Any = None
    if place.isdigit():
        dist = importlib.import_module("torch.distributed")
        store = dist.TCPStore("127.0.0.1", int(place), world, is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        loader = odd().loader(executor="inline", timeout=30)
    else:
        loader = odd().loader(rank=rank, world=world, agree=place, executor="inline", timeout=30)
    try:
        for epoch in range(2):
            for step, _ in enumerate(loader):
                if rank == 1 and gone and epoch and step == 6:
                    os.kill(os.getpid(), gone)
            tell(("epoch", step + 1, loader.report().rows_read))
        if dist is not None:
            dist.barrier()  # the store is in rank 0
    except cedar.WorkerError as error:
        tell(("error", error.what))
        time.sleep(3 if dist is not None else 0)  # others may still ask the store


def processes(world: int, gone: int = 0, service: str = "") -> list[list[Any]]:
    """What each rank tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [(rank, world, gone, service or str(port)) for rank in range(world)]
    told: list[list[Any]] = each_apart(take_part, arguments, lost={1} if gone else ())[0]
    return told


@pytest.mark.heavy
def test_ranks_agree_through_torch_distributed() -> None:
    pytest.importorskip("torch")
    told = processes(2)
    assert [line[1] for line in told[0]] == [line[1] for line in told[1]]
    assert len(told[0]) == 2
    assert all(lines[-1][2] < 2 * 13 * 24 * 0.85 for lines in told)


@pytest.mark.heavy
@pytest.mark.parametrize("gone", [signal.SIGSTOP, *([signal.SIGKILL] if LONG else [])])
def test_a_rank_that_dies_or_stops_ends_all_others_in_time(gone: signal.Signals) -> None:
    pytest.importorskip("torch")
    told = processes(3, gone)
    for rank in (0, 2):
        assert told[rank][0][0] == "epoch"
        assert told[rank][1][0] == "error"
        assert told[rank][1][1].startswith("rank(s) 1 did not reach step")


@pytest.mark.heavy
@pytest.mark.parametrize("gone", [signal.SIGKILL, *([0] if LONG else [])])
def test_processes_agree_through_a_service(gone: int, service: str) -> None:
    told = processes(3, gone, service)
    assert len({lines[0][1] for lines in told}) == 1
    for rank in (0, 2):
        assert told[rank][0][0] == "epoch"
        assert told[rank][1][0] == ("error" if gone else "epoch")
        assert not gone or told[rank][1][1].startswith("rank(s) 1 did not reach step")


@pytest.mark.heavy
def test_an_epoch_without_a_batch_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rows = cedar.from_items([{"x": i} for i in range(10)])
    few, enough = rows.batch(64, last="drop").loader(executor="inline"), rows.batch(4).loader(executor="inline")
    assert list(few) == []
    assert "epoch 0 has no batch for rank 0 of 1" in caplog.text
    caplog.clear()
    assert len(list(enough)) == 3
    state = enough.state_dict()
    enough.load_state_dict(state)
    list(enough)
    assert "no batch" not in caplog.text
    nothing = rows.filter(cedar.col("x") < 0).batch(1)
    assert list(nothing.loader(executor="inline")) == []
    assert "no rows or less than a batch are left" in caplog.text
    with pytest.raises(cedar.PipelineError, match="steps=3: one pass over the data has no batch") as caught:
        list(nothing.loader(steps=3, executor="inline"))
    assert "whether filters leave any rows" in (caught.value.fix or "")


def test_a_batch_of_skipped_rows_is_no_step(tmp_path: Path) -> None:
    def fails(x: Any) -> Any:
        if 160 in x:
            raise ValueError(x)
        return x

    p = cedar.from_items([{"x": i} for i in range(2048)]).batch(16).map(fails, "x", dtype="int64")
    options: dict[str, Any] = {"executor": "inline", "on_error": cedar.Skip(refill=True)}
    loaders = [p.loader(rank=rank, world=2, agree=str(tmp_path), **options) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda loader: [batch["x"].tolist() for batch in loader], loaders)
    assert len(first) == len(second)
    with p.loader(rank=0, world=1, **options) as alone:
        batches = [batch["x"].tolist() for batch in alone]
        assert alone.skipped
    with p.loader(rank=0, world=1, **options) as again:
        next(iter(again))
        assert [again.read(step)["x"].tolist() for step in range(8, 12)] == batches[8:12]


def test_skipped_rows_at_the_end_of_an_agreed_epoch_are_counted(tmp_path: Path) -> None:
    def fails(x: Any) -> Any:
        if x.max() >= 1900:
            raise ValueError(x)
        return x

    p = cedar.from_items([{"x": i} for i in range(2048)]).batch(16).map(fails, "x", dtype="int64")
    options: dict[str, Any] = {"executor": "inline", "on_error": cedar.Skip(refill=True)}
    loaders = [p.loader(rank=rank, world=2, agree=str(tmp_path), **options) for rank in range(2)]
    batches = at_once(2, lambda rank: len(list(loaders[rank])))
    assert batches == [54, 54], "rank 1 has only the failing rows after that"
    assert [sum(loader.skipped.values()) for loader in loaders] == [0, 160]
