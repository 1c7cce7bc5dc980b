"""``cedar data``: from a synthetic log to a clustered one with vocabularies, as a user does it."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from cedar.cli import main
from cedar.recommendation import load_vocabularies


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "clicks", "log", "--rows", "3000", "--samples", "8", "--lists", "1", "--shift", "1"]) == 0
    return tmp_path / "log"


def test_clicks_says_what_the_best_model_reaches(log, capsys):
    assert main(["data", "clicks", "more", "--rows", "500"]) == 0
    out = capsys.readouterr().out
    assert "wrote 500 rows to more" in out
    assert "has AUC 0." in out
    names = pq.read_schema(log / "part-00000.parquet").names
    assert {"session_id", "hist_items", "tags", "list0", "d12", "label"} <= set(names)


def test_cluster_and_inspect(log, capsys):
    assert main(["data", "inspect", "log", "--session", "session_id", "--sort", "ts", "--check"]) == 1
    said = capsys.readouterr()
    assert "interleaved" in said.out
    assert "is not clustered" in said.err
    keys = ["--session", "session_id", "--sort", "ts"]
    assert main(["data", "cluster", "log", "out", *keys, "--columns-first", "label, hist_items", "--workers", "1"]) == 0
    assert "wrote 3,000 rows in 1 file(s)" in capsys.readouterr().out
    assert pq.read_schema("out/part-00000.parquet").names[:2] == ["label", "hist_items"]
    assert main(["data", "inspect", "out", *keys, "--check", "--batch", "256"]) == 0
    out = capsys.readouterr().out
    assert "all rows: clustered" in out
    assert "S 8 rows each" in out


def test_cluster_makes_sessions_and_histories(log, capsys):
    keys = [
        "--session",
        "user_id",
        "--sort",
        "ts",
        "--gap",
        "30",
        "--history",
        "item_id:5",
        "--history",
        "category:3:event",
    ]
    assert main(["data", "cluster", "log", "out", *keys]) == 1
    assert "'session_id' already" in capsys.readouterr().err
    table = pq.read_table("log").drop_columns(["session_id"])
    pq.write_table(table, "plain.parquet")
    assert main(["data", "cluster", "plain.parquet", "out", *keys]) == 0
    names = pq.read_schema("out/part-00000.parquet").names
    assert {"session_id", "hist_item_id", "hist_category"} <= set(names)
    assert main(["data", "cluster", "plain.parquet", "more", *keys, "--history", "item_id"]) == 1
    assert "item_id:50" in capsys.readouterr().err


def test_vocab(log, capsys):
    assert main(["data", "vocab", "log", "words", "--columns", "hist_items,item_id", "--min-count", "2"]) == 0
    out = capsys.readouterr().out
    assert "hist_items: " in out
    found = load_vocabularies("words")
    assert set(found) == {"hist_items", "item_id"}
    assert min(found["item_id"].counts.to_pylist()) >= 2


def test_vocab_of_another_format(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day").write_text("\t".join(["1", *["3"] * 13, *["0000000a"] * 26]) + "\n")
    assert main(["data", "vocab", "day", "words", "--columns", "C1,C2", "--format", "criteo"]) == 0
    assert load_vocabularies("words")["C1"].values.to_pylist() == [10]
