"""Training batches of a DLRM run, from a cedar pipeline and vocabularies; resumable on any number of ranks."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import polars as pl
import pyarrow as pa

import cedar
from cedar import col
from cedar.core.errors import CedarError
from cedar.recommendation import Vocabulary
from cedar.trainers.common.compute import device_of
from cedar.trainers.common.data import Endless
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.inputs import check_footers
from cedar.trainers.dlrm.options import DataOptions, FeatureOptions, Options


def files_of(data: DataOptions) -> list[str]:
    """Return the files that ``data.vocabularies`` names; for a folder, its Parquet files."""
    files = []
    for path in data.vocabularies:
        if not os.path.isdir(path):
            files.append(path)
            continue
        inside = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet"))
        if not inside:
            raise CedarError(f"no vocabularies in {path}", fix="create them with cedar data vocab")
        files += inside
    return files


def vocabularies_of(options: Options) -> dict[str, Vocabulary]:
    """Read only the vocabularies that features use, and return them by the column that was counted."""
    wanted = {feature.vocabulary for feature in options.features if feature.vocabulary}
    if not wanted:
        return {}
    vocabularies: dict[str, Vocabulary] = {}
    for path in files_of(options.data):
        made = Vocabulary.load(path)
        if made.column in vocabularies:
            raise CedarError(f"data.vocabularies has two files for the column {made.column!r}", fix="name one of them")
        vocabularies[made.column] = made
    if missing := sorted(wanted - set(vocabularies)):
        raise CedarError(
            f"data.vocabularies has no vocabulary for {', '.join(map(repr, missing))}"
            + (f"; there are {', '.join(sorted(vocabularies))}" if vocabularies else ""),
            fix="create it: cedar data vocab ... --columns " + ",".join(missing),
        )
    return {name: vocabularies[name] for name in sorted(wanted)}


def sized(options: Options) -> Options:
    """Return the options with table sizes filled in from the vocabularies."""
    words = vocabularies_of(options)
    if not words:
        return options
    features = tuple(_sized(feature, words.get(feature.vocabulary)) for feature in options.features)
    try:
        return replace(options, features=features)
    except ValueError as error:  # features share a table, but their vocabularies differ in size
        raise CedarError(str(error), fix="use one vocabulary for all features of a table") from error


def _sized(feature: FeatureOptions, words: Vocabulary | None) -> FeatureOptions:
    if words is None or feature.rows >= words.size:
        return feature
    if feature.rows:
        raise CedarError(
            f"the table {feature.home!r} has {feature.rows} rows; the vocabulary {words.column!r} needs {words.size}",
            fix="omit features.rows, or set it to at least that number",
        )
    return replace(feature, rows=words.size)


def mapped(rows: cedar.Pipeline, options: Options) -> cedar.Pipeline:
    """Map values to vocabulary ids in the columns of features that have a vocabulary."""
    words = vocabularies_of(options)
    for feature in options.features:
        if not feature.vocabulary:
            continue
        made = words[feature.vocabulary]
        if feature.missing != "oov" and made.null == "oov":
            made = replace(made, null="keep")
        rows = rows.map(made.transform(), feature.column)
    return rows


class Batches(Endless):
    """Endless training batches; each rank gets a slice of every batch. ``rows``: a pipeline that replaces
    ``data.paths``; ``held_out``: a pipeline of evaluation rows, which replaces ``data.held_out``.

    The attribute ``pipeline`` is the pipeline of batches.
    """

    def __init__(
        self, options: Options, group: Group, rows: cedar.Pipeline | None = None, held_out: cedar.Pipeline | None = None
    ) -> None:
        data = options.data
        if data.batch % group.size:
            raise CedarError(
                f"data.batch is {data.batch}, which is not divisible by {group.size} ranks",
                fix=f"give a multiple of {group.size}",
            )
        for paths in (data.paths, data.evaluate):
            if paths:
                check_footers(paths, options.features)
        self.options, self.group, self.device = options, group, device_of(options.run.device)
        rows = _rows(data) if rows is None else rows
        self.held_out = held_out
        if data.evaluate:
            self.held_out = cedar.read_parquet(_paths(data.evaluate))
        elif data.held_out:
            total = _count(rows)
            if total <= data.held_out:
                raise CedarError(f"data.held_out is {data.held_out}, but there are {total} rows", fix="hold out fewer")
            rows, self.held_out = rows.take(total - data.held_out), rows.skip(total - data.held_out)
        self.rows = prepared(rows, options)
        self.pipeline = self._ordered(self.rows).batch(data.batch, last="drop")
        none = CedarError(f"the data has no batch of {data.batch} rows", fix="set a smaller data.batch")
        super().__init__(self._loader(self.pipeline, group.rank, group.size, serve=options.run.serve), none)
        self.vocabularies = {path: _digest(path) for path in files_of(data)}

    def _ordered(self, rows: cedar.Pipeline) -> cedar.Pipeline:
        data, seed = self.options.data, self.options.run.seed
        session = data.session or None
        if data.dedup == "auto":
            rows = rows.dedup("auto", session=session)
        elif data.dedup != "off":
            rows = rows.dedup([list(names) for names in data.dedup], session=session)
        if data.shuffle:
            rows = rows.shuffle(seed=seed, by=session, interleave=data.interleave)
        return rows.drop(data.session) if session and session not in wanted(self.options) else rows

    def _loader(
        self, batches: cedar.Pipeline, rank: int, world: int, *, plain: bool = False, serve: str = ""
    ) -> cedar.Loader:
        data = self.options.data
        executor: Any = "inline" if plain else data.executor
        return batches.loader(
            plan="off" if plain else data.plan, executor=executor,
            workers=None if plain else data.workers or None, seed=self.options.run.seed, rank=rank, world=world,
            split_batches=True, subgroup=True, format="torch", device=self.device, serve=serve or None,
        )  # fmt: skip

    def epoch(self) -> int:
        """Return the number of steps in an epoch."""
        try:
            steps = len(self.loader)
        except TypeError as error:
            raise CedarError("the number of steps of an epoch is not known in advance", fix="set run.steps") from error
        if not steps:
            raise self.none
        return steps

    def sample(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the first ``count`` global batches, to compute statistics from them."""
        batch = None
        with self._loader(self.pipeline, 0, 1, plain=True) as loader:
            for batch in islice(loader, count):
                yield batch
        if batch is None:
            raise self.none

    def evaluation(self) -> Iterator[dict[str, Any]]:
        """Yield the held-out rows in global batches; the last one may be smaller."""
        if self.held_out is None:
            return
        rows = prepared(self.held_out, self.options)
        if self.options.data.session and self.options.data.session not in wanted(self.options):
            rows = rows.drop(self.options.data.session)
        with self._loader(rows.batch(self.options.data.batch, last="keep"), 0, 1) as loader:
            yield from loader

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Continue from the positions that all ranks saved."""
        super().load_state_dict(states[self.group.rank] if len(states) == self.group.size else states)


def wanted(options: Options) -> list[str]:
    """Return the columns that the model reads."""
    features = [name for f in options.features for name in (f.column, f.weights) if name]
    return list(dict.fromkeys([options.data.label, *options.data.dense, *features]))


def prepared(rows: cedar.Pipeline, options: Options) -> cedar.Pipeline:
    """Select the needed columns and the session column, fill nulls in dense columns, and convert ids to table rows."""
    schema = rows.schema
    for feature in options.features:
        if feature.column not in schema:
            raise CedarError(
                f"the data has no column {feature.column!r}: it has {', '.join(map(str, schema))}", fix="see features"
            )
    rows = mapped(rows, options)
    data = options.data
    expressions: dict[str, Any] = {name: col(name) for name in wanted(options)}
    if data.session:
        expressions[data.session] = col(data.session)
    for name in data.dense:
        value = col(name).cast(pl.Float32).fill_null(0.0)
        expressions[name] = value.clip(lower_bound=0.0).log1p() if name in data.log else value
    schema = rows.schema
    for feature in options.features:
        expressions[feature.column] = _ids(feature, schema[feature.column])
    return rows.select(**expressions)


def _ids(feature: FeatureOptions, kind: Any) -> Any:
    value: Any = col(feature.column)
    lists = isinstance(kind, pa.DataType) and (pa.types.is_large_list(kind) or pa.types.is_list(kind))
    if feature.missing == "empty":
        value = value.fill_null([])
    if feature.ids == "modulo":
        if lists:
            value = value.list.eval(_remainder(pl.element(), feature.rows, kind.value_type))
        else:
            value = _remainder(value, feature.rows, kind)
    return value


def _remainder(ids: Any, rows: int, kind: Any) -> Any:
    """Return ids from 0 to ``rows`` - 1, also for negative ids; ``kind`` is their Arrow type, if it is known."""
    if isinstance(kind, pa.DataType) and pa.types.is_integer(kind) and kind.bit_width < 64:  # the sum may not fit
        ids = ids.cast(pl.Int64)
    return ((ids % rows) + rows) % rows


def _rows(data: DataOptions) -> cedar.Pipeline:
    if data.paths:
        return cedar.read_parquet(_paths(data.paths))
    if not data.pipeline:
        raise CedarError("there is no data", fix="set data.paths, or data.pipeline")
    place, _, name = data.pipeline.rpartition(":")
    try:
        pipeline: Any = getattr(importlib.import_module(place), name)
        pipeline = pipeline() if callable(pipeline) and not isinstance(pipeline, cedar.Pipeline) else pipeline
    except CedarError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise CedarError(
            f"data.pipeline {data.pipeline!r} cannot be imported: {error}", fix="give module:name"
        ) from error
    except Exception as error:  # a user's module may raise anything
        raise CedarError(f"data.pipeline {data.pipeline!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(pipeline, cedar.Pipeline):
        raise CedarError(f"data.pipeline {data.pipeline!r} is a {type(pipeline).__name__}", fix="give a cedar pipeline")
    return pipeline


def _paths(paths: str | tuple[str, ...]) -> str | list[str]:
    return paths if isinstance(paths, str) else list(paths)


def _count(rows: cedar.Pipeline) -> int:
    with rows.loader(rank=0, world=1, subgroup=True) as loader:
        try:
            return len(loader)
        except TypeError as error:
            raise CedarError("data.held_out needs a known number of rows", fix="give data.evaluate") from error


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CedarError(
            f"the vocabulary {os.fspath(path)} cannot be read: {error.strerror}", fix="check data.vocabularies"
        ) from error
