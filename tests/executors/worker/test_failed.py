"""Failed: a task's error on its way back, also where a library has changed how exceptions are pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys

import cedar
from cedar.executors.worker.main import Failed

UNDER_TBLIB = """
import pickle, threading, cedar
from cedar.executors.worker.main import Failed
import tblib.pickling_support
tblib.pickling_support.install()
try:
    try:
        raise OSError("no answer", threading.Lock())
    except OSError as error:
        raise cedar.SourceError("gone", fix="wait") from error
except cedar.SourceError as error:
    found = pickle.loads(pickle.dumps(Failed(error))).error
print(type(found).__name__, found.what, found.fix, type(found.__cause__).__name__)
"""


def test_errors_of_ours_travel_their_own_way():
    done = subprocess.run([sys.executable, "-c", UNDER_TBLIB], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["SourceError", "gone", "wait", "RuntimeError"], done.stderr


def test_other_errors_travel_as_they_are():
    error = pickle.loads(pickle.dumps(Failed(KeyError("x")))).error
    assert isinstance(error, KeyError)
    assert error.args == ("x",)
    assert pickle.loads(pickle.dumps(Failed(cedar.RowError("bad")))).error.what == "bad"
