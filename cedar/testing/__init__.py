"""Tools for testing pipelines: two checks of their output, fault injection, and slow or flaky storage.

A check that fails raises an AssertionError that names the first difference.
"""

from cedar.testing.compare import assert_deterministic, assert_resumable
from cedar.testing.killing import Kills, crash, hang, kill_workers
from cedar.testing.storage import FlakyFileSystem, StorageFault, flaky

__all__ = [
    "FlakyFileSystem", "Kills", "StorageFault", "assert_deterministic", "assert_resumable", "crash", "flaky", "hang",
    "kill_workers",
]  # fmt: skip
