"""Where a sink writes: files under temporary names, which get their own when all is written."""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cedar.datasets.listing import redact
from cedar.errors import CedarError, PipelineError, SourceError, user_site


@dataclass
class Storage:
    """A directory, or one file, on any fsspec filesystem.

    As a context: on success every file gets its name, by a rename each; on an error all of them are removed.
    """

    fs: Any
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
            storage = Storage(fs, root.rstrip("/"), url.endswith(suffix))
            storage._refuse_data(suffix, url)
        except CedarError:
            raise
        except Exception as error:  # whatever a filesystem throws
            raise SourceError(f"cannot write to {redact(url)!r}: {error}", fix="check the URL") from error
        return storage

    def _refuse_data(self, suffix: str, url: str) -> None:
        if not self.fs.exists(self.root):
            return
        if self.fs.isfile(self.root):
            raise _taken(f"{redact(url)!r} exists already")
        below = [str(p).rpartition("/")[2] for p in self.fs.find(self.root)]
        data = [name for name in below if name.endswith(suffix) and not name.startswith(".")]
        if data:
            raise _taken(f"{redact(url)!r} holds {len(data)} data files already, such as {min(data)!r}")
        if self.single and below:
            raise _taken(f"{redact(url)!r} is a directory that is not empty")

    def create(self, name: str) -> Any:
        """A new file, open for writing; ``name`` may have folders."""
        final = self.root if self.single else f"{self.root}/{name}"
        folder, _, base = final.rpartition("/")
        temporary = f"{folder}/.{base}.tmp-{uuid.uuid4().hex[:12]}"
        self.fs.makedirs(folder or "/", exist_ok=True)
        stream = self.fs.open(temporary, "wb")
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
                self.fs.rm_file(temporary)

    def _rename(self, temporary: str, final: str) -> None:
        if "file" in self.fs.protocol:
            os.replace(temporary, final)
        else:
            self.fs.mv(temporary, final)

    def urls(self) -> list[str]:
        """The files, in the order they were begun."""
        local = "file" in self.fs.protocol
        return [final if local else redact(self._shown(final)) for _, final in self._pending]

    def _shown(self, path: str) -> str:
        return str(self.fs.unstrip_protocol(path)).replace("memory:///", "memory://")


def _taken(what: str) -> PipelineError:
    return PipelineError(what, site=user_site(), fix="write to a new place, or remove what is there first")
