"""Writers, Lance, Vortex and convert: an extension, whose functions below the core asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedar.core.errors import Site
    from cedar.lake.writing import Written
    from cedar.pipeline.core import Pipeline


def write(pipeline: Pipeline, site: Site | None, **settings: Any) -> Written:
    """Write all rows of a pipeline, or the rest of them; ``settings`` are the arguments of ``Pipeline.write``."""
    from cedar.lake.writing import Settings, write

    return write(pipeline, Settings(**settings), site)


def write_parquet(blocks: Any, url: Any, **options: Any) -> list[str]:
    """Write blocks as Parquet files: see ``sinks``."""
    from cedar.lake.sinks import write_parquet

    return write_parquet(blocks, url, **options)
