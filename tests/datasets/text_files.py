"""Text files that tests read."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, data: bytes, name: str = "t.txt") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


ROWS = 64


def text(path: Path, first: int) -> None:
    path.write_text("".join(f'{{"x": {(i + first) % ROWS + 100}}}\n' for i in range(ROWS)))
