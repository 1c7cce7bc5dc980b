"""Predicted against achieved factors, for logs in every format that there is a reader for.

python -m benchmarks.recommendation_formats [--form]

The logs are synthetic, in the form of each public data set; sessions are cut at pauses of 30 minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import Figure, Form, add_form, at_most, finish
from cedar import col
from cedar.recommendation import cluster, criteo, history, kuairand, mind, otto, yambda
from cedar.recommendation.slices import slices_of, sliding_factor

_WINDOW, _BATCH = 50, 2048


def _events(rows: int) -> dict[str, Any]:
    """Users whose events are a minute apart, with a pause of a day after one in sixteen."""
    rng = np.random.default_rng(0)
    user = np.sort(rng.integers(0, max(2, rows // 200), rows))
    pause = np.where(rng.random(rows) < 1 / 16, 86_400, 60)
    return {"user": user, "ts": 1_700_000_000 + np.cumsum(pause), "item": rng.integers(0, 100_000, rows)}


# ---- a log in each form: (pipeline, session, time, unit, column of items) --------------------------------------------

Made = tuple[cedar.Pipeline, str, str, str, str]


def _otto(folder: str, rows: int) -> Made:
    found = pl.DataFrame(_events(rows)).group_by("user", maintain_order=True).agg("ts", "item")
    with open(f"{folder}/otto.jsonl", "w", encoding="utf-8") as file:
        for user, times, items in found.iter_rows():
            events = [{"aid": a, "ts": t * 1000, "type": "clicks"} for a, t in zip(items, times, strict=True)]
            file.write(json.dumps({"session": user, "events": events}) + "\n")
    return otto(f"{folder}/otto.jsonl"), "session", "ts", "ms", "aid"


def _kuairand(folder: str, rows: int) -> Made:
    events = _events(rows)
    table = pl.DataFrame({"user_id": events["user"], "video_id": events["item"], "time_ms": events["ts"] * 1000,
                          "is_click": np.zeros(rows, np.int8)})  # fmt: skip
    table.write_csv(f"{folder}/log_standard.csv")
    return kuairand(f"{folder}/log_standard.csv"), "user_id", "time_ms", "ms", "video_id"


def _flat(folder: str, rows: int) -> Made:
    events = _events(rows)
    table = pa.table({"uid": events["user"], "timestamp": events["ts"], "item_id": events["item"]})
    pq.write_table(table, f"{folder}/flat.parquet")
    return yambda(f"{folder}/flat.parquet"), "uid", "timestamp", "s", "item_id"


def _sequential(folder: str, rows: int) -> Made:
    frame = pl.DataFrame(_events(rows)).rename({"user": "uid", "ts": "timestamp", "item": "item_id"})
    lists = frame.group_by("uid", maintain_order=True).agg("timestamp", "item_id")
    lists.write_parquet(f"{folder}/sequential.parquet")
    return yambda(f"{folder}/sequential.parquet"), "uid", "timestamp", "s", "item_id"


LOGS: dict[str, Callable[[str, int], Made]] = {
    "OTTO": _otto, "KuaiRand": _kuairand, "Yambda, flat": _flat, "Yambda, sequential": _sequential,
}  # fmt: skip


# ---- figures ---------------------------------------------------------------------------------------------------------


def _off(what: str, predicted: float, achieved: float) -> Figure:
    note = f"predicted {predicted:.3g}, achieved {achieved:.3g}"
    return at_most(f"{what}: predicted is off by", 0.15, [abs(predicted / achieved - 1)], "of it", note=note)


def _grouped(what: str, p: cedar.Pipeline, name: str) -> Figure:
    """Predicted and achieved, of a pipeline with one group."""
    with p.batch(_BATCH).loader(format="numpy", executor="threads", workers=2) as loader:
        for _ in loader:
            pass
        achieved = loader.report().dedup[name]
        told = " ".join(loader.explain().split())
    return _off(what, float(told.rpartition("predicted factor ")[2].partition(";")[0]), achieved)


def _sliding(what: str, files: list[str], name: str, user: str) -> Figure:
    """Histories at each event, of rows whose users have a whole window behind them. They slide from session to session
    where those of a user are next to each other, as they do in these logs: so S is rows of a user.
    """
    table = pq.read_table(files).combine_chunks()
    full = table.filter(pa.compute.equal(pa.compute.list_value_length(table[name]), _WINDOW))
    users = pa.compute.count_distinct(full[user]).as_py()
    held = slices_of(full[name].combine_chunks())
    return _off(f"{what}, a history of {_WINDOW} that slides, as slices",
                sliding_factor(len(full) / users, _WINDOW, 1), held.factor)  # fmt: skip


def _histories(folder: str, what: str, make: Callable[[str, int], Made], rows: int) -> list[Figure]:
    """A format without histories: they are made of its events, frozen and sliding."""
    place = f"{folder}/{what}"
    Path(place).mkdir()
    p, session, time, unit, column = make(place, rows)
    p.write_parquet(f"{place}/rows")
    made = cluster(
        f"{place}/rows", f"{place}/clustered", session=session, sort=time, unit=unit, gap=30,
        histories=[history(column, _WINDOW), history(column, _WINDOW, at="event", into="sliding")],
    )  # fmt: skip
    name = f"hist_{column}"
    files = list(made.files)
    frozen = cedar.read_parquet(files).select("session_id", name).dedup([[name]], session="session_id")
    label = f"{what}, a history of {_WINDOW} frozen at the session"
    return [_grouped(label, frozen, name), _sliding(what, files, "sliding", session)]


def _mind(folder: str, rows: int) -> list[Figure]:
    rng = np.random.default_rng(1)
    with open(f"{folder}/behaviors.tsv", "w", encoding="utf-8") as file:
        for request in range(rows // 20):
            stamp = datetime.fromtimestamp(1_573_463_158 + request, UTC).strftime("%m/%d/%Y %I:%M:%S %p")
            read = " ".join(f"N{i}" for i in rng.integers(0, 100_000, rng.poisson(30)))
            shown = " ".join(f"N{i}-{int(rng.random() < 0.1)}" for i in rng.integers(0, 100_000, rng.integers(2, 40)))
            file.write(f"{request}\tU{request % 97}\t{stamp}\t{read}\t{shown}\n")
    return [_grouped("MIND, the history of a request", mind(f"{folder}/behaviors.tsv"), "history")]


def _criteo(folder: str, rows: int) -> list[Figure]:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 1 << 32, (rows, 26))
    with open(f"{folder}/day_0", "w", encoding="utf-8") as file:
        file.writelines("\t".join(["0", *["1"] * 13, *(f"{i:08x}" for i in row)]) + "\n" for row in ids.tolist())
    rows_of = criteo(f"{folder}/day_0").select(ids=pl.concat_list([col(f"C{i}") for i in range(1, 27)]))
    return [_grouped("Criteo, whose rows do not repeat", rows_of.dedup([["ids"]]), "ids")]


def figures(form: Form) -> list[Figure]:
    """Every format: histories that are frozen or slide if there are users, else what the rows hold."""
    rows = form.pick(100_000, 20_000, 12_000)
    with tempfile.TemporaryDirectory() as folder:
        found = [figure for what, make in LOGS.items() for figure in _histories(folder, what, make, rows)]
        return found + _mind(folder, rows) + _criteo(folder, rows // 5)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/recommendation_formats.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "small logs")
    found = figures(form := parser.parse_args(arguments).form)
    return finish("factors by format", "recommendation_formats", found, form)


if __name__ == "__main__":
    sys.exit(main())
