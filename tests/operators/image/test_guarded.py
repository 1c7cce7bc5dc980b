from __future__ import annotations

import signal
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.operators.image.guarded_images", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_no_kernel_touches_a_byte_beside_an_image() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 100


def test_a_kernel_that_does_ends_the_process() -> None:
    assert run("beyond").returncode == -signal.SIGSEGV
