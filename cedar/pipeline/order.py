"""Pipeline methods for operators that reorder, batch, shorten or repeat the stream of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cedar.core.errors import invalid_call
from cedar.operators.batch import Batch
from cedar.operators.dedup import dedup
from cedar.operators.map import Collate
from cedar.operators.take import Repeat, SkipRows, Take

if TYPE_CHECKING:
    from cedar.operators.base import Operator
    from cedar.pipeline.core import Pipeline


class OrderMethods:
    """shuffle, batch, pack, take and similar methods."""

    __slots__ = ()

    if TYPE_CHECKING:

        def apply(self, operator: Operator) -> Pipeline: ...

    def shuffle(
        self, *, seed: int = 0, window: str | int = "256MiB", by: str | None = None, interleave: int = 1
    ) -> Pipeline:
        """Shuffle splits globally, and rows within windows of whole splits.

        Args:
            seed: combined with the run's seed; every epoch has its own order.
            window: maximum size of a window in rows, or in bytes such as "256MiB". A window is also at most 1/64 of the
                epoch, unless that is below both 8 MiB and 65,536 rows.
            by: keep rows with the same value of this column together; Python objects are compared by their repr.
            interleave: with ``by``, the number of groups whose rows are interleaved.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(5)]).shuffle(seed=1)
            >>> sorted(row["x"] for row in p)
            [0, 1, 2, 3, 4]
        """
        from cedar.operators.shuffle import Shuffle

        return self.apply(Shuffle(seed, window, by, interleave))

    def sample(
        self,
        weights: Any = None,
        n: int | None = None,
        *,
        fraction: float | None = None,
        replace: bool | None = None,
        seed: int = 0,
        local: bool = False,
    ) -> Pipeline:
        """Draw ``n`` rows, or a ``fraction`` of the rows, in random order; by default as many as the input has.

        Args:
            weights: a column or an expression with non-negative values; None weights all rows equally.
            n: number of rows to draw.
            fraction: fraction of the rows to draw, instead of ``n``.
            replace: whether to draw with replacement; by default only if ``weights`` is set.
            seed: combined with the run's seed; every epoch draws different rows.
            local: each rank draws from its own rows only.

        Raises:
            PipelineError: both ``n`` and ``fraction``, or invalid weights; while running, more rows requested without
                replacement than the input has.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"w": 0.0}, {"w": 1.0}]).sample("w", n=3).count()
            3
        """
        from cedar.operators.sample import RUN, Sample

        repeats = weights is not None if replace is None else bool(replace)
        drawn = Sample(weights, n, seed, local, fraction, repeats)
        # Sample draws in the order of its input. The shuffle after it only mixes rows within a window. The shuffle
        # before it mixes rows that are farther apart, such as files in one folder per class.
        few = drawn.n is not None and drawn.n <= RUN
        below = self if few else self.shuffle(seed=seed)
        return below.apply(drawn).shuffle(seed=seed)

    def batch(
        self,
        size: int,
        *,
        last: Literal["drop", "keep", "pad"] | None = None,
        collate: Callable[..., Any] | None = None,
        random: bool = False,
        local: bool = False,
    ) -> Pipeline:
        """Group rows into batches of ``size`` rows per rank. Later operators then work on batches.

        Args:
            size: rows per batch.
            last: how an epoch ends. None: a single rank gets all rows. Several ranks get equally many batches, the last
                of which may be short; fewer rows than ranks are dropped, and the report counts them. "drop" drops a
                short batch, and final batches that not all ranks would get. "keep" delivers these, so ranks may differ
                by a batch. "pad" fills them up and adds a boolean column ``valid``, for evaluation on every row.
            collate: function that gets each batch as a list of dicts, as Hugging Face's collators do. The
                loader delivers its result unchanged, or passes it to a later ``map(fn)``.
            random: pass ``rng=`` to ``collate``, a numpy.random.Generator whose draws for a batch never change.
            local: if the number of rows is not known in advance, each rank reads and batches only its own share. Ranks
                may then get different numbers of batches.

        Examples:
            >>> import cedar
            >>> [b["x"].tolist() for b in cedar.from_items([{"x": i} for i in range(5)]).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        if random and collate is None:
            fix = "give collate=, or draw in a map(fn, random=True)"
            raise invalid_call("batch(random=True) without collate", fix=fix)
        batches = self.apply(Batch(size, last, local))
        return batches if collate is None else batches.apply(Collate(collate, random=random))

    def balance(self, by: Any, over: Literal["ranks"] = "ranks") -> Pipeline:
        """Choose which rank gets which rows of a step, so that the ranks' batches cost about the same.

        A step is one batch per rank. ``balance`` changes neither a step's rows nor the sizes of its batches. Call it
        after the method that creates batches. Operators after it run only on a rank's own rows. Operators before it run
        on the rows of all ranks, unless the optimizer can move them after ``balance``.

        Args:
            by: the cost of a row: an expression, a function of the row (a dict) that returns a number, or a column. A
                numeric column is the cost itself; for strings and lists the length counts, for arrays the size.
            over: must be "ranks".

        Raises:
            PipelineError: the input is not batched, or ``by`` is not a valid cost.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"n": n} for n in (9, 8, 1, 2)]).batch(2).balance("n")
            >>> [[b["n"].tolist() for b in p.loader(rank=rank, world=2)] for rank in range(2)]
            [[[9, 1]], [[8, 2]]]
        """
        from cedar.operators.balance import Balance

        return self.apply(Balance(by, over))

    def bucket_by_length(
        self, column: str, boundaries: Sequence[int], batch_sizes: Sequence[int], *, local: bool = False
    ) -> Pipeline:
        """Create batches of rows whose lists, strings or arrays have similar lengths.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": [1] * n} for n in (1, 9, 2, 8)])
            >>> [len(b["x"]) for b in p.bucket_by_length("x", [5], [2, 2])]
            [2, 2]
        """
        from cedar.operators.bucket import BucketByLength

        return self.apply(BucketByLength(column, boundaries, batch_sizes, local))  # type: ignore[arg-type] # made tuples there

    def pack(
        self,
        length: int,
        *columns: str,
        fit: Literal["concat", "best"] = "concat",
        value: float | Mapping[str, float] = 0,
        local: bool = False,
    ) -> Pipeline:
        """Pack lists into rows of exactly ``length`` values. Adds ``segment_ids`` and ``positions``, 0 in padding.

        Args:
            length: values per row.
            *columns: list columns with equal lengths in each row; by default all lists of numbers. Drops other columns.
            fit: "concat" cuts lists where a row is full; "best" keeps them whole where possible.
            value: the padding value. A dict gives a value per column; columns not in it are padded with 0.
            local: each rank packs its own rows only.

        Raises:
            PipelineError: a column does not hold lists of numbers, or its type cannot hold ``value``.

        Examples:
            >>> import cedar
            >>> rows = [{"t": [1, 2, 3], "labels": [2, 3, 9]}]
            >>> row = next(iter(cedar.from_items(rows).pack(4, "t", "labels", value={"labels": -100})))
            >>> row["t"].tolist(), row["labels"].tolist()
            ([1, 2, 3, 0], [2, 3, 9, -100])
        """
        from cedar.operators.pack import Pack

        return self.apply(Pack(length, columns, fit, local, value))

    def take(self, n: int, *, local: bool = False) -> Pipeline:
        """Keep the first ``n`` rows or batches.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).take(2).count()
            2
        """
        return self.apply(Take(n, local))

    def skip(self, n: int, *, local: bool = False) -> Pipeline:
        """Skip the first ``n`` rows or batches.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).skip(2).count()
            3
        """
        return self.apply(SkipRows(n, local))

    def repeat(self, n: int | None = None) -> Pipeline:
        """Repeat the pipeline ``n`` times, or forever. Shuffles and random operators draw differently each time.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}]).repeat(3).count()
            3
        """
        return self.apply(Repeat(n))

    def dedup(self, groups: Any = "auto", *, session: str | None = None) -> Pipeline:
        """Declare list columns whose values repeat in many rows, so that batches store each distinct value once.

        Values and order do not change. In formats "torch" and "numpy", each column of a group is the group's
        ``InverseKeyedJaggedTensor``; in format "arrow", in rows and in sinks, columns are plain lists. Functions marked
        as mapping each value independently (``cedar.operators.algebra``, ``cedar.operators.recsys``) are called once
        for equal rows.

        Args:
            groups: lists of column names. Rows are equal in a group if all of its lists are equal. "auto" searches a
                sample of the rows for groups that pay off, and may find none.
            session: the column that identifies sessions; ``explain()`` uses it for its estimates.

        Raises:
            PipelineError: a column does not exist, does not hold lists, or is in two groups.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"ids": [1, 2]}, {"ids": [1, 2]}, {"ids": [3]}]).dedup([["ids"]]).batch(3)
            >>> group = next(iter(p))["ids"]
            >>> group["ids"].to_list(), group.inverse_lookup.tolist()
            ([[1, 2], [3]], [0, 0, 1])
        """
        return self.apply(dedup(groups, session))
