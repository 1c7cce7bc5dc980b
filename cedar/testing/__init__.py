"""Tools for testing pipelines: two checks of their output, fault injection, and slow or flaky storage.

A check that fails raises an AssertionError that names the first difference.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedar.testing.compare import assert_deterministic as assert_deterministic
    from cedar.testing.compare import assert_resumable as assert_resumable
    from cedar.testing.killing import Kills as Kills
    from cedar.testing.killing import crash as crash
    from cedar.testing.killing import hang as hang
    from cedar.testing.killing import kill_workers as kill_workers
    from cedar.testing.storage import FlakyFileSystem as FlakyFileSystem
    from cedar.testing.storage import StorageFault as StorageFault
    from cedar.testing.storage import flaky as flaky

_HOMES = {
    "assert_deterministic": "compare", "assert_resumable": "compare", "kill_workers": "killing",
    "Kills": "killing", "crash": "killing", "hang": "killing", "flaky": "storage", "FlakyFileSystem": "storage",
    "StorageFault": "storage",
}  # fmt: skip

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] # noqa: PLE0605


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cedar.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cedar.testing.{home}"), name)
    globals()[name] = value
    return value
