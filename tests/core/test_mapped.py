"""Pages of a library's code: let go, and read again when it runs again."""

import sys
import threading

import numpy as np
import pytest

from cedar.operators import audio, image
from cedar.operators.jit import let_go

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
nb = pytest.importorskip("numba")


def compile_something(number):
    assert nb.njit(lambda x: x * number)(3) == 3 * number


def test_what_is_let_go_is_read_again():
    compile_something(2)
    assert let_go("libllvmlite") > 10 << 20
    assert let_go("libllvmlite") < 1 << 20
    compile_something(3)
    assert let_go("libllvmlite") > 5 << 20


def test_while_another_thread_compiles():
    done = threading.Event()

    def compile_some():
        for number in range(4, 12):
            compile_something(number)
        done.set()

    thread = threading.Thread(target=compile_some, daemon=True)
    thread.start()
    while not done.wait(0.01):
        let_go("libllvmlite")
    thread.join(60)


def test_a_library_that_is_not_there():
    assert let_go("libunheard") == 0


@pytest.mark.parametrize(
    ("transform", "value"),
    [
        (image.gaussian_blur(3, sigma=1.0), np.zeros((9, 9, 3), np.uint8)),
        (audio.log_mel(n_mels=8), np.zeros(800, np.float32)),
    ],
)
def test_once_kernels_are_loaded_the_compiler_is_let_go(transform, value):
    from cedar.operators import jit

    transform(value)
    compile_something(13)
    jit._loaded.set()
    transform(value)
    assert let_go("libllvmlite") < 1 << 20
    assert not jit._loaded.is_set()
