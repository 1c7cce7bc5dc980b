"""All errors that a user can see, and ``Skip``, the policy for rows that fail.

The message lists, in this order: what failed; the user's file and line that built the operator; the row; what cedar
did about the failure; what to do next. The original exception, if there is one, is the ``__cause__``.
"""

from __future__ import annotations

import dis
import functools
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from types import FrameType, TracebackType
from typing import Any, cast

from cedar.core.packages import loaded
from cedar.core.printable import one_line, printable, redact

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NAME = __name__.partition(".")[0]
_MODULES = _NAME + "."
_CONSOLE_SCRIPT = os.path.join(os.sep, "bin", _NAME)  # the end of the console script's path
_STDLIB = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(os.path.join(_STDLIB, name, "") for name in ("site-packages", "dist-packages"))


@dataclass(frozen=True)
class Site:
    """The file and line in the user's code where an operator was built."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function and self.function != "<module>" else where


def raised() -> tuple[type[BaseException], ...]:
    """Return the classes for an ``except`` around user code, which catches every error that the code itself raises.

    Interrupts from outside are not caught: Ctrl-C, exceptions that a signal handler raises, GeneratorExit when a
    consumer closes a generator, and the cancellation of a task by its event loop.
    """
    error = sys.exception()
    if error is None or isinstance(error, Exception) or _from_outside(error):
        return (Exception,)
    return (BaseException,)


def _from_outside(error: BaseException) -> bool:
    """Whether the exception came from a signal handler, or asynchronously between two instructions of the code."""
    frames = [(entry.tb_frame, entry.tb_lasti) for entry in _entries(error.__traceback__)]
    main = threading.current_thread() is threading.main_thread()
    if main and _handlers() & {frame.f_code for frame, _ in frames}:
        return True
    if isinstance(error, BaseExceptionGroup):
        return any(map(_from_outside, error.exceptions))
    asyncio = loaded("asyncio")  # importing it takes 0.1 s
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop runs
            return False
        return task is not None and task.cancelling() > 0  # an event loop or another task has cancelled this one
    if not isinstance(error, GeneratorExit) and not (main and isinstance(error, KeyboardInterrupt)):
        return False
    if not frames:
        return True
    frame, last = frames[-1]
    code = frame.f_code.co_code
    instruction = dis.opname[code[last]] if 0 <= last < len(code) else ""
    return not instruction.startswith("RAISE") or frame.f_globals.get("__name__") == "asyncio.runners"


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _handlers() -> set[object]:
    """Return the code objects of this process's signal handlers."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        if not hasattr(handler, "__code__"):
            handler = getattr(type(handler), "__call__", None)  # noqa: B004 - a callable object
        codes.add(getattr(handler, "__code__", None))
    return codes - {None}


def user_site() -> Site | None:
    """Return the nearest caller outside cedar and the standard library, or None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_user_frame(frame):
            return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_user_frame(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    # The __init__ of a dataclass has the file name "<string>".
    ours = file.startswith(_PACKAGE) or str(frame.f_globals.get("__name__")).startswith(_MODULES)
    python = file.startswith(("<frozen", _STDLIB)) and not file.startswith(_INSTALLED)
    return not ours and not python and not file.endswith(_CONSOLE_SCRIPT)


def shortened(error: CedarError) -> CedarError:
    """Name the caller's line in an error without one, remove cedar's frames from its traceback, and return it.

    ``CEDAR_TRACEBACK=full`` keeps the frames.
    """
    error.site = error.site or user_site()
    _shorten(error.__cause__, error.__context__)
    return error if os.environ.get("CEDAR_TRACEBACK") == "full" else error.with_traceback(None)


def _shorten(*errors: BaseException | None) -> None:
    """Cut the tracebacks of errors and of their causes so that they begin where cedar called the user's function."""
    seen: set[int] = set()
    pending = [] if os.environ.get("CEDAR_TRACEBACK") == "full" else [*errors]
    while pending:
        error = pending.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            entries = list(_entries(error.__traceback__))
            first = (entry for entry in entries if _is_user_frame(entry.tb_frame))
            error.__traceback__ = next(first, entries[-1] if entries else None)
            pending += [error.__cause__, error.__context__]


