"""A process that is forked after cedar was used: works by fresh workers, or says at once what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
SCRIPT = Path(__file__).parent / "fork_ways.py"
LIMIT = 250


def ended(*arguments: str) -> Any:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.heavy
def test_forked_six_ways() -> None:
    done = ended(str(SCRIPT))
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    assert len({line.split()[0] for line in done.stdout.splitlines()}) == 6


HELD = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import cedar

p = cedar.from_items([{"x": i} for i in range(100)]).map(abs, "x", dtype=int).batch(10)
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
held = iter(p.loader(executor=sys.argv[1], workers=1))
next(held)
if not os.fork():
    for begin in (lambda: next(held), lambda: p.loader(executor=pool)):
        try:
            begin()
        except cedar.CedarError as error:
            assert "fork" in str(error) and "forkserver" in str(error), error
        else:
            raise SystemExit("no error")
    assert sum(len(batch["x"]) for batch in p.loader(executor=sys.argv[1], workers=1)) == 100
    os._exit(0)
assert os.wait()[1] == 0
assert sum(len(batch["x"]) for batch in held) == 90
"""


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_iteration_and_threads_of_the_parent_are_refused_by_name(executor: str) -> None:
    done = ended("-c", HELD, executor)
    assert done.returncode == 0, done.stderr
