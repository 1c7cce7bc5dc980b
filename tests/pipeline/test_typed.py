"""What type checkers know of a loader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cedar.pipeline.run import RunMethods
from cedar.pipeline.typed import LoaderOptions

USER = """import cedar
p = cedar.from_items([{"x": 1}]).batch(2)
for batch in p.loader(format="torch"):
    reveal_type(batch)
    reveal_type(batch["x"])
for x, y in p.loader(format="tuple"):
    reveal_type(x)
for x, y in p.loader():
    reveal_type(x)
reveal_type(p.loader(format="tuple", seed=3))
p.loader(format="pandas")
p.loader(executor="thread")
p.loader(batch_size=4)
p.loader(plan="of")
p.batch(4, last="dropp")
p.colect()
"""
KNOWN = {4: "Batch", 5: '"Any"', 7: '"Any"', 9: '"Any"', 10: "tuple[Any, ...]]"}
WRONG = {11, 12, 13, 14, 15, 16}


def test_the_options_are_those_of_the_loader() -> None:
    known = RunMethods.loader.__kwdefaults__
    assert known is not None
    assert set(LoaderOptions.__annotations__) == set(known) - {"format"}


@pytest.mark.heavy
def test_a_type_checker_knows_batches_and_closed_sets(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "user.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("user.py:")]
    for line, shown in KNOWN.items():
        assert any(f"user.py:{line}: note: Revealed" in said and shown in said for said in lines), done.stdout
    assert {int(said.split(":")[1]) for said in lines if " error: " in said} == WRONG, done.stdout
