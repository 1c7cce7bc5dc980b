"""An epoch continues though its files were mended, taken out or added since the state was saved: compared with the rows
that were there. CEDAR_CASES sets the number of random cases, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import io
import random
import re
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from tests.how_much import SEED, cases
from tests.toy_runs import run, saved

CASES = cases(20)


def write_tar(path: Path, keys: list[int], cut: int | None = None) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for key in keys:
            body = str(key).encode() * 99
            member = tarfile.TarInfo(f"{key}.x")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    path.write_bytes(made.getvalue()[:cut])


def write_parquet(path: Path, ids: list[int], **options: Any) -> None:
    pq.write_table(pa.table({"id": ids}), path, row_group_size=5, **options)


def taken(loaders: list[Any], states: Any, steps: int | None) -> tuple[list[int], list[Any]]:
    """The ids that all ranks give in so many steps, and their states after."""
    ids, after = [], []
    for loader in loaders:
        if states:
            loader.load_state_dict(states)
            loader.set_epoch(0)  # the rest of it, even if that is empty
        batches, state = run(loader, steps)
        ids += [i for batch in batches for i in batch["id"]]
        after.append(state)
    return ids, after


def case(draw: random.Random, folder: Path) -> None:
    files = {number: [100 * number + i for i in range(draw.randint(1, 12))] for number in range(draw.randint(2, 9))}
    for number, ids in files.items():
        write_parquet(folder / f"{number}.parquet", ids)
    filtered, shuffled = draw.random() < 0.4, draw.random() < 0.6

    def loaders(world: int) -> list[Any]:
        p = cedar.read_parquet(f"{folder}/*.parquet")
        p = p.filter(col("id") % 3 != 0) if filtered else p
        p = p.shuffle(seed=3, window=draw_window) if shuffled else p
        p = p.batch(size, last="keep")
        return [p.loader(rank=rank, world=world, executor="inline") for rank in range(world)]

    draw_window, size = draw.choice(["256MiB", 7]), draw.randint(1, 4)
    world = draw.choice([1, 1, 2, 3])
    before, states = taken(loaders(world), None, draw.randint(1, 6))
    if any(state["epoch"] for state in states):
        return
    gone = draw.choice([None, *files])
    if gone is not None and len(files) > 1:
        (folder / f"{gone}.parquet").unlink()
    else:
        gone = None
    added = draw.random() < 0.5
    if added:
        write_parquet(folder / f"{draw.choice(['00', 'x'])}.parquet", [9000, 9001, 9002])
    mended = draw.choice([None, *(number for number in files if number != gone)])
    if mended is not None:  # the same rows in another file
        pq.write_table(
            pa.table({"id": files[mended]}), folder / f"{mended}.parquet", row_group_size=5, compression="gzip"
        )
    expected = {i for number, ids in files.items() if number != gone for i in ids if not (filtered and i % 3 == 0)}
    try:
        rest, _ = taken(loaders(draw.choice([world, world, 2])), states, None)
    except cedar.ResumeError as error:
        if filtered and re.search("is gone|has changed", str(error)):
            return
        raise
    got = [i for i in [*before, *rest] if gone is None or i not in files[gone]]
    assert sorted(got) == sorted(expected)
    assert len(before) + len(rest) == len({*before, *rest})


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(SEED, SEED + CASES))
def test_every_row_that_is_there_comes_once(seed: int, tmp_path: Path) -> None:
    case(random.Random(seed), tmp_path)


class Changing:
    """A random pipeline of one or two sources, whose files change each time that random ranks resume it."""

    def __init__(self, draw: random.Random, folder: Path) -> None:
        self.draw, self.folder = draw, folder
        self.kind, self.sources = draw.choice(["parquet", "jsonl"]), draw.choice([1, 1, 2])
        self.files = {
            (source, number): [10_000 * source + 100 * number + i for i in range(draw.randint(1, 12))]
            for source in range(self.sources)
            for number in range(draw.randint(2, 6))
        }
        self.removed: set[tuple[int, int]] = set()
        self.missing: set[tuple[int, int]] = set()  # files that were removed at least once
        for source in range(self.sources):
            (folder / f"{source}").mkdir()
        for file in self.files:
            self.write(file)
        self.filtered = self.kind == "parquet" or draw.random() < 0.5  # the number of rows is never known
        self.joined, self.mapped = draw.choice(["concat", "mix"]), draw.random() < 0.3
        self.window, self.size = draw.choice([None, None, "256MiB", 7]), draw.randint(1, 4)
        self.repeats, self.deal = draw.choice([1, 1, 1, 2]), draw.choice(["auto", "auto", "global"])
        self.got: Counter[int] = Counter()

    def path(self, file: tuple[Any, Any]) -> Path:
        return self.folder / f"{file[0]}" / f"{file[1]}.{self.kind}"

    def write(self, file: tuple[Any, Any], **options: Any) -> None:
        ids = self.files.get(file, [9000, 9001])
        if self.kind == "parquet":
            write_parquet(self.path(file), ids, **options)
        else:
            self.path(file).write_text("".join(f'{{"id": {i}}}\n' for i in ids))

    def pipeline(self) -> cedar.Pipeline:
        read = cedar.read_parquet if self.kind == "parquet" else cedar.read_jsonl
        parts = [read(f"{self.folder}/{source}/*.{self.kind}") for source in range(self.sources)]
        p = cedar.concat(*parts)
        if self.joined == "mix":
            p = cedar.mix([(part, 0.5) for part in parts], stop="all", seed=1)
        p = p.filter(lambda i: i % 3 != 0, "id") if self.filtered else p
        p = p if self.window is None else p.shuffle(seed=3, window=self.window)
        p = p if self.repeats == 1 else p.repeat(self.repeats)
        p = p.map(lambda i: i, "id", dtype=int) if self.mapped else p
        return p.batch(self.size, last="keep")

    def change(self) -> None:
        """Remove, repair, restore or add a file."""
        kind, here = (
            self.draw.choice(["remove", "remove", "repair", "restore", ""]),
            sorted({*self.files} - self.removed),
        )
        file = self.draw.choice(here)
        if kind == "remove" and sum(each[0] == file[0] for each in here) > 1:
            self.path(file).unlink()
            self.removed.add(file)
            self.missing.add(file)
        elif kind == "repair" and self.kind == "parquet":
            self.write(file, compression="gzip")
        elif kind == "restore":
            for each in self.removed:
                self.write(each)
            self.removed.clear()
        if self.draw.random() < 0.3:
            self.write((0, self.draw.choice(["00", "x"])))

    def deliver(self, world: int, states: Any, last: bool) -> list[Any]:
        """Let the ranks receive equally many batches, or each another number of them. Return their states."""
        after, steps = [], self.draw.choice([None, 1, 2, 3, 5])
        for rank in range(world):
            loader = self.pipeline().loader(rank=rank, world=world, executor="inline", deal=self.deal)
            some = self.draw.choice([0, 0, 1, 2, 3, 5]) if steps is None else steps
            ids, state = taken([loader], states, None if last else some)
            self.got.update(ids)
            after += state
        return after

    def run(self) -> None:
        states, world, phases = None, self.draw.randint(1, 4), self.draw.randint(2, 4)
        for phase in range(phases):
            after = self.deliver(world, states, phase == phases - 1)
            if phase < phases - 1 and any(state["epoch"] for state in after):
                return
            states = after if self.got else None  # before the first row, new files join this epoch
            self.change()
            world = self.draw.choice([world, self.draw.randint(1, 4)])
        self.check()

    def check(self) -> None:
        wanted, optional = Counter[int](), Counter({9000: 4, 9001: 4})
        for file, ids in self.files.items():
            found = Counter([i for i in ids if not (self.filtered and i % 3 == 0)] * self.repeats)
            (optional if file in self.missing else wanted).update(found)
        assert not self.got - wanted - optional, ("repeated", self.got - wanted - optional)
        assert not wanted - self.got, ("lost", wanted - self.got)


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, 5))
def test_rows_come_once_though_files_change_several_times(first: int, tmp_path: Path) -> None:
    for seed in range(first, min(first + 5, SEED + CASES)):
        (folder := tmp_path / f"{seed}").mkdir()
        try:
            Changing(random.Random(seed), folder).run()
        except BaseException as error:
            if not (
                isinstance(error, cedar.ResumeError)
                and re.search("(is gone|is back.*|has changed.*); its rows", error.what)
            ):
                error.add_note(f"CEDAR_SEED={seed}")
                raise


def keys(batches: list[Any]) -> list[str]:
    return [key for batch in batches for key in batch["key"]]


@pytest.mark.parametrize("change", ["mended", "taken out"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_damaged_shard_does_not_end_an_epoch(tmp_path: Path, change: str, at: int, mapped: bool) -> None:
    shards = {number: list(range(10 * number, 10 * number + 5)) for number in range(4)}
    for number, members in shards.items():
        write_tar(tmp_path / f"{number}.tar", members, 2600 if number == at else None)

    def loader() -> Any:
        p = cedar.read_tar(f"{tmp_path}/*.tar")
        p = p.map(len, "x") if mapped else p
        return p.batch(2, last="keep").loader(executor="inline")

    first = loader()
    got = []
    with pytest.raises(cedar.SourceError, match=f"{at}.tar"):
        for batch in first:
            got += batch["key"].tolist()
    state = saved(first)
    write_tar(tmp_path / f"{at}.tar", shards[at])
    if change == "taken out":
        (tmp_path / f"{at}.tar").unlink()
    second = loader()
    second.load_state_dict(state)
    second.set_epoch(0)
    assert any(f"{at}.tar" in note for note in second.report().notes)
    stopped, after = run(second, 1)
    third = loader()
    third.load_state_dict(after)
    third.set_epoch(0)
    got += [*(keys(stopped) if second.epoch == 0 else []), *(keys(run(third)[0]) if third.epoch == 0 else [])]
    assert sorted(map(int, got)) == sorted(
        key for number, members in shards.items() for key in members if number != at or str(key) in got
    )
    assert len(got) == len(set(got))
    if change == "mended":
        assert len(got) == 20
    assert third.epoch == 1
    assert len(keys(run(third)[0])) == (20 if change == "mended" else 15)  # the files as they are
    assert saved(third)["sources"] == saved(loader())["sources"]


@pytest.mark.parametrize("longer", [True, False])
def test_row_groups_with_other_row_counts_are_missing_until_the_next_epoch(tmp_path: Path, longer: bool) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", list(range(10 * number, 10 * number + 10)))

    def loader() -> Any:
        return cedar.read_parquet(f"{tmp_path}/*.parquet").batch(4, last="keep").loader(executor="inline")

    got, states = taken([loader()], None, 3)
    write_parquet(tmp_path / "1.parquet", list(range(110, 130 if longer else 118)))  # [5, 5] rows, then [5, 5, 5, 5]
    more, states = taken([resumed := loader()], states, 1)
    assert any("other row counts" in note and "1.parquet" in note for note in resumed.report().notes)
    got += [*more, *taken([resumed := loader()], states, None)[0]]
    assert got == [*range(12), *range(112, 120 if longer else 115), *range(20, 30)]
    assert sum(resumed.report().skipped.values()) == (0 if longer else 4)  # the first one was before
    assert len([i for batch in resumed for i in batch["id"].tolist()]) == (40 if longer else 28)


@pytest.mark.parametrize("damaged", [False, True], ids=["removed", "damaged"])
def test_the_report_counts_the_missing_rows_after_the_epoch(tmp_path: Path, damaged: bool) -> None:
    for number in range(4):
        write_parquet(tmp_path / f"{number}.parquet", [10 * number + i for i in range(10)])

    def loader() -> Any:
        return cedar.read_parquet(f"{tmp_path}/*.parquet").batch(5).loader(on_error=cedar.Skip(files=True))

    _, state = run(loader(), 1)
    last = tmp_path / "3.parquet"
    if damaged:
        last.write_bytes(last.read_bytes()[:20])
    else:
        last.unlink()
    resumed = loader()
    resumed.load_state_dict(state)
    assert [i for batch in resumed for i in batch["id"]] == list(range(5, 30))
    report = resumed.report()
    assert report.rows == 25
    assert sum(report.skipped.values()) == 10
    assert any("3.parquet" in note for note in report.notes)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_file_that_was_damaged_when_the_epoch_began_is_repaired(tmp_path: Path, bad: int, counted: bool) -> None:
    for number in range(4):
        write_parquet(tmp_path / f"{number}.parquet", [10 * number + i for i in range(10)])
    whole = (tmp_path / f"{bad}.parquet").read_bytes()
    (tmp_path / f"{bad}.parquet").write_bytes(whole[:20])

    def loader() -> Any:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet")
        p = (p if counted else p.filter(lambda i: i >= 0, "id")).batch(5, last="keep")
        return p.loader(executor="inline", on_error=cedar.Skip(files=True))

    got, states = taken([loader()], None, 1)
    (tmp_path / f"{bad}.parquet").write_bytes(whole)
    for steps in (1, None):  # the state of the rest has the repaired file, too
        more, states = taken([resumed := loader()], states, steps)
        got += more
    assert sorted(got) == [i for i in range(40) if i // 10 != bad]
    assert any(f"{bad}.parquet" in note for note in resumed.report().skipped_files)
    assert sorted(i for batch in resumed for i in batch["id"].tolist()) == list(range(40))


@pytest.mark.parametrize("counted", [True, False])
def test_a_rank_that_finished_reads_the_new_files_before_the_others(tmp_path: Path, counted: bool) -> None:
    for number in range(2):
        write_parquet(tmp_path / f"{number}.parquet", [10 * number + i for i in range(5)])

    def ranks(world: int) -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet")
        p = (p if counted else p.filter(lambda i: i >= 0, "id")).batch(2, last="keep")
        return [p.loader(rank=rank, world=world, executor="inline", deal="global") for rank in range(world)]

    got, states = taken(ranks(2), None, 1)
    write_parquet(tmp_path / "2.parquet", [20, 21])
    after = []
    for rank, loader in enumerate(ranks(2)):  # of the last three batches, rank 0 gets two
        loader.load_state_dict(states)
        batches, state = run(loader, None if rank else 1)
        got += [i for batch in batches for i in batch["id"]]
        after.append(state)
    assert [state["epoch"] for state in after] == [0, 1]
    got += taken(ranks(1), after, None)[0]
    assert sorted(got) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("counted", [True, False])
def test_ranks_change_after_one_has_finished_with_the_files_in_the_state(tmp_path: Path, counted: bool) -> None:
    for number in range(2):
        write_parquet(tmp_path / f"{number}.parquet", [10 * number + i for i in range(5)])

    def ranks(folder: str) -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet")
        p = (p if counted else p.filter(lambda i: i >= 0, "id")).batch(2, last="keep")
        agree = str(tmp_path / folder)
        return [p.loader(rank=rank, world=2, executor="inline", deal="global", agree=agree) for rank in range(2)]

    got, states = taken(ranks("a"), None, 1)
    write_parquet(tmp_path / "2.parquet", [20, 21])
    loaders = ranks("b")
    for loader in loaders:
        loader.load_state_dict(states)
    units = [iter(loader) for loader in loaders]
    got += [i for each in units for i in next(each)["id"].tolist()]
    assert next(units[1], None) is None  # of the last three batches, rank 0 gets two
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: loaders[rank].reshard(rank, 2), range(2)))
    got += [i for each in (units[0], loaders[1]) for batch in each for i in batch["id"].tolist()]
    assert sorted(got) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert sorted(i for loader in loaders for batch in loader for i in batch["id"].tolist())[-2:] == [20, 21]


@pytest.mark.parametrize(
    ("restored", "window", "steps"),
    [(False, 5, 4), *((True, 5, steps) for steps in range(1, 7)), *((False, 10, steps) for steps in range(1, 6))],
)
def test_an_epoch_goes_on_twice_without_a_removed_file_whose_rows_are_not_counted(
    tmp_path: Path, restored: bool, window: int, steps: int
) -> None:
    files = {number: [10 * number + i for i in range(5)] for number in range(4)}
    for number, ids in files.items():
        write_parquet(tmp_path / f"{number}.parquet", ids)

    def loaders() -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(lambda i: i >= 0, "id")
        p = p.shuffle(seed=3, window=window).repeat(2).batch(5, last="keep")
        return [p.loader(executor="inline")]

    first, states = taken(loaders(), None, 2 if window == 5 else 3)
    gone = first[0] // 10  # its rows have all come in the first pass
    (tmp_path / f"{gone}.parquet").unlink()
    second, states = taken(loaders(), states, steps)
    if restored:
        write_parquet(tmp_path / f"{gone}.parquet", files[gone])
    rest, _ = taken(loaders(), states, None)
    others = [i for number, ids in files.items() for i in ids if number != gone]
    missed = not restored or steps > 4  # the second pass was beyond its window
    assert sorted(first + second + rest) == sorted([*files[gone] * (1 if missed else 2), *others, *others])


@pytest.mark.parametrize("steps", range(1, 8))
def test_an_epoch_in_order_goes_on_twice_without_a_file_removed_in_its_middle(tmp_path: Path, steps: int) -> None:
    files = {number: [10 * number + i for i in range(5)] for number in range(4)}
    for number, ids in files.items():
        write_parquet(tmp_path / f"{number}.parquet", ids)

    def loaders() -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(lambda i: i >= 0, "id")
        return [p.batch(2, last="keep").loader(executor="inline")]

    first, states = taken(loaders(), None, steps)
    (tmp_path / "1.parquet").unlink()
    second, states = taken(loaders(), states, 2)
    rest, _ = taken(loaders(), states, None)
    others = [i for number, ids in files.items() for i in ids if number != 1]
    assert first + second + rest == sorted({*first, *others})


@pytest.mark.parametrize("worlds", [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("apart", [False, True], ids=["equal steps", "one rank ahead"])
def test_a_removed_file_is_refused_if_ranks_take_turns_at_its_rows(
    tmp_path: Path, worlds: tuple[int, int], apart: bool
) -> None:
    files = {number: [10 * number + i for i in range(3)] for number in range(6)}
    for number, ids in files.items():
        write_parquet(tmp_path / f"{number}.parquet", ids)

    def loaders(world: int) -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(lambda i: i >= 0, "id").batch(2, last="keep")
        return [p.loader(rank=rank, world=world, executor="inline", deal="global") for rank in range(world)]

    states, got = [], []
    for rank, loader in enumerate(loaders(worlds[0])):
        batches, state = run(loader, 0 if rank and apart else 2)
        got += [i for batch in batches for i in batch["id"]]
        states.append(state)
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(cedar.ResumeError, match=r"1.parquet is gone; its rows may have been delivered"):
        for loader in loaders(worlds[1]):
            loader.load_state_dict(states)
    (tmp_path / "1.parquet").write_bytes(whole)
    got += taken(loaders(worlds[1]), states, None)[0]
    assert sorted(got) == sorted(i for ids in files.values() for i in ids)


@pytest.mark.parametrize("change", ["added", "removed"])
@pytest.mark.parametrize("deal", ["auto", "global"])
def test_a_rank_without_a_batch_reads_the_files_that_other_ranks_began_with(
    tmp_path: Path, change: str, deal: str
) -> None:
    files = {number: [10 * number + i for i in range(4)] for number in range(5)}
    for number, ids in files.items():
        write_parquet(tmp_path / f"{number}.parquet", ids)

    def loaders() -> list[Any]:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(lambda i: i >= 0, "id").batch(2, last="keep")
        return [p.loader(rank=rank, world=2, executor="inline", deal=deal) for rank in range(2)]

    first, second = loaders()
    batches, ahead = run(first, 1)
    states = [ahead, saved(second)]
    if change == "removed":
        (tmp_path / "4.parquet").unlink()
    else:
        write_parquet(tmp_path / "00.parquet", [90, 91, 92, 93])
    got = [i for batch in batches for i in batch["id"]]
    if change == "removed" and deal == "global":
        with pytest.raises(cedar.ResumeError, match=r"4.parquet is gone"):
            loaders()[1].load_state_dict(states)
        return
    for steps in (1, None):
        more, states = taken(loaders(), states, steps)
        got += more
    assert sorted(got) == [i for ids in files.values() for i in ids if change == "added" or i < 40]


@pytest.mark.parametrize("steps", range(1, 4))
def test_a_removed_file_is_refused_if_ranks_share_its_rows_by_key(tmp_path: Path, steps: int) -> None:
    files = {number: [100 * number + i for i in range(8)] for number in range(2)}
    for number, ids in files.items():
        write_parquet(tmp_path / f"{number}.parquet", ids)

    def loaders() -> list[Any]:  # fewer splits than ranks, so that every rank reads all of them
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(lambda i: i >= 0, "id").repeat(2)
        return [p.batch(1, last="keep").loader(rank=rank, world=5, executor="inline") for rank in range(5)]

    got, states = taken(loaders(), None, steps)
    whole = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(cedar.ResumeError, match=r"0.parquet is gone; its rows may have been delivered"):
        for loader in loaders():
            loader.load_state_dict(states)
    (tmp_path / "0.parquet").write_bytes(whole)
    got += taken(loaders(), states, None)[0]
    assert sorted(got) == sorted([*files[0], *files[1]] * 2)
