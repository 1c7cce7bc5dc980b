# ruff: noqa: INP001 - a folder of pictures, not a package
"""Take pictures of what a run shows: report.png, timeline.png, live.png, progress.svg. Needs Chromium.

``python docs/pictures/screens.py``
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from rich.text import Text

import cedar
from cedar import col
from cedar.datasets.clicklog import write_sessions
from cedar.watch import progress

HERE = Path(__file__).parent
_LINES = 6  # of the progress line
_TIMELINE = '<div class="cedar"><h2>Timeline</h2>'


def work(items: list[int]) -> int:
    """Something that takes a while in Python."""
    return sum(item * i for i, item in enumerate(items * 20)) % 997


def pipeline() -> cedar.Pipeline:
    """A source, expressions, a function, a shuffle, batches."""
    return (
        cedar.read_parquet("clicks/*.parquet", columns=["label", "d0", "hist_items"])
        .with_columns(d0=col("d0").fill_null(0.0).log1p())
        .map(work, "hist_items", into="hash", dtype="int64")
        .shuffle(seed=1)
        .batch(256)
    )


def shot(url: str, name: str, size: tuple[int, int]) -> None:
    """A page as a picture."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("screens.py needs Chromium: apt install chromium")
    command = [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}"]
    command += ["--virtual-time-budget=1500", f"--screenshot={HERE / name}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603


def main() -> None:
    """One run, watched in every way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sessions(str(folder / "clicks"), rows=60_000, seed=0, rows_per_file=10_000)
        os.chdir(folder)
        progress._PLAIN_SECONDS = 0.3
        said, options = io.StringIO(), {"progress": True, "trace": folder / "run.json", "serve": "127.0.0.1:0"}
        with pipeline().loader(executor="threads", **options) as loader, ThreadPoolExecutor() as beside:
            live = urlunsplit(urlsplit(loader.url)._replace(path="/"))
            with contextlib.redirect_stderr(said):
                for step, _ in enumerate(loader):
                    time.sleep(0.02)
                    if step == 60:
                        beside.submit(shot, live, "live.png", (1000, 800))
            loader.report().html(folder / "report.html")
        shot((folder / "report.html").as_uri(), "report.png", (1000, 1200))
        page = Path(cedar.view_trace(str(folder / "run.json")))
        whole = page.read_text(encoding="utf-8")
        style = whole[whole.index("<style>") : whole.index("</style>")]
        page.write_text(f"{style}</style>{whole[whole.index(_TIMELINE) :]}", encoding="utf-8")
        shot(page.as_uri(), "timeline.png", (1000, 300))
    console = Console(record=True, width=80, file=io.StringIO())
    for line in said.getvalue().splitlines()[-_LINES:]:
        console.print(Text(line))
    console.save_svg(str(HERE / "progress.svg"), title="loader(progress=True)")


if __name__ == "__main__":
    main()
