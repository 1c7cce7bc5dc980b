"""The commands that look at data files and pipelines."""

from __future__ import annotations

import pytest

import cedar
from cedar.cli import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    rows = cedar.from_items([{"x": i, "name": f"n{i}", "tags": [i] * 100} for i in range(20)])
    rows.write_parquet(str(tmp_path / "a.parquet"))
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "logs").mkdir()
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / "logs" / name).write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "empty.jsonl").touch()
    cedar.from_items([{f"c{i}": i for i in range(30)}]).write_parquet(str(tmp_path / "wide.parquet"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("target", ["a.parquet", "a.csv", "logs", "logs/*.jsonl"])
@pytest.mark.parametrize("command", ["head", "schema", "count", "describe", "inspect"])
def test_files_folders_and_globs_are_looked_at(files, command, target, capsys):
    assert main([command, target]) == 0
    said = capsys.readouterr().out
    assert said == {"a.parquet": "20\n", "a.csv": "2\n"}.get(target, "4\n") if command == "count" else "x" in said


@pytest.mark.parametrize("command", ["head", "schema", "count", "describe", "inspect"])
def test_pipelines_are_looked_at(module, command, capsys):
    assert main([command, "my_pipelines_for_cli:rows"]) == 0
    assert ("100" if command == "count" else "x") in capsys.readouterr().out


def test_head_takes_so_many_rows_and_prints_wide_rows_by_column(files, capsys):
    assert main(["head", "a.parquet", "--rows", "2"]) == 0
    said = capsys.readouterr().out
    assert "n1" in said
    assert "n2" not in said
    assert main(["head", "wide.parquet"]) == 0
    assert "$ c29 <i64> 29\n" in capsys.readouterr().out
    assert main(["head", "empty.jsonl"]) == 0
    assert capsys.readouterr().out == "no rows\n"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("a.parqet", "there is no such file or folder; did you mean a.parquet?"),
        ("logs/1.json", "did you mean logs/1.jsonl?"),
        ("nowhere/a.csv", "nowhere/a.csv: there is no such file or folder\n"),
        ("none*.csv", "no file matches 'none*.csv'"),
        ("my_pipelines_for_cli:mode", "has no 'mode'; it has made"),
        ("my_pipelines_for_cli.py", "does not name a pipeline"),
    ],
)
def test_what_is_not_there_is_said(module, files, target, said, capsys):
    assert main(["head", target]) == 1
    assert said in capsys.readouterr().err
