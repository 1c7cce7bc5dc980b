"""The examples on two ranks: what is trained around the resume is one epoch, and every row is scored once."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.heavy
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("library", "trained"), [("lightning", 176), ("accelerate", 288), ("transformers", 288), ("torch", 4096)]
)
def test_two_ranks_stop_resume_and_evaluate(library: str, trained: int, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.run")
    pytest.importorskip(library)
    name = "checkpoint" if library == "torch" else library
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(port), str(EXAMPLES / f"{name}_two_ranks.py"), str(tmp_path / "run")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"^trained.*: (\d+) rows(?:, (\d+) different)?$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert {int(number) for number in found.groups() if number} == {trained}
    assert "every row scored once: True" in done.stdout
