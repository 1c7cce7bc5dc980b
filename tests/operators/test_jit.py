"""What is compiled to be kept, and what cannot be."""

import subprocess
import sys

import pytest

pytest.importorskip("numba")


KERNELS = """
import numpy as np
from cedar.operators.jit import kernel

@kernel()
def half(x):
    return x // 2

@kernel("void(int64, UniTuple(float64, 2), float32[:, ::1], boolean)")
def fine(x, pair, rows, flag):
    rows[half(x), 0] = pair[1] if flag else pair[0]

@kernel("int64(int64)")
def returns(x):
    return x

@kernel("void(int64[::1])")
def reshapes(x):
    x[: 4].reshape(2, x[0])[0, 0] = 1

table = np.arange(1 << 20)

@kernel("void(int64[::1])")
def looks_up(x):
    x[0] = table[x[1]]

@kernel("void(float32[:])")
def strided(x):
    x[0] = 1
"""
SCRIPT = """
import sys
from cedar.operators.jit import compile_for_storage

sys.path.insert(0, sys.argv[1])
print(compile_for_storage("kernels_of_all_kinds", [sys.argv[2]])[sys.argv[2]].arguments)
"""


def compiled(folder, name):
    (folder / "kernels_of_all_kinds.py").write_text(KERNELS)
    command = [sys.executable, "-c", SCRIPT, str(folder), name]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.heavy
def test_arguments_are_told_as_native_takes_them(tmp_path):
    assert compiled(tmp_path, "fine").stdout.strip() == "('int64', 'float64*2', 'float32[2]', 'bool')"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("returns", "returns int64: a stored kernel must return nothing"),
        ("reshapes", "calls numba_attempt_nocopy_reshape, which is not available without numba"),
        ("looks_up", "holds addresses of the process that compiles it"),
        ("strided", "a stored kernel cannot take an argument of type array(float32, 1d, A)"),
    ],
)
def test_what_cannot_run_without_numba_is_not_kept(tmp_path, name, why):
    ended = compiled(tmp_path, name)
    assert ended.returncode == 1
    assert why in ended.stderr.splitlines()[-1]
