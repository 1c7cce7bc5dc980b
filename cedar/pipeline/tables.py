"""Methods that treat a pipeline as a table: split, unique, join and similar."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast, get_args

import pyarrow as pa

from cedar.core.errors import PipelineError, user_site
from cedar.core.libraries import library
from cedar.core.skip import Skip
from cedar.operators.base import RowOperator
from cedar.operators.explode import Explode
from cedar.operators.join import How
from cedar.operators.split_rows import Census, Moved, SplitPart, SplitRule, bounds_of
from cedar.operators.surveys import Survey
from cedar.operators.unique import Keep, Unique
from cedar.pipeline.joining import WEIGHT, Names, class_weights, join, join_asof
from cedar.pipeline.repeats import find_near_repeats, find_repeats
from cedar.pipeline.surveying import in_order, once, require_rows, require_steady, sampled_types, shuffles, survey
from cedar.plan.graph import Node

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from cedar.pipeline.core import Pipeline


class TableMethods:
    """split, unique, join, explode, and what other libraries' tables are made of."""

    __slots__ = ()

    @property
    def _pipeline(self) -> Pipeline:
        return cast("Pipeline", self)

    def split(self, parts: Mapping[str, float], *, by: str | None = None, seed: int = 0) -> dict[str, Pipeline]:
        """Divide the rows into parts, such as those for training and for validation: a dict of pipelines.

        A row's part follows from a hash of its row key (the path of its file below the listing's root, and its place
        there), or of its value of ``by``. It is the same in every epoch, at any number of ranks, above or below a
        shuffle, and when files are added, removed or moved. So fractions are approximate. ``len`` is known where it is
        known without the split, unless ``by`` is given.

        No part is empty if there are as many rows (or values of ``by``) as parts: in data so small that the hash gives
        a part nothing, it gets a row of the largest part, which may go back when more files are added.

        Args:
            parts: names and fractions; the fractions add up to 1.
            by: rows with the same value of this column are in the same part, such as all rows of one user.
            seed: another one chooses other rows.

        Raises:
            PipelineError: fractions that do not add up to 1, a column that is not there, or a pipeline of batches.

        Examples:
            >>> import cedar
            >>> parts = cedar.from_items([{"x": i} for i in range(1000)]).split({"train": 0.9, "val": 0.1})
            >>> parts["train"].count() + parts["val"].count(), 60 < parts["val"].count() < 140
            (1000, True)

            To split by time, filter by expressions: ``p.filter(col("day") < cut)`` and ``p.filter(col("day") >= cut)``.
        """
        bounds, pipeline = bounds_of(parts), self._pipeline
        require_rows(pipeline, "split")
        rule = SplitRule(bounds, by, seed)

        def moved(on_error: Skip | None) -> Moved:
            census = Census(rule, len(parts))
            columns = () if by is None else (by,)
            for block in survey(in_order(once(below[-1])), columns, "split", on_error):
                if census.add(rule.hashes(block)):
                    break
            return census.moved()

        below, needed, made = _keeping_keys(pipeline.given, by), Survey(moved), {}
        for number, name in enumerate(parts):
            part = type(pipeline)(below[-1]).apply(SplitPart(name, number, rule, needed)).given
            for node in reversed(below[:-1]):
                part = dataclasses.replace(node, inputs=(part,))
            made[name] = type(pipeline)(part)
        return made

    def unique(self, subset: str | Sequence[str] | None = None, *, keep: Keep = "first") -> Pipeline:
        """One row of each distinct value of the columns ``subset``, in all of the data.

        Which rows repeat a value is found by one pass over these columns before the first row is delivered. What it
        found is kept in the user's cache folder for other ranks and later runs, unless a function or a source cannot be
        identified. Hashes of the values are held in memory, and on disk beyond 256 MiB. The rows that stay are the same
        in every epoch and at any number of ranks.

        Args:
            subset: a column, or several; by default all of them.
            keep: which row of those with one value stays, in the order of the sources (whatever a shuffle makes of it):
                "first", "last", "any", or "none" of several.

        Raises:
            PipelineError: a column that is not there or holds Python objects, a pipeline of batches, or rows below
                that differ from epoch to epoch.

        Examples:
            >>> import cedar
            >>> rows = cedar.from_items([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}])
            >>> list(rows.unique("id"))
            [{'id': 1, 'v': 'a'}, {'id': 2, 'v': 'b'}]
        """
        if keep not in get_args(Keep):
            fix = f"one of {', '.join(map(repr, get_args(Keep)))}"
            raise PipelineError(f"unique(keep={keep!r})", site=user_site(), fix=fix)
        names = None if subset is None else (subset,) if isinstance(subset, str) else tuple(subset)
        pipeline = self._pipeline
        known = None if "?" in pipeline.schema else frozenset(pipeline.schema)
        require_steady(pipeline, known if names is None else names, "unique")
        node, which = in_order(pipeline.given), "first" if keep == "any" else keep
        return pipeline.apply(Unique(names, which, Survey(lambda on_error: find_repeats(node, names, which, on_error))))

    def drop_near_duplicates(self, column: str, *, threshold: float = 0.8, words: int = 3) -> Pipeline:
        """Leave out rows whose text is like that of an earlier row, in all of the data. Needs
        ``cedar-data[near-duplicates]``.

        Strings are alike if the Jaccard similarity of their runs of words, as MinHash (Broder, 1997) estimates it
        from 128 numbers, is at least ``threshold``. One pass decides, as that of ``unique`` does, in the order of the
        sources; it holds about a kilobyte for each row that stays. Null and empty strings stay.

        Args:
            column: of strings.
            threshold: from 0 to 1.
            words: of a run, in lower case, whatever is between them.

        Raises:
            PipelineError: rensa is not installed, a column that is not there or holds no strings; as of ``unique``.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"text": "a b c"}]).drop_near_duplicates("text", threshold=2)
            Traceback (most recent call last):
            ...
            cedar.PipelineError: drop_near_duplicates(threshold=2, words=3) ...
        """
        number = isinstance(threshold, int | float) and 0 < threshold <= 1
        if not number or not isinstance(words, int) or words < 1:
            what = f"drop_near_duplicates(threshold={threshold!r}, words={words!r})"
            raise PipelineError(what, site=user_site(), fix="a threshold from 0 to 1, and at least one word")
        pipeline = self._pipeline
        require_steady(pipeline, (column,), "drop_near_duplicates")
        kind = pipeline.schema.get(column, "?")
        if kind not in ("?", pa.large_string()):
            raise PipelineError(f"drop_near_duplicates: column {column!r} is {kind}, not strings", site=user_site())
        node = in_order(pipeline.given)
        survey = Survey(lambda on_error: find_near_repeats(node, column, threshold, words, on_error))
        return pipeline.apply(Unique((column,), f"{threshold} {words}", survey, "drop_near_duplicates"))

    def join(
        self,
        other: Any,
        *,
        on: Names = None,
        left_on: Names = None,
        right_on: Names = None,
        how: How = "left",
        validate: Literal["m:1", "m:m"] = "m:1",
        suffix: str = "_right",
    ) -> Pipeline:
        """Add the columns of another table to the rows whose keys are equal, or filter by what that table has.

        Rows stay in their order. As in polars, a null key matches nothing, and the other table's keys are not added.
        The other side is read once, when the first row is needed, and has to fit into memory for that; after that it is
        in a file that all workers map.

        Args:
            other: a table of Arrow, polars or pandas, or a pipeline of rows.
            on: the column, or columns, that must be equal; ``left_on`` and ``right_on`` where they have other names
                in ``other``.
            how: "left" keeps every row, with nulls if nothing matches; "inner" keeps those that match; "semi" and
                "anti" keep those that match, or do not, and add no columns.
            validate: "m:1" refuses two rows of ``other`` with the same keys; "m:m" makes a row of each pair.
            suffix: added to a column of ``other`` whose name is taken.

        Raises:
            PipelineError: keys that are not there, are not unique in ``other``, or are of types that do not compare;
                an ``other`` that is something else.

        Examples:
            >>> import cedar, polars as pl
            >>> items = pl.DataFrame({"item": [1, 2], "price": [0.5, 2.0]})
            >>> list(cedar.from_items([{"item": 2}, {"item": 3}]).join(items, on="item"))
            [{'item': 2, 'price': 2.0}, {'item': 3, 'price': None}]
        """
        return self._pipeline.apply(join(self._pipeline, other, (on, left_on, right_on), how, validate, suffix))

    def join_asof(
        self, other: Any, *, on: str, by: Names = None, tolerance: Any = None, suffix: str = "_right"
    ) -> Pipeline:
        """Add the columns of the latest row of another table that is not after the row's own time: never the future's.

        Neither side has to be sorted. Of several rows at one time the last in ``other`` counts. A null time matches
        nothing.

        Args:
            other: as of ``join``.
            on: the column of times or numbers, in both.
            by: columns that must be equal, such as a user.
            tolerance: how much earlier it may be: a number, a ``timedelta``, or a string such as "2h", as in polars.
            suffix: added to a column of ``other`` whose name is taken.

        Raises:
            PipelineError: as of ``join``.

        Examples:
            >>> import cedar, polars as pl
            >>> prices = pl.DataFrame({"t": [1, 5], "price": [10, 50]})
            >>> list(cedar.from_items([{"t": 4}, {"t": 5}, {"t": 0}]).join_asof(prices, on="t"))
            [{'t': 4, 'price': 10}, {'t': 5, 'price': 50}, {'t': 0, 'price': None}]
        """
        return self._pipeline.apply(join_asof(self._pipeline, other, on, by, tolerance, suffix))

    def balance_classes(self, column: str, *, seed: int = 0) -> Pipeline:
        """Draw as many rows as there are, with replacement and in random order, so that each class is as likely.

        One pass counts the classes before the first row is drawn; see ``sample`` for the draws.

        Args:
            column: of the classes; a null is an error.
            seed: mixed into the seed of the run; every epoch draws other rows.

        Raises:
            PipelineError: a column that is not there, a pipeline of batches, or classes that differ by epoch.
            RowError: while running, a row without a class.

        Examples:
            >>> import cedar
            >>> rows = cedar.from_items([{"y": int(i < 10)} for i in range(1000)])
            >>> 400 < sum(row["y"] for row in rows.balance_classes("y")) < 600
            True
        """
        weighed = self._pipeline.apply(class_weights(self._pipeline, column))
        return weighed.sample(WEIGHT, seed=seed).drop(WEIGHT)

    def explode(self, *columns: str) -> Pipeline:
        """A row for each item of lists; the other columns are repeated. Rows whose list is empty or null are left out.

        Args:
            *columns: columns of lists, of equal lengths in each row.

        Raises:
            PipelineError: no columns, or one that does not hold lists.
            RowError: while running, lists of different lengths in a row.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"user": 1, "items": [7, 8]}]).explode("items"))
            [{'user': 1, 'items': 7}, {'user': 1, 'items': 8}]
        """
        return self._pipeline.apply(Explode(*columns))

    def limit(self, n: int) -> Pipeline:
        """The first ``n`` rows, or batches: another name for ``take``.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).limit(2).count()
            2
        """
        return self._pipeline.take(n)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, without running where metadata tell them.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1, "y": 2}]).drop("x").columns
            ['y']
        """
        known = self._pipeline.schema
        return list(sampled_types(self._pipeline) if known == {"?": "?"} else known)

    def to_polars(self) -> pl.DataFrame:
        """All rows of an epoch, as a polars frame in memory.

        Raises:
            PipelineError: columns of Python objects, or a pipeline without end.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).to_polars()["x"].sum()
            3
        """
        import polars as pl

        return cast("pl.DataFrame", pl.from_arrow(self._pipeline.to_arrow()))

    def to_pandas(self) -> pd.DataFrame:
        """All rows of an epoch, as a pandas frame in memory.

        Raises:
            PipelineError: pandas is not installed, columns of Python objects, or a pipeline without end.

        Examples:
            >>> import cedar
            >>> int(cedar.from_items([{"x": 1}, {"x": 2}]).to_pandas()["x"].sum())
            3
        """
        library("pandas", "pandas", "to_pandas")
        return self._pipeline.to_arrow().to_pandas()

    def group_by(self, *columns: str) -> NoReturn:
        """Raises PipelineError: a pipeline delivers rows, and the error says what to write for groups."""
        raise PipelineError(
            "a pipeline has no group_by: it delivers rows one after the other, and groups need all of them",
            site=user_site(),
            fix="p.to_polars().group_by(...) for figures of groups, shuffle(by=...) to keep the rows of a group "
            "together, or recommendation.cluster to write them clustered",
        )

    def sort(self, *columns: str) -> NoReturn:
        """Raises PipelineError: a pipeline delivers rows in the order of its sources, and the error says what to do."""
        raise PipelineError(
            "a pipeline has no sort: it delivers rows in the order of its sources",
            site=user_site(),
            fix="cedar.from_polars(p.to_polars().sort(...)) where the rows fit into memory; shuffle(by=...) keeps the "
            "rows of one value together; sort before you write the files otherwise",
        )


def _keeping_keys(node: Node, by: str | None) -> list[Node]:
    """The node, and those below it, down to where the rows are chosen that a split by row key divides.

    Divided there, rows of other parts are neither worked on nor moved about, and they are counted where sources are.
    """
    below = [node]
    while by is None and (shuffles(node) or _maps_rows(node)):
        (node,) = node.inputs
        below.append(node)
    return below


def _maps_rows(node: Node) -> bool:
    operator = node.operator
    plain = isinstance(operator, RowOperator) and operator.exact_rows is None and operator.storage is None
    return plain and node.effects.rows == "1:1"
