"""Pages of a library's code: let go, and read again when it runs again."""

import subprocess
import sys
import threading

import pytest

from cedar.core.library_pages import release_idle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
nb = pytest.importorskip("numba")


LOADED = """
import threading
import numpy as np
from cedar.core.library_pages import release_idle
from cedar.operators import image, native
image.gaussian_blur(3, sigma=1.0)(np.zeros((9, 9, 3), np.uint8))
assert native._loaded
for thread in threading.enumerate():
    if thread.name == "cedar-pages":
        thread.join()
print(release_idle("libllvmlite"))
"""


def compile_something(number):
    assert nb.njit(lambda x: x * number)(3) == 3 * number


def test_what_is_let_go_is_read_again():
    compile_something(2)
    assert release_idle("libllvmlite") > 10 << 20
    assert release_idle("libllvmlite") < 1 << 20
    compile_something(3)
    assert release_idle("libllvmlite") > 5 << 20


@pytest.mark.heavy
def test_while_another_thread_compiles():
    done = threading.Event()

    def compile_some():
        for number in range(4, 12):
            compile_something(number)
        done.set()

    thread = threading.Thread(target=compile_some, daemon=True)
    thread.start()
    while not done.wait(0.01):
        release_idle("libllvmlite")
    thread.join(60)


def test_a_library_that_is_not_there():
    assert release_idle("libunheard") == 0


def test_once_kernels_are_loaded_the_linker_is_let_go():
    command = [sys.executable, "-c", LOADED]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 8 << 20
