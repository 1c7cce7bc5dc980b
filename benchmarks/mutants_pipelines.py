"""The pipelines on which mutants are tried: small files with nulls, NaN and structs, and every rule at work."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from cedar import col
from cedar.pipeline.planning import planner_for
from cedar.plan import graph
from cedar.plan.data import Budget, Plan
from cedar.profile import Machine, OperatorProfile, Profile


@dataclass
class Case:
    """A pipeline, and the rows that it gives as written."""

    name: str
    pipeline: cedar.Pipeline
    policy: cedar.Skip | None = None
    sizes: dict[int, tuple[float, float]] = field(default_factory=dict)  # bytes in and out, by ordinal
    budget: Budget = field(default_factory=Budget)
    written: Any = None
    unmutated: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written, self.unmutated = self.rows("off"), self.plans()

    def plans(self) -> list[Plan]:
        """What is begun with, and the best for some figures."""
        return [self._planner().begin(), self._planner().best(self._profile(1))]

    def _planner(self) -> Any:
        return planner_for(self.pipeline.node, self.budget, "threads", 2, self.policy, exact=True)

    def _profile(self, seed: int) -> Profile:
        draw = random.Random(seed)
        found = {}
        for i, node in enumerate(graph.walk(self.pipeline.node)):
            effects = node.operator.effects()
            keep = draw.choice([0.05, 0.3, 0.6]) if effects.rows == "1:0..1" else 1.0
            cpu = draw.choice([1e-7, 1e-6, 1e-4]) * (100 if effects.per_row else 1)
            size = self.sizes.get(i, (100.0, 100.0))
            found[i] = OperatorProfile("", 20, 20_000, cpu, cpu, keep, *size, call=1e-3)
        return Profile("", found, Machine(2, 1 << 34), 20_000)

    def rows(self, plan: Any, audits: float = 0.0, checked: bool = True, differences: list[str] | None = None) -> Any:
        """Two epochs, as something that compares; or what they ended in."""
        given: list[Any] = []
        loader = self.pipeline.loader(plan=plan, executor="inline", on_error=self.policy, format="arrow")
        loader._epochs.job.plans.audits.share = audits
        loader._epochs.job.plans._admitted = not checked or loader._epochs.job.plans._admitted
        try:
            for _ in range(2):
                given.extend(repr(unit.to_pylist() if isinstance(unit, pa.Table) else unit) for unit in loader)
            skipped = loader.report().skipped
            return given, sorted(skipped.items())
        except cedar.CedarError as error:
            return given, f"{type(error).__name__}"
        finally:
            if differences is not None:
                differences += loader._epochs.job.metrics.differences
            loader.close()


def cases(folder: str, names: Sequence[str] = ()) -> list[Case]:
    """All of them, or some, over files in a folder."""
    path = os.path.join(folder, "*.parquet")
    if not os.listdir(folder):
        _write(folder)
    made = {name: given for name, given in _made(path).items() if not names or name in names}
    return [Case(name, *given) if isinstance(given, tuple) else Case(name, given) for name, given in made.items()]


@cache
def _table(part: int) -> pa.Table:
    draw = random.Random(part)
    rows = range(120)

    def some(values: Callable[[int], Any], nulls: float = 0.15) -> list[Any]:
        return [None if draw.random() < nulls else values(i) for i in rows]

    return pa.table(
        {
            "id": pa.array([part * 1000 + i for i in rows], pa.int64()),
            "label": pa.array(some(lambda i: i % 2), pa.int64()),
            "x": pa.array(some(lambda _: draw.randrange(20)), pa.int64()),
            "y": pa.array(some(lambda _: draw.randrange(20), 0.0), pa.int64()),
            "f": pa.array(some(lambda _: draw.choice([0.5, -1.0, float("nan"), 7.25])), pa.float64()),
            "s": pa.array(some(lambda _: draw.choice(["a", "b", "12", "7", ""]))),
            "l": pa.array(some(lambda i: list(range(i % 4)))),
            "st": pa.array(
                some(lambda i: {"a": i, "b": f"b{i % 5}", "c": {"d": i % 3, "e": i % 7}}),
                pa.struct(
                    [("a", pa.int64()), ("b", pa.string()), ("c", pa.struct([("d", pa.int64()), ("e", pa.int64())]))]
                ),
            ),
            "u": pa.array([i * 2 for i in rows], pa.int64()),
        }
    )


def _write(folder: str) -> None:
    for part in range(3):
        pq.write_table(_table(part), os.path.join(folder, f"{part}.parquet"), row_group_size=40)


def _twice(value: int | None) -> int:
    return 0 if value is None else value * 2


def _plus(value: int | None) -> int:
    return 1 if value is None else value + 1


def _third(value: int | None) -> bool:
    return value is not None and value % 3 > 0


def _fails(value: int) -> int:
    if value % 7 == 3:
        raise ValueError(value)
    return value


def _several(value: int | None) -> list[int]:
    return list(range((value or 0) % 3))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "n": len(row)}


def _dice(value: int, rng: Any) -> int:
    return int(rng.integers(100)) + (value or 0)


def _made(path: str) -> dict[str, Any]:
    def p() -> cedar.Pipeline:
        return cedar.read_parquet(path)

    skip = cedar.Skip()
    grows = dict.fromkeys(range(1, 9), (10.0, 10000.0))
    shrinks = dict.fromkeys(range(1, 9), (10000.0, 10.0))
    shared = p().map(_twice, "x", into="t", dtype=int)
    other = p().filter(col("x") > 3)
    half = p().select("id", "x", "y", "s")
    return {
        "a filter behind expressions": p().with_columns(z=col("x") + 1).filter(col("y") > 5).select("id", "z").batch(8),
        "a filter on what was made": p().with_columns(x=col("x") * 2).filter(col("x") > 9).select("id", "x").batch(8),
        "filters and functions": p()
        .map(_twice, "x", into="t", dtype=int)
        .filter(col("label") == 1)
        .filter(_third, "y")
        .filter(col("f") > 0)
        .select("id", "t", "f")
        .batch(8, last="keep"),
        "nulls": p()
        .filter(col("x").is_null())
        .filter(col("label").is_not_null())
        .select("id", "s")
        .batch(5, last="keep"),
        "nulls or": p().filter(col("x").is_null() | (col("y") < 3)).select("id", "u").batch(5, last="keep"),
        "two filters": p().filter(col("y") > 2).filter(col("x") < 15).select("id", "f", "s").batch(8),
        "not": p().filter(~(col("x") > 4)).filter(~col("label").is_null()).select("id", "l").batch(8),
        "shuffle": p().map(_plus, "y", dtype=int).shuffle(seed=3).filter(col("x") > 4).select("id", "y").batch(8),
        "two shuffles": p().shuffle(seed=1, window=10).filter(col("y") > 4).shuffle(seed=2, window=7).batch(8),
        "shuffle by": (
            p()
            .map(_twice, "y", dtype=int)
            .shuffle(by="y", interleave=2, window=16)
            .filter(col("x") > 4)
            .select("id", "y")
            .batch(8),
            None,
            grows,
        ),
        "shuffle by, small": (p().shuffle(by="y", window=16).map(_twice, "y", dtype=int).batch(8), None, shrinks),
        "take and skip": p()
        .filter(col("y") > 2)
        .skip(3)
        .filter(col("x") > 2)
        .take(40)
        .map(_twice, "x", dtype=int)
        .filter(col("x") > 4)
        .batch(4, last="keep"),
        "take behind functions": p()
        .map(_twice, "x", dtype=int)
        .map(_plus, "x", dtype=int)
        .with_columns(z=col("x") % 5)
        .take(33)
        .batch(8, last="keep"),
        "take behind a filter": p().map(_twice, "x", dtype=int).filter(_third, "y").take(20).select("id", "x").batch(4),
        "take behind rows made": p().flat_map(_several, "x", into="n", dtype=int).take(20).select("id", "n").batch(4),
        "take of one of two": cedar.zip(
            (q := p().map(_twice, "x", dtype=int).select("x")).take(50),
            q.rename({"x": "w"}).with_columns(w=col("w") + 1),
        ).batch(4, last="keep"),
        "take and skipped rows": (p().map(_fails, "y", dtype=int).take(30).select("id", "y").batch(4), skip),
        "concat": cedar.concat(half, half.with_columns(x=col("x") + 1)).filter(col("x") > 6).drop("y").batch(8),
        "concat that counts": cedar.concat(half.skip(3), half).filter(col("y") > 5).shuffle(window=7).batch(4),
        "mix": cedar.mix([(half, 0.5), (half.with_columns(y=col("y") + 1), 0.5)], seed=1).filter(col("y") > 6).batch(8),
        "shared": cedar.zip(shared.select("id", "t"), shared.filter(_third, "y").select(w=col("t") + 1)).batch(4),
        "shared filter": cedar.zip(other.select("id"), other.filter(col("y") > 7).select(w="y")).batch(4),
        "shared source": cedar.zip((r := p()).filter(col("y") > 7).select("id"), r.select(w="y")).batch(4),
        "the same twice": cedar.zip(
            (r := p().select("id", "x", "y")).with_columns(z=col("x") + 1),
            r.with_columns(z=col("x") + 2).select(z2="z"),
        ).batch(8),
        "functions twice": cedar.zip(
            (r := p().select("id", "x", "y")).map(_twice, "x", dtype=int).select("id", "x"),
            r.map(_plus, "x", dtype=int).select(x2="x"),
        ).batch(8),
        "functions the same": cedar.zip(
            (r := p().select("id", "x", "y")).map(_twice, "x", dtype=int).select("id", "x"),
            r.map(_twice, "x", dtype=int).select(x2="x", y="y"),
        ).batch(8),
        "dice": cedar.zip(
            (r := p().select("id", "y")).map(_dice, "y", random=True, dtype=int),
            r.map(_dice, "y", random=True, dtype=int).select(d="y"),
        ).batch(8),
        "structs": p()
        .filter(col("st").struct.field("c").struct.field("d") > 0)
        .select(a=col("st").struct.field("a"), e=col("st").struct.field("c").struct.field("e"), y="y")
        .batch(8),
        "a struct on its way": p()
        .shuffle()
        .filter(col("st").struct.field("b") != "b3")
        .with_columns(e=col("st").struct.field("c").struct.field("e"))
        .select("e", a=col("st").struct.field("a"))
        .batch(8),
        "dead results": p()
        .with_columns(z=col("x") + 1, w=col("y") * 2, v=col("f") + 1)
        .with_columns(q=col("w") + 1)
        .select("id", "v", "q")
        .batch(8),
        "results that may fail": (
            p().with_columns(z=col("s").cast(int), w=col("y") * 2).select("id", "w").batch(8),
            skip,
        ),
        "carried": p()
        .map(_twice, "x", into="t", dtype=int)
        .map(_plus, "y", into="n", dtype=int)
        .shuffle()
        .filter(_third, "n")
        .select("t", "n")
        .batch(8),
        "renamed": p()
        .rename({"x": "a", "y": "x"})
        .with_columns(z=col("a") + col("x"))
        .drop("u", "l")
        .shuffle()
        .select("z", "x", "id")
        .batch(8),
        "whole rows": p().select("id", "x", "y").with_columns(x=col("x") + 1).filter(col("y") > 3).map(_row).batch(8),
        "whole rows behind": p()
        .select("id", "x", "y")
        .map(_twice, "y", dtype=int)
        .map(_row)
        .filter(col("y") > 9)
        .batch(8),
        "order of columns": p()
        .select("id", "x", "y", "s")
        .map(_plus, "x", into="id", dtype=int)
        .filter(col("y") > 3)
        .map(_row, dtype={"id": int, "x": int, "y": int, "s": str, "n": int})
        .batch(8),
        "overwritten": p()
        .map(_twice, "x", into="y", dtype=int)
        .filter(col("y") > 9)
        .map(_plus, "y", into="x", dtype=int)
        .select("id", "x", "y")
        .batch(8),
        "columns dropped": p()
        .drop("f", "l")
        .map(_twice, "x", dtype=int)
        .drop("s")
        .filter(col("y") > 3)
        .drop("y")
        .batch(8),
        "grows": (
            p()
            .select("id", "x", "y")
            .map(_twice, "x", dtype=int)
            .map(_plus, "x", dtype=int)
            .shuffle()
            .batch(512, last="keep"),
            None,
            grows,
        ),
        "grows and drops": (
            p()
            .select("id", "x", "y")
            .map(_twice, "x", dtype=int)
            .flat_map(_several, "y", dtype=int)
            .shuffle()
            .batch(512, last="keep"),
            None,
            grows,
        ),
        "shrinks": (p().select("id", "x", "y").shuffle().map(_twice, "x", dtype=int).batch(8), None, shrinks),
        "grows and skips": (
            p().select("id", "x", "y").map(_fails, "y", dtype=int).shuffle().batch(512, last="keep"),
            skip,
            grows,
        ),
        "skips": (
            p()
            .map(_fails, "y", dtype=int)
            .filter(col("x") > 3)
            .map(_fails, "u", dtype=int)
            .filter(_third, "u")
            .select("id", "y", "u")
            .batch(8),
            skip,
        ),
        "skips behind a shuffle": (p().shuffle(seed=2).filter(col("s").cast(int) > 8).select("id", "s").batch(8), skip),
        "rows made": p()
        .flat_map(_several, "x", into="n", dtype=int)
        .flat_map(_several, "y", into="m", dtype=int)
        .map(_dice, "u", random=True, dtype=int)
        .filter(_third, "id")
        .select("id", "n", "m", "u")
        .batch(8),
        "rows made and drawn": p()
        .map(_dice, "u", random=True, dtype=int)
        .flat_map(_several, "x", into="n", dtype=int)
        .select("id", "n", "u")
        .batch(8),
        "many in any order": p()
        .filter(_third, "x")
        .map(_twice, "y", dtype=int)
        .filter(_third, "u")
        .map(_plus, "y", dtype=int)
        .with_columns(z=col("y") + 1)
        .filter(_third, "z")
        .select("id", "z", "y")
        .batch(8),
        "queries apart": p()
        .with_columns(z=col("x") + 1)
        .map(_twice, "y", dtype=int)
        .with_columns(w=col("u") + 1)
        .map(_plus, "z", dtype=int)
        .with_columns(v=col("w") + col("z"))
        .batch(8),
        "queries that depend": p()
        .with_columns(z=col("x") + 1)
        .map(_twice, "z", dtype=int)
        .with_columns(w=col("z") + 1)
        .batch(8),
        "cache": p()
        .select("id", "x", "y")
        .map(_twice, "x", dtype=int)
        .map(_dice, "y", random=True, dtype=int)
        .cache("auto")
        .map(_plus, "x", dtype=int)
        .batch(8),
        "cache below": p()
        .select("id", "x", "y")
        .cache("auto")
        .map(_twice, "x", dtype=int)
        .map(_plus, "y", dtype=int)
        .map(_dice, "y", random=True, dtype=int)
        .batch(8),
    }
