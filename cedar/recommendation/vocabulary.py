"""``build_vocabularies``, the former name of ``cedar.fit`` for vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

from cedar.core.errors import user_site, warn_user
from cedar.core.limits import parse_bytes
from cedar.pipeline.core import Pipeline
from cedar.preprocessing import Vocabulary as Step
from cedar.preprocessing import fit
from cedar.preprocessing.vocabulary import Null, Vocabulary


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
