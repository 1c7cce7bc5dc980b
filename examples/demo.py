"""Train a recommendation model (DLRM) through a pipeline, stop it in the middle, continue, and compare with plain rows.

python examples/demo.py                              # writes a click log of 150,000 rows under build/, clusters it by
                                                     # session, and uses it
python examples/demo.py --data 'clicks/*.parquet'    # your files: floats become dense features; integers,
                                                     # strings and lists of integers become hashed ids
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.types as pt

import cedar
from cedar import col, recommendation
from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions
from cedar.trainers.common.checkpoint import Checkpoints
from cedar.trainers.dlrm.options import (
    DataOptions,
    FeatureOptions,
    ModelOptions,
    OptimizerOptions,
    Options,
    RunOptions,
    TableOptions,
)
from cedar.trainers.dlrm.trainer import Trainer

BATCH = 1024
BUCKETS = 1 << 15  # rows of an embedding table
LONGEST = 32  # ids of a list that are looked at
HOURS = 10  # of the synthetic log; the last one is held out
COMPARED = 12  # steps of the comparison
LABELS = ("label", "click", "clicked", "is_click", "target", "y")
SESSIONS = ("session_id", "session")
NOT_FEATURES = {*SESSIONS, "row_id", "ts", "time", "timestamp"}  # who and when, not what


@dataclass(frozen=True)
class Columns:
    """What each column of the data is used for."""

    label: str
    session: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    words: tuple[str, ...]
    lists: tuple[str, ...]


def choose_columns(schema: dict[str, Any], label: str | None) -> Columns:
    """Sort the columns of a schema by type; raises ValueError where no label can be found."""
    found = label or next((name for name in LABELS if name in schema), None)
    if found not in schema:
        looked_for = repr(label) if label else f"none of {', '.join(LABELS)}"
        raise ValueError(f"no label column ({looked_for}); name one of these with --label: {', '.join(schema)}")
    if not _is_number(schema[found]):
        raise ValueError(f"the label column {found!r} is {schema[found]}; it must hold the numbers 0 and 1")
    features = {name: kind for name, kind in schema.items() if name not in {found, *NOT_FEATURES}}
    columns = Columns(
        found,
        next((name for name in SESSIONS if name in schema), ""),
        dense=tuple(n for n, kind in features.items() if pt.is_floating(kind)),
        ids=tuple(n for n, kind in features.items() if pt.is_integer(kind)),
        words=tuple(n for n, kind in features.items() if pt.is_large_string(kind)),
        lists=tuple(n for n, kind in features.items() if pt.is_large_list(kind) and pt.is_integer(kind.value_type)),
    )
    if not columns.dense and not columns.ids + columns.words + columns.lists:
        raise ValueError(f"no column that can be a feature next to the label {found!r}: {', '.join(schema)}")
    return columns


def _is_number(kind: Any) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind))


def prepare(rows: cedar.Pipeline, columns: Columns) -> cedar.Pipeline:
    """Rows with a label, words as numbers, without gaps, with short lists."""
    expressions = {columns.label: col(columns.label).cast(float)}
    expressions |= {name: col(name) for name in (*columns.dense, *filter(None, [columns.session]))}
    expressions |= {name: col(name).fill_null(-1) for name in columns.ids}
    expressions |= {name: (col(name).fill_null("").hash() % BUCKETS).cast(int) for name in columns.words}
    expressions |= {name: col(name).fill_null([]).list.head(LONGEST) for name in columns.lists}
    return rows.filter(col(columns.label).is_not_null()).select(**expressions)


def options_for(columns: Columns, rows: int, folder: Path) -> Options:
    """One epoch of a small model."""
    size = min(BATCH, max(1, rows // 20))
    features = [FeatureOptions(name, BUCKETS, ids="modulo") for name in columns.ids + columns.words]
    features += [
        FeatureOptions(n, BUCKETS, ids="modulo", pooling="transformer", longest=LONGEST) for n in columns.lists
    ]
    return Options(
        DataOptions(label=columns.label, dense=columns.dense, session=columns.session, batch=size),
        tuple(features),
        ModelOptions(width=16, bottom=(64,), top=(64, 32)),
        TableOptions(rate=0.1),
        OptimizerOptions(rate=0.02),
        RunOptions(folder=str(folder), steps=rows // size),
    )


def click_log(folder: Path, rows: int) -> tuple[str, str]:
    """Write a synthetic log again, and cluster it by session; returns the files to train on, and those held out."""
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    lists = (ListFeature("hist_items", 30.0, ids=1_000), ListFeature("tags", 5.0, ids=300))
    log = ClickLog(samples=16, repeats=0.95, lists=lists, items=1_000)
    written = write_sessions(folder / "raw", rows, log=log, rows_per_file=-(-rows // HOURS))
    took = time.perf_counter() - started
    size = sum(file.stat().st_size for file in (folder / "raw").glob("*.parquet")) / 1e6
    print(f"wrote {rows:,} rows in {len(written.urls)} files, {size:.0f} MB, to {folder} in {took:.1f} s")
    print(f"the model that drew the labels has AUC {written.bayes_auc:.4f}: no other can have more")

    print("\n== cluster by session: rows of a session next to each other, in order of time")
    started = time.perf_counter()
    hours = sorted(str(file) for file in (folder / "raw").glob("*.parquet"))
    for name, files in (("train", hours[:-1]), ("held_out", hours[-1:])):
        made = recommendation.cluster(files, folder / name, session="session_id", sort="ts", row_group_rows=16_384)
        print(f"{name:<9} {made}")
    print(f"took {time.perf_counter() - started:.1f} s")
    found = recommendation.inspect(folder / "train", session="session_id", sort="ts", batch=BATCH)
    print(*str(found).splitlines()[:7], sep="\n")  # the features that gain most
    return f"{folder}/train/*.parquet", f"{folder}/held_out/*.parquet"


def read(pattern: str, held_out: str | None) -> tuple[cedar.Pipeline, cedar.Pipeline, int]:
    """The rows to train on, those held out (of files without their own pattern, the last tenth), and how many the
    first are.
    """
    rows = cedar.read_parquet(pattern)
    total = len(rows.loader())  # from the footers
    if held_out is not None:
        return rows, cedar.read_parquet(held_out), total
    if total < 20:
        raise ValueError(f"{pattern} holds {total} rows; a tenth is held out, so at least 20 are needed")
    kept = total - total // 10
    return rows.take(kept), rows.skip(kept), kept


def train(trainer: Trainer, until: int) -> tuple[float, float]:
    """Steps up to ``until``; returns seconds, and how many of them were spent on waiting for data."""
    seconds = waited = 0.0
    while trainer.step < until:
        record = trainer.train_step()
        seconds, waited = seconds + record.seconds, waited + record.waited
        if trainer.step % 20 == 0 or trainer.step == until:
            line = f"loss {record.loss:.4f}   entropy {trainer.recent().entropy:.4f}"
            print(f"  {trainer.step * record.rows:>9,} rows   {line}")
    return seconds, waited


def compare(options: Options, rows: cedar.Pipeline) -> None:
    """The same steps on deduplicated and on plain rows, in turns."""
    trainers = {
        how: Trainer(replace(options, data=replace(options.data, dedup=dedup)), rows=rows)
        for how, dedup in (("deduplicated", "auto"), ("plain", "off"))
    }
    seconds, ids, loss = dict.fromkeys(trainers, 0.0), dict.fromkeys(trainers, 0), dict.fromkeys(trainers, 0.0)
    for step in range(min(COMPARED, options.run.steps)):
        for how, trainer in trainers.items():
            record = trainer.train_step()
            loss[how] = record.loss
            if step:  # the first one starts workers and threads
                seconds[how] += record.seconds - record.waited
                ids[how] += record.looked_up
    for trainer in trainers.values():
        trainer.close()
    steps = max(1, min(COMPARED, options.run.steps) - 1)
    for how in trainers:
        speed = options.data.batch * steps / max(seconds[how], 1e-9)
        print(
            f"{how:<17}{speed:>9,.0f} rows/s, {ids[how] / steps:>9,.0f} ids looked up in a step, loss {loss[how]:.6f}"
        )
    print(f"{'faster':<17}{seconds['plain'] / max(seconds['deduplicated'], 1e-9):>9.2f} times, on the same rows")


def run(pattern: str, apart: str | None, label: str | None, folder: Path) -> None:
    """The whole story: look, train, stop, resume, judge, compare."""
    rows, held_out, count = read(pattern, apart)
    columns = choose_columns(rows.schema, label)
    options = options_for(columns, count, folder)
    rows, held_out = prepare(rows, columns), prepare(held_out, columns)
    half = options.run.steps // 2
    saved = folder / "checkpoints"
    shutil.rmtree(saved, ignore_errors=True)

    trainer = Trainer(options, rows=rows, held_out=held_out)
    print(f"\n== the pipeline\n{trainer.batches.pipeline.explain()}")
    print(f"\n== train for half an epoch: {half} batches of {options.data.batch:,} rows")
    print(*trainer.notes, sep="\n")
    seconds, waited = train(trainer, half)
    path = Checkpoints(str(saved), trainer).save()
    trainer.close()
    print(f"stopped; the checkpoint is in {path}")

    print("\n== resume from the checkpoint: a new model, a new loader")
    trainer = Trainer(options, rows=rows, held_out=held_out)
    Checkpoints(str(saved), trainer).load(path)
    more = train(trainer, options.run.steps)
    seconds, waited = seconds + more[0], waited + more[1]
    print(trainer.batches.loader.report())

    print("\n== the result")
    scores = trainer.evaluate()
    trainer.close()
    seen = options.run.steps * options.data.batch
    print(f"rows seen        {seen:,} of {count:,}; batches that would be short are dropped")
    print(f"rows/s           {seen / seconds:,.0f}")
    print(f"trainer waited   {waited / seconds:.1%} of the time for data")
    if scores is not None:
        print(f"AUC              {scores.auc:.4f} on {scores.rows:,} rows held out")
        print(f"entropy          {scores.entropy:.4f} of that of always predicting the mean")

    print("\n== what deduplication is worth: the same steps without it, in turns")
    compare(options, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", metavar="GLOB", help="Parquet files to use instead of the synthetic click log")
    parser.add_argument("--label", metavar="COLUMN", help=f"the column to predict (default: {', '.join(LABELS)})")
    parser.add_argument("--rows", type=int, default=150_000, help="rows of the synthetic click log")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where to write")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        own = (arguments.data, None)
        pattern, apart = own if arguments.data else click_log(arguments.folder / "clicks", arguments.rows)
        run(pattern, apart, arguments.label, arguments.folder)
    except (cedar.CedarError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
