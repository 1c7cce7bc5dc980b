"""The log of a write job, in the job's output folder. It records which files are complete and where to continue.

The folder ``_cedar`` contains ``job.json``, which describes the job, and for each rank a log of numbered commits, as in
table formats. A commit lists complete files, which still have temporary names, and the loader's state after their last
row. One process writes each commit atomically and then renames the files. A killed job therefore loses only the work
since its last commit. If two jobs run concurrently, one of them finds the other's commit and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.core.remote import kind_of
from cedar.core.requests import fault_of
from cedar.datasets.storage import Storage, writing
from cedar.datasets.sums import SUFFIX
from cedar.lake.lance_table import FOLDER as FILES
from cedar.lake.layouts import Layout, validated_layout
from cedar.lake.parts import Part
from cedar.store.files import acquire, release, settle_claims, write_first

VERSION = 1
FOLDER = "_cedar"
_ENTRY = re.compile(r"(\d{8})\.json")
_TEMPORARY = re.compile(r"\.(part-(?:\d{5,}-)?\d{5,}\.\w+(?:\.crc)?)\.tmp-([0-9a-f]{12,24})")
_FIX_NEW_PLACE = "write to a new location, or remove the existing data first"


@dataclass(frozen=True)
class Commit:
    """The progress of a rank at one point of the job.

    Args:
        parts: the files completed since the previous commit.
        state: the loader's state after their last row.
        schema: the serialized Arrow schema of the files in hexadecimal digits, including which columns may be null.
        number: the number of the next file.
        end: whether the rank has written all of its rows.
        layout: encoding and compression of the columns, if cedar chose them.
    """

    parts: tuple[Part, ...]
    state: dict[str, Any]
    schema: str
    number: int
    end: bool = False
    layout: Layout = field(default_factory=dict)


@dataclass
class Log:
    """The commits of one rank.

    Args:
        storage: the folder being written.
        rank, world: the rank that writes these commits, and the number of ranks.
    """

    storage: Storage
    rank: int
    world: int
    commits: list[Commit] = field(default_factory=list)
    _locked: int | None = None

    @property
    def _folder(self) -> str:
        return f"{self.storage.root}/{FOLDER}/rank-{self.rank:05d}-of-{self.world:05d}"

    def name(self, suffix: str, number: int) -> str:
        """Return the name of the rank's file with this number."""
        return f"part-{number:05d}{suffix}" if self.world == 1 else f"part-{self.rank:05d}-{number:05d}{suffix}"

    # ---- the job -----------------------------------------------------------------------------------------------------

    def job(self, suffix: str) -> dict[str, Any] | None:
        """Return the description of the folder's job; None if no job was begun.

        Raises:
            PipelineError: the folder has data files but no job.
        """
        job = self._read(f"{FOLDER}/job.json")
        if job is None:
            try:
                self.storage.refuse_data(suffix)
            except PipelineError:
                job = self._read(f"{FOLDER}/job.json")  # another rank may have just started the job
                if job is None:
                    raise
        if job is not None and job.get("cedar") != VERSION:
            raise PipelineError(
                f"{self._url_of(f'{FOLDER}/job.json')} was written by another version of cedar, or is damaged",
                fix=_FIX_NEW_PLACE,
            )
        return self._adopt_owner(job)

    def begin(self, job: dict[str, Any]) -> dict[str, Any]:
        """Write the job's description unless another process did; return the description in the folder."""
        self._create(f"{FOLDER}/job.json", {"cedar": VERSION} | job)
        return self._adopt_owner(self._read(f"{FOLDER}/job.json")) or {}

    def _adopt_owner(self, job: dict[str, Any] | None) -> dict[str, Any] | None:
        """Put the job's id into the names of temporary files, and return the job."""
        by = job.get("by") if job is not None else None
        self.storage.owner = by[:12] if isinstance(by, str) and re.fullmatch("[0-9a-f]{32}", by) else ""
        return job

    def remove_job(self) -> None:
        """Remove the description of a job that wrote nothing, so that another job can replace it."""
        path = f"{self.storage.root}/{FOLDER}/job.json"
        with writing(self._url_of(f"{FOLDER}/job.json")), contextlib.suppress(FileNotFoundError):
            self.storage.remote.call(path, lambda: self.storage.remote.fs.rm_file(path))

    # ---- lock --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock so that no other process writes for this rank; only local storage supports it.

        Raises:
            PipelineError: another process is writing.
            SourceError: the folder cannot be created.
        """
        if not self.storage.local:
            yield
            return
        with writing(self.storage.shown, fix="give a folder, or a location where one can be created"):
            os.makedirs(self._folder, exist_ok=True)
            for folder in (self._folder, os.path.dirname(self._folder)):
                settle_claims(folder)
        try:
            self._locked = acquire(f"{self._folder}/lock")  # None without file locks; commits then detect conflicts
        except BlockingIOError as error:
            raise self._conflict_error() from error
        try:
            yield
        finally:
            release(self._locked)
            self._locked = None

    def _conflict_error(self) -> PipelineError:
        who = f", rank {self.rank} of {self.world}," if self.world > 1 else ""
        return PipelineError(
            f"another job{who} is writing to {self.storage.shown!r}",
            done="this job wrote no files",
            fix="wait for it or stop it, then rerun this one. To write with several jobs, give each rank= and world=",
        )

    # ---- commits -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the commits, and finish renaming the files of the last commit.

        Raises:
            SourceError: commits or written files are missing.
        """
        folder = self._folder
        with writing(self.storage.shown):
            names = self._names(folder)
            numbers = sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))
            if numbers != list(range(len(numbers))):
                raise SourceError(f"commits are missing in {self.storage.show(folder)!r}", fix=_FIX_NEW_PLACE)
            self.commits = [self._commit(number) for number in numbers]
            for part in self.commits[-1].parts if self.commits else ():
                self._publish(part)
            self._check()

    def _names(self, folder: str) -> list[str]:
        fs = self.storage.remote.fs

        def listed() -> list[str]:
            fs.invalidate_cache(folder)
            try:
                return [str(path).rpartition("/")[2] for path in fs.ls(folder, detail=False)]
            except FileNotFoundError as error:
                if fault_of(error) is not None:
                    raise
                return []

        return self.storage.remote.call(folder, listed)

    def _commit(self, number: int) -> Commit:
        name = f"{self._folder}/{number:08d}.json"[len(self.storage.root) + 1 :]
        fields = self._read(name)
        try:
            assert fields is not None
            parts = tuple(Part(**part) for part in fields["parts"])
            commit = Commit(
                parts, fields["state"], str(fields["schema"]), int(fields["number"]), bool(fields["end"]),
                validated_layout(fields.get("layout", {})),
            )  # fmt: skip
            if not all(map(self._has_valid_names, parts)):
                raise ValueError("an invalid name")
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{self._url_of(name)} is damaged: {error}", fix=_FIX_NEW_PLACE) from error
        return commit

    def _has_valid_names(self, part: Part) -> bool:
        """Return whether a part's names have the form that jobs generate, since files are renamed by these names."""
        *folders, last = part.name.split("/")
        match = _TEMPORARY.fullmatch(part.temporary)
        return (
            match is not None and match[1] == last and (folders == [FILES] or all("=" in folder for folder in folders))
        )

    def add(self, commit: Commit) -> None:
        """Write a commit, then rename its files to their final names.

        Raises:
            PipelineError: another job has written this commit.
            SourceError: the commit cannot be written.
        """
        name = f"{self._folder}/{len(self.commits):08d}.json"[len(self.storage.root) + 1 :]
        with writing(self._url_of(name)):
            try:
                job = self._read(f"{FOLDER}/job.json") if not self.commits else None
                if self._read(name) is not None or (job and str(job.get("by", ""))[:12] != self.storage.owner):
                    raise self._conflict_error()
                for part in commit.parts:
                    final = f"{self.storage.root}/{part.name}"
                    self.storage.check(self.storage.temporary(part.name, part.temporary), part.bytes, final)
                if not self._create(name, asdict(commit)):
                    raise self._conflict_error()
            except CedarError:
                for part in commit.parts:
                    with contextlib.suppress(Exception):  # these names are unique to this job
                        self.storage.remote.fs.rm_file(self.storage.temporary(part.name, part.temporary))
                raise
            self.commits.append(commit)
            for part in commit.parts:
                self._publish(part)

    def _publish(self, part: Part) -> None:
        """Rename a file to its final name, unless that was already done."""
        final = f"{self.storage.root}/{part.name}"
        with contextlib.suppress(FileNotFoundError):
            self.storage.rename(self.storage.temporary(part.name, part.temporary), final)
            return
        if self.storage.remote.call(final, lambda: kind_of(self.storage.remote.fs, final)) is None:
            raise self._missing_error(part)

    def _missing_error(self, part: Part) -> SourceError:
        return SourceError(
            f"{self._url_of(part.name)} was written, but is now missing or has another size",
            done="nothing was written",
            fix=f"restore it; or {_FIX_NEW_PLACE}",
        )

    def _check(self) -> None:
        """Check that every completed file exists, and remove temporary files of killed runs."""
        sizes = self._sizes()
        for part in self.parts():
            if sizes.get(f"{self.storage.root}/{part.name}") != part.bytes:
                raise self._missing_error(part)
        if self._locked is not None:
            self._sweep(list(sizes))

    def _sizes(self) -> dict[str, Any]:
        fs, root = self.storage.remote.fs, self.storage.root
        entries = self.storage.remote.call(root, lambda: fs.find(root, detail=True))
        return {str(path): info.get("size") for path, info in entries.items()}

    def _sweep(self, paths: Sequence[str]) -> None:
        """Remove leftover temporary files of this job and rank."""
        mine, owner = self.name("", 0).rpartition("-")[0], self.storage.owner
        for path in paths:
            match = _TEMPORARY.fullmatch(path.rpartition("/")[2])
            if match and match[1].rpartition("-")[0] == mine and owner and match[2][:-12] == owner:
                with contextlib.suppress(FileNotFoundError):
                    self.storage.remote.fs.rm_file(path)

    def end(self) -> None:
        """Finish the job: remove leftover temporary files."""
        self._sweep(list(self._sizes()))

    def files(self) -> list[Part]:
        """Return the files with rows, without checksum files."""
        return [part for part in self.parts() if not part.name.endswith(SUFFIX)]

    def parts(self) -> list[Part]:
        """Return all completed files in order."""
        return [part for commit in self.commits for part in commit.parts]

    # ---- small files -------------------------------------------------------------------------------------------------

    def _url_of(self, name: str) -> str:
        return self.storage.show(f"{self.storage.root}/{name}")

    def _read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file; return None if it does not exist."""
        path, remote = f"{self.storage.root}/{name}", self.storage.remote

        def content() -> bytes | None:
            try:
                return bytes(remote.fs.cat_file(path))
            except FileNotFoundError as error:
                if fault_of(error) is not None:
                    raise
                return None

        with writing(self._url_of(name)):
            data = remote.call(path, content)
        if data is None:
            return None
        try:
            parsed = json.loads(data)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise PipelineError(f"{self._url_of(name)} is damaged: it is not a JSON object", fix=_FIX_NEW_PLACE)
        return parsed

    def _create(self, name: str, content: dict[str, Any]) -> bool:
        """Write a new JSON file atomically; return False if another process has already written it."""
        data = json.dumps(content | {"by": uuid.uuid4().hex}).encode()
        path, remote = f"{self.storage.root}/{name}", self.storage.remote
        folder = path.rpartition("/")[0]
        with writing(self._url_of(name)):
            remote.call(folder, lambda: remote.fs.makedirs(folder, exist_ok=True))
            if self.storage.local:
                write_first(path, data)
            elif self._read(name) is None:  # not every storage can refuse to overwrite a file
                with contextlib.suppress(FileExistsError):
                    remote.call(path, lambda: remote.fs.pipe_file(path, data, mode="create"))
            return bool(self._read(name) == json.loads(data))  # True also if the response was lost


def begun_job(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the description of the job that was begun in a folder; None without a job or if the job wrote nothing."""
    log = Log(Storage.at(url), 0, 1)
    job = log._read(f"{FOLDER}/job.json")
    return job if job is not None and {"format", "layout"} <= job.keys() else None
