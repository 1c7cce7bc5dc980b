"""The manifest of a folder that a job writes: which files are done, and where the rows after them begin.

Below ``_cedar`` lie ``job.json``, which says what the job is, and for each rank a log of numbered commits, as table
formats keep them. A commit names files that are whole, under temporary names, and the state after their last row; it is
made in one step, by the first process, and then the files get their names. So a job that is killed at any moment has
lost what it did since its last commit, and nothing else; of two at once, one meets the other's commit and ends.
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
from cedar.core.faults import fault_of
from cedar.datasets.storage import Storage, writing
from cedar.datasets.sums import SUFFIX
from cedar.lake.lance_table import FOLDER as FILES
from cedar.lake.layouts import Layout, checked
from cedar.lake.parts import Part
from cedar.store.locks import acquire, release
from cedar.store.whole_files import settle_claims, write_first

VERSION = 1
FOLDER = "_cedar"
_ENTRY = re.compile(r"(\d{8})\.json")
_TEMPORARY = re.compile(r"\.(part-(?:\d{5,}-)?\d{5,}\.\w+(?:\.crc)?)\.tmp-([0-9a-f]{12,24})")
_NEW = "write to a new place, or remove what is there first"


@dataclass(frozen=True)
class Commit:
    """What a rank had done at some moment.

    Args:
        parts: the files since the commit before.
        state: of the loader, after their last row.
        schema: the columns of the files, as Arrow has them in bytes, in hexadecimal digits; they tell what may be null.
        number: of the next file.
        end: there is nothing more to write.
        layout: how the columns are stored, where that was chosen.
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
        storage: the folder that is written to.
        rank, world: whose commits these are.
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
        """What the rank's file of this number is called."""
        return f"part-{number:05d}{suffix}" if self.world == 1 else f"part-{self.rank:05d}-{number:05d}{suffix}"

    # ---- what the job is ---------------------------------------------------------------------------------------------

    def job(self, suffix: str) -> dict[str, Any] | None:
        """What the folder says of its job; None if none is begun.

        Raises:
            PipelineError: there are files that no job of this kind wrote.
        """
        job = self._read(f"{FOLDER}/job.json")
        if job is None:
            try:
                self.storage.refuse_data(suffix)
            except PipelineError:
                job = self._read(f"{FOLDER}/job.json")  # another rank may just have begun
                if job is None:
                    raise
        if job is not None and job.get("cedar") != VERSION:
            raise PipelineError(
                f"{self._shown(f'{FOLDER}/job.json')} is of another version of cedar, or damaged", fix=_NEW
            )
        return self._named(job)

    def begin(self, job: dict[str, Any]) -> dict[str, Any]:
        """Write down what the job is, unless another process did before; what holds."""
        self._create(f"{FOLDER}/job.json", {"cedar": VERSION} | job)
        return self._named(self._read(f"{FOLDER}/job.json")) or {}

    def _named(self, job: dict[str, Any] | None) -> dict[str, Any] | None:
        """The job, whose temporary files are from here on called by it."""
        by = job.get("by") if job is not None else None
        self.storage.owner = by[:12] if isinstance(by, str) and re.fullmatch("[0-9a-f]{32}", by) else ""
        return job

    def forget(self) -> None:
        """The job wrote nothing, and another begins in its place."""
        path = f"{self.storage.root}/{FOLDER}/job.json"
        with writing(self._shown(f"{FOLDER}/job.json")), contextlib.suppress(FileNotFoundError):
            self.storage.remote.call(path, lambda: self.storage.remote.fs.rm_file(path))

    # ---- one at a time -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing else writes for this rank meanwhile, as far as the storage can tell: local ones do.

        Raises:
            PipelineError: something does.
            SourceError: it is not a place for a folder.
        """
        if not self.storage.local:
            yield
            return
        with writing(self.storage.shown, fix="give a folder, or a place where one can be made"):
            os.makedirs(self._folder, exist_ok=True)
            for folder in (self._folder, os.path.dirname(self._folder)):
                settle_claims(folder)
        try:
            self._locked = acquire(f"{self._folder}/lock")  # None on a file system without locks: commits still tell
        except BlockingIOError as error:
            raise self._another() from error
        try:
            yield
        finally:
            release(self._locked)
            self._locked = None

    def _another(self) -> PipelineError:
        who = f", rank {self.rank} of {self.world}," if self.world > 1 else ""
        return PipelineError(
            f"another job{who} is writing to {self.storage.shown!r}",
            done="this one wrote nothing that stays",
            fix="wait for it or stop it, then rerun this one. To write with several, give each its rank= and world=",
        )

    # ---- commits -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the commits, and finish what the last one began.

        Raises:
            SourceError: commits or files that were made are not there any more.
        """
        folder = self._folder
        with writing(self.storage.shown):
            names = self._names(folder)
            numbers = sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))
            if numbers != list(range(len(numbers))):
                raise SourceError(f"commits are missing in {self.storage.show(folder)!r}", fix=_NEW)
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
                checked(fields.get("layout", {})),
            )  # fmt: skip
            if not all(map(self._ours, parts)):
                raise ValueError("an invalid name")
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{self._shown(name)} is damaged: {error}", fix=_NEW) from error
        return commit

    def _ours(self, part: Part) -> bool:
        """Names are below the folder, and are those that a job gives: they are renamed by what is written here."""
        *folders, last = part.name.split("/")
        match = _TEMPORARY.fullmatch(part.temporary)
        return (
            match is not None and match[1] == last and (folders == [FILES] or all("=" in folder for folder in folders))
        )

    def add(self, commit: Commit) -> None:
        """Make a commit, then give its files their names.

        Raises:
            PipelineError: another job made one since.
            SourceError: it cannot be written.
        """
        name = f"{self._folder}/{len(self.commits):08d}.json"[len(self.storage.root) + 1 :]
        with writing(self._shown(name)):
            try:
                job = self._read(f"{FOLDER}/job.json") if not self.commits else None
                if self._read(name) is not None or (job and str(job.get("by", ""))[:12] != self.storage.owner):
                    raise self._another()
                for part in commit.parts:
                    final = f"{self.storage.root}/{part.name}"
                    self.storage.check(self.storage.temporary(part.name, part.temporary), part.bytes, final)
                if not self._create(name, asdict(commit)):
                    raise self._another()
            except CedarError:
                for part in commit.parts:
                    with contextlib.suppress(Exception):  # that of the other is another file
                        self.storage.remote.fs.rm_file(self.storage.temporary(part.name, part.temporary))
                raise
            self.commits.append(commit)
            for part in commit.parts:
                self._publish(part)

    def _publish(self, part: Part) -> None:
        """Give a file its name, unless it has it."""
        final = f"{self.storage.root}/{part.name}"
        with contextlib.suppress(FileNotFoundError):
            self.storage.rename(self.storage.temporary(part.name, part.temporary), final)
            return
        if not self.storage.remote.call(final, lambda: self.storage.remote.fs.exists(final)):
            raise self._missing(part)

    def _missing(self, part: Part) -> SourceError:
        return SourceError(
            f"{self._shown(part.name)} was written, and is not what it was: it is gone, or has another size",
            done="nothing was written",
            fix=f"restore it; or {_NEW}",
        )

    def _check(self) -> None:
        """Every file that is done is there; temporary ones that a run which was killed left are not needed."""
        sizes = self._sizes()
        for part in self.parts():
            if sizes.get(f"{self.storage.root}/{part.name}") != part.bytes:
                raise self._missing(part)
        if self._locked is not None:
            self._sweep(list(sizes))

    def _sizes(self) -> dict[str, Any]:
        fs, root = self.storage.remote.fs, self.storage.root
        entries = self.storage.remote.call(root, lambda: fs.find(root, detail=True))
        return {str(path): info.get("size") for path, info in entries.items()}

    def _sweep(self, paths: Sequence[str]) -> None:
        """Remove temporary files that this job made for this rank, and which nothing writes to any more."""
        mine, owner = self.name("", 0).rpartition("-")[0], self.storage.owner
        for path in paths:
            match = _TEMPORARY.fullmatch(path.rpartition("/")[2])
            if match and match[1].rpartition("-")[0] == mine and owner and match[2][:-12] == owner:
                with contextlib.suppress(FileNotFoundError):
                    self.storage.remote.fs.rm_file(path)

    def end(self) -> None:
        """All is done."""
        self._sweep(list(self._sizes()))

    def files(self) -> list[Part]:
        """Those that hold rows: no checksums."""
        return [part for part in self.parts() if not part.name.endswith(SUFFIX)]

    def parts(self) -> list[Part]:
        """The files that are done, in order."""
        return [part for commit in self.commits for part in commit.parts]

    # ---- small files -------------------------------------------------------------------------------------------------

    def _shown(self, name: str) -> str:
        return self.storage.show(f"{self.storage.root}/{name}")

    def _read(self, name: str) -> dict[str, Any] | None:
        """A JSON file; None if it is not there."""
        path, remote = f"{self.storage.root}/{name}", self.storage.remote

        def content() -> bytes | None:
            try:
                return bytes(remote.fs.cat_file(path))
            except FileNotFoundError as error:
                if fault_of(error) is not None:
                    raise
                return None

        with writing(self._shown(name)):
            data = remote.call(path, content)
        if data is None:
            return None
        try:
            parsed = json.loads(data)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise PipelineError(f"{self._shown(name)} is damaged: it is not JSON object", fix=_NEW)
        return parsed

    def _create(self, name: str, content: dict[str, Any]) -> bool:
        """Write a new JSON file in one step; False if there is one already."""
        data = json.dumps(content | {"by": uuid.uuid4().hex}).encode()
        path, remote = f"{self.storage.root}/{name}", self.storage.remote
        folder = path.rpartition("/")[0]
        with writing(self._shown(name)):
            remote.call(folder, lambda: remote.fs.makedirs(folder, exist_ok=True))
            if self.storage.local:
                write_first(path, data)
            elif self._read(name) is None:  # not all storages refuse to write over a file
                with contextlib.suppress(FileExistsError):
                    remote.call(path, lambda: remote.fs.pipe_file(path, data, mode="create"))
            return bool(self._read(name) == json.loads(data))  # ours, also where the answer to an attempt was lost


def begun_job(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What the job is that a folder says was begun in it; None if there is none, or one that wrote nothing."""
    log = Log(Storage.at(url), 0, 1)
    job = log._read(f"{FOLDER}/job.json")
    return job if job is not None and {"format", "layout"} <= job.keys() else None
