"""Random pipelines over tables of many columns: every operator, in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import cedar
from cedar import col
from tests.toy_wide_data import (
    KINDS,
    Splits,
    both,
    dice,
    files,
    half,
    lines,
    long,
    plus,
    row_counts,
    seldom,
    shout,
    some,
    table,
    whole_row,
)

ROW_STEPS = (
    "filter filter filter filter_fn filter_fn filter_null with with with cast map map map2 map_new map_new map_str "
    "tuple random flat_map map_batches map_arrow select drop drop rename swap shuffle shuffle take skip repeat sample "
    "cache whole_row filter_row grouped selector failing refilled pack by"
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
        p = self.text() if draw.random() < 0.08 else self.tree(draw.choice([0, 0, 0, 1, 1, 2]))
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
            each = draw.choice([(30,), (17, 0, 23), (40, 5)])
            return cedar.read_parquet(files(self.sources, each, draw.choice([2, 4, 9, 50])))
        rows = table(self.sources * 100_000, draw.choice([1, 13, 45]))
        if kind == "items" and len(rows) > 1:  # lists say nothing of lengths and widths that a type may fix
            return cedar.from_items(rows.to_pylist()).with_columns(pairs=col("pairs").cast(pl.Array(pl.Int16, 2)))
        if kind in ("items", "arrow"):
            return cedar.from_arrow(rows)
        sizes = [draw.choice([1, 3, 3, 8, 21]) for _ in range(draw.randint(1, 9))]
        return cedar.from_source(Splits(self.sources * 100_000, sizes, draw.random() < 0.7, kind == "streaming"))

    def tree(self, joins: int) -> cedar.Pipeline:
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
        """A column of one of these kinds; of any if there is none."""
        names = [name for name, kind in self.kinds.items() if kind in kinds]
        return self.draw.choice(names or list(self.kinds))

    def has(self, *kinds: str) -> bool:
        return any(kind in kinds for kind in self.kinds.values())

    def new(self) -> str:
        self.fresh += 1
        return f"n{self.fresh}"

    def grow(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        made = getattr(self, f"_{kind}", None)
        if (
            made is None
            or kind in self.without
            or (kind not in ("drop", "shuffle", "take", "skip") and not self.has("int"))
        ):
            return p
        grown = made(p)
        if grown is None:
            return p
        self.steps.append(kind)
        return grown  # type: ignore[no-any-return]

    def predicate(self) -> Any:
        draw = self.draw
        number = col(self.pick("int"))
        wholes = [
            number % 5 != draw.randint(0, 4),
            number > draw.randint(-2, 9),
            number.is_in([1, 2, 5, 8, 13]) | (number < 9),
        ]
        if self.has("float"):
            real = col(self.pick("float"))
            wholes += [
                real > 0.5,
                real <= 1.5,
                real == 0.0,
                ~(real < 1.0),
                real.is_nan() | (number > 3),
                real / real > 0.0,
            ]
        if self.has("null"):
            maybe = col(self.pick("null"))
            wholes += [maybe > 1, maybe.is_not_null(), maybe.fill_null(9) > 2, (maybe > 0) & (number % 2 == 0)]
        if self.has("str"):
            text = col(self.pick("str"))
            wholes += [
                text.str.len_chars() > 1,
                text != "bee",
                text.cast(int, strict=False).is_null(),
                text.is_null() | (text > "b"),
            ]
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
        found = [
            ("int", number * 3 % 11),
            ("int", number + col(self.pick("int"))),
            ("float", number / 2),
            ("float", (number % 3) / (number % 2)),
        ]
        if self.has("float"):
            real = col(self.pick("float"))
            found += [
                ("float", real * -1.0),
                ("float", real + number),
                ("float", real.round(1)),
                ("float", real / (number % 2)),
            ]
        if self.has("str"):
            text = col(self.pick("str"))
            found += [
                ("null", text.str.len_chars().cast(int)),
                ("str", text.str.to_uppercase()),
                ("str", text + "/" + text),
            ]
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
        name = self.draw.choice([self.pick("int"), self.new()])
        self.kinds[name] = "int"
        return p.with_columns(
            **{name: col(self.pick("int")).cast(pl.Float64).cast(pl.Int64, strict=False).fill_null(0)}
        )

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
        return p.map_batches(lambda c: c.select(list(c.schema.names)), format="arrow")

    def _grouped(self, p: cedar.Pipeline) -> cedar.Pipeline:
        name = self.pick("int")
        return p.map_batches(
            lambda c: {name: c[name] + len(c[name])}, name, format="numpy", size=self.draw.randint(2, 6)
        )

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
        return p.shuffle(
            seed=self.draw.randint(0, 9), window=self.draw.choice(["256MiB", 10]), by=by, interleave=interleave
        )

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
        return p.map(
            seldom, name, into=self.pick("int"), dtype=int, on_error=cedar.Skip() if self.fails == "skip" else None
        )

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
        for kind in draw.choices(
            ["take", "skip", "shuffle", "map", "filter", "drop", "with", "pad"], k=draw.choice([0, 0, 1, 2])
        ):
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
        return p.pad(self.pick("list")) if kind == "pad" and self.has("list") else p
