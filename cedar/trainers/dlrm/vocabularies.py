"""Vocabularies of a run: which value has which row of a table, as ``cedar data vocab`` wrote it."""

from __future__ import annotations

import os
from dataclasses import replace

import cedar
from cedar import col
from cedar.errors import CedarError
from cedar.recommendation import Vocabulary
from cedar.trainers.dlrm.options import DataOptions, FeatureOptions, Options


def files_of(data: DataOptions) -> list[str]:
    """The files that ``data.vocabularies`` names: those, and the Parquet files of folders.

    Raises:
        CedarError: a folder without any.
    """
    found = []
    for path in data.vocabularies:
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet"))
        if not inside:
            raise CedarError(f"no vocabularies in {path}", fix="make some: cedar data vocab")
        found += inside
    return found


def vocabularies_of(options: Options) -> dict[str, Vocabulary]:
    """The vocabularies that features name, by the column that each was counted in; nothing is read where none does.

    Raises:
        CedarError: a feature names one that is not there, or two are of one column.
    """
    wanted = {feature.vocabulary for feature in options.features if feature.vocabulary}
    if not wanted:
        return {}
    found: dict[str, Vocabulary] = {}
    for path in files_of(options.data):
        made = Vocabulary.load(path)
        if made.column in found:
            raise CedarError(f"data.vocabularies has two of the column {made.column!r}", fix="name one of them")
        found[made.column] = made
    if missing := sorted(wanted - set(found)):
        raise CedarError(
            f"no vocabulary of {', '.join(map(repr, missing))} is in data.vocabularies"
            + (f"; there are {', '.join(sorted(found))}" if found else ""),
            fix="make it: cedar data vocab ... --columns " + ",".join(missing),
        )
    return {name: found[name] for name in sorted(wanted)}


def sized(options: Options) -> Options:
    """The options with the rows of tables that vocabularies say.

    Raises:
        CedarError: a table has fewer rows than its vocabulary has numbers, see also ``vocabularies_of``.
    """
    words = vocabularies_of(options)
    if not words:
        return options
    features = tuple(_sized(feature, words.get(feature.vocabulary)) for feature in options.features)
    try:
        return replace(options, features=features)
    except ValueError as error:  # features that share a table, of vocabularies of different sizes
        raise CedarError(str(error), fix="features of one table share one vocabulary") from error


def _sized(feature: FeatureOptions, words: Vocabulary | None) -> FeatureOptions:
    if words is None or feature.rows >= words.size:
        return feature
    if feature.rows:
        raise CedarError(
            f"the table {feature.home!r} has {feature.rows} rows, the vocabulary of {words.column!r} {words.size}",
            fix="leave features.rows out, or give as many",
        )
    return replace(feature, rows=words.size)


def mapped(rows: cedar.Pipeline, options: Options) -> cedar.Pipeline:
    """Rows whose values are numbers of vocabularies, where features name one."""
    words = vocabularies_of(options)
    for feature in options.features:
        if not feature.vocabulary:
            continue
        made = words[feature.vocabulary]
        rows = rows.map(made.transform(), feature.column)
        if feature.missing == "oov":
            rows = rows.with_columns(**{feature.column: col(feature.column).fill_null(made.oov)})
    return rows
