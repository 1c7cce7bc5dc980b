"""Readers of public logs, on small files of their formats."""

from __future__ import annotations

import datetime as dt
import gzip
import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import RowError, SourceError
from cedar.recommendation import cluster, criteo, history, kuairand, mind, otto, yambda

# ---- Criteo ----------------------------------------------------------------------------------------------------------


def criteo_lines(rows, seed=0, label=True):
    """Lines, and the same as Python values."""
    rng = np.random.default_rng(seed)
    lines, values = [], []
    for _ in range(rows):
        counts = [None if rng.random() < 0.3 else int(rng.integers(-2, 10**6)) for _ in range(13)]
        texts = [None if rng.random() < 0.2 else f"{rng.integers(0, 2**32):08x}" for _ in range(26)]
        first = [int(rng.integers(0, 2))] if label else []
        lines.append("\t".join("" if v is None else str(v) for v in [*first, *counts, *texts]))
        values.append([*first, *counts, *(None if t is None else int(t, 16) for t in texts)])
    return lines, values


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("label", [True, False])
def test_criteo(tmp_path, compressed, label):
    days = []
    for day in range(2):
        lines, values = criteo_lines(60, day, label)
        days += values
        text = ("\n".join(lines) + "\n").encode()
        (tmp_path / f"day_{day}{'.gz' if compressed else ''}").write_bytes(gzip.compress(text) if compressed else text)
    p = criteo(str(tmp_path / "day_*"), label=label)
    assert p.schema["C26"] == p.schema["I13"] == pa.int64()
    assert not label or p.schema["label"] == pa.int8()
    assert [list(row.values()) for row in p] == days


def test_all_members_of_a_gzipped_day_are_read(tmp_path):
    lines, values = criteo_lines(20)
    member = gzip.compress(("\n".join(lines) + "\n").encode())
    (tmp_path / "day.gz").write_bytes(member * 3)
    assert [list(row.values()) for row in criteo(tmp_path / "day.gz")] == values * 3


def test_criteo_of_fewer_columns(tmp_path):
    (tmp_path / "day").write_text("1\t5\t\tff\n")
    assert list(criteo(str(tmp_path / "day"), counts=2, categories=1)) == [{"label": 1, "I1": 5, "I2": None, "C1": 255}]


@pytest.mark.parametrize(
    ("field", "text", "said"), [(3, "many", "I3"), (20, "wxyz", "wxyz"), (39, "00\t11", "40 columns")]
)
def test_a_broken_line_of_criteo_is_named(tmp_path, field, text, said):
    lines, _ = criteo_lines(5)
    fields = lines[3].split("\t")
    fields[field] = text
    lines[3] = "\t".join(fields)
    (tmp_path / "day").write_text("\n".join(lines) + "\n")
    with pytest.raises(RowError, match=said) as failure:
        list(criteo(str(tmp_path / "day")))
    assert "day" in str(failure.value)


# ---- OTTO ------------------------------------------------------------------------------------------------------------


def otto_file(path, sessions=40):
    rng = np.random.default_rng(0)
    rows = []
    with open(path, "w") as file:
        for session in range(sessions):
            events = [
                {
                    "aid": int(rng.integers(0, 50)),
                    "ts": 1_661_724_000_000 + i,
                    "type": str(rng.choice(["clicks", "carts"])),
                }
                for i in range(int(rng.integers(1, 12)))
            ]
            file.write(json.dumps({"session": session, "events": events}) + "\n")
            rows += [{"session": session, **event} for event in events]
    return rows


def test_otto(tmp_path):
    rows = otto_file(tmp_path / "train.jsonl")
    assert list(otto(tmp_path / "train.jsonl")) == rows
    assert sum(len(row["events"]) for row in otto(tmp_path / "train.jsonl", explode=False)) == len(rows)


def test_a_line_of_otto_that_is_no_session_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"session": 1, "events": []}\n{"session": 2, "events": 5}\n')
    with pytest.raises(RowError, match="line 2"):
        list(otto(tmp_path / "x.jsonl"))


# ---- KuaiRand --------------------------------------------------------------------------------------------------------


