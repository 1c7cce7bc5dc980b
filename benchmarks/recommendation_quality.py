"""How good the trained model is: python -m benchmarks.recommendation_quality [--form]

Labels are drawn from a known model, so the best AUC that any model can have on the rows of the evaluation is known.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.harness import Figure, Form, add_form, at_most, finish, reported
from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions
from cedar.datasets.clicklog.drawing import draw_file
from cedar.datasets.clicklog.model import BayesAuc, world_of
from cedar.recommendation import cluster

ITEMS, HELD_OUT, TINY, SEED = 100, 50_000, 2048, 3
INTERLEAVED = (1, 16, 256)


def log() -> ClickLog:
    """Sessions of 16 rows whose history of 20 items repeats with probability 0.95, and 13 dense features."""
    return ClickLog(items=ITEMS, lists=(ListFeature("hist_items", 20.0, ids=ITEMS),), scalars=0)


def files(folder: str, rows: int, hour: int) -> tuple[str, str, float]:
    """(the clustered log, that of the ``hour`` rows after it, the best AUC that there can be on these)."""
    hours = max(1, rows // hour)
    written = write_sessions(f"{folder}/raw", (hours + 1) * hour, SEED, log=log(), rows_per_file=hour)
    paths = [path.removeprefix("file://") for path in sorted(written.urls)]
    cluster(paths[:hours], f"{folder}/train", session="session_id", sort="ts", row_group_rows=8192)
    cluster(paths[hours:], f"{folder}/held out", session="session_id", sort="ts")
    drawn = draw_file(log(), world_of(log(), SEED), SEED, hours, hour)
    best = BayesAuc()
    best.add(drawn.probability, drawn.label)
    return f"{folder}/train", f"{folder}/held out", best.value


def options(train: str, held_out: str) -> Any:
    """A model that can express the one that drew the labels: dot products of items and histories, and dense layers."""
    from cedar.trainers.dlrm import options as o

    return o.Options(
        o.DataOptions(
            paths=f"{train}/*.parquet", evaluate=f"{held_out}/*.parquet", dense=tuple(f"d{i}" for i in range(13)),
            batch=512, session="session_id", dedup=(("hist_items",),), executor="inline", plan="off",
        ),
        (o.FeatureOptions("item_id", ITEMS), o.FeatureOptions("hist_items", ITEMS, pooling="mean")),
        o.ModelOptions(width=16, bottom=(64,), top=(64, 32)),
        o.TableOptions(rate=0.1, backend="torch"),
        run=o.RunOptions(device="cpu"),
    )  # fmt: skip


def trained(chosen: Any, epochs: int = 1) -> float:
    """The AUC on held-out rows."""
    from cedar.trainers.dlrm.trainer import Trainer

    trainer = Trainer(chosen)
    for _ in range(epochs * trainer.batches.epoch()):
        trainer.train_step()
    scores = trainer.evaluate()
    trainer.close()
    assert scores is not None
    return float(scores.auc)


def planted(folder: str, form: Form) -> list[Figure]:
    """The trained model against the one that drew the labels, both on the same held-out rows."""
    hour = form.pick(HELD_OUT, HELD_OUT, TINY)
    rows, epochs = form.pick((8 * hour, 2), (hour, 1))
    train, held_out, best = files(f"{folder}/planted", rows, hour)
    found = trained(options(train, held_out), epochs)
    note = f"{found:.4f}, planted {best:.4f}; {rows:,} rows, {epochs} epoch(s), {hour:,} rows held out"
    what = "AUC on rows held out, under that of the planted model by"
    under = [best - found]
    return [reported(what, under, "", note=note) if form else at_most(what, 0.01, under, "", note=note)]


def shuffles(folder: str, form: Form) -> list[Figure]:
    """An epoch on whole sessions in random order, against one on rows that are shuffled over the whole log."""
    train, held_out, _ = files(
        f"{folder}/shuffles", *form.pick((3 * HELD_OUT, HELD_OUT), (HELD_OUT, HELD_OUT), (TINY, TINY))
    )
    start = options(train, held_out)
    plain: list[float] = []
    clustered: dict[int, list[float]] = {k: [] for k in INTERLEAVED}
    table = pq.read_table(train)
    for seed in range(form.pick(5, 2, 1)):
        chosen = replace(start, run=replace(start.run, seed=seed))
        path = f"{folder}/shuffles/mixed {seed}"
        os.makedirs(path)
        mixed = table.take(np.random.default_rng(seed).permutation(len(table)))
        pq.write_table(mixed, f"{path}/rows.parquet", row_group_size=8192)
        data = replace(start.data, paths=f"{path}/*.parquet", shuffle=False, dedup="off", session="")
        plain.append(trained(replace(chosen, data=data)))
        for k in INTERLEAVED:
            clustered[k].append(trained(replace(chosen, data=replace(start.data, interleave=k))))
    figures = []
    for k, found in clustered.items():
        apart = [a - b for a, b in zip(found, plain, strict=True)]
        note = f"{len(plain)} seeds; rows {np.mean(plain):.4f}, sessions {np.mean(found):.4f}"
        what = f"AUC after an epoch, interleave={k}, less that of rows shuffled globally"
        figures.append(reported(what, apart, "", note=note))
        if k == start.data.interleave:
            mean, what = abs(float(np.mean(apart))), "the mean of that at the default, without sign"
            figures.append(reported(what, [mean], "") if form else at_most(what, 0.002, [mean], ""))
    return figures


PARTS = {"planted": planted, "shuffles": shuffles}


def figures(form: Form, only: Any = tuple(PARTS)) -> list[Figure]:
    """All parts; ``quick`` takes a small log and two seeds, whose figures have no targets."""
    with tempfile.TemporaryDirectory() as folder:
        return [figure for part in only for figure in PARTS[part](folder, form)]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/recommendation_quality.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "a small log, two seeds")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), metavar="PART")
    chosen = parser.parse_args(arguments)
    found = figures(chosen.form, chosen.only)
    whole = tuple(chosen.only) == tuple(PARTS)
    return finish(
        "how good the model is",
        "recommendation_quality" if whole else "recommendation_quality_part",
        found,
        chosen.form,
    )


if __name__ == "__main__":
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    sys.exit(main())
