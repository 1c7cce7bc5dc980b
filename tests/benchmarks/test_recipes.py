"""Recipes next to the shortest program of a peer for the same job: both run, and ours is hardly longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_recipes import FOLDER, lines_of_code, needs

PEERS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "recipes").glob("*.py"))
MORE = 2  # lines


def test_there_are_ten() -> None:
    assert len(PEERS) >= 10


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.stem)
def test_ours_is_hardly_longer(path: Path) -> None:
    ours, theirs = (lines_of_code(each.read_text()) for each in (FOLDER / path.name, path))
    assert ours <= theirs + MORE


@pytest.mark.heavy
@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.stem)
def test_the_peers_program_runs(path: Path, tmp_path: Path) -> None:
    if absent := sorted(name for name in needs(path.read_text()) if importlib.util.find_spec(name) is None):
        pytest.skip(f"needs {', '.join(absent)}")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