def test_kuairand(tmp_path):
    names = "user_id video_id date hourmin time_ms is_click is_like is_follow is_comment is_forward is_hate".split()
    names += "play_time_ms duration_ms profile_stay_time comment_stay_time".split()
    names += "long_view is_profile_enter is_rand tab".split()
    rng = np.random.default_rng(0)
    rows = [{name: int(rng.integers(0, 2)) for name in names} for _ in range(30)]
    for i, row in enumerate(rows):
        row |= {"user_id": i % 3, "time_ms": 1_649_400_000_000 + i * 60_000 * (1 + 40 * (i > 20))}
    text = "\n".join([",".join(names), *(",".join(str(v) for v in row.values()) for row in rows)])
    (tmp_path / "log_standard_4_08.csv").write_text(text + "\n")
    p = kuairand(tmp_path / "*.csv")
    assert list(p) == rows
    assert p.schema["is_click"] == pa.int8()
    p.write_parquet(str(tmp_path / "flat"))
    cluster(tmp_path / "flat", tmp_path / "out", session="user_id", sort="time_ms", unit="ms", gap=30)
    found = pq.read_table(tmp_path / "out")
    assert len(set(found["session_id"].to_pylist())) == 3 + 9  # each row after the 20th is alone


# ---- Yambda ----------------------------------------------------------------------------------------------------------


def test_yambda_flat_and_sequential_are_the_same_events(tmp_path):
    rng = np.random.default_rng(0)
    lengths = [3, 0, 5, 1]
    users = np.repeat(np.arange(4), lengths).astype(np.uint32)
    columns = {
        "timestamp": np.arange(9, dtype=np.uint32) * 5,
        "item_id": rng.integers(0, 99, 9).astype(np.uint32),
        "is_organic": rng.integers(0, 2, 9).astype(np.uint8),
    }
    pq.write_table(pa.table({"uid": users, **columns}), tmp_path / "flat.parquet")
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    lists = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}
    pq.write_table(pa.table({"uid": pa.array(range(4), pa.uint32()), **lists}), tmp_path / "sequential.parquet")
    flat = list(yambda(tmp_path / "flat.parquet"))
    assert len(flat) == 9
    assert list(yambda(tmp_path / "sequential.parquet")) == flat
    assert len(list(yambda(tmp_path / "sequential.parquet", explode=False))) == 4


