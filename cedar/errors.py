"""Every error a user can see.

An error says, in this order: what broke; the user's file and line that built the operator; the row; what was done
about it; what to do next. The original exception, where there is one, is the ``__cause__``.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from cedar.redact import redact

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True)
class Site:
    """The place in the user's code that built an operator."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function and self.function != "<module>" else where


_in_worker = threading.Event()


def in_worker() -> None:
    """This process is a worker: no handler of a signal ends it from within a user's function."""
    _in_worker.set()


def raised() -> tuple[type[BaseException], ...]:
    """What the code of users raises where it fails, for ``except``.

    ``sys.exit()`` in a function is an error of its row, and does not end the training in silence. In the main thread it
    may be that of a signal's handler, and passes.
    """
    main = threading.current_thread() is threading.main_thread() and not _in_worker.is_set()
    return (Exception,) if main else (Exception, SystemExit)


def user_site() -> Site | None:
    """The nearest caller outside the package, or None when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = file.startswith(_PACKAGE) or str(frame.f_globals.get("__name__")).startswith(__package__ + ".")
        if not ours and not file.startswith("<frozen"):  # a dataclass's __init__ has a file name of its own: <string>
            return Site(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@dataclass(frozen=True)
class RowRef:
    """A row by its key: where it was read and, once known, the URL of that file.

    ``row`` is the row number in the file, or the byte offset where rows are lines of text; ``sub`` is the index that
    ``flat_map`` or ``pack`` added, -1 when there is none.
    """

    source: int
    file: int
    row: int
    sub: int = -1
    repeat: int = 0
    url: str | None = None
    epoch: int | None = None
    unit: str = "row"

    def __str__(self) -> str:
        where = self.url if self.url is not None else f"source {self.source}, file {self.file}"
        text = f"{where}, {self.unit} {self.row}"
        if self.sub >= 0:
            text += f", item {self.sub}"
        if self.epoch is not None:
            text += f", epoch {self.epoch}"
        return text


class CedarError(Exception):
    """Root of every error of cedar.

    Args:
        what: what broke, in one sentence.
        site: the user's line that built the operator.
        row: the row at hand.
        done: what was done about it.
        fix: what to do next.

    Example:
        >>> from cedar.errors import CedarError
        >>> print(CedarError("no column 'agee'", fix="did you mean 'age'?"))
        no column 'agee'
          next       did you mean 'age'?
    """

    def __init__(
        self,
        what: str = "",
        *,
        site: Site | None = None,
        row: RowRef | None = None,
        done: str | None = None,
        fix: str | None = None,
    ) -> None:
        what = redact(what)
        super().__init__(what)
        self.what = what
        self.site = site
        self.row = row
        self.done = None if done is None else redact(done)
        self.fix = None if fix is None else redact(fix)
        self._cause: BaseException | None = None

    def restore_cause(self) -> None:
        """Make the cause the original again, after an executor has put its own there."""
        if self._cause is not None:
            self.__cause__ = self._cause

    def __str__(self) -> str:
        lines = [self.what]
        for label, value in (
            ("your code", self.site),
            ("row", self.row),
            ("done", self.done),
            ("next", self.fix),
        ):
            if value is not None:
                lines.append(f"  {label:<10} {value}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_cause"}
        return _rebuild, (type(self), state | {"args": self.args}, _packed(self._cause or self.__cause__))


def _packed(cause: BaseException | None) -> bytes | None:
    """A cause by value, whatever pickles the error: its class may be one of ``__main__``."""
    import cloudpickle

    return None if cause is None else cloudpickle.dumps(portable(cause))


def portable(cause: BaseException) -> BaseException:
    """An exception that survives the way to another process, its traceback as a note.

    One whose constructor takes other arguments than it passes on is made without it; what cannot be pickled is replaced
    by its text.
    """
    trace = "".join(traceback.format_exception(cause))
    portable = cause if _travels(cause) else _Unmade.of(cause)
    if not _travels(portable):
        portable = RuntimeError(f"{type(cause).__name__}: {cause}")
    if not any(note.startswith(_REMOTE) for note in getattr(portable, "__notes__", ())):
        portable.add_note(f"{_REMOTE}\n{trace}")
    return portable


def _travels(error: BaseException) -> bool:
    import cloudpickle

    try:
        copied = pickle.loads(cloudpickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - a constructor may raise anything
        return False
    return type(copied) is type(error) or isinstance(error, _Unmade)


class _Unmade(Exception):
    """Stands for an exception on its way, and is made into it without calling its constructor."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        super().__init__(kind, args, state)

    @staticmethod
    def of(error: BaseException) -> _Unmade:
        return _Unmade(type(error), error.args, dict(error.__dict__))

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args, state = self.args
        return _made, (kind, args, state | self.__dict__)


def _made(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_REMOTE = "traceback in the worker:"


def _rebuild(kind: type[CedarError], state: dict[str, Any], packed: bytes | None) -> CedarError:
    error = kind.__new__(kind)
    error.args = state.pop("args")
    error.__dict__.update(state)
    cause = None if packed is None else pickle.loads(packed)  # noqa: S301 - see _packed
    error.__cause__ = error._cause = cause  # an executor that carries the error here sets the former to its own
    return error


class PipelineError(CedarError):
    """The pipeline is built wrongly. Raised at the user's line where that can be known."""


class RowError(CedarError):
    """A function failed on a row, or a value does not fit the type of its column."""


class SourceError(CedarError):
    """A file, or another source, cannot be listed or read."""


class WorkerError(CedarError):
    """A worker died, or could not take a task."""


class ResumeError(CedarError):
    """A saved state does not fit this pipeline."""


class PlanError(CedarError):
    """A plan does not fit this pipeline, or a feature of plans is not there."""


def nearest(name: str, known: list[str]) -> list[str]:
    """``known``, nearest to ``name`` first."""
    from difflib import SequenceMatcher

    return sorted(known, key=lambda k: -SequenceMatcher(None, name.lower(), k.lower()).ratio())


def missing_column(name: str, known: list[str], what: str, site: Site | None = None) -> PipelineError:
    """The error for a column that does not exist: says which do, nearest first."""
    ordered = nearest(name, known)
    listed = ", ".join(repr(k) for k in ordered[:12]) + (", ..." if len(ordered) > 12 else "")
    return PipelineError(
        f"{what}: there is no column {name!r}; the columns are {listed or 'none'}",
        site=site,
        fix=f"did you mean {ordered[0]!r}?" if ordered else "check the source's columns with p.schema",
    )
