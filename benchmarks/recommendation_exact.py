"""Whole runs of the trainer on a small log: deduplicated against plain, several ranks against one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ROWS, ITEMS = 16_384, 2_000
GROUP = [["hist", "acts"]]


def write_log(path: str, seed: int = 0) -> str:
    """A log clustered by session: 16 rows each, whose history repeats with probability 0.95."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    session = np.arange(ROWS) // 16
    new = np.ones(ROWS, dtype=bool)
    new[1:] = (np.diff(session) != 0) | (rng.random(ROWS - 1) >= 0.95)
    version = pa.array(np.cumsum(new) - 1)
    offsets = np.concatenate([[0], np.cumsum(rng.poisson(20, int(new.sum())))])

    def lists(most: int) -> Any:
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, most, offsets[-1]))).take(
            version
        )

    item, dense, taste = rng.integers(0, ITEMS, ROWS), rng.normal(size=ROWS), rng.normal(size=ITEMS)
    chance = 1 / (1 + np.exp(-dense - taste[item]))
    columns = {
        "session": session, "d0": dense.astype(np.float32), "item": item, "hist": lists(ITEMS), "acts": lists(5),
        "label": (rng.random(ROWS) < chance).astype(np.int8),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path, row_group_size=2048)
    return path


def options(path: str, dedup: Any, dtype: str = "float64", backend: str = "torch") -> Any:
    from cedar.trainers.common import config
    from cedar.trainers.dlrm.options import Options

    values = {
        "data": {
            "paths": path, "dense": ["d0"], "batch": 256, "session": "session", "dedup": dedup, "held_out": 2048,
            "executor": "inline", "plan": "off",
        },
        "features": [
            {"column": "item", "rows": ITEMS},
            {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "attention"},
            {"column": "acts", "rows": 5},
        ],
        "model": {"width": 16},
        "tables": {"backend": backend},
        "run": {"dtype": dtype, "threads": 1, "device": "cpu"},
    }  # fmt: skip
    return config.parse(values, Options, "benchmark")


def trained(chosen: Any, steps: int, folder: str = "", save: bool = False) -> dict[str, Any]:
    """Losses, AUC, bytes and the tables of this rank; continues from what is in a folder, saves there if asked."""
    import torch

    from cedar.trainers.common.checkpoint import Checkpoints
    from cedar.trainers.dlrm.trainer import Trainer

    torch.set_num_threads(1)  # small sums, the same order on one rank and on several
    trainer = Trainer(chosen)
    if folder:
        files = Checkpoints(folder, trainer)
        files.resume()
    records = [trainer.train_step() for _ in range(steps)]
    if folder and save:
        files.save()
    scores = trainer.evaluate()
    result = {
        "losses": [record.loss for record in records],
        "auc": scores.auc if scores else None,
        "sent": sum(sum(record.sent.get(p, 0) for p in ("ids", "pooled rows", "row gradients")) for record in records),
        "ids": sum(record.looked_up for record in records),
        "tables": {n: v.double().numpy().copy() for n, v in trainer.tables.state().items() if n.endswith("weight")},
    }
    trainer.close()
    return result


def compared(steps: int) -> dict[str, float]:
    """How far runs with and without deduplication are apart."""
    from cedar.trainers.dlrm import fbgemm

    with tempfile.TemporaryDirectory() as folder:
        path = write_log(os.path.join(folder, "log.parquet"))
        wide = [trained(options(path, dedup), steps) for dedup in (GROUP, "off")]
        once, plain = (trained(options(path, dedup, "float32"), steps) for dedup in (GROUP, "off"))
        found = {
            "fp64": max(_apart(*(run["losses"] for run in wide)), _tables_apart(wide[0]["tables"], wide[1]["tables"])),
            "first": abs(once["losses"][0] - plain["losses"][0]),
            "last": abs(once["losses"][-1] / plain["losses"][-1] - 1),
            "auc": abs(once["auc"] - plain["auc"]),
        }
        if fbgemm.module_or_reason()[0] is not None:
            other = [trained(options(path, dedup, "float32", "fbgemm"), steps) for dedup in (GROUP, "off")]
            found["fbgemm"] = abs(other[0]["losses"][-1] / other[1]["losses"][-1] - 1)
    return found


def on_ranks(
    count: int, path: str, dedup: Any, steps: int, folder: str = "", save: bool = False
) -> list[dict[str, Any]]:
    """The same on some ranks, each a process."""
    with tempfile.TemporaryDirectory() as out:
        job = json.dumps([path, dedup, steps, folder, save, out])
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        subprocess.run(
            [sys.executable, *ranks, "-m", "benchmarks.recommendation_exact", job], env=environment, check=True
        )
        found = []
        for rank in range(count):
            with np.load(os.path.join(out, f"{rank}.npz")) as file:
                told = json.loads(str(file["told"]))
                found.append(told | {"tables": {name: file[name] for name in file.files if name != "told"}})
    return found


def across_ranks(folder: str, count: int, steps: int) -> float:
    """How far several ranks are from one, on the same batches."""
    path = write_log(os.path.join(folder, "log.parquet"))
    alone = trained(options(path, GROUP), steps)
    found = on_ranks(count, path, GROUP, steps)
    tables = {name: value for run in found for name, value in run["tables"].items()}
    return max(_tables_apart(tables, alone["tables"]), *(_apart(run["losses"], alone["losses"]) for run in found))


def traffic_ratio(folder: str, steps: int = 4) -> tuple[float, float]:
    """(Bytes of plain rows over those of unique rows, the same of ids), two ranks, features of the group alone."""
    path = write_log(os.path.join(folder, "log.parquet"))
    once, plain = (on_ranks(2, path, dedup, steps) for dedup in (GROUP, "off"))
    own = 2 * steps * 128  # ids of items, which are not deduplicated, and their rows and gradients: 16 float64 each
    share = steps * 128 * (2 * 4 + 2 * 16 * 8)
    sent = [sum(run["sent"] for run in runs) - share for runs in (plain, once)]
    ids = [sum(run["ids"] for run in runs) - own for runs in (plain, once)]
    return sent[0] / sent[1], ids[0] / ids[1]


def resharded(folder: str, before: int, after: int, steps: int = 5) -> float:
    """How far a run that continues, on another number of ranks, is from one that did not stop."""
    path = write_log(os.path.join(folder, "log.parquet"))
    place = os.path.join(folder, f"{before} {after}")
    os.makedirs(place, exist_ok=True)
    alone = trained(options(path, GROUP), 2 * steps)
    first = on_ranks(before, path, GROUP, steps, place, True)[0]["losses"]
    second = on_ranks(after, path, GROUP, steps, place)[0]["losses"]
    return _apart(first + second, alone["losses"])


def _apart(one: list[float], other: list[float]) -> float:
    return float(np.abs(np.subtract(one, other)).max())


def _tables_apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def main() -> None:
    """One rank."""
    from cedar.trainers.common.launch import connected

    path, dedup, steps, folder, save, out = json.loads(sys.argv[1])
    with connected():
        found = trained(options(path, dedup), steps, folder, save)
        tables = found.pop("tables")
        np.savez(os.path.join(out, f"{os.environ.get('RANK', '0')}.npz"), told=json.dumps(found), **tables)


if __name__ == "__main__":
    main()
