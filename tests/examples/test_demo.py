"""The demo, on a small log and on a user's own files."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

pytestmark = pytest.mark.heavy

DEMO = str(Path(__file__).resolve().parents[2] / "examples" / "demo.py")


@pytest.fixture
def demo(monkeypatch, capsys, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other tests run next to it

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["demo.py", "--folder", str(tmp_path / "demo"), *map(str, arguments)])
        runpy.run_path(DEMO, run_name="__main__")
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)


def test_it_trains_stops_resumes_and_judges(demo):
    said = demo("--rows", 12_000)
    assert "wrote 12,000 rows" in said
    seen = int(re.search(r"rows seen +([\d,]+)", said).group(1).replace(",", ""))
    assert 9_000 < seen <= 10_800  # nine tenths, less the last short batch and the rows without a label
    assert re.search(r"AUC +0\.[5-9]\d+", said)
    losses = re.findall(r"looked up in a step, loss ([\d.]+)", said)  # deduplicated and plain
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-4)


def test_own_files(demo, tmp_path):
    rng = np.random.default_rng(0)
    rows = 2_000
    strong = rng.integers(0, 50, rows)
    table = pa.table(
        {
            "clicked": (strong % 5 == 0).astype("int8"),
            "price": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1),
            "item": strong,
            "word": [None if i % 7 == 0 else f"w{i % 11}" for i in range(rows)],
            "seen": [None if i % 9 == 0 else list(range(i % 4)) for i in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "own.parquet")
    said = demo("--data", tmp_path / "*.parquet")
    assert float(re.search(r"AUC +([\d.]+)", said).group(1)) > 0.9


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"x": [1.0] * 40}, (), "no label column"),
        ({"label": ["a"] * 40, "x": [1.0] * 40}, (), "must hold the numbers 0 and 1"),
        ({"label": [5] * 40, "x": [1.0] * 40}, (), "must be 0 or 1; got 5"),
        ({"label": [1.0] * 40}, (), "no column that can be a feature"),
        ({"label": [1] * 3, "x": [1.0] * 3}, (), "at least 20 are needed"),
        ({"label": [1] * 40, "x": [1.0] * 40}, ("--label", "lable"), "no label column ('lable')"),
    ],
)
def test_files_that_will_not_do_are_refused_in_one_line(demo, tmp_path, columns, arguments, message):
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    with pytest.raises(SystemExit) as stopped:
        demo("--data", tmp_path / "own.parquet", *arguments)
    assert message in str(stopped.value)


def test_a_pattern_without_files_is_named(demo, tmp_path):
    with pytest.raises(SystemExit, match="nothing_here"):
        demo("--data", tmp_path / "nothing_here*.parquet")
