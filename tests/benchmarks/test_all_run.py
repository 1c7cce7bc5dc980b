"""Every benchmark of the Makefile runs in its tiny form and prints figures, whatever their values."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MODULES = dict(re.findall(r"^(bench[a-z-]*):.*\n\t@\$\(BIN\)/python -m (benchmarks\.\w+)", MAKEFILE, re.MULTILINE))
MORE = {"bench": ["--here", "--only", "python_map", "--peers", "cedar,dataloader,limits"]}  # installs nothing


def test_the_module_of_every_target_is_found() -> None:
    assert set(MODULES) == set(re.findall(r"^(bench[a-z-]*):", MAKEFILE, re.MULTILINE))
    assert MODULES["bench-full"] == MODULES["bench"]


@pytest.mark.parametrize("target", [name for name in MODULES if name != "bench-full"])
def test_the_tiny_form_prints_figures(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", MODULES[target], "--tiny", *MORE.get(target, [])]
    out = os.environ | {"CEDAR_BENCHMARKS_OUT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout), done.stderr
