"""Folders of vocabularies, and ``build_vocabularies``, the former name of ``cedar.fit`` for vocabularies."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from cedar.core.errors import PipelineError, SourceError, user_site, warn_user
from cedar.core.limits import parse_bytes
from cedar.pipeline.core import Pipeline
from cedar.preprocessing import Vocabulary as Step
from cedar.preprocessing import fit
from cedar.preprocessing.vocabulary import Null, Vocabulary


def save_vocabularies(found: Mapping[str, Vocabulary], folder: str | os.PathLike[str]) -> list[str]:
    """Write each vocabulary to a file named after its column, and return the paths.

    Raises:
        PipelineError: a column's name cannot be a file name.
    """
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, vocabulary in found.items():
        if not re.fullmatch(r"[\w.\- ]+", name) or name.startswith("."):
            raise PipelineError(f"a vocabulary of column {name!r} needs a name for its file", fix="rename the column")
        paths.append(os.path.join(os.fspath(folder), f"{name}.parquet"))
        vocabulary.save(paths[-1])
    return paths


def load_vocabularies(folder: str | os.PathLike[str]) -> dict[str, Vocabulary]:
    """Return the vocabularies that ``save_vocabularies`` wrote, by column.

    Raises:
        SourceError: the folder contains no vocabularies.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    except OSError as error:
        raise SourceError(f"no vocabularies in {os.fspath(folder)}: {error}") from error
    if not names:
        raise SourceError(f"no vocabularies in {os.fspath(folder)}", fix="create them: cedar data vocab")
    every = [Vocabulary.load(os.path.join(os.fspath(folder), name)) for name in names]
    return {vocabulary.column: vocabulary for vocabulary in every}


def build_vocabularies(
    pipeline: Pipeline,
    columns: Sequence[str],
    *,
    min_count: int = 1,
    most: int | None = None,
    oov: int = 0,
    null: Null = "oov",
    memory: str = "512MiB",
    executor: object = "auto",  # noqa: ARG001 - kept for compatibility
) -> dict[str, Vocabulary]:
    """Call ``cedar.fit(p, cedar.preprocessing.Vocabulary(columns, ...))``, which replaces this function."""
    warn_user(
        "build_vocabularies will be removed in the next release: use "
        "cedar.fit(p, cedar.preprocessing.Vocabulary(columns, ...)), and fitted[column] instead of the dict's value",
        user_site(),
    )
    limit = parse_bytes(memory, "memory")
    fitted = fit(
        pipeline, Step(columns if isinstance(columns, str) else list(columns), min_count, most, oov, null, limit)
    )
    return {name: fitted[name] for name in fitted.columns}