@dataclass(frozen=True)
class RowRef:
    """A reference to a row by its key: its source and file and, once known, the URL of the file.

    ``row`` is the row number in the file, or the byte offset if rows are lines of text. ``sub`` is the index that
    ``flat_map`` or ``pack`` added, or -1.
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
        where = one_line(self.url) if self.url is not None else f"source {self.source}, file {self.file}"
        text = f"{where}, {self.unit} {self.row}"
        if self.sub >= 0:
            text += f", item {self.sub}"
        if self.epoch is not None:
            text += f", epoch {self.epoch}"
        return text


class CedarError(Exception):
    """Base class of all errors of cedar.

    Args:
        what: what failed, in one sentence.
        site: the user's line that built the operator.
        row: the row that was being processed.
        done: what cedar did about it.
        fix: what the user can do.

    Examples:
        >>> from cedar.core.errors import CedarError
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
        """Restore the original cause after an executor has replaced it."""
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
        import cloudpickle

        state = {name: value for name, value in self.__dict__.items() if name != "_cause"}
        cause = self._cause or self.__cause__
        packed = None if cause is None else cloudpickle.dumps(portable(cause))  # with classes of ``__main__``
        return _rebuild, (type(self), state | {"args": self.args}, packed)


def portable(cause: BaseException) -> BaseException:
    """Return an exception that can be sent to another process, with its traceback as a note.

    If the constructor cannot be called with the exception's ``args``, the copy is rebuilt without calling it. If the
    exception cannot be pickled, a RuntimeError with its text replaces it.
    """
    _shorten(cause)
    trace = "".join(traceback.format_exception(cause))
    portable = cause if _survives_pickling(cause) else _ErrorParts(type(cause), cause.args, dict(cause.__dict__))
    if not _survives_pickling(portable):
        portable = RuntimeError(f"{type(cause).__name__}: {cause}")
    if not any(note.startswith(_REMOTE) for note in getattr(portable, "__notes__", ())):
        portable.add_note(f"{_REMOTE}\n{trace}")
    return portable


def _survives_pickling(error: BaseException) -> bool:
    import cloudpickle

    try:
        copied = pickle.loads(cloudpickle.dumps(error))  # noqa: S301 - pickled in the same line
    except Exception:  # noqa: BLE001 - a constructor may raise anything
        return False
    return type(copied) is type(error) or isinstance(error, _ErrorParts)


class _ErrorParts(Exception):
    """Carries an exception to another process, which rebuilds it without calling its constructor."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        super().__init__(kind, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        kind, args, state = self.args
        return _rebuild_cause, (kind, args, state | self.__dict__)


def _rebuild_cause(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_REMOTE = "traceback in the worker:"


def _rebuild(kind: type[CedarError], state: dict[str, Any], packed: bytes | None) -> CedarError:
    error = kind.__new__(kind)
    error.args = state.pop("args")
    error.__dict__.update(state)
    cause = None if packed is None else pickle.loads(packed)  # noqa: S301 - see __reduce__
    error.__cause__ = error._cause = cause  # an executor replaces __cause__, see restore_cause
    return error


class PipelineError(CedarError):
    """Raised if a pipeline is built incorrectly. The message names the user's line if it can be determined.

    Examples:
        >>> cedar.from_items([{"x": 1}]).select("y").count()
        Traceback (most recent call last):
        cedar.PipelineError: select(y): there is no column 'y'; ...
    """


class RowError(CedarError):
    """Raised if a function failed on a row, or if a value does not fit the type of its column.

    Examples:
        >>> list(cedar.from_items([{"x": 0}]).map(lambda x: 1 / x, "x", dtype=float))
        Traceback (most recent call last):
        cedar.RowError: ...ZeroDivisionError...
    """


class SourceError(CedarError):
    """Raised if a file or another source cannot be listed or read.

    Examples:
        >>> cedar.read_parquet("nowhere.parquet").count()
        Traceback (most recent call last):
        cedar.SourceError: no file matches 'nowhere.parquet'...
    """


class WorkerError(CedarError):
    """Raised if a worker died or did not accept a task.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool:
        ...     loader = cedar.from_items([{"x": 1}]).loader(executor=pool)
        >>> list(loader)
        Traceback (most recent call last):
        cedar.WorkerError: the executor takes no more tasks: ...
    """


class ResumeError(CedarError):
    """Raised if a saved state does not match this pipeline.

    Examples:
        >>> rows = cedar.from_items([{"x": 1}])
        >>> rows.batch(1).loader().load_state_dict(rows.loader().state_dict())
        Traceback (most recent call last):
        cedar.ResumeError: ...another pipeline...
    """


class PlanError(CedarError):
    """Raised if a plan does not match this pipeline, or names something that does not exist.

    Examples:
        >>> cedar.from_items([{"x": 1}]).loader(executor="dusk")
        Traceback (most recent call last):
        cedar.PlanError: executor='dusk' is unknown...
    """


class UsageError(PipelineError, TypeError):
    """A PipelineError that is also a TypeError, which ``list(p)`` expects from ``len(p)`` if the length is unknown."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (_, *state) = super().__reduce__()
        return rebuild, (PipelineError, *state)


for _kind in (CedarError, PipelineError, RowError, SourceError, WorkerError, ResumeError, PlanError, UsageError):
    _kind.__module__ = _NAME  # users import them as cedar.RowError
