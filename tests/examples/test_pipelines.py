"""Pipelines of models as people write them: a worker is killed, and the losses are those of torch in one process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.how_much import LONG

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.waits,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]


def trained(name: str, *arguments: object) -> tuple[float, int, str]:
    """How far losses are from torch's, how many workers are left, and their weights."""
    path = EXAMPLES / name
    command = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"at most (\S+) from torch in one process\n(\d) workers at the end; weights (.*)", done.stdout)
    assert found is not None, done.stdout
    source = path.read_text()
    assert len(source.splitlines()) <= 100
    assert set(re.findall(r"^from (cedar\S*) import|^import (cedar\S*)", source, re.MULTILINE)) == {
        ("cedar.trainers", "")
    }
    return float(found[1]), int(found[2]), found[3]


@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-10), *([("float32", 1e-5)] if LONG else [])])
def test_a_vision_transformer_outlives_a_worker(tmp_path: Path, dtype: str, most: float) -> None:
    digests = set()
    runs = [("killed", "kill=3@step4:5"), ("whole", "")]
    for name, chaos in runs if dtype == "float32" else runs[:1]:
        off, left, digest = trained("vit_pipeline.py", tmp_path / name, "--dtype", dtype, "--chaos", chaos)
        assert off < most
        assert left == (5 if chaos else 6)
        digests.add(digest)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(12))
    assert len(digests) == 1


def test_a_llama_with_tied_embeddings_outlives_a_worker(tmp_path: Path) -> None:
    off, left, digest = trained("llama_pipeline.py", tmp_path / "killed")
    assert off < 1e-10
    assert left == 5
    assert trained("llama_pipeline.py", tmp_path / "whole", "")[1:] == (6, digest)


def test_a_model_of_torchtitan_outlives_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan.models.llama3", reason="torchtitan is not installed")
    off, left, _ = trained("titan_pipeline.py", tmp_path / "run")
    assert off < 1e-5
    assert left == 5
