"""Random pipelines, stopped and resumed in every way: each row once, always in the same order.

CEDAR_CASES sets the number of random pipelines; CEDAR_SEED the first of them. A failure names its seed, which alone
gives the case again: CEDAR_SEED=<seed> CEDAR_CASES=1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from tests import toy_pipelines
from tests.toy_pipelines import Toy
from tests.toy_runs import batches_of, rows_of, run, saved, values

CASES = int(os.environ.get("CEDAR_CASES", "200"))
SEED = int(os.environ.get("CEDAR_SEED", "0"))
GROUP = max(5, CASES // 40)


class Case:
    """A random pipeline, the seed and epoch of its run, and the whole run on one rank."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.toy: Toy = toy_pipelines.build(self.draw)
        self.options: dict[str, Any] = {"seed": self.draw.randint(0, 3), "epoch": self.draw.randint(0, 2)}
        self.full, _ = run(self.loader(executor="inline"))

    def loader(self, **options: Any) -> cedar.Loader:
        executor = options.pop("executor", None) or self.draw.choice(["inline", "threads"])
        return self.toy.pipeline.loader(
            executor=executor, workers=self.draw.randint(1, 3), **(self.options | options)
        )


def same_on_every_executor_however_cut(case: Case) -> None:
    cut = toy_pipelines.build(random.Random(case.seed), cut=case.draw.randint(1, 99)).pipeline
    for pipeline in (case.toy.pipeline, cut):
        loader = pipeline.loader(executor="threads", workers=case.draw.randint(1, 3), **case.options)
        assert run(loader)[0] == case.full


def resumes_anywhere(case: Case) -> None:
    """Stop, resume on another executor, stop and resume again; the last time at the epoch's end as well."""
    length = len(case.full)
    stops = sorted(case.draw.randint(0, length) for _ in range(2))
    got, state = run(case.loader(), stops[0])
    for stop in [*stops[1:], None]:
        loader = case.loader()
        loader.load_state_dict(state)
        if stop is not None and stop == len(got):
            state = saved(loader)  # loaded, and saved before a single batch
            continue
        more, state = run(loader, None if stop is None else stop - len(got))
        got += more
    assert got == case.full, stops
    if length:  # exactly at the end: nothing is left of this epoch
        _, state = run(case.loader(), length)
        loader = case.loader()
        loader.load_state_dict(state)
        assert run(loader)[0] == []
        assert loader.epoch == case.options["epoch"] + 1


def ranks_share_the_epoch(case: Case) -> None:
    """All ranks together see the epoch; each of them resumes in its own order."""
    world = case.draw.randint(2, 4)
    parts = []
    for rank in range(world):
        mine, _ = run(case.loader(rank=rank, world=world))
        stop = case.draw.randint(0, len(mine))
        head, state = run(case.loader(rank=rank, world=world), stop)
        loader = case.loader(rank=rank, world=world)
        loader.load_state_dict(state)
        assert head + run(loader)[0] == mine, (rank, world, stop)
        parts.append(mine)
    check_union(case, parts, world)
    lengths = {len(part) for part in parts}
    assert len(lengths) == 1 or case.toy.last == "keep"
    assert max(lengths) - min(lengths) <= 1


def worlds_change(case: Case) -> None:
    """Every rank stops where it likes, and other numbers of ranks go on; twice."""
    worlds = [case.draw.randint(1, 4) for _ in range(3)]
    states: list[Any] = []
    parts = []
    for number, world in enumerate(worlds):
        ahead = case.draw.randint(0, 3 + len(case.full) // world)
        after = []
        for rank in range(world):
            loader = case.loader(rank=rank, world=world)
            if states:
                mine = states[rank] if len(states) == world and case.draw.random() < 0.5 else states
                loader.load_state_dict(mine)
            stop = None if number == 2 else max(0, ahead + case.draw.randint(-2, 2))
            part, state = stopped(loader, stop)
            parts.append(part)
            after.append(state)
        states = after
    check_union(case, parts, worlds[-1])


def stopped(loader: cedar.Loader, stop: int | None) -> tuple[list[Any], Any]:
    """Up to ``stop`` batches, and a state that is still in the epoch."""
    epoch = loader.epoch
    part: list[Any] = []
    state = saved(loader)
    if stop == 0:
        return part, state
    for batch in loader:
        part.append({name: values(column) for name, column in batch.items()})
        if stop is not None:
            state = saved(loader)
            assert state["epoch"] == epoch
            if len(part) >= stop:
                break
    return part, state


def check_union(case: Case, parts: list[list[Any]], world: int) -> None:
    got = [batch for part in parts for batch in part]
    padded = case.toy.last == "pad" and all("valid" in b for b in case.full)
    rows, wanted = rows_of(got, padded), rows_of(case.full, padded)
    assert not rows - wanted, "rows that came twice"
    assert not batches_of(got) - batches_of(case.full), "batches that another number of ranks does not have"
    lost = (wanted - rows).total()
    assert lost < world * case.toy.size if case.toy.last == "drop" else lost == 0, f"{lost} rows lost"


PROPERTIES: list[Callable[[Case], None]] = [
    same_on_every_executor_however_cut, resumes_anywhere, ranks_share_the_epoch, worlds_change,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_random_pipelines(first: int) -> None:
    for seed in range(first, min(first + GROUP, SEED + CASES)):
        case = Case(seed)
        for check in PROPERTIES:
            try:
                check(case)
            except Exception as error:
                error.add_note(f"{check.__name__} failed: CEDAR_SEED={seed} CEDAR_CASES=1; {case.toy.names}")
                raise