UsageError.__name__ = UsageError.__qualname__ = PipelineError.__name__

_warned: dict[Any, int] = {}


def warn_user(text: str, site: Site | None) -> None:
    """Warn at a line of the user's; Python shows each warning once."""
    file, line = (site.file, site.line) if site is not None else (_NAME, 1)
    warnings.warn_explicit(printable(text), UserWarning, file, line, registry=_warned)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert an OSError raised while writing the user's file in this ``with`` block to a PipelineError.

    Raises:
        PipelineError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error}", fix="name a file that you may write") from error


def nearest(name: str, known: list[str]) -> list[str]:
    """Return ``known`` sorted by similarity to ``name``, the most similar first."""
    from difflib import SequenceMatcher

    return sorted(known, key=lambda k: -SequenceMatcher(None, name.lower(), k.lower()).ratio())


def invalid_call(what: str, *, fix: str | None = None) -> PipelineError:
    """Return the error for an invalid call; it names the line of the user's code that made the call."""
    return PipelineError(what, site=user_site(), fix=fix)


VALUE = "(what a function returned for the batch)"  # shown as the column name for a batch without columns


def missing_column(
    name: str, known: list[str], label: str, site: Site | None = None, kind: str = "column"
) -> PipelineError:
    """Return the error for a missing column (or other ``kind``), which lists the existing ones, most similar first."""
    if known == [VALUE]:
        fix = "after a collate, or a map(fn) that returns no dict of columns, only map(fn) without columns may follow"
        return PipelineError(f"{label}: the batch has no column {name!r}, or any other", site=site, fix=fix)
    ordered = nearest(name, known)
    listed = ", ".join(repr(k) for k in ordered[:12]) + (", ..." if len(ordered) > 12 else "")
    return PipelineError(
        f"{label}: there is no {kind} {name!r}; the {kind}s are {listed or 'none'}",
        site=site,
        fix=f"did you mean {ordered[0]!r}?" if ordered else "check the source's columns with p.schema",
    )


def check_names(label: str, *names: object, fix: str = "give column names as strings") -> None:
    """Raise PipelineError at a name that is not a string, such as an expression."""
    for name in names:
        if not isinstance(name, str):
            raise invalid_call(f"{label}: {name!r:.80} is not a column name", fix=fix)


def names_of(label: str, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return one or several column names as a tuple, after ``check_names``."""
    single = isinstance(names, str) or not isinstance(names, Iterable)
    several = () if names is None else cast("tuple[str]", (names,)) if single else tuple(names)
    check_names(label, *several)
    return several


def require_columns(names: Iterable[str], known: Iterable[str] | None, label: str, site: Site | None = None) -> None:
    """Raise PipelineError if a name is not among the ``known`` columns; None if they are not known."""
    there = None if known is None else list(known)
    for name in names:
        if there is not None and name not in there:
            raise missing_column(name, there, label, site)


@dataclass(frozen=True)
class Skip:
    """Drop rows that fail, record them, and stop the run if too many fail.

    Args:
        max_rate: the largest share of rows that may be skipped, 0 to 1: of the epoch's rows if their number is known,
            else of the rows seen so far (counted as at least 1,000 until the epoch ends).
        max_count: the largest number of rows that may be skipped in an epoch.
        quarantine: a directory or URL. Each rank writes a JSONL file there with (epoch, source, row, operator, error)
            of each skipped row.
        refill: True replaces a skipped row by the next one, so that batches stay full. The number of rows is then
            unknown before the run. False leaves the batch short and does not shift other batches.
        files: True also skips the unreadable parts of a damaged file: truncated, of another format, missing or without
            permission. Rows read before the damage are delivered. The skipped part counts as its number of
            rows if the metadata have that number, else as one row. All columns of a file are then read, to find damage
            in any of them. False ends the run at a damaged file. Only set it for the loader or for ``write``.
        blocks: True also drops a block of rows that crashes worker processes although no single row of it does. Each
            row of the block counts as skipped. False ends the run with an error that names the block.

    Raises:
        PipelineError: a rate outside 0 to 1, or a negative count.

    Examples:
        >>> import cedar
        >>> cedar.Skip(max_rate=0.01).max_rate
        0.01
    """

    max_rate: float | None = None
    max_count: int | None = None
    quarantine: str | None = None
    refill: bool = False
    files: bool = False
    blocks: bool = False

    def __post_init__(self) -> None:
        rate, count = self.max_rate, self.max_count
        if rate is not None and not (isinstance(rate, Real) and 0 <= rate <= 1):
            raise PipelineError(f"Skip(max_rate={rate!r}): a rate is a number between 0 and 1", site=user_site())
        if count is not None and not (isinstance(count, Integral) and count >= 0):
            raise PipelineError(f"Skip(max_count={count!r}): a count is an integer, not negative", site=user_site())
