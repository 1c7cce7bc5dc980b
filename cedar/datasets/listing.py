"""List the files that a source reads, sorted by path.

A path is a local path or any fsspec URL, and may be a glob with ``*``, ``?``, ``[...]`` and ``**``. Globs do not match
names that begin with a dot. Row keys contain a hash of each file's path relative to the root of the listing.

Files of Delta Lake, Iceberg and Hudi tables are refused: only a table's log shows which of them are current.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any

import numpy as np

from cedar.core.columns import Index
from cedar.core.cursor import hash_names
from cedar.core.errors import CedarError, SourceError
from cedar.core.limits import DEFAULT, Limits
from cedar.core.printable import StorageOptions, redact, redact_url, redacted
from cedar.core.remote import Remote, is_remote, kind_of, local_path
from cedar.core.requests import RequestPatience, RequestStats, install, status_of
from cedar.datasets import walking
from cedar.datasets.base import once
from cedar.datasets.files_io import THREADS, File, concurrently, stamp_of_info, stamp_of_stat
from cedar.datasets.walking import folders_below, local_glob

_LOGS = {  # folder with the table's log -> the kind of table, and how to read it
    "_delta_log": ("a Delta Lake table", "cedar.read_delta(uri)"),
    "metadata": ("an Iceberg table", "cedar.read_iceberg(catalog.load_table(name))"),
    ".hoodie": ("a Hudi table", "write its current rows to Parquet files with Spark first, and read those"),
}
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(?:([^{}]*,[^{}]*)|([0-9]+)\.\.([0-9]+))\}")
_PATHS_PER_THREAD = 32  # maximum local paths per work item; listing a file takes about 20 us


@dataclass(frozen=True)
class Listing:
    """Files sorted by path.

    Args:
        files: the files that can be read.
        lost: unreadable files with their errors; ``names`` and ``ids`` list these files last. A file that was repaired
            during an epoch is in both until the epoch ends.
    """

    files: tuple[File, ...]
    lost: tuple[tuple[File, CedarError], ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[File]:
        return iter(self.files)

    def __getitem__(self, index: int) -> File:
        return self.files[index] if index < len(self.files) else self.lost[index - len(self.files)][0]

    @property
    def every(self) -> tuple[File, ...]:
        """Return all files, including lost ones."""
        return (*self.files, *(file for file, _ in self.lost))

    def names(self) -> list[str]:
        """Return each file's path relative to the root, the deepest folder that contains everything that was listed.

        "Everything" means the listed folders, the parts of globs before the first wildcard, and the folders of single
        files. Adding or removing a file in them therefore does not change the names of other files.
        """
        every, roots = self.every, [root := ""]
        for file in every:
            if file.path != root + file.name:
                path = file.path if file.path.endswith(file.name) else file.path.partition("?")[0]
                root = path.removesuffix(file.name) if path.endswith(file.name) else f"{path.rpartition('/')[0]}/"
            roots.append(root)
        parts = {root: root.split("/") for root in dict.fromkeys(roots[1:])}
        common = sum(1 for _ in takewhile(lambda level: len({*level}) == 1, zip(*parts.values(), strict=False)))
        below = {root: "/".join(part[common:]) for root, part in parts.items()}
        names = [below[root] + file.name for root, file in zip(roots[1:], every, strict=True)]
        queries = any("?" in file.path for file in every)
        if queries and len(set(names)) < len({file.path for file in every}):  # some URLs differ only in their query
            names = [f"{name} {file.path.partition('?')[2]}" for name, file in zip(names, every, strict=True)]
        return names

    @once
    def ids(self) -> Index:
        """Return the id of each file in row keys, int64[files]: a hash of its name."""
        ids = hash_names(self.names())
        ordered = np.sort(ids)
        for twice in ordered[1:][ordered[1:] == ordered[:-1]].tolist():
            one, other, *_ = (self[i] for i in np.flatnonzero(ids == twice).tolist())
            if one.path != other.path:
                what = "have the same 64-bit hash, which is part of their row keys"
                raise SourceError(f"the names of {one.url} and {other.url} {what}", fix="rename one of the two files")
        return ids

    def digest(self, *more: Any) -> str:
        """Return a hash of the files' names and sizes, and of ``more``, which a source may add."""
        text = json.dumps([[[n, f.size] for n, f in zip(self.names(), self.every, strict=True)], *more], default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @once
    def identity(self) -> str:
        """Return a hash of the ids, locations, sizes and modification times of the files."""
        text = json.dumps([f.identity_parts for f in self.every])
        return hashlib.sha256(text.encode() + self.ids.tobytes()).hexdigest()[:16]


def list_files(
    paths: Sequence[str], suffixes: tuple[str, ...] | None = None, options: StorageOptions | None = None
) -> Listing:
    """List the files that ``paths`` match, sorted by path.

    Args:
        paths: local paths, fsspec URLs, globs.
        suffixes: a directory is replaced by all files below it with one of these suffixes; None rejects directories.
        options: options for storage other than local files.

    Raises:
        SourceError: no file matches, ``paths`` has a directory although ``suffixes`` is None, two paths match the same
            file, or a directory or glob matches files of a Delta Lake, Iceberg or Hudi table.
    """
    listed: dict[tuple[str, str], tuple[File, str]] = {}
    found: list[File] = []  # files that a directory or glob matched
    limits, request_stats = Limits.of_environment(), RequestStats(RequestPatience.of_environment())
    groups = concurrently(
        lambda group: [_list(path, suffixes, request_stats, options) for path in group], _groups(paths)
    )
    for path, files in zip(paths, chain.from_iterable(groups), strict=True):
        for file in files:
            key = (file.url, file.path)
            if key in listed:
                raise SourceError(
                    f"{file.url} is listed twice: by {redact_url(listed[key][1])!r} and by {redact_url(path)!r}",
                    fix="list each file once; to read a file several times, use p.repeat(n) or cedar.concat",
                )
            if suffixes and not path.endswith(file.path.rpartition("/")[2]):
                found.append(file)
            listed[key] = (file if limits == DEFAULT else replace(file, limits=limits), path)
    concurrently(lambda each: refuse_table(*each), list(folders_of(found).items()))
    return Listing(tuple(listed[key][0] for key in sorted(listed)))


def _groups(paths: Sequence[str]) -> list[list[str]]:
    """Group paths into work items for threads; local paths are cheap to list, so several of them form one item."""
    groups: list[list[str]] = []
    most = max(1, min(_PATHS_PER_THREAD, len(paths) // THREADS))  # few paths may be folders, which are slow to list
    for path in paths:
        if groups and len(groups[-1]) < most and not is_remote(path) and not is_remote(groups[-1][0]):
            groups[-1].append(path)
        else:
            groups.append([path])
    return groups


def _list(
    path: str, suffixes: tuple[str, ...] | None, request_stats: RequestStats, options: StorageOptions | None
) -> list[File]:
    try:
        if is_remote(path):
            return _remote(path, suffixes, *Remote.at(path, options, request_stats))
        return _local(path, local_path(path), suffixes)
    except CedarError:
        raise
    except PermissionError as error:
        cause = redacted(error)
        fix = "check its owner and permissions"
        fix += ", or name the folders: /mnt/disk/{a,b}/*.parquet" if _MAGIC.search(path) else ""
        raise SourceError(f"{redact_url(path)!r}: no permission to list it", fix=fix) from cause
    except Exception as error:  # noqa: BLE001 - filesystems raise anything
        cause = redacted(error)
        fix = "check the credentials and their permissions" if status_of(error) in {401, 403} else "check the URL"
        fix = install(error) or fix
        raise SourceError(f"{redact_url(path)!r} cannot be listed: {redact(str(error))}", fix=fix) from cause


def expand_braces(path: str) -> list[str]:
    """Expand ``{a,b}`` and ``{000..127}`` as a shell does, unless a local file with the unexpanded name exists."""
    match = _BRACES.search(path)
    if match is None or ("://" not in path and os.path.lexists(os.path.expanduser(path))):
        return [path]
    words, first, last = match.groups()
    if words is not None:
        middle = words.split(",")
    else:
        step, width = (1 if int(first) <= int(last) else -1), len(first) if first[0] == "0" or last[0] == "0" else 0
        middle = [str(number).zfill(width) for number in range(int(first), int(last) + step, step)]
    rest = expand_braces(path[match.end() :])
    return [path[: match.start()] + word + tail for word in middle for tail in rest]


def split_braces(path: str) -> list[str]:
    """Return the paths that a path with braces names, each of which must exist.

    Alternatives in a glob's last part, as in ``*/*.{jpg,png}``, remain in the path: one match in total is enough.
    """
    folder, slash, name = path.rpartition("/")
    if "*" in path and name.count("{") == name.count("}") and all(words for words, *_ in _BRACES.findall(name)):
        return [each + slash + name for each in expand_braces(folder)]
    return expand_braces(path)


def below(given: str, path: str) -> bool:
    """Return whether ``path`` may match ``given``, a path, directory or glob without a scheme."""
    if path == given:
        return True
    root = (_fixed_part(given) if _MAGIC.search(given) else given).rstrip("/")
    return path.startswith(f"{root}/") and ".." not in path.split("/")


# ---- local files ---------------------------------------------------------------------------------------------------


def _local(path: str, full: str, suffixes: tuple[str, ...] | None) -> list[File]:
    file = _regular_file(full, os.path.dirname(full))
    if file is not None:  # a file that exists, even if its name looks like a glob
        return [file]
    if os.path.isdir(full):
        return _local_directory(path, full, suffixes)
    if not _MAGIC.search(full):
        raise _no_match_error(path, *_nearest_local(full))
    root = _fixed_part(full) or "/"
    matches = sorted({match for each in expand_braces(full) for match in local_glob(each)})
    files = [m for m in matches if not os.path.isdir(m)]
    if not files and suffixes and matches:
        files = [f for m in matches for f in _walk_files(m, suffixes)]
    if not files:
        if matches:
            raise _directory_error(path, len(matches))
        raise _no_match_error(path, *_nearest_local(root))
    return [_local_file(f, root) for f in files]


def _local_file(path: str, root: str) -> File:
    file = _regular_file(path, root)
    if file is None:
        raise SourceError(f"{path} is not a regular file (a dangling link, a pipe or a device)")
    return file


def _regular_file(path: str, root: str) -> File | None:
    """Return the listing entry for a file below a folder; None if it does not exist or is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    below = f"{root}/"
    name = path[len(below) :] if path.startswith(below) else os.path.relpath(path, root)
    return File(path, name, status.st_size, stamp=stamp_of_stat(status))


def _local_directory(path: str, full: str, suffixes: tuple[str, ...] | None) -> list[File]:
    if suffixes is None:
        raise _directory_error(path)
    files = sorted(_walk_files(full, suffixes))
    if not files:
        raise _no_match_error(os.path.join(path, "**", f"*{suffixes[0]}"), *_nearest_local(full))
    return [_local_file(f, full) for f in files]


def _walk_files(root: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    for folder, names in folders_below(root, (".", "_")):
        yield from (os.path.join(folder, n) for n in names if n.endswith(suffixes) and not n.startswith((".", "_")))


def _fixed_part(path: str) -> str:
    """Return the directory above a glob's first component with a wildcard."""
    match = _MAGIC.search(path)
    return path[: match.start()].rpartition("/")[0] if match else path.rpartition("/")[0]


def _nearest_local(path: str) -> tuple[str, list[str]]:
    """Return the closest existing directory above ``path``, and the names in it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path, sorted(os.listdir(path))


# ---- other storage -------------------------------------------------------------------------------------------------


def _remote(path: str, suffixes: tuple[str, ...] | None, remote: Remote, root: str) -> list[File]:
    fs = remote.fs
    http = path.startswith("http")
    pattern = root.replace("?", "") if http else root
    fs.invalidate_cache()  # fsspec may have cached an earlier listing
    if _MAGIC.search(pattern) and remote.call(root, lambda: kind_of(fs, root)) is None:
        return _remote_glob(path, remote, root, suffixes)
    try:
        info = remote.call(root, lambda: fs.info(root))
    except FileNotFoundError as error:
        if status_of(error) in {401, 403}:  # some filesystems raise FileNotFoundError for every failure
            raise PermissionError(str(error)) from error
        raise _no_match_error(path, *_nearest_remote(remote, root)) from None
    if info.get("type") != "directory":
        address = root.partition("?")[0] if http else root  # a query may contain slashes
        name = address.rpartition("/")[2].partition("?")[0]
        return [File(root, name, info.get("size"), remote, stamp=stamp_of_info(info))]
    if suffixes is None:
        raise _directory_error(path)
    files = _select_files(walking.find(remote, root), root, suffixes)
    if not files:
        raise _no_match_error(f"{path.rstrip('/')}/**/*{suffixes[0]}", *_nearest_remote(remote, root))
    return [_remote_file(p, root, info, remote) for p, info in files]


def _remote_glob(path: str, remote: Remote, pattern: str, suffixes: tuple[str, ...] | None) -> list[File]:
    root = _fixed_part(pattern)
    matches: dict[str, Any] = {}
    for each in expand_braces(pattern):
        matches |= walking.glob(remote, each, root)
    files = _select_files(matches, root, ("",))
    if not files and suffixes:
        folders = [p for p, info in matches.items() if info.get("type") == "directory"]
        files = [f for folder in folders for f in _select_files(walking.find(remote, folder), root, suffixes)]
    if not files:
        if matches:
            raise _directory_error(path, len(matches))
        raise _no_match_error(path, *_nearest_remote(remote, root))
    return [_remote_file(p, root, info, remote) for p, info in sorted(files, key=lambda entry: entry[0])]


def _remote_file(path: str, root: str, info: dict[str, Any], remote: Remote) -> File:
    return File(path, _below(path, root), info.get("size"), remote, stamp=stamp_of_info(info))


def _select_files(entries: dict[str, Any], root: str, suffixes: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    hidden = (".", "_") if suffixes != ("",) else (".",)
    kept = []
    for path, info in entries.items():
        parts = _below(path, root).split("/")
        if info.get("type") == "file" and path.endswith(suffixes) and not any(p.startswith(hidden) for p in parts):
            kept.append((path, info))
    return kept


def _below(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/")


def _nearest_remote(remote: Remote, path: str) -> tuple[str, list[str]]:
    fs = remote.fs
    while path and not fs.isdir(path):
        path = path.rpartition("/")[0]
    try:
        names = [str(p).rstrip("/").rpartition("/")[2] for p in fs.ls(path, detail=False)]
    except (OSError, ValueError, NotImplementedError):
        return "", []
    return remote.url(path), sorted(names)


# ---- errors --------------------------------------------------------------------------------------------------------


def _no_match_error(path: str, nearest: str, names: Iterable[str]) -> SourceError:
    names = list(names)
    shown = ", ".join(names[:8]) + (f", ... ({len(names)} entries)" if len(names) > 8 else "")
    hint = f"; {nearest!r} exists and holds {shown or 'nothing'}" if nearest else ""
    return SourceError(f"no file matches {redact_url(path)!r}{hint}", fix="check the path or the pattern")


def _directory_error(path: str, matches: int = 0) -> SourceError:
    """Return the error for a directory, or for a pattern with so many ``matches``, none of which is a file."""
    several = f"matches {matches} director{'y' if matches == 1 else 'ies'} and no file"
    return SourceError(
        f"{redact_url(path)!r} {several if matches else 'is a directory where a file is expected'}",
        fix=f"list the files in {'them' if matches else 'it with a pattern'}, such as "
        f"{redact_url(path).rstrip('/') + '/*'!r}",
    )


def folders_of(files: Iterable[File]) -> dict[str, Remote | None]:
    """Return all folders above files, except HTTP, which has no folders; each may be a table."""
    folders: dict[str, Remote | None] = {}
    for folder, remote in {file.path.rpartition("/")[0]: file.remote for file in files}.items():
        above = os.path.realpath(folder) if remote is None else folder
        while above.strip("/") and above not in folders and not above.startswith("http"):
            folders[above] = remote
            above = above.rpartition("/")[0]
    return {folder: remote for folder, remote in folders.items() if "=" not in folder.rpartition("/")[2]}


def refuse_table(folder: str, remote: Remote | None) -> None:
    """Raise SourceError if a folder above listed files is a table."""
    for name, (kind, fix) in _LOGS.items():
        if _is_log(remote, f"{folder}/{name}"):
            raise SourceError(
                f"{folder if remote is None else remote.url(folder)} is {kind}: "
                f"read without {name}, its files give rows that were deleted or replaced",
                fix=f"read the table: {fix}; or list each file, to read exactly these files",
            )


def _is_log(remote: Remote | None, log: str) -> bool:
    try:
        if remote is not None and remote.call(log, lambda: kind_of(remote.fs, log)) != "directory":
            return False
        names: Any = os.listdir(log) if remote is None else walking.find(remote, log, 1)
    except CedarError:
        raise
    except Exception:  # noqa: BLE001 - the folder does not exist or cannot be listed
        return False
    return not log.endswith("/metadata") or any(n.endswith((".metadata.json", ".metadata.json.gz")) for n in names)
