"""Methods for operators that order, cut or repeat the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from cedar.core.errors import PipelineError, user_site
from cedar.operators.balance import Balance
from cedar.operators.batch import Batch
from cedar.operators.bucket import BucketByLength
from cedar.operators.dedup import dedup
from cedar.operators.map import Collate
from cedar.operators.pack import Pack
from cedar.operators.repeat import Repeat
from cedar.operators.sample import RUN, Sample
from cedar.operators.shuffle import Shuffle
from cedar.operators.take import SkipRows, Take

if TYPE_CHECKING:
    from cedar.operators.base import Operator
    from cedar.pipeline.core import Pipeline


class OrderMethods:
    """shuffle, batch, pack, take and similar."""

    __slots__ = ()

    def _on(self, operator: Operator) -> Pipeline:
        return cast("Pipeline", self).apply(operator)

    def shuffle(
        self, *, seed: int = 0, window: str | int = "256MiB", by: str | None = None, interleave: int = 1
    ) -> Pipeline:
        """Shuffle splits globally, and rows within windows of source metadata.

        Args:
            seed: mixed into the seed of the run; every epoch has its own order.
            window: rows, or bytes as in "256MiB": an upper bound; at most 1/64 of the epoch, unless that is below
                both 8 MiB and 65,536 rows.
            by: keep rows of one value of this column together.
            interleave: with ``by``, mix so many groups row by row.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(5)]).shuffle(seed=1)
            >>> sorted(row["x"] for row in p)
            [0, 1, 2, 3, 4]
        """
        return self._on(Shuffle(seed, window, by, interleave))

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
        """Draw ``n`` rows, or a ``fraction`` of them, in random order; by default as many as there are.

        Args:
            weights: a column or an expression, not negative; None weighs all rows alike.
            n: rows.
            fraction: of the rows, in place of ``n``.
            replace: draw a row more than once; by default only with weights.
            seed: mixed into the seed of the run; every epoch draws again.
            local: draw from each rank's own rows.

        Raises:
            PipelineError: both ``n`` and ``fraction``, or invalid weights; while running, more rows to draw
                without replacement than there are.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"w": 0.0}, {"w": 1.0}]).sample("w", n=3).count()
            3
        """
        repeats = weights is not None if replace is None else bool(replace)
        drawn = Sample(weights, n, seed, local, fraction, repeats)
        # It draws in the order of its input: the shuffle above mixes that within its window, the one below what a
        # window does not reach, such as files in the folders of classes.
        few = drawn.n is not None and drawn.n <= RUN
        below = self if few else self.shuffle(seed=seed)
        return below._on(drawn).shuffle(seed=seed)

    def batch(
        self,
        size: int,
        *,
        last: Literal["drop", "keep", "pad"] | None = None,
        collate: Callable[..., Any] | None = None,
        random: bool = False,
        local: bool = False,
    ) -> Pipeline:
        """Batches of ``size`` rows (on each rank). From here on the unit is the batch.

        Args:
            size: rows.
            last: the end of an epoch. None: one rank gets all rows; several take equally many steps, the last with
                fewer rows, and leave out fewer rows than there are ranks, which the report counts. "drop" the short
                batch and the last batches that do not fill all ranks; "keep" them, so that ranks may differ by a batch;
                "pad" them, and add a boolean column ``valid``: for evaluation, where every row counts once.
            collate: called with each batch as a list of rows, dicts, as torch's and Hugging Face's collators are; what
                it returns is delivered as it is, or given to a ``map(fn)`` above.
            random: pass ``rng=`` to ``collate``, a numpy.random.Generator that is the same for a batch in every run.
            local: cut each rank's own rows, where their number is not known beforehand: ranks then read their share
                alone, and may get different numbers of batches.

        Examples:
            >>> import cedar
            >>> [b["x"].tolist() for b in cedar.from_items([{"x": i} for i in range(5)]).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        if random and collate is None:
            fix = "give collate=, or draw in a map(fn, random=True)"
            raise PipelineError("batch(random=True) without collate", site=user_site(), fix=fix)
        batches = self._on(Batch(size, last, local))
        return batches if collate is None else batches.apply(Collate(collate, random=random))

    def balance(self, by: Any, over: Literal["ranks"] = "ranks") -> Pipeline:
        """Choose which rank gets which rows of a step, so that the ranks' batches cost about the same.

        A step is one batch for each rank. It keeps its rows, and each batch as many as it had. Is above what makes
        the batches; what is above it runs on a rank's own rows alone, what is below on those of all ranks, except what
        the optimizer can move above.

        Args:
            by: what a row costs: a column (its numbers, or the lengths of its strings and lists, or the sizes of its
                arrays), an expression, or a function of the row, a dict, which gives a number.
            over: "ranks".

        Raises:
            PipelineError: the input gives rows and not batches, or ``by`` is not a cost.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"n": n} for n in (9, 8, 1, 2)]).batch(2).balance("n")
            >>> [[b["n"].tolist() for b in p.loader(rank=rank, world=2)] for rank in range(2)]
            [[[9, 1]], [[8, 2]]]
        """
        return self._on(Balance(by, over))

    def bucket_by_length(
        self, column: str, boundaries: Sequence[int], batch_sizes: Sequence[int], *, local: bool = False
    ) -> Pipeline:
        """Batches of rows of similar length.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": [1] * n} for n in (1, 9, 2, 8)])
            >>> [len(b["x"]) for b in p.bucket_by_length("x", [5], [2, 2])]
            [2, 2]
        """
        return self._on(BucketByLength(column, tuple(boundaries), tuple(batch_sizes), local))

    def pack(
        self,
        length: int,
        *columns: str,
        fit: Literal["concat", "best"] = "concat",
        value: float | Mapping[str, float] = 0,
        local: bool = False,
    ) -> Pipeline:
        """Pack lists into rows of exactly ``length`` values; adds ``segment_ids`` and ``positions``, 0 in padding.

        Args:
            length: values per row.
            *columns: list columns of equal lengths in each row; by default all lists of numbers. Others are dropped.
            fit: "concat" cuts lists at the ends of rows, "best" keeps them whole where it can.
            value: what padding holds; a dict has a value by column, and the other columns get 0.
            local: pack each rank's own rows.

        Raises:
            PipelineError: columns that are not lists of numbers, or whose type cannot hold ``value``.

        Examples:
            >>> import cedar
            >>> rows = [{"t": [1, 2, 3], "labels": [2, 3, 9]}]
            >>> row = next(iter(cedar.from_items(rows).pack(4, "t", "labels", value={"labels": -100})))
            >>> row["t"].tolist(), row["labels"].tolist()
            ([1, 2, 3, 0], [2, 3, 9, -100])
        """
        return self._on(Pack(length, columns, fit, local, value))

    def take(self, n: int, *, local: bool = False) -> Pipeline:
        """The first ``n`` rows, or batches.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).take(2).count()
            2
        """
        return self._on(Take(n, local))

    def skip(self, n: int, *, local: bool = False) -> Pipeline:
        """All but the first ``n`` rows, or batches.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).skip(2).count()
            3
        """
        return self._on(SkipRows(n, local))

    def repeat(self, n: int | None = None) -> Pipeline:
        """The pipeline ``n`` times over, or forever; shuffles and draws differ each time.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}]).repeat(3).count()
            3
        """
        return self._on(Repeat(n))

    def dedup(self, groups: Any = "auto", *, session: str | None = None) -> Pipeline:
        """Mark columns of lists that repeat from row to row: batches hold each distinct row of a group once.

        No value and no order changes. A batch (format "torch" or "numpy") has the ``InverseKeyedJaggedTensor`` of a
        group under the name of each of its columns; format "arrow", rows and sinks have plain lists. Functions marked
        as changing one value by itself (``cedar.operators.algebra``, ``cedar.operators.recsys``) are called once for
        rows that are equal.

        Args:
            groups: lists of column names, each a group whose rows are the same where all its lists are; "auto" finds
                the groups that pay in a sample of the rows, and may find none.
            session: the column that tells sessions apart, for the estimates that ``explain()`` prints.

        Raises:
            PipelineError: no such column, one that holds no lists, or one in two groups.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"ids": [1, 2]}, {"ids": [1, 2]}, {"ids": [3]}]).dedup([["ids"]]).batch(3)
            >>> group = next(iter(p))["ids"]
            >>> group["ids"].to_list(), group.inverse_lookup.tolist()
            ([[1, 2], [3]], [0, 0, 1])
        """
        return self._on(dedup(groups, session))
