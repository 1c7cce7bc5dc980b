"""Tracebacks as users need them: the frames of their own code, and one line for cedar."""

from __future__ import annotations

import os
from types import FrameType, TracebackType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NAME = __name__.partition(".")[0]
_STDLIB = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(os.path.join(_STDLIB, name, "") for name in ("site-packages", "dist-packages"))
_COMMAND = os.path.join(os.sep, "bin", _NAME)  # the script that an installation puts there


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs code outside the package and Python's own library."""
    file = frame.f_code.co_filename
    # A dataclass's __init__ has a file name of its own: <string>.
    ours = file.startswith(_PACKAGE) or str(frame.f_globals.get("__name__")).startswith(_NAME + ".")
    python = file.startswith(("<frozen", _STDLIB)) and not file.startswith(_INSTALLED)
    return not ours and not python and not file.endswith(_COMMAND)


def shortened(error: E) -> E:
    """The error without cedar's frames, to be raised again from one place.

    Its causes begin where cedar called the user's function. ``CEDAR_TRACEBACK=full`` in the environment keeps all.
    """
    shorten(error.__cause__, error.__context__)
    return error if _full() else error.with_traceback(None)


def shorten(*errors: BaseException | None) -> None:
    """Let the tracebacks of errors, and of what led to them, begin at the first frame that is not cedar's."""
    seen: set[int] = set()
    left = [] if _full() else [*errors]
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = _from_user(error.__traceback__)
            left += [error.__cause__, error.__context__]


def _full() -> bool:
    return os.environ.get("CEDAR_TRACEBACK") == "full"


def _from_user(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the user's first frame on; its last entry where there is no such frame."""
    entry, last = trace, trace
    while entry is not None and not is_users(entry.tb_frame):
        entry, last = entry.tb_next, entry
    return entry or last
