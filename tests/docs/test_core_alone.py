"""README's pipeline runs without the packages that extend the core."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
EXTENSIONS = ("cluster", "lake", "watch")
ALONE = "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in repr(each)]\n"
CHECKS = """
assert sum(len(batch["d0"]) for batch in p.loader(plan="off")) == 30
assert "FILTER" in p.explain().upper()
rows = cedar.from_items([{"x": i // 2} for i in range(8)])
assert rows.unique("x").count() == 4  # by a pass over the rows, which shows its progress where it can
for use in (loader.report, lambda: p.write("out"), lambda: p.loader(executor="dask"), lambda: p.loader(progress=True)):
    try:
        list(use())
    except cedar.PipelineError as error:
        assert "which is not installed" in str(error), error
    else:
        raise AssertionError("an extension is there")
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A folder with cedar, but without its extensions."""
    (tmp_path / "cedar").mkdir()
    for child in (ROOT / "cedar").iterdir():
        if child.name not in EXTENSIONS:
            (tmp_path / "cedar" / child.name).symlink_to(child)
    return tmp_path


@pytest.mark.heavy
def test_the_pipeline_of_the_readme_needs_no_extension(core: Path) -> None:
    block = re.search(r"```python\n(import cedar\n.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (core / "clicks").mkdir()
    table = pa.table({"label": [None, 0, 1, 1] * 10, "d0": [float(i) for i in range(40)]})
    pq.write_table(table, core / "clicks" / "a.parquet")
    script = ALONE + block[1] + CHECKS
    env = {**os.environ, "PYTHONPATH": str(core), "XDG_CACHE_HOME": str(core / "kept")}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=core, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
