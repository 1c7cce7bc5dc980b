"""Functions that begin a pipeline with Lance data sets or Vortex files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cedar.pipeline.core import Pipeline
from cedar.pipeline.sources import Paths, StorageOptions, start


def read_lance(
    uri: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    version: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Rows of a Lance data set, in its order. Needs ``cedar-data[lance]``.

    Args:
        uri: a path or URL, as Lance takes it.
        columns: which to read; all by default.
        version: a number or a tag; by default the latest when the pipeline first looks, and from then on that one,
            whatever is written meanwhile.
        storage_options: keys, endpoints and so on, for Lance, which does its own requests.

    Raises:
        SourceError: while opening or reading.
        PipelineError: ``uri`` is something else, or pylance is not installed.

    Examples:
        >>> import cedar
        >>> cedar.read_lance(3)
        Traceback (most recent call last):
        ...
        cedar.PipelineError: read_lance: uri must be a string or a path, not 3 ...
    """
    from cedar.lake import lance

    return start(lambda: lance.read_lance(uri, columns=columns, version=version, storage_options=storage_options))


def read_vortex(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    verify: bool | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    """Rows of Vortex files. ``paths``: any fsspec URL, glob, directory, or a list of them.

    Needs ``cedar-data[vortex]``.

    The format has no checksums of its own: a flipped bit may be another value. ``p.write(url, format="vortex")`` puts
    some next to each file, in ``name.vortex.crc``, and what has them is checked as it is read. With ``verify=True`` a
    file without is an error, with ``verify=False`` none is checked.

    Raises:
        SourceError: while listing or reading; no file matches, files whose schemas differ, bytes that are not those
            that were written.
        PipelineError: vortex-data is not installed.

    Examples:
        >>> import cedar
        >>> cedar.read_vortex(3)
        Traceback (most recent call last):
        ...
        cedar.PipelineError: read_vortex: paths must be a string, ...
    """
    from cedar.lake import vortex

    return start(lambda: vortex.read_vortex(paths, columns=columns, verify=verify), storage_options)
