"""Runs where no file can be written: what is kept for speed is done without, and said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import resource, sys
import cedar

def doubled(x):
    return x * 2

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    rows = cedar.read_parquet(sys.argv[3] + "/*.parquet").map(doubled, "x", dtype=int).cache(sys.argv[3] + "/kept")
    with rows.shuffle(seed=1).batch(100).loader(executor=sys.argv[1], workers=2, plan="off") as loader:
        print(sum(int(batch["x"].sum()) for batch in loader))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(("executor", "most"), [("threads", 4096), ("processes", 0), ("processes", 1000)])
def test_a_limit_of_the_size_of_files_ends_no_run(executor: str, most: int, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(4000)}), tmp_path / "a.parquet", row_group_size=500)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), executor, str(most), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == f"{2 * sum(range(4000))}\n", ran.stderr
    assert "cannot be written" in ran.stderr
    assert "Traceback" not in ran.stderr
