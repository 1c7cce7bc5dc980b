"""Weights, inputs, files and the number of ranks change at random steps of one epoch: every row comes once. Inputs are
removed, come back and are added. CEDAR_CASES sets the number of random cases, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from tests.how_much import SEED, cases
from tests.toy_runs import run, saved

CASES = cases(30)
GROUP = max(5, CASES // 40)
WORLD = 4
REFUSED = re.compile(  # the only reasons
    r"(is gone|is back since .*|has changed since .*); its rows may have been delivered"
    r"|an input cannot join this epoch: (.*)"
    r"|(the rest of the epoch) is read from the files in the state|(ranks take turns)"
    r"|(a rank had ended its part) of this epoch before an input was added"
)  # all but the third only for unknown counts


class Input:
    """Files of a mixture's input, and the rows that they have or had."""

    def __init__(self, draw: random.Random, folder: Path, number: int) -> None:
        self.folder, self.draw = folder, draw
        folder.mkdir()
        self.files = {
            f"{file}": [100_000 * number + 1000 * file + i for i in range(draw.choice([1, 4, 12]))]
            for file in range(draw.randint(2, 5))
        }
        for name in self.files:
            self.write(name)
        self.missing: set[str] = set()  # files that were removed at least once
        self.removed: set[str] = set()

    def write(self, name: str, **options: Any) -> None:
        pq.write_table(pa.table({"id": self.files[name]}), self.folder / f"{name}.parquet", row_group_size=5, **options)

    def change(self) -> None:
        """Remove, restore, repair or add a file."""
        kind = self.draw.choice(["remove", "restore", "repair", "add"])
        here = sorted({*self.files} - self.removed)
        if kind == "remove" and len(here) > 1:
            self.remove(self.draw.choice(here))
        elif kind == "restore" and self.removed:
            self.restore()
        elif kind == "repair":
            self.write(self.draw.choice(here), compression="gzip")
        elif kind == "add":
            path = self.folder / f"{self.draw.choice(['00', 'x'])}.parquet"
            pq.write_table(pa.table({"id": [-1, -2, -3]}), path, row_group_size=5)

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.parquet").unlink()
        self.missing.add(name)
        self.removed.add(name)

    def restore(self) -> None:
        for name in sorted(self.removed):
            self.write(name)
        self.removed.clear()

    def undo(self, before: Path) -> None:
        """Put back the files of another folder."""
        shutil.rmtree(self.folder)
        shutil.copytree(before, self.folder)
        self.removed = {*self.files} - {path.stem for path in self.folder.iterdir()}


