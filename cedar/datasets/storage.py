"""Where a sink writes: files under temporary names, which get their own when they are whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cedar.core.errors import CedarError, PipelineError, SourceError, user_site
from cedar.core.faults import install
from cedar.core.redact import StorageOptions, redact, redact_url, redacted
from cedar.core.remote import Remote, kind_of, rename, upload
from cedar.store.whole_files import temporary_name


@dataclass
class Storage:
    """A directory, or one file, on any fsspec filesystem.

    As a context: on success every file gets its name, by a rename each; on an error all of them are removed.
    """

    remote: Remote
    root: str
    single: bool
    owner: str = ""  # what the temporary names of its files begin with: of a job, and of no other
    _pending: list[tuple[AppendedFile, str]] = field(default_factory=list)

    @staticmethod
    def at(url: str | os.PathLike[str], suffix: str = "", options: StorageOptions | None = None) -> Storage:
        """``url`` is one file where it ends in ``suffix``, else a directory; without a suffix, data may be there.

        Raises:
            PipelineError: there is data already.
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
        """Files are written where they stay."""
        return "file" in self.remote.fs.protocol

    @property
    def shown(self) -> str:
        """What messages call the place."""
        return self.show(self.root)

    def refuse_data(self, suffix: str) -> None:
        """Raises PipelineError if there is data of this suffix already."""
        fs, url = self.remote.fs, self.shown
        with writing(url):
            kind = self.remote.call(self.root, lambda: kind_of(fs, self.root))
        if kind is None:
            return
        if kind == "file":
            raise _taken(f"{url!r} exists already")
        below = [str(p).rpartition("/")[2] for p in self.remote.call(self.root, lambda: fs.find(self.root))]
        data = [name for name in below if name.endswith(suffix) and not name.startswith(".")]
        if data:
            raise _taken(f"{url!r} holds {len(data)} data files already, such as {min(data)!r}")
        if self.single and below:
            raise _taken(f"{url!r} is a directory that is not empty")

    def create(self, name: str) -> AppendedFile:
        """A new file, empty; ``name`` may have folders."""
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
        with contextlib.ExitStack() as undone:
            for file, _ in self._pending:
                undone.callback(self._remove, file.path)
            if error is None:
                for file, final in self._pending:
                    self.check(file.path, file.size, final)
                for file, final in self._pending:
                    self.rename(file.path, final)
                undone.pop_all()

    def _remove(self, temporary: str) -> None:
        with contextlib.suppress(Exception):  # the error that brought us here matters more
            self.remote.fs.rm_file(temporary)

    def temporary(self, name: str, base: str) -> str:
        """The path of a file of this name while it is called ``base``."""
        return f"{self.root}/{name}".rpartition("/")[0] + f"/{base}"

    def check(self, temporary: str, size: int, final: str) -> None:
        """That a file is as it was written, and nothing else has its name.

        Raises:
            SourceError: it is gone, or has another size.
            PipelineError: there is a file of that name.
        """
        fs = self.remote.fs
        fs.invalidate_cache(temporary.rpartition("/")[0])
        with contextlib.suppress(FileNotFoundError):
            if self.remote.call(temporary, lambda: fs.info(temporary)["size"]) == size:
                if self.remote.call(final, lambda: fs.exists(final)):
                    raise _taken(f"another job wrote {self.show(final)!r} meanwhile")
                return
        raise SourceError(
            f"{self.show(temporary)!r}, written for {self.show(final)!r}, is missing or does not have {size:,} bytes",
            done="the file got no name", fix="find out what else changes files there, and run the same again",
        )  # fmt: skip

    def rename(self, temporary: str, final: str) -> None:
        """Give a file its name."""
        if self.local:
            os.replace(temporary, final)
        else:
            rename(self.remote, temporary, final)

    def urls(self) -> list[str]:
        """The files, in the order they were begun."""
        return [self.show(final) for _, final in self._pending]

    def show(self, path: str) -> str:
        """What messages call a path."""
        return path if self.local else self.remote.url(path)


class AppendedFile:
    """A file that grows, and is not held open meanwhile: there may be many. On other storage it is written here and
    sent when it is ended, so it can be sent again.
    """

    def __init__(self, path: str, remote: Remote | None) -> None:
        self.path, self._remote = path, remote
        self._local, self.size = path, 0
        if remote is not None:
            handle, self._local = tempfile.mkstemp(prefix="cedar-upload-", suffix=".part")
            os.close(handle)
        else:
            open(path, "xb").close()
        self._waiting: list[Any] = []

    def write(self, data: Any) -> int:
        """Append bytes, at the next ``flush``; how many."""
        count = memoryview(data).nbytes
        self._waiting.append(data)
        self.size += count
        return count

    def flush(self) -> None:
        """Release the bytes."""
        with open(self._local, "r+b") as file:  # one that has vanished is an error, and not begun again halfway
            file.seek(0, os.SEEK_END)
            file.writelines(self._waiting)
        self._waiting = []

    def end(self) -> None:
        """All is written, and is to outlive this machine's next failure."""
        self.flush()
        if self._remote is None:
            with open(self._local, "rb") as file:
                os.fsync(file.fileno())
            return
        upload(self._remote, self._local, self.path)
        os.unlink(self._local)

    def drop(self) -> None:
        """Nothing of it is needed; what was not sent is never sent."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._local)


@contextlib.contextmanager
def writing(url: str, done: str | None = None, fix: str = "check space and permissions") -> Iterator[None]:
    """Whatever a filesystem throws becomes a SourceError that names what could not be written."""
    try:
        yield
    except CedarError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a filesystem throws
        cause = redacted(error)
        fix = install(error) or fix
        raise SourceError(f"cannot write to {redact_url(url)!r}: {redact(str(error))}", done=done, fix=fix) from cause


def _taken(problem: str) -> PipelineError:
    return PipelineError(problem, site=user_site(), fix="write to a new place, or remove what is there first")