def test_what_is_not_yambda_is_said(tmp_path):
    pq.write_table(pa.table({"user": [1]}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match="no column 'uid'"):
        yambda(tmp_path / "x.parquet")


# ---- MIND ------------------------------------------------------------------------------------------------------------


def mind_file(path, requests=60, test=False):
    """Lines of behaviors.tsv, and the rows that they stand for."""
    rng = np.random.default_rng(0)
    rows = []
    with open(path, "w") as file:
        for request in range(requests):
            history = rng.integers(1, 999, rng.integers(0, 20)).tolist()
            shown = [(int(n), int(rng.integers(0, 2))) for n in rng.integers(1, 999, rng.integers(1, 25))]
            words = " ".join(f"N{n}" if test else f"N{n}-{c}" for n, c in shown)
            line = f"{request}\tU{request % 9}\t11/12/2019 3:04:05 PM\t{' '.join(f'N{n}' for n in history)}\t{words}\n"
            file.write(line)
            rows += [(request, history, n, None if test else c) for n, c in shown]
    return rows


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("dedup", [False, True])
def test_mind(tmp_path, test, dedup):
    rows = mind_file(tmp_path / "behaviors.tsv", test=test)
    found = list(mind(tmp_path / "behaviors.tsv", dedup=dedup))
    assert [(r["impression_id"], list(r["history"]), r["news"], r["label"]) for r in found] == rows
    assert found[0]["time"] == dt.datetime(2019, 11, 12, 15, 4, 5)
    assert found[0]["user_id"] == "U0"
    assert len(list(mind(tmp_path / "behaviors.tsv", explode=False))) == 60


def test_a_request_of_mind_is_compared_once(tmp_path):
    """The index follows from how often requests are repeated, and the predicted factor is what a batch has."""
    rows = mind_file(tmp_path / "behaviors.tsv")
    with mind(tmp_path / "behaviors.tsv").batch(128).loader(format="numpy", executor="inline") as loader:
        batches = list(loader)
        achieved = loader.report().dedup["history"]
        told = " ".join(loader.explain().split())
    for i, batch in enumerate(batches):
        part = rows[i * 128 : (i + 1) * 128]
        assert batch["history"].expand()["history"].to_list() == [row[1] for row in part]
        assert batch["history"].unique == len({tuple(row[1]) for row in part})
    predicted = float(told.rpartition("predicted factor ")[2].partition(";")[0])
    assert predicted == pytest.approx(achieved, rel=0.15)


# ---- prediction of readers without requests --------------------------------------------------------------------------


def test_where_nothing_repeats_the_prediction_says_so(tmp_path):
    lines, _ = criteo_lines(300)
    (tmp_path / "day").write_text("\n".join(lines) + "\n")
    names = [f"C{i}" for i in range(1, 4)]
    p = (
        criteo(tmp_path / "day")
        .with_columns(cats=pl.concat_list([pl.col(name).fill_null(0) for name in names]))
        .select("cats")
        .dedup([["cats"]])
        .batch(100)
    )
    with p.loader(format="numpy", executor="inline") as loader:
        list(loader)
        achieved = loader.report().dedup["cats"]
        told = " ".join(loader.explain().split())
    predicted = float(told.rpartition("predicted factor ")[2].partition(";")[0])
    assert predicted == pytest.approx(achieved, rel=0.15)
    assert achieved == pytest.approx(1.0, rel=0.15)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["otto", "yambda", "kuairand"])
def test_frozen_histories_have_the_factor_that_is_predicted(tmp_path, kind):
    """Events of each reader, clustered into sessions with histories: predicted against achieved."""
    rng = np.random.default_rng(0)
    n = 3000
    user = np.sort(rng.integers(0, 60, n))
    ts = 1_700_000_000 + np.arange(n) * 60 + np.where(rng.random(n) < 0.1, 10**5, 0).cumsum()
    item = rng.integers(0, 500, n)
    if kind == "otto":
        with open(tmp_path / "x.jsonl", "w") as file:
            for u in range(60):
                mine = user == u
                events = [
                    {"aid": a, "ts": t, "type": "clicks"}
                    for a, t in zip(item[mine].tolist(), (ts[mine] * 1000).tolist(), strict=True)
                ]
                file.write(json.dumps({"session": u, "events": events}) + "\n")
        p, key, time, unit, column = otto(tmp_path / "x.jsonl"), "session", "ts", "ms", "aid"
    elif kind == "yambda":
        pq.write_table(pa.table({"uid": user, "timestamp": ts, "item_id": item}), tmp_path / "x.parquet")
        p, key, time, unit, column = yambda(tmp_path / "x.parquet"), "uid", "timestamp", "s", "item_id"
    else:
        lines = [f"{u},{v},{t * 1000}" for u, v, t in zip(user, item, ts, strict=True)]
        (tmp_path / "x.csv").write_text("\n".join(["user_id,video_id,time_ms", *lines]) + "\n")
        p, key, time, unit, column = kuairand(tmp_path / "x.csv"), "user_id", "time_ms", "ms", "video_id"
    p.write_parquet(str(tmp_path / "flat"))
    made = cluster(
        tmp_path / "flat", tmp_path / "out", session=key, sort=time, unit=unit, gap=30, histories=[history(column, 20)]
    )
    name = f"hist_{column}"
    p = cedar.read_parquet(list(made.files)).select("session_id", name).dedup([[name]], session="session_id").batch(256)
    with p.loader(format="numpy", executor="inline") as loader:
        list(loader)
        achieved = loader.report().dedup[name]
        told = " ".join(loader.explain().split())
    predicted = float(told.rpartition("predicted factor ")[2].partition(";")[0])
    assert achieved > 4
    assert predicted == pytest.approx(achieved, rel=0.15)