class Case:
    """A random mixture, the ranks that read it, and what they received."""

    def __init__(self, draw: random.Random, folder: Path) -> None:
        self.draw = draw
        self.folder = folder
        self.counted, self.repeats, self.window = (
            draw.random() < 0.5, draw.choice([1, 1, 2]), draw.choice([None, "256MiB", 7]),
        )  # fmt: skip
        self.size, self.seed, self.mapped = draw.randint(1, 4), draw.randint(0, 9), draw.random() < 0.3
        self.inputs = [Input(draw, folder / f"in{number}", number) for number in range(draw.randint(2, 3))]
        self.weights = self.random_weights()  # as written in the pipeline
        self.now = list(self.weights)
        self.states: list[Any] = []
        self.got: Counter[int] = Counter()
        self.given_up: set[int] = set()  # inputs that had no weight when a rank may have finished
        self.refused: Counter[str] = Counter()
        self.changes: list[str] = []

    def random_weights(self) -> list[float]:
        return [self.draw.choice([0.1, 0.5, 2.0]) for _ in self.inputs]

    def kept(self, row: int) -> bool:
        return self.counted or row % 3 != 1

    def part(self, each: Input) -> cedar.Pipeline:
        p = cedar.read_parquet(f"{each.folder}/*.parquet")
        p = p if self.window is None else p.shuffle(seed=1, window=self.window)
        p = p if self.counted else p.filter(lambda row: row % 3 != 1, "id")
        return p if self.repeats == 1 else p.repeat(self.repeats)

    def loader(self, rank: int, world: int) -> cedar.Loader:
        weights = zip(self.inputs, self.weights, strict=True)
        parts = {f"in{number}": (self.part(each), weight) for number, (each, weight) in enumerate(weights)}
        p = cedar.mix(parts, seed=self.seed, stop="all")
        p = p.map(lambda row: row, "id", dtype=int) if self.mapped else p
        return p.batch(self.size, last="keep").loader(rank=rank, world=world, executor="inline")

    def loaders(self, world: int) -> list[cedar.Loader]:
        made = [self.loader(rank, world) for rank in range(world)]
        for rank, loader in enumerate(made) if self.states else ():
            if len(self.states) == world and self.states[rank]["epoch"]:  # this rank has finished
                loader.load_state_dict(self.states[rank])
                continue
            one = self.counted and self.draw.random() < 0.3 and all(state["epoch"] == 0 for state in self.states)
            loader.load_state_dict(self.draw.choice(self.states) if one else self.states)
            loader.set_epoch(0)  # the rest of it, even if that is empty
        return made

    def note(self, error: cedar.CedarError) -> None:
        found = REFUSED.search(error.what)
        if found is None:
            raise error
        self.refused[next(filter(None, found.groups()))] += 1

    def change(self, world: int) -> list[cedar.Loader]:
        """Some of the five kinds of changes at once."""
        draw, written = self.draw, list(self.weights)
        kinds = draw.sample(["weights", "inputs", "files", "world", "add"], draw.randint(1, 4))
        self.changes.append(" ".join(kinds))
        if "world" in kinds:
            world = draw.randint(1, WORLD)
        changed = draw.choice(self.inputs)
        before = changed.folder.with_suffix(".before")
        if "files" in kinds and self.got:  # before the first row, the new files join this epoch
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(changed.folder, before)
            changed.change()
        rewritten = "weights" in kinds and draw.random() < 0.4
        if rewritten:
            self.weights = self.random_weights()
        try:
            loaders = self.loaders(world)
        except cedar.ResumeError as error:
            self.note(error)
            if "files" in kinds and self.got:
                changed.undo(before)
            self.weights, rewritten = written, False
            try:
                loaders = self.loaders(world)
            except cedar.ResumeError as again:
                raise AssertionError(str(again)) from again
        if rewritten and self.weights != written:
            self.now = list(self.weights)
        now = list(self.now)
        if "weights" in kinds and not rewritten:
            now = [weight if before else 0.0 for weight, before in zip(self.random_weights(), now, strict=True)]
        if "inputs" in kinds:
            number = draw.randrange(len(now))
            now[number] = 0.0 if now[number] else 1.0
            now = now if any(now) else [1.0] * len(now)
        loaders = self.draw_by(loaders, now)
        return self.add(loaders) if "add" in kinds else loaders

    def add(self, loaders: list[cedar.Loader]) -> list[cedar.Loader]:
        """Add an input on all ranks; if it is refused, continue without it."""
        number, now = len(self.inputs), list(self.now)
        new, weight = Input(self.draw, self.folder / f"in{number}", number), self.draw.choice([0.1, 0.5, 2.0])
        try:
            for loader in loaders:
                loader.update_mix(add={f"in{number}": (self.part(new), weight)})
        except cedar.PipelineError as error:
            self.note(error)
            shutil.rmtree(new.folder)
            return self.draw_by(self.loaders(len(loaders)), now, force=True)
        self.inputs.append(new)
        self.weights.append(weight)
        self.now.append(weight)
        if any(loader.epoch for loader in loaders):
            self.given_up.add(number)
        return loaders

    def draw_by(self, loaders: list[cedar.Loader], weights: list[float], force: bool = False) -> list[cedar.Loader]:
        """Call ``update_mix`` on all ranks; if it is refused, continue without it."""
        if weights == self.now and not force:
            return loaders
        try:
            for loader in loaders:
                loader.update_mix({f"in{number}": weight for number, weight in enumerate(weights)})
            self.now = weights
        except cedar.PipelineError as error:
            self.note(error)
            return self.loaders(len(loaders))
        return loaders

    def run(self) -> None:
        world = self.draw.randint(1, WORLD)
        loaders = self.loaders(world)
        for _ in range(self.draw.randint(2, 5)):
            self.deliver(loaders, self.draw.randint(0, 4))
            if all(state["epoch"] for state in self.states):
                break
            loaders = self.change(len(loaders))
        else:  # the inputs that were removed come back
            self.deliver(self.draw_by(loaders, [weight or 1.0 for weight in self.now]), None)
        self.check()

    def deliver(self, loaders: list[cedar.Loader], steps: int | None) -> None:
        self.states = []
        for loader in loaders:
            if steps == 0 or loader.epoch:
                self.states.append(saved(loader))
                continue
            batches, state = run(loader, steps)
            self.got.update(row for batch in batches for row in batch["id"])
            self.states.append(state)
        # Without these inputs, a rank may have no more rows, which ends its epoch.
        if any(state["epoch"] for state in self.states):
            self.given_up |= {number for number, weight in enumerate(self.now) if not weight}

    def check(self) -> None:
        wanted = Counter[int]()
        optional = Counter[int]()
        for number, each in enumerate(self.inputs):
            for name, rows in each.files.items():
                found = Counter([row for row in rows if self.kept(row)] * self.repeats)
                (optional if number in self.given_up or name in each.missing else wanted).update(found)
        assert not self.got - wanted - optional, ("repeated", self.got - wanted - optional)
        assert not wanted - self.got, ("lost", wanted - self.got)


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_weights_inputs_files_and_ranks_change(first: int, tmp_path: Path) -> None:
    for seed in range(first, min(first + GROUP, SEED + CASES)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        case = Case(random.Random(seed), folder)
        try:
            case.run()
        except BaseException as error:
            error.add_note(f"CEDAR_SEED={seed} CEDAR_CASES=1; {case.changes}")
            raise
