"""A shard is rewritten after a state was saved: rows of other files come once, and its own rows at most once.

CEDAR_CASES sets the number of random cases, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from tests.how_much import SEED, cases
from tests.toy_runs import run

CASES = cases(30)
NEW = 500  # added to the ids of a rewritten file


def write(path: Path, ids: list[int], group: int = 5, pad: int = 0) -> None:
    if path.suffix == ".parquet":
        table = pa.table({"id": ids, "pad": [b"x" * pad] * len(ids)})
        pq.write_table(table, path, row_group_size=group, compression=None, use_dictionary=False)
    else:
        path.write_text("".join(f'{{"id": {i}{" " * pad}}}\n' for i in ids))


CHANGES = ["touched", "same size", "other size", "longer", "shorter", "other groups"]


def change(path: Path, ids: list[int], kind: str) -> None:
    new, size = [i + NEW for i in ids], path.stat().st_size
    if kind == "touched":
        os.utime(path, (9, 9))
    elif kind == "same size":
        write(path, new)
        assert path.stat().st_size == size
    elif kind == "longer":
        write(path, [*new, *range(max(new) + 1, max(new) + 7)])
    elif kind == "shorter":
        write(path, new[:-3])
    else:
        write(path, new, group=5 if kind == "other size" else 4, pad=7)


class Model:
    """A random pipeline over five files of ten rows, and what has been delivered from them."""

    def __init__(self, draw: random.Random, folder: Path) -> None:
        self.folder, self.kind = folder, draw.choice(["parquet", "jsonl"])
        self.files = {number: [100 + 10 * number + i for i in range(10)] for number in range(5)}
        self.filtered = draw.choice(["", "rows", "groups"]) if self.kind == "parquet" else ""
        self.window, self.by = draw.choice([None, 6, 12, "256MiB"]), draw.random() < 0.2
        self.repeats, self.size = draw.choice([1, 1, 1, 2]), draw.randint(1, 4)
        self.got: Counter[int] = Counter()
        for number, ids in self.files.items():
            write(self.path(number), ids)

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.{self.kind}"

    def loaders(self, world: int) -> list[Any]:
        p = getattr(cedar, f"read_{self.kind}")(f"{self.folder}/*.{self.kind}")
        p = p.filter(lambda i: i % 3 != 0, "id") if self.filtered == "rows" else p
        p = p.filter((col("id") < 125) | (col("id") > 134)) if self.filtered == "groups" else p
        if self.window is not None:
            p = p.shuffle(seed=3, window=self.window, by="id" if self.by else None)
        p = p.repeat(self.repeats) if self.repeats > 1 else p
        p = p.select("id").batch(self.size, last="keep")
        return [p.loader(rank=rank, world=world, executor="inline") for rank in range(world)]

    def deliver(self, world: int, states: Any, steps: int | None) -> tuple[list[Any], list[str]]:
        after, notes = [], []
        loaders = self.loaders(world)
        for loader in loaders if states else ():
            loader.load_state_dict(states)
            notes += loader.report().notes
        for loader in loaders:
            batches, state = run(loader, 0 if loader.epoch else steps)  # some ranks may have finished
            self.got.update(i for batch in batches for i in batch["id"])
            after.append(state)
        return after, notes

    def check(self, number: int, kind: str) -> None:
        def kept(i: int) -> bool:
            return not (self.filtered == "rows" and i % 3 == 0) and not (self.filtered == "groups" and 125 <= i <= 134)

        for other, ids in self.files.items():
            for i in ids if other != number or kind == "touched" else ():
                assert self.got[i] == self.repeats * kept(i), (i, self.got[i])
        for i in self.files[number]:
            assert self.got[i] + self.got[i + NEW] <= self.repeats, (i, self.got[i], self.got[i + NEW])


def case(seed: int, folder: Path) -> str:
    draw = random.Random(seed)
    model = Model(draw, folder)
    world = draw.choice([1, 1, 2, 3])
    states, _ = model.deliver(world, None, draw.randint(1, 4))
    if any(state["epoch"] for state in states):
        return "over"
    (number, kind), notes = (draw.randrange(5), draw.choice(CHANGES)), list[str]()
    change(model.path(number), model.files[number], kind)
    try:
        if draw.random() < 0.5:
            states, notes = model.deliver(world, states, 1)
        notes += model.deliver(draw.choice([world, world, 2]), states, None)[1]
    except cedar.ResumeError as error:
        if kind == "touched" or f"{number}.{model.kind} " not in error.what or "have been delivered" not in error.what:
            raise
        return "refused"
    assert any(model.path(number).name in note for note in notes) or kind == "touched"
    model.check(number, kind)
    return "went on"


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, 10))
def test_rows_of_other_files_come_once_and_those_of_a_rewritten_one_at_most_once(first: int, tmp_path: Path) -> None:
    for seed in range(first, min(first + 10, SEED + CASES)):
        (folder := tmp_path / f"{seed}").mkdir()
        try:
            case(seed, folder)
        except BaseException as error:
            error.add_note(f"CEDAR_SEED={seed}")
            raise


def shuffled(folder: Path, kind: str) -> Any:
    p = getattr(cedar, f"read_{kind}")(f"{folder}/*.{kind}").select("id")
    p = p.filter(lambda i: i >= 0, "id") if kind == "parquet" else p
    return p.shuffle(seed=3, window=1).batch(3, last="keep").loader(executor="inline")


def deliver(loader: Any, states: Any = None, steps: int | None = None) -> tuple[list[int], Any]:
    if states is not None:
        loader.load_state_dict(states)
    batches, state = run(loader, steps)
    return [i for batch in batches for i in batch["id"]], state


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("more", [0, 7])
def test_a_rewritten_file_is_refused_only_while_its_window_is_being_delivered(
    tmp_path: Path, kind: str, more: int
) -> None:
    files = {number: [100 + 10 * number + i for i in range(5)] for number in range(5)}
    for number, ids in files.items():
        write(tmp_path / f"{number}.{kind}", ids, pad=1100)
    got, state = deliver(shuffled(tmp_path, kind), steps=3)
    order = list(dict.fromkeys((i - 100) // 10 for i in got))
    assert len(order) == 2  # the first is complete, the second was begun
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for number, ids in files.items():
        write(path := tmp_path / f"{number}.{kind}", [i + NEW for i in ids], pad=1100 + more)
        if number == order[1]:
            with pytest.raises(cedar.ResumeError, match=rf"{number}.{kind} has changed .* may have been delivered"):
                shuffled(tmp_path, kind).load_state_dict(state)
        else:
            rest, _ = deliver(loader := shuffled(tmp_path, kind), state)
            new = ids if number == order[0] else [i + NEW for i in ids]
            assert sorted(got + rest) == sorted([*new, *(i for n, old in files.items() if n != number for i in old)])
            assert any(f"{number}.{kind}" in note for note in loader.report().notes)
        path.write_bytes(whole[path])
        os.utime(path, (number, 5))  # touched, with the same contents
        rest, _ = deliver(shuffled(tmp_path, kind), state)
        assert sorted(got + rest) == sorted(i for old in files.values() for i in old)


def test_a_file_that_was_touched_among_many_changes_nothing_where_rows_are_counted(tmp_path: Path) -> None:
    for number in range(70):  # more than are looked into
        write(tmp_path / f"{number}.parquet", [10 * number + i for i in range(10)])

    def loader() -> Any:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").select("id").shuffle(seed=1, window=30)
        return p.batch(8, last="keep").loader(executor="inline")

    whole, _ = deliver(loader())
    got, state = deliver(loader(), steps=20)
    os.utime(tmp_path / "7.parquet", (9, 9))
    rest, _ = deliver(resumed := loader(), state)
    assert got + rest == whole
    assert any("include one that changed" in note for note in resumed.report().notes)


@pytest.mark.parametrize("change", ["added", "removed"])
def test_other_files_as_rows_are_refused(tmp_path: Path, change: str) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.bin").write_bytes(b"")

    def loader() -> Any:
        return cedar.read_files(f"{tmp_path}/*.bin").batch(5).loader(executor="inline")

    state = run(loader(), 3)[1]
    if change == "added":
        (tmp_path / "000.a.bin").write_bytes(b"")
    else:
        (tmp_path / "050.bin").unlink()
    with pytest.raises(cedar.ResumeError, match="other files, sizes or row counts"):
        loader().load_state_dict(state)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_removed_file_is_not_asked_for_its_statistics(tmp_path: Path, missing: int) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", [10 * number + i for i in range(10)])

    def loader() -> Any:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").filter(col("id") >= 5)
        return p.batch(4, last="keep").loader(executor="inline")

    got, state = deliver(loader(), steps=2)
    (tmp_path / f"{missing}.parquet").unlink()
    got += deliver(loader(), state)[0]
    assert got == [i for i in range(5, 30) if i // 10 != 2 or missing == 0]


def test_a_file_that_is_back_is_refused_while_its_window_is_delivered_without_it(tmp_path: Path) -> None:
    files = {number: [10 * number + i for i in range(5)] for number in range(4)}
    for number, ids in files.items():
        write(tmp_path / f"{number}.parquet", ids)

    def loader() -> Any:
        p = cedar.read_parquet(f"{tmp_path}/*.parquet").select("id").filter(lambda i: i >= 0, "id")
        return p.shuffle(seed=3, window=10).batch(2, last="keep").loader(executor="inline")

    order = list(dict.fromkeys(i // 10 for i in deliver(loader())[0]))  # each window has two files, and five batches
    for number, steps in ((number, steps) for number in order[2:] for steps in (2, 5)):
        got, state = deliver(loader(), steps=1)
        (tmp_path / f"{number}.parquet").unlink()
        more, state = deliver(loader(), state, steps)
        write(tmp_path / f"{number}.parquet", files[number])
        if steps == 5:
            with pytest.raises(cedar.ResumeError, match=rf"{number}.parquet is back since .* have been delivered"):
                loader().load_state_dict(state)
        else:
            rest, _ = deliver(loader(), state)
            assert sorted(got + more + rest) == sorted(i for ids in files.values() for i in ids)
