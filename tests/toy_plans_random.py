"""Random pipelines over tables of many columns, the plans that a planner may make of them, and plans that change."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from cedar import col, graph
from cedar.datasets.base import Split
from cedar.execution.planning import Plans
from cedar.execution.runner import Runner
from cedar.execution.watcher import Watcher
from cedar.graph import Node
from cedar.optimizer.budget import Budget
from cedar.optimizer.chains import Arranged, find_chains, rebuild
from cedar.optimizer.commute import may_swap
from cedar.optimizer.ordering import find_precedence
from cedar.optimizer.planner import AutoPlanner
from cedar.optimizer.rules import MOVES, RULES, TRIMS
from cedar.pipeline.planning import planner_for
from cedar.plan.data import Decision, Plan
from cedar.profile import Machine, OperatorProfile, Profile

# ---- data ------------------------------------------------------------------------------------------------------------

WORDS = ["", "a", "bee", "sea", "dolphin", "Öl", "12", "-7", "3.5", "nan"]
KINDS = {"id": "int", "x": "int", "y": "null", "z": "int", "f": "float", "h": "float", "s": "str", "l": "list"}


def table(start: int, size: int) -> pa.Table:
    """Rows of every kind of column; ``y``, ``f`` and ``s`` have nulls, ``f`` has NaN, infinity and both zeros."""
    ids = range(start, start + size)
    floats = [0.0, -0.0, math.nan, None, 1.5, -2.25, math.inf, 7.0, 1e-3]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "x": pa.array([i * 7 % 23 for i in ids], pa.int64()),
        "y": pa.array([None if i % 6 == 1 else i % 11 - 3 for i in ids], pa.int64()),
        "z": pa.array([i // 5 % 4 for i in ids], pa.int64()),
        "f": pa.array([floats[i * 5 % 9] for i in ids], pa.float64()),
        "h": pa.array([float(i % 13) / 4 for i in ids], pa.float64()),
        "s": pa.array([None if i % 7 == 3 else WORDS[i * 3 % 10] for i in ids], pa.large_string()),
        "l": pa.array([list(range(i % 5)) for i in ids], pa.large_list(pa.int64())),
    }
    return pa.table(columns)


@cache
def files(first: int, sizes: tuple[int, ...], group: int) -> str:
    """Parquet files of so many rows each, in row groups of ``group`` rows."""
    folder = Path(mkdtemp(prefix="plans"))
    for number, size in enumerate(sizes):
        start = first * 100_000 + number * 1000
        pq.write_table(table(start, size), folder / f"part-{number}.parquet", row_group_size=group)
    return str(folder / "*.parquet")


@cache
def lines() -> str:
    """A text file."""
    path = Path(mkdtemp(prefix="plans")) / "words.txt"
    path.write_text("".join(f"{WORDS[i * 3 % 10]} {i}\n" for i in range(40)), encoding="utf-8")
    return str(path)


class Splits:
    """A source of uneven splits; ``streaming`` ones can only be read from their beginning."""

    def __init__(self, start: int, sizes: Sequence[int], known: bool, streaming: bool) -> None:
        self._start, self._sizes, self._known, self._streaming = start, list(sizes), known, streaming

    def splits(self) -> list[Split]:
        return [
            Split(file=n, rows=size if self._known else None, bytes=size * 64, part=n, streaming=self._streaming)
            for n, size in enumerate(self._sizes)
        ]

    def read(self, split: Any) -> Iterator[pa.Table]:
        whole = table(self._start + 1000 * split.part, self._sizes[split.part])
        yield whole.slice(0, len(whole) // 3)
        yield whole.slice(len(whole) // 3)


# ---- functions of the user -------------------------------------------------------------------------------------------


def plus(x: Any) -> int:
    return (x or 0) + 1


def both(x: Any, y: Any) -> int:
    return (x or 0) * 3 + (y or 0)


def half(x: Any) -> float:
    return math.nan if x is None else float(x) / 2


def long(s: Any) -> int:
    return len(s or "")


def shout(s: Any) -> str:
    return (s or "none") + "!"


def some(x: Any) -> list[int]:
    return list(range(int(x or 0) % 3))


def dice(x: Any, rng: np.random.Generator) -> int:
    return int(x or 0) + int(rng.integers(0, 5))


def seldom(x: Any) -> int:
    """Fails on some rows."""
    if (x or 0) % 11 == 4:
        raise ValueError(f"no {x}")
    return int(x or 0)


def whole_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"id": row["id"] + 1}


def row_counts(row: dict[str, Any]) -> bool:
    return (len(row) + int(row["id"])) % 4 != 0


# ---- pipelines -------------------------------------------------------------------------------------------------------

ROW_STEPS = (
    "filter filter filter filter_fn filter_fn filter_null with with with cast map map map2 map_new map_new map_str tuple "
    "random "
    "flat_map map_batches map_arrow select drop drop rename swap shuffle shuffle take skip repeat sample cache limit "
    "whole_row filter_row grouped selector failing refilled pack by"
).split()
SAME = {"filter", "filter_fn", "filter_null", "over", "map", "map2", "random", "shuffle", "take", "skip", "failing",
        "refilled", "cache", "flat_map", "map_batches", "sample", "repeat", "grouped", "swap"}  # fmt: skip
"""Steps that leave the columns and their types as they are: what they give can be joined."""


@dataclass
class Toy:
    """A pipeline and what it was made of."""

    pipeline: cedar.Pipeline
    steps: list[str]
    batched: bool
    skips: bool


@dataclass
class Builder:
    draw: random.Random
    fails: str = "skip"  # functions that fail on some rows: "skip" gives them a policy, "raise" none
    without: frozenset[str] = frozenset()  # steps and joins that are left out
    most: int = 9
    steps: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=lambda: dict(KINDS))
    sources: int = 0
    fresh: int = 0

    def build(self) -> Toy:
        draw = self.draw
        if draw.random() < 0.08:
            p = self.text()
        else:
            p = self.tree(draw.choice([0, 0, 0, 1, 1, 2]))
        for _ in range(draw.randint(1, self.most)):
            p = self.grow(p, draw.choice(ROW_STEPS))
        batched = draw.random() < 0.8
        if batched:
            p = self.batch(p)
        return Toy(p, self.steps, batched, "failing" in self.steps or "refilled" in self.steps)

    # ---- what is read

    def text(self) -> cedar.Pipeline:
        self.steps.append("text")
        self.kinds = {"id": "int", "s": "str"}
        return cedar.read_text(lines()).drop("path").rename({"line": "id", "text": "s"})

    def source(self) -> cedar.Pipeline:
        draw = self.draw
        self.sources += 1
        kind = draw.choice(["parquet", "parquet", "parquet", "items", "arrow", "splits", "streaming"])
        self.steps.append(kind)
        if kind == "parquet":
            sizes = draw.choice([(30,), (17, 0, 23), (40, 5)])
            return cedar.read_parquet(files(self.sources, sizes, draw.choice([2, 4, 9, 50])))
        rows = table(self.sources * 100_000, draw.choice([1, 13, 45]))
        if kind == "items":
            return cedar.from_items(rows.to_pylist()) if len(rows) > 1 else cedar.from_arrow(rows)
        if kind == "arrow":
            return cedar.from_arrow(rows)
        sizes = [draw.choice([1, 3, 3, 8, 21]) for _ in range(draw.randint(1, 9))]
        return cedar.from_source(Splits(self.sources * 100_000, sizes, draw.random() < 0.7, kind == "streaming"))

    def tree(self, joins: int) -> cedar.Pipeline:
        """Sources and what joins them."""
        draw = self.draw
        left = self.source() if joins == 0 else self.tree(joins - 1)
        for _ in range(draw.randint(0, 2)):
            left = self.keep(left)
        if joins == 0:
            return left
        kind = draw.choice(sorted({"concat", "mix", "zip", "shared", "shared_concat"} - self.without))
        self.steps.append(kind)
        if kind == "concat":
            return cedar.concat(left, self.keep(self.source()))
        if kind == "shared_concat":
            return cedar.concat(self.keep(left), self.keep(left))
        if kind == "mix":
            stop = draw.choice(["first", "all"])
            return cedar.mix([(left, 0.6), (self.keep(self.source()), 0.4)], seed=draw.randint(0, 9), stop=stop)
        self.fresh += 1
        other = self.keep(left) if kind == "shared" else self.keep(self.source())
        name = f"q{self.fresh}"
        joined = cedar.zip(left, other.select(**{name: col("x") * 2}))
        return joined.with_columns(x=col("x") + col(name) % 3).drop(name)

    def keep(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return self.grow(p, self.draw.choice(sorted(SAME)))

    # ---- steps

    def pick(self, *kinds: str) -> str:
        """A column of one of these kinds; of any where there is none."""
        names = [name for name, kind in self.kinds.items() if kind in kinds]
        return self.draw.choice(names or list(self.kinds))

    def has(self, *kinds: str) -> bool:
        return any(kind in kinds for kind in self.kinds.values())

    def new(self) -> str:
        self.fresh += 1
        return f"n{self.fresh}"

    def grow(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        made = getattr(self, f"_{kind}", None)
        if made is None or kind in self.without or (kind not in ("drop", "shuffle", "take", "skip") and not self.has("int")):
            return p
        grown = made(p)
        if grown is None:
            return p
        self.steps.append(kind)
        return grown  # type: ignore[no-any-return]

    def predicate(self) -> Any:
        draw = self.draw
        number = col(self.pick("int"))
        wholes = [number % 5 != draw.randint(0, 4), number > draw.randint(-2, 9), number.is_in([1, 2, 5, 8, 13]) | (number < 9)]
        if self.has("float"):
            real = col(self.pick("float"))
            wholes += [real > 0.5, real <= 1.5, real == 0.0, ~(real < 1.0), real.is_nan() | (number > 3), real / real > 0.0]
        if self.has("null"):
            maybe = col(self.pick("null"))
            wholes += [maybe > 1, maybe.is_not_null(), maybe.fill_null(9) > 2, (maybe > 0) & (number % 2 == 0)]
        if self.has("str"):
            text = col(self.pick("str"))
            wholes += [text.str.len_chars() > 1, text != "bee", text.cast(int, strict=False).is_null(), text.is_null() | (text > "b")]
        if self.has("list"):
            wholes += [col(self.pick("list")).list.len() > 1]
        return draw.choice(wholes)

    def _filter(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.filter(self.predicate())

    def _filter_fn(self, p: cedar.Pipeline) -> cedar.Pipeline:
        value, name = self.draw.randint(0, 3), self.pick("int", "null")
        return p.filter(lambda x: (x or 0) % 4 != value, name)

    def _filter_null(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        return p.filter(lambda v: v is not None, self.pick("str", "null")) if self.has("str", "null") else None

    def _filter_row(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        return p.filter(row_counts) if self.kinds.get("id") == "int" else None

    def result(self) -> tuple[str, Any]:
        """A kind of column and an expression for it."""
        draw = self.draw
        number = col(self.pick("int"))
        found = [("int", number * 3 % 11), ("int", number + col(self.pick("int"))), ("float", number / 2), ("float", (number % 3) / (number % 2))]
        if self.has("float"):
            real = col(self.pick("float"))
            found += [("float", real * -1.0), ("float", real + number), ("float", real.round(1)), ("float", real / (number % 2))]
        if self.has("str"):
            text = col(self.pick("str"))
            found += [("null", text.str.len_chars().cast(int)), ("str", text.str.to_uppercase()), ("str", text + "/" + text)]
        return draw.choice(found)

    def _with(self, p: cedar.Pipeline) -> cedar.Pipeline:
        """New columns, and some in the place of others, all of the values before."""
        made, kinds = {}, {}
        for _ in range(self.draw.randint(1, 3)):
            name = self.draw.choice([*self.kinds, self.new(), self.new()])
            kinds[name], made[name] = self.result()
        self.kinds |= kinds
        return p.with_columns(**made)

    def _over(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.with_columns(x=col("x") * 3 % 11)

    def _cast(self, p: cedar.Pipeline) -> cedar.Pipeline:
        import polars as pl

        name = self.draw.choice([self.pick("int"), self.new()])
        self.kinds[name] = "int"
        return p.with_columns(**{name: col(self.pick("int")).cast(pl.Float64).cast(pl.Int64, strict=False).fill_null(0)})

    def _map(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.map(plus, name, dtype=self.draw.choice([int, None]))

    def _map2(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.map(both, name, self.pick("int", "null"), dtype=int)

    def _map_new(self, p: cedar.Pipeline) -> cedar.Pipeline:
        source, name = self.pick("int", "null"), self.new()
        self.kinds[name] = "float"
        return p.map(half, source, into=name, dtype=self.draw.choice([float, None]))

    def _map_str(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        if not self.has("str"):
            return None
        source = self.pick("str")
        if self.draw.random() < 0.5:
            return p.map(shout, source, dtype=str)
        name = self.new()
        self.kinds[name] = "int"
        return p.map(long, source, into=name, dtype=int)

    def _tuple(self, p: cedar.Pipeline) -> cedar.Pipeline:
        a, b = self.pick("int"), self.new()
        self.kinds[b] = "int"
        return p.map(lambda x: (x + 2, x * x % 17), a, into=(a, b), dtype=(int, int))

    def _random(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.map(dice, self.pick("int"), random=True, dtype=int)

    def _flat_map(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.flat_map(some, name, into=name, dtype=int)

    def _map_batches(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.map_batches(lambda c: {name: c[name] * 2 + 1}, name, format="numpy")

    def _map_arrow(self, p: cedar.Pipeline) -> cedar.Pipeline:
        """Sees all columns."""
        return p.map_batches(lambda c: c.select(list(c.schema.names)), format="arrow")

    def _grouped(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.map_batches(lambda c: {name: c[name] + len(c[name])}, name, format="numpy", size=self.draw.randint(2, 6))

    def _whole_row(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        return p.map(whole_row) if self.kinds.get("id") == "int" and self.draw.random() < 0.5 else None

    def _select(self, p: cedar.Pipeline) -> cedar.Pipeline:
        names = self.draw.sample(list(self.kinds), self.draw.randint(1, len(self.kinds)))
        kinds = {name: self.kinds[name] for name in names}
        made = {}
        for _ in range(self.draw.randint(0, 2)):
            name = self.new()
            kinds[name], made[name] = self.result()
        if not any(kind == "int" for kind in kinds.values()):
            return p
        self.kinds = kinds
        return p.select(*names, **made)

    def _selector(self, p: cedar.Pipeline) -> cedar.Pipeline:
        import polars.selectors as cs

        if self.draw.random() < 0.5:
            return p.with_columns(cs.integer() + 1)
        self.kinds = {name: kind for name, kind in self.kinds.items() if kind != "float"}
        return p.select(~cs.float())

    def _drop(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        ints = [name for name, kind in self.kinds.items() if kind == "int"]
        names = [n for n in self.kinds if n not in ints[:1]]
        if not names:
            return None
        gone = self.draw.sample(names, self.draw.randint(1, min(3, len(names))))
        self.kinds = {name: kind for name, kind in self.kinds.items() if name not in gone}
        return p.drop(*gone)

    def _rename(self, p: cedar.Pipeline) -> cedar.Pipeline:
        old, new = self.draw.choice(list(self.kinds)), self.new()
        self.kinds = {new if name == old else name: kind for name, kind in self.kinds.items()}
        return p.rename({old: new})

    def _swap(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        ints = [name for name, kind in self.kinds.items() if kind == "int"]
        return p.rename({ints[0]: ints[1], ints[1]: ints[0]}) if len(ints) > 1 and self.kinds != KINDS else None

    def _shuffle(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.shuffle(seed=self.draw.randint(0, 9), window=self.draw.choice(["256MiB", "1KiB", 3, 10, 17]))

    def _by(self, p: cedar.Pipeline) -> cedar.Pipeline:
        by, interleave = self.pick("int"), self.draw.randint(1, 3)
        return p.shuffle(seed=self.draw.randint(0, 9), window=self.draw.choice(["256MiB", 10]), by=by, interleave=interleave)

    def _take(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.take(self.draw.randint(3, 40))

    def _skip(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.skip(self.draw.randint(0, 5))

    def _repeat(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        return p.repeat(2) if self.draw.random() < 0.5 else None

    def _sample(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        plain = self.steps[-1] in ("parquet", "items", "arrow", "splits", "streaming")
        return p.sample(n=self.draw.randint(1, 40), seed=self.draw.randint(0, 9)) if plain else None

    def _cache(self, p: cedar.Pipeline) -> cedar.Pipeline:
        return p.cache("memory")

    def _failing(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        if self.fails == "raise" and "failing" in self.steps:
            return None
        name = self.pick("int", "null")
        return p.map(seldom, name, into=self.pick("int"), dtype=int, on_error=cedar.Skip() if self.fails == "skip" else None)

    def _refilled(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        if self.fails != "skip":
            return None
        return p.map(seldom, self.pick("int"), dtype=int, on_error=cedar.Skip(refill=True))

    def _pack(self, p: cedar.Pipeline) -> cedar.Pipeline | None:
        name = next((n for n, kind in self.kinds.items() if kind == "list"), None)
        if name is None or "pack" in self.steps or self.draw.random() < 0.5:
            return None
        self.kinds = {"x": "int"}
        packed = p.pack(5, name, fit=self.draw.choice(["concat", "best"]))
        return packed.map(lambda a, b: int(a.sum() * 7 + b.sum()), name, "segment_ids", into="x", dtype=int).select("x")

    # ---- batches

    def batch(self, p: cedar.Pipeline) -> cedar.Pipeline:
        draw = self.draw
        self.steps.append("batch")
        lists = [n for n, kind in self.kinds.items() if kind == "list"]
        if lists and draw.random() < 0.2:
            p = p.bucket_by_length(lists[0], [2], [2, 3])
        else:
            p = p.batch(draw.randint(1, 7), last=draw.choice(["drop", "keep", "keep", "pad"]))
        for kind in draw.choices(["take", "skip", "shuffle", "map", "filter", "drop", "with", "pad"], k=draw.choice([0, 0, 1, 2])):
            self.steps.append(f"batch_{kind}")
            p = self.on_batches(p, kind)
        return p

    def on_batches(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        if kind in ("take", "skip", "shuffle", "drop"):
            return self.grow(p, kind)
        if kind == "map" and self.has("int"):
            return p.map(lambda x: x * 2 + len(x), self.pick("int"), dtype=int)
        if kind == "filter" and self.has("int"):
            return p.filter(lambda x: len(x) % 4 != 1, self.pick("int"))
        if kind == "with" and self.has("int"):
            return p.with_columns(w=col(self.pick("int")) * 2)
        if kind == "pad" and self.has("list"):
            return p.pad(self.pick("list"))
        return p


# ---- plans -----------------------------------------------------------------------------------------------------------


def profile(root: Node, draw: random.Random) -> Profile:
    """Figures drawn by lot, over several orders of magnitude."""
    figures = {}
    for ordinal, node in enumerate(graph.walk(root)):
        cpu = 10 ** draw.uniform(-8, -3)
        wall = cpu * draw.choice([1.0, 1.0, 1.3, 20.0])
        keep = draw.choice([1.0, 0.9, 0.5, 0.01]) if node.operator.effects().rows != "1:1" else 1.0
        sizes = 10 ** draw.uniform(0, 4), 10 ** draw.uniform(0, 4)
        figures[ordinal] = OperatorProfile("op", 10, 1000, wall, cpu, keep, *sizes, gil=draw.choice([0.0, 0.5, 1.0]))
    machine = Machine(draw.choice([1, 4, 64]), 1 << 34, ship_seconds=5e-4, ship_bytes=1e9, start_seconds=0.0)
    return Profile("", figures, machine, rows=1000, workers=2, executor="threads")


def planner(root: Node, draw: random.Random | None = None, skips: bool = False) -> AutoPlanner:
    made = planner_for(root, Budget(), "auto", 2, cedar.Skip() if skips else None, exact=True)
    if draw is not None:
        made.executors = draw.choice([("threads",), ("threads", "processes"), ("inline",)])
        names = [rule.__name__ for rule in RULES] + ["order"]
        made.refused = frozenset(draw.sample(names, draw.choice([0, 0, 1, 3])))
    return made


def plans_of(root: Node, draw: random.Random, count: int, skips: bool = False) -> list[Plan]:
    """What a planner may make of a pipeline: its rules, some rule alone, and the best for profiles drawn by lot."""
    plans = [planner(root, skips=skips).begin()]
    alone = draw.choice(RULES)
    one = planner(root, skips=skips)
    one.refused = frozenset(rule.__name__ for rule in RULES if rule is not alone)
    plans.append(one.begin())
    for number in range(count):
        made = planner(root, draw, skips)
        plans.append(by_lot(made, draw) if number % 2 else made.best(profile(root, draw)))
    return plans


def by_lot(made: AutoPlanner, draw: random.Random) -> Plan:
    """Any order that a search may choose, however bad, in any places."""
    figures = profile(made.root, draw)
    moved, decisions = made._rewritten(made.root, MOVES, figures)
    facts = made._facts(moved, figures)
    arranged = []
    for chain in find_chains(moved, facts):
        precedence = find_precedence(chain, facts, may_swap)
        order: list[int] = []
        done = 0
        while len(order) < len(chain.nodes):
            order.append(draw.choice(list(precedence.ready(done))))
            done |= 1 << order[-1]
        places = tuple(draw.choice(["threads", "threads", "processes"]) for _ in order)
        arranged.append(Arranged(chain, tuple(order), places, draw.choice(["threads", "processes"])))
        decisions.append(Decision("order", " ".join(map(str, order)), applied=order != sorted(order)))
    root, trims = made._rewritten(rebuild(moved, facts, arranged), TRIMS, figures)
    return Plan(made.root, root, (*decisions, *trims), method="beam")


_CHANGES = 40  # a plan that changes before a row is delivered begins where the one before it did


class Driven(Plans):
    """Another plan at every k-th window's end, in a fixed order."""

    every: int
    turn: int
    order: list[Plan]

    @staticmethod
    def drive(loader: cedar.Loader, plans: Sequence[Plan], every: int) -> None:
        """Make a loader's plans change."""
        found: Any = loader._plans
        found.__class__ = Driven
        found.every, found.turn, found.order = every, 0, list(plans)
        found.current = found.order[0]

    def poll(self) -> None:
        self.turn += 1
        if self.turn % self.every == 0 and self._next is None and len(self.history) < _CHANGES:
            self._change(self.order[self.turn // self.every % len(self.order)], "in turn")


def audited(loader: cedar.Loader) -> None:
    """Let every task of a plan be compared with the order as written."""
    found: Any = loader._plans
    inner = found.watcher

    def watcher(runner: Runner) -> Watcher:
        made: Watcher = inner(runner)
        made.audits, made.details, made.every = (1, 0, 0) if found.rewrites else (0, 0, 0)
        return made

    found.watcher = watcher


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a run gave, and what it ended in."""

    units: list[Any]
    error: tuple[Any, ...] | None
    states: list[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self.units == other.units and self.error == other.error


def plain(value: Any) -> Any:
    """A column or value as something that compares bit by bit."""
    if hasattr(value, "to_list"):  # jagged
        return ["jagged", plain(value.values), plain(value.offsets)]
    if isinstance(value, pa.Table):
        return [[name, str(c.type), repr(c.to_pylist())] for name, c in zip(value.column_names, value.columns, strict=True)]
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":  # polars gives a NaN of either sign, by the number of rows in a block
            value = np.where(np.isnan(value), value.dtype.type(np.nan), value)
        body = [plain(v) for v in value.tolist()] if value.dtype == object else value.tobytes().hex()
        return [str(value.dtype), list(value.shape), body]
    if isinstance(value, dict):
        return [[name, plain(inner)] for name, inner in value.items()]
    return [type(value).__name__, repr(value)]


def outcome(loader: cedar.Loader, stop: int | None = None, states: bool = False) -> Outcome:
    """One epoch, or its first ``stop`` units; with the state after each."""
    found = Outcome([], None, [])
    try:
        if states:
            found.states.append(loader.state_dict())
        if stop != 0:
            for unit in loader:
                found.units.append(plain(unit))
                if states:
                    found.states.append(loader.state_dict())
                if stop is not None and len(found.units) >= stop:
                    break
    except cedar.CedarError as error:
        cause = error.__cause__
        found.error = (type(error).__name__, error.what, str(error.row), str(error.site), type(cause).__name__, str(cause))
    finally:
        loader.close()
    return found
