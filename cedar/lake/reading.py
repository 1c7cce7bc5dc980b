"""Start pipelines from Lance data sets or Vortex files."""

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
    """Read a Lance data set in its stored order. Needs ``cedar-data[lance]``.

    Args:
        uri: a path or URL, in Lance's syntax.
        columns: the columns to read; all by default.
        version: a number or a tag. The default is the latest version at the time of first use; the pipeline ignores
            versions that are written later.
        storage_options: keys, endpoints and other options for Lance, which sends its own requests.

    Raises:
        SourceError: opening or reading fails.
        PipelineError: ``uri`` is not a string or path, or pylance is not installed.

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
    """Read Vortex files. ``paths``: any fsspec URL, glob, directory, or a list of them.

    Needs ``cedar-data[vortex]``. The format has no checksums, so a flipped bit may change a value unnoticed.
    ``p.write(url, format="vortex")`` therefore writes checksums to ``name.vortex.crc`` next to each file, and cedar
    checks them during reading if they exist. With ``verify=True``, a file without checksums is an error. With
    ``verify=False``, cedar does not check checksums.

    Raises:
        SourceError: listing or reading fails: no file matches, schemas differ, or bytes do not match their checksums.
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
