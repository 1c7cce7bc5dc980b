"""torch.distributed.checkpoint saves a loader as it saves a model: each rank its own state, and continues exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")
dcp: Any = pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no torch.distributed")

pytestmark = pytest.mark.filterwarnings("ignore")


def make_loader() -> cedar.Loader:
    rows = [{"x": i, "words": [str(i)] * (i % 3)} for i in range(64)]
    return cedar.from_items(rows).shuffle(seed=5).batch(4).loader(format="torch")


def xs(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def save_and_go_on(folder: str) -> None:
    """What each rank does; the ranks are torch.distributed's, where it was started."""
    whole = xs(make_loader())
    loader = make_loader()
    stream = iter(loader)
    first = xs(next(stream) for _ in range(3))
    dcp.save({"loader": loader.stateful()}, checkpoint_id=folder)
    assert first + xs(stream) == whole
    again = make_loader()
    dcp.load({"loader": again.stateful()}, checkpoint_id=folder)
    assert xs(again) == whole[3:]
    assert again.epoch == 1
    print(json.dumps(first))


def test_one_rank(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_and_go_on(str(tmp_path / "one"))


def test_a_loader_without_stateful_names_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = make_loader()
        next(iter(loader))
        dcp.save({"loader": loader}, checkpoint_id=str(tmp_path))
        with pytest.raises(cedar.ResumeError) as raised:
            dcp.load({"loader": make_loader()}, checkpoint_id=str(tmp_path))
    assert raised.value.fix is not None
    assert "with torch.distributed.checkpoint, give loader.stateful()" in raised.value.fix


@pytest.mark.heavy
def test_two_ranks(tmp_path: Path) -> None:
    processes = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "STORE": str(tmp_path / "store")}
        command = [sys.executable, "-W", "ignore", __file__, str(tmp_path / "two")]
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        told = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, told, strict=True):
        assert process.returncode == 0, text
    seen = [x for text in told for batch in json.loads(text.splitlines()[-1]) for x in batch]
    alone = make_loader()  # one rank continues where two stopped
    dcp.load({"loader": alone.stateful(world=2)}, checkpoint_id=tmp_path / "two")
    seen += [x for batch in xs(alone) for x in batch]
    assert sorted(seen) == list(range(64))


if __name__ == "__main__":
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['STORE']}", rank=int(os.environ["RANK"]), world_size=2
    )
    save_and_go_on(sys.argv[1])
    torch.distributed.destroy_process_group()
