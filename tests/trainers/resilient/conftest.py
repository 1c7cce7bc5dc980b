"""Many trainers in one process: one thread of torch is enough for each. And settings of a small run, in a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

CONFIG = """
[data]
paths = "{paths}"
length = 8
batch = 8
[model]
layers = 2
width = 8
heads = 2
dropout = 0.1
[pipeline]
micro_batches = 2
[optimizer]
warmup = 2
clip = 0.5
[run]
folder = "{folder}"
heartbeat = 3.0
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of the command."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"line {i}: {'abcdefghij' * (i % 5)}" for i in range(400)))
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(paths=text, folder=tmp_path / "run"))
    return path
