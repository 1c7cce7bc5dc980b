"""Pipeline methods that treat a pipeline as a table: split, unique, join and similar."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast, get_args

import pyarrow as pa

from cedar.core.boundary import as_columns, to_frame
from cedar.core.errors import Skip, check_names, invalid_call, names_of
from cedar.core.packages import library
from cedar.operators.base import RowOperator
from cedar.operators.split_rows import Census, Moved, SplitPart, SplitRule, hash_bounds
from cedar.operators.surveys import Survey
from cedar.operators.take import whole_seed
from cedar.pipeline.surveying import (
    in_order,
    require_rows,
    require_steady,
    sampled_types,
    shuffles,
    survey,
    without_repeats,
)
from cedar.plan.graph import Node

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from cedar.operators.join import How
    from cedar.operators.unique import Keep
    from cedar.pipeline.core import Pipeline
    from cedar.pipeline.joining import Names


class TableMethods:
    """split, unique, join, explode, and conversions to other libraries' tables."""

    __slots__ = ()

    @property
    def _pipeline(self) -> Pipeline:
        return cast("Pipeline", self)

    def split(self, parts: Mapping[str, float], *, by: str | None = None, seed: int = 0) -> dict[str, Pipeline]:
        """Divide the rows into parts, such as training and validation, and return a dict of pipelines.

        A hash determines the part of a row: a hash of its value of ``by``, by default of the row key (its file's path
        below the listing's root, and its position in the file). A row's part is the same in every epoch, at any number
        of ranks, before or after a shuffle, and after files were added, removed or moved. Fractions are approximate.
        ``len`` is known if it is known without the split, unless ``by`` is set.

        No part is empty if there are at least as many rows (or values of ``by``) as parts. With little data, the hash
        may leave a part empty; it then gets a row of the largest part. If you add files, that row may move back.

        Args:
            parts: names and fractions; the fractions must add up to 1.
            by: keep rows with the same value of this column in the same part, such as all rows of one user.
            seed: a different seed assigns rows differently.

        Raises:
            PipelineError: the fractions do not add up to 1, a column is missing, or the pipeline delivers batches.

        Examples:
            >>> import cedar
            >>> parts = cedar.from_items([{"x": i} for i in range(1000)]).split({"train": 0.9, "val": 0.1})
            >>> parts["train"].count() + parts["val"].count(), 60 < parts["val"].count() < 140
            (1000, True)

            To split by time, filter by expressions: ``p.filter(col("day") < cut)`` and ``p.filter(col("day") >= cut)``.
        """
        bounds, pipeline = hash_bounds(parts), self._pipeline
        check_names("split(by)", *([] if by is None else [by]))
        require_rows(pipeline, "split")
        rule = SplitRule(bounds, by, whole_seed(seed, "split"))

        def moved(on_error: Skip | None) -> Moved:
            census = Census(rule, len(parts))
            columns = () if by is None else (by,)
            for block in survey(in_order(without_repeats(below[-1])), columns, "split", on_error):
                if census.add(rule.hashes(block)):
                    break
            return census.moved()

        below, needed, made = _nodes_above_split(pipeline.given, by), Survey(moved), {}
        for number, name in enumerate(parts):
            part = type(pipeline)(below[-1]).apply(SplitPart(name, number, rule, needed)).given
            for node in reversed(below[:-1]):
                part = dataclasses.replace(node, inputs=(part,))
            made[name] = type(pipeline)(part)
        return made

    def unique(self, subset: str | Sequence[str] | None = None, *, keep: Keep = "first") -> Pipeline:
        """Keep one row for each distinct value of the columns ``subset`` in the whole data set.

        Before it delivers the first row, cedar reads these columns once to find repeated values. It stores the result
        in the user's cache folder for other ranks and later runs, unless it cannot identify a function or a source.
        Hashes beyond 256 MiB are written to disk. The same rows are kept in every epoch and at any number of ranks.

        Args:
            subset: one column or several; by default all columns.
            keep: which of several equal rows to keep: "first" or "last" in the order of the sources (regardless of
                shuffles), "any", or "none".

        Raises:
            PipelineError: a column is missing or has Python objects; the input has batches, or rows differ by epoch.

        Examples:
            >>> import cedar
            >>> rows = cedar.from_items([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}])
            >>> list(rows.unique("id"))
            [{'id': 1, 'v': 'a'}, {'id': 2, 'v': 'b'}]
        """
        from cedar.operators.unique import Keep, Unique
        from cedar.pipeline.repeats import find_repeats

        if keep not in get_args(Keep):
            fix = f"one of {', '.join(map(repr, get_args(Keep)))}"
            raise invalid_call(f"unique(keep={keep!r})", fix=fix)
        names = None if subset is None else names_of("unique", subset)
        pipeline = self._pipeline
        known = None if "?" in pipeline.schema else frozenset(pipeline.schema)
        require_steady(pipeline, known if names is None else names, "unique")
        node, which = in_order(pipeline.given), "first" if keep == "any" else keep
        return pipeline.apply(Unique(names, which, Survey(lambda on_error: find_repeats(node, names, which, on_error))))

    def drop_near_duplicates(self, column: str, *, threshold: float = 0.8, words: int = 3) -> Pipeline:
        """Drop rows whose text is similar to that of an earlier row in the whole data set. Needs
        ``cedar-data[near-duplicates]``.

        Two strings are similar if the Jaccard similarity of their word n-grams, estimated by MinHash (Broder, 1997)
        with 128 hashes, is at least ``threshold``. As for ``unique``, one pass in the order of the sources finds such
        rows. It uses about a kilobyte of memory for each row that is kept. Null and empty strings are kept.

        Args:
            column: a column of strings.
            threshold: minimum similarity, above 0 and at most 1.
            words: the n of the n-grams; case, and characters between words, are ignored.

        Raises:
            PipelineError: rensa is not installed, the column is missing or not of strings; see also ``unique``.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"text": "a b c"}]).drop_near_duplicates("text", threshold=2)
            Traceback (most recent call last):
            ...
            cedar.PipelineError: drop_near_duplicates(threshold=2, words=3) ...
        """
        from cedar.operators.unique import Unique
        from cedar.pipeline.repeats import find_near_repeats

        number = isinstance(threshold, int | float) and 0 < threshold <= 1
        if not number or not isinstance(words, int) or words < 1:
            what = f"drop_near_duplicates(threshold={threshold!r}, words={words!r})"
            raise invalid_call(what, fix="a threshold above 0 and at most 1, and at least one word")
        pipeline = self._pipeline
        require_steady(pipeline, (column,), "drop_near_duplicates")
        kind = pipeline.schema.get(column, "?")
        if kind not in ("?", pa.large_string()):
            raise invalid_call(f"drop_near_duplicates: column {column!r} is {kind}, not strings")
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
        """Add another table's columns to the rows with equal keys, or filter rows by whether the table has their keys.

        Rows keep their order. As in polars, a null key matches nothing, and the other table's keys are not added. cedar
        reads the other side once, when the first row is needed; it must fit into memory. All workers then map it from a
        file.

        Args:
            other: an Arrow, polars or pandas table, or a pipeline of rows.
            on: the key column or columns. Use ``left_on`` and ``right_on`` if their names differ in ``other``.
            how: "left" keeps every row, with nulls if nothing matches; "inner" keeps only rows that match. "semi" keeps
                rows that match and "anti" those that do not; both add no columns.
            validate: "m:1" raises if two rows of ``other`` have the same keys. "m:m" emits a row per matching pair.
            suffix: appended to a column name of ``other`` that already exists.

        Raises:
            PipelineError: key columns are missing, have types that cannot be compared, or have repeated values in
                ``other``; or ``other`` is not a table or pipeline.

        Examples:
            >>> import cedar, polars as pl
            >>> items = pl.DataFrame({"item": [1, 2], "price": [0.5, 2.0]})
            >>> list(cedar.from_items([{"item": 2}, {"item": 3}]).join(items, on="item"))
            [{'item': 2, 'price': 2.0}, {'item': 3, 'price': None}]
        """
        from cedar.pipeline.joining import join

        return self._pipeline.apply(join(self._pipeline, other, (on, left_on, right_on), how, validate, suffix))

    def join_asof(
        self, other: Any, *, on: str, by: Names = None, tolerance: Any = None, suffix: str = "_right"
    ) -> Pipeline:
        """Add the columns of another table's latest row that is not later than the row itself.

        Neither side has to be sorted. If rows of ``other`` have equal times, the last matches. Null times never match.

        Args:
            other: see ``join``.
            on: the column of times or numbers, in both tables.
            by: columns whose values must be equal in both rows, such as a user id.
            tolerance: how much earlier a match may be: a number, a ``timedelta``, or a string such as "2h".
            suffix: appended to a column name of ``other`` that already exists.

        Raises:
            PipelineError: see ``join``.

        Examples:
            >>> import cedar, polars as pl
            >>> prices = pl.DataFrame({"t": [1, 5], "price": [10, 50]})
            >>> list(cedar.from_items([{"t": 4}, {"t": 5}, {"t": 0}]).join_asof(prices, on="t"))
            [{'t': 4, 'price': 10}, {'t': 5, 'price': 50}, {'t': 0, 'price': None}]
        """
        from cedar.pipeline.joining import join_asof

        return self._pipeline.apply(join_asof(self._pipeline, other, on, by, tolerance, suffix))

    def balance_classes(self, column: str, *, seed: int = 0) -> Pipeline:
        """Draw as many rows as the input has, in random order and with replacement, so that classes are equally likely.

        One pass counts the classes before the first row is drawn. See ``sample`` for how rows are drawn.

        Args:
            column: the column with the classes; a null is an error.
            seed: combined with the run's seed; every epoch draws different rows.

        Raises:
            PipelineError: the column is missing, the pipeline delivers batches, or classes differ between epochs. While
                running, the class of a row is null.

        Examples:
            >>> import cedar
            >>> rows = cedar.from_items([{"y": int(i < 10)} for i in range(1000)])
            >>> 400 < sum(row["y"] for row in rows.balance_classes("y")) < 600
            True
        """
        from cedar.pipeline.joining import WEIGHT, class_weights

        seed = whole_seed(seed, "balance_classes")
        weighed = self._pipeline.apply(class_weights(self._pipeline, column))
        return weighed.sample(WEIGHT, seed=seed).drop(WEIGHT)

    def explode(self, *columns: str) -> Pipeline:
        """Emit a row for each list item, with the other columns repeated. Drop rows whose list is empty or null.

        Args:
            *columns: list columns, with equal lengths in each row.

        Raises:
            PipelineError: no column is named, or a column does not hold lists.
            RowError: while running, the lists of a row have different lengths.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"user": 1, "items": [7, 8]}]).explode("items"))
            [{'user': 1, 'items': 7}, {'user': 1, 'items': 8}]
        """
        from cedar.operators.explode import Explode

        return self._pipeline.apply(Explode(*columns))

    def limit(self, n: int) -> Pipeline:
        """Keep the first ``n`` rows or batches. Same as ``take``.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(5)]).limit(2).count()
            2
        """
        return self._pipeline.take(n)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, from metadata if they contain them, else from sample rows.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1, "y": 2}]).drop("x").columns
            ['y']
        """
        known = self._pipeline.schema
        return list(sampled_types(self._pipeline) if known == {"?": "?"} else known)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows of an epoch as a polars DataFrame in memory.

        Raises:
            PipelineError: columns of Python objects or of types that polars lacks, or a pipeline that never ends.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).to_polars()["x"].sum()
            3
        """
        table = self._pipeline.to_arrow()
        return to_frame(as_columns(dict(zip(table.column_names, table.columns, strict=True))))

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows of an epoch as a pandas DataFrame in memory.

        Raises:
            PipelineError: pandas is not installed, columns of Python objects, or a pipeline that never ends.

        Examples:
            >>> import cedar
            >>> int(cedar.from_items([{"x": 1}, {"x": 2}]).to_pandas()["x"].sum())
            3
        """
        library("pandas", "pandas", "to_pandas")
        return self._pipeline.to_arrow().to_pandas()

    def group_by(self, *columns: Any, **options: Any) -> NoReturn:
        """Raise a PipelineError that explains how to group rows, since a pipeline does not collect rows of a group."""
        raise invalid_call(
            "a pipeline has no group_by: it delivers rows one after the other, and groups need all of them",
            fix="p.to_polars().group_by(...) for figures of groups, shuffle(by=...) to keep the rows of a group "
            "together, or recommendation.cluster to write them clustered",
        )

    def sort(self, *columns: Any, **options: Any) -> NoReturn:
        """Raise a PipelineError that explains how to sort rows, since a pipeline cannot sort its input."""
        raise invalid_call(
            "a pipeline has no sort: it delivers rows in the order of its sources",
            fix="cedar.from_polars(p.to_polars().sort(...)) where the rows fit into memory; shuffle(by=...) keeps the "
            "rows of one value together; sort before you write the files otherwise",
        )


def _nodes_above_split(node: Node, by: str | None) -> list[Node]:
    """Return the nodes above the point at which a split by row key is applied, from ``node`` down.

    The split is applied early so that operators do not work on rows of other parts, and so that row counts stay known.
    """
    below = [node]
    while by is None and (shuffles(node) or _maps_rows(node)):
        (node,) = node.inputs
        below.append(node)
    return below


def _maps_rows(node: Node) -> bool:
    operator = node.operator
    plain = isinstance(operator, RowOperator) and node.exact_rows is None and node.storage is None
    return plain and node.effects.rows == "1:1"
