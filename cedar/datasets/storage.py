"""Where a sink writes: files under temporary names, which get their own when all is written."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cedar.core.errors import CedarError, PipelineError, SourceError, user_site
from cedar.core.redact import redact_url, redacted
from cedar.datasets.remote import Remote, kind_of, rename, upload
from cedar.datasets.requests import Account, Patience


@dataclass
class Storage:
    """A directory, or one file, on any fsspec filesystem.

    As a context: on success every file gets its name, by a rename each; on an error all of them are removed.
    """

    remote: Remote
    root: str
    single: bool
    _pending: list[tuple[str, str]] = field(default_factory=list)

    @staticmethod
    def at(url: str | os.PathLike[str], suffix: str) -> Storage:
        """``url`` is one file where it ends in ``suffix``, else a directory.

        Raises:
            PipelineError: there is data already.
        """
        import fsspec

        url = os.fspath(url)
        try:
            fs, root = fsspec.url_to_fs(os.path.expanduser(url))
            storage = Storage(Remote(fs, Account(Patience.of_environment())), root.rstrip("/"), url.endswith(suffix))
            storage._refuse_data(suffix, url)
        except CedarError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a filesystem throws
            cause = redacted(error)
            raise SourceError(f"cannot write to {redact_url(url)!r}: {error}", fix="check the URL") from cause
        return storage

    @property
    def local(self) -> bool:
        """Files are written where they stay."""
        return "file" in self.remote.fs.protocol

    @property
    def shown(self) -> str:
        """What messages call the place."""
        return self._shown(self.root)

    def _refuse_data(self, suffix: str, url: str) -> None:
        fs = self.remote.fs
        kind = self.remote.call(self.root, lambda: kind_of(fs, self.root))
        if kind is None:
            return
        if kind == "file":
            raise _taken(f"{redact_url(url)!r} exists already")
        below = [str(p).rpartition("/")[2] for p in self.remote.call(self.root, lambda: fs.find(self.root))]
        data = [name for name in below if name.endswith(suffix) and not name.startswith(".")]
        if data:
            raise _taken(f"{redact_url(url)!r} holds {len(data)} data files already, such as {min(data)!r}")
        if self.single and below:
            raise _taken(f"{redact_url(url)!r} is a directory that is not empty")

    def create(self, name: str) -> Any:
        """A new file, open for writing; ``name`` may have folders."""
        final = self.root if self.single else f"{self.root}/{name}"
        folder, _, base = final.rpartition("/")
        temporary = f"{folder}/.{base}.tmp-{uuid.uuid4().hex[:12]}"
        self.remote.call(folder, lambda: self.remote.fs.makedirs(folder or "/", exist_ok=True))
        if self.local:
            stream: Any = self.remote.fs.open(temporary, "wb")
        else:
            stream = _Upload(self.remote, temporary)
        self._pending.append((temporary, final))
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for temporary, final in self._pending:
                self._rename(temporary, final)
            return
        for temporary, _ in self._pending:
            with contextlib.suppress(Exception):  # the error that brought us here matters more
                self.remote.fs.rm_file(temporary)

    def _rename(self, temporary: str, final: str) -> None:
        if self.local:
            os.replace(temporary, final)
        else:
            rename(self.remote, temporary, final)

    def urls(self) -> list[str]:
        """The files, in the order they were begun."""
        return [self._shown(final) for _, final in self._pending]

    def _shown(self, path: str) -> str:
        return path if self.local else self.remote.url(path)


class _Upload(io.RawIOBase):
    """A file that is written here and sent when it is closed: so it can be sent again."""

    def __init__(self, remote: Remote, path: str) -> None:
        super().__init__()
        self._remote, self._path = remote, path
        self._file = tempfile.NamedTemporaryFile(prefix="cedar-upload-", suffix=".part")  # noqa: SIM115 - closed with this

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with self._file:
            self._file.flush()
            upload(self._remote, self._file.name, self._path)

    def drop(self) -> None:
        """Close without sending."""
        super().close()
        self._file.close()

    def __del__(self) -> None:  # what nobody closed is not sent
        if not self.closed:
            self.drop()


def _taken(what: str) -> PipelineError:
    return PipelineError(what, site=user_site(), fix="write to a new place, or remove what is there first")
