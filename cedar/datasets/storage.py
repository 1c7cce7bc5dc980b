"""Write the output files of a sink, under temporary names until they are complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cedar.core.errors import CedarError, PipelineError, SourceError, invalid_call
from cedar.core.printable import StorageOptions, redact, redact_url, redacted
from cedar.core.remote import Remote, kind_of, rename, upload
from cedar.core.requests import install
from cedar.store.files import temporary_name


@dataclass
class Storage:
    """The destination of a sink: a directory or a single file on any fsspec filesystem.

    On leaving the context manager, every file is renamed to its final name; after an error, all files are removed.
    """

    remote: Remote
    root: str
    single: bool
    owner: str = ""  # prefix of temporary names, unique to a job
    _pending: list[tuple[AppendedFile, str]] = field(default_factory=list)

    @staticmethod
    def at(url: str | os.PathLike[str], suffix: str = "", options: StorageOptions | None = None) -> Storage:
        """Open ``url``, a file if it ends in ``suffix``, else a directory. Without a suffix, it may contain data.

        Raises:
            PipelineError: the location already holds data.
        """
        url = os.fspath(url)
        with writing(url):
            remote, root = Remote.at(os.path.expanduser(url), options)
            storage = Storage(remote, root.rstrip("/"), bool(suffix) and url.endswith(suffix))
            if suffix:
                storage.refuse_data(suffix)
        return storage

    @property
    def local(self) -> bool:
        """Return whether the destination is a local filesystem, to which files are written directly."""
        return "file" in self.remote.fs.protocol

    @property
    def shown(self) -> str:
        """Return the destination's name for messages."""
        return self.show(self.root)

    def refuse_data(self, suffix: str) -> None:
        """Raise PipelineError if the destination already contains data files with this suffix."""
        fs, url = self.remote.fs, self.shown
        with writing(url):
            kind = self.remote.call(self.root, lambda: kind_of(fs, self.root))
        if kind is None:
            return
        if kind == "file":
            raise _exists_error(f"{url!r} exists already")
        below = [str(p).rpartition("/")[2] for p in self.remote.call(self.root, lambda: fs.find(self.root))]
        data = [name for name in below if name.endswith(suffix) and not name.startswith(".")]
        if data:
            raise _exists_error(f"{url!r} holds {len(data)} data files already, such as {min(data)!r}")
        if self.single and below:
            raise _exists_error(f"{url!r} is a directory that is not empty")

    def create(self, name: str) -> AppendedFile:
        """Create a new, empty file; ``name`` may contain folders."""
        final = self.root if self.single else f"{self.root}/{name}"
        folder = final.rpartition("/")[0]
        self.remote.call(folder, lambda: self.remote.fs.makedirs(folder or "/", exist_ok=True))
        file = AppendedFile(temporary_name(final, self.owner), None if self.local else self.remote)
        self._pending.append((file, final))
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as cleanup:
            for file, _ in self._pending:
                cleanup.callback(self._remove, file.path)
            if error is None:
                for file, final in self._pending:
                    self.check(file.path, file.size, final)
                for file, final in self._pending:
                    self.rename(file.path, final)
                cleanup.pop_all()

    def _remove(self, temporary: str) -> None:
        with contextlib.suppress(Exception):  # do not hide the original error
            self.remote.fs.rm_file(temporary)

    def temporary(self, name: str, base: str) -> str:
        """Return the temporary path of a file: in the folder of ``name``, with the file name ``base``."""
        return f"{self.root}/{name}".rpartition("/")[0] + f"/{base}"

    def check(self, temporary: str, size: int, final: str) -> None:
        """Check that a temporary file has the size that was written, and that its final name is not taken.

        Raises:
            SourceError: the file is missing, or its size differs.
            PipelineError: a file with the final name exists.
        """
        fs = self.remote.fs
        fs.invalidate_cache(temporary.rpartition("/")[0])
        with contextlib.suppress(FileNotFoundError):
            if self.remote.call(temporary, lambda: fs.info(temporary)["size"]) == size:
                if self.remote.call(final, lambda: kind_of(fs, final)) is not None:
                    raise _exists_error(f"another job has written {self.show(final)!r}")
                return
        raise SourceError(
            f"{self.show(temporary)!r}, written for {self.show(final)!r}, is missing or does not have {size:,} bytes",
            done="the file was not published", fix="stop whatever else changes files there, and rerun",
        )  # fmt: skip

    def rename(self, temporary: str, final: str) -> None:
        """Rename a file to its final name."""
        if self.local:
            os.replace(temporary, final)
        else:
            rename(self.remote, temporary, final)

    def urls(self) -> list[str]:
        """Return the URLs of the files in order of creation."""
        return [self.show(final) for _, final in self._pending]

    def show(self, path: str) -> str:
        """Return the name of a path for users: the path, or a URL if it is not local."""
        return path if self.local else self.remote.url(path)


class AppendedFile:
    """A file to which data is appended; it is open only during ``flush``, since there may be many such files.

    For remote storage, the file is written locally and uploaded at the end, so that cedar can retry the upload.
    """

    def __init__(self, path: str, remote: Remote | None) -> None:
        self.path, self._remote = path, remote
        self._local, self.size = path, 0
        if remote is not None:
            handle, self._local = tempfile.mkstemp(prefix="cedar-upload-", suffix=".part")
            os.close(handle)
        else:
            open(path, "xb").close()
        self._queued: list[Any] = []

    def write(self, data: Any) -> int:
        """Queue bytes for the next ``flush``; return the number of bytes."""
        count = memoryview(data).nbytes
        self._queued.append(data)
        self.size += count
        return count

    def flush(self) -> None:
        """Append the queued bytes to the file and release them."""
        with open(self._local, "r+b") as file:  # fails if the file was removed, instead of creating a new one
            file.seek(0, os.SEEK_END)
            file.writelines(self._queued)
        self._queued = []

    def end(self) -> None:
        """Finish the file: sync it to disk, or upload it."""
        self.flush()
        if self._remote is None:
            with open(self._local, "rb") as file:
                os.fsync(file.fileno())
            return
        upload(self._remote, self._local, self.path)
        os.unlink(self._local)

    def drop(self) -> None:
        """Delete the local file without uploading it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._local)


@contextlib.contextmanager
def writing(url: str, fix: str = "check space and permissions") -> Iterator[None]:
    """Convert any error of a filesystem to a SourceError that names ``url``."""
    try:
        yield
    except CedarError:
        raise
    except Exception as error:  # noqa: BLE001 - filesystems raise anything
        cause = redacted(error)
        fix = install(error) or fix
        raise SourceError(f"cannot write to {redact_url(url)!r}: {redact(str(error))}", fix=fix) from cause


def _exists_error(problem: str) -> PipelineError:
    return invalid_call(problem, fix="write to a new location, or remove the existing data first")
