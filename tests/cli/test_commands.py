"""The commands on a pipeline, as a user meets them."""

from __future__ import annotations

import signal

import pytest

import cedar
from cedar.cli import main
from cedar.profile import Profile


def test_profile_prints_a_line_for_each_operator_and_saves(module, tmp_path, capsys):
    assert main(["profile", "my_pipelines_for_cli:rows", "--seconds", "0.2", "--save", "p.json"]) == 0
    said = capsys.readouterr().out
    assert "map(<lambda>)" in said
    assert "bottleneck: " in said
    assert said.endswith("wrote p.json\n")
    assert Profile.load(tmp_path / "p.json").operators[1].rows >= 100


@pytest.mark.parametrize("command", ["profile", "run"])
def test_an_operator_that_raises_is_named(module, command, capsys):
    assert main([command, "my_pipelines_for_cli:failing"]) == 1
    error = capsys.readouterr().err
    assert "no such luck" in error
    assert "my_pipelines_for_cli.py:11" in error


def test_a_file_that_cannot_be_written_is_an_error(module, capsys):
    assert main(["profile", "my_pipelines_for_cli:rows", "--seconds", "0.1", "--save", "none/p.json"]) == 1
    assert "none/p.json: the profile cannot be written" in capsys.readouterr().err


def test_run_reports(module, capsys):
    assert main(["run", "my_pipelines_for_cli:rows", "--epochs", "2", "--executor", "inline"]) == 0
    said = capsys.readouterr().out
    assert "200 rows in" in said
    assert "map(<lambda>)" in said
    assert "executor inline, 1 worker(s)" in said


def test_warm_takes_a_batch_and_keeps_what_a_first_run_finds(module, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["warm", "my_pipelines_for_cli:rows", "--executor", "threads", "--save-plan", "plan.json"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 batch(es) in ")
    assert said.endswith("wrote plan.json\n")
    assert main(["run", "my_pipelines_for_cli:rows", "--plan", "plan.json"]) == 0
    assert main(["warm", "my_pipelines_for_cli:nothing"]) == 1
    assert "has no batch" in capsys.readouterr().err


def test_run_takes_what_the_optimizer_should_leave_out(module, capsys):
    options = ["--without", "late,order,place", "--budget", "cpus=1,memory=1GiB", "--executor", "inline"]
    assert main(["run", "my_pipelines_for_cli:rows", *options]) == 0
    assert "100 rows in" in capsys.readouterr().out


def test_run_ends_at_the_limit_of_each_epoch(module, capsys):
    assert main(["run", "my_pipelines_for_cli:endless", "--limit-batches", "7", "--epochs", "2", "--plan", "off"]) == 0
    assert "14 rows in" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["endless", "silent"])
def test_run_ends_with_the_time_whether_it_delivers_or_not(module, name, capsys):
    before = signal.getsignal(signal.SIGALRM)
    assert main(["run", f"my_pipelines_for_cli:{name}", "--seconds", "0.05"]) == 0
    assert signal.getsignal(signal.SIGALRM) is before
    assert "rows in" in capsys.readouterr().out


def test_ctrl_c_ends_a_run_with_its_report(module, monkeypatch, capsys):
    from cedar.cli import commands

    def interrupted(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_take_batches", interrupted)
    assert main(["run", "my_pipelines_for_cli:rows"]) == 130
    assert "0 rows in" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--format csv", "--partition-by a", "--rows-per-file 3", "--layout fast"])
def test_options_of_files_need_files(module, option, capsys):
    assert main(["run", "my_pipelines_for_cli:rows", *option.split()]) == 1
    assert f"{option.split()[0]} needs --write" in capsys.readouterr().err


def test_run_writes_what_is_not_written_yet(module, tmp_path, capsys):
    command = ["run", "my_pipelines_for_cli:rows", "--write", str(tmp_path / "out"), "--rows-per-file", "30"]
    assert main([*command, "--format", "jsonl"]) == 0
    assert f"complete: 100 row(s) in 4 file(s) below {tmp_path / 'out'}\n" in capsys.readouterr().out
    assert len((tmp_path / "out" / "part-00003.jsonl").read_text().splitlines()) == 10
    assert main([*command, "--format", "jsonl"]) == 0
    assert "4 of them from earlier calls" in capsys.readouterr().out
    assert main(command) == 1
    assert "was begun with format='jsonl', but this call has format='parquet'" in capsys.readouterr().err
    assert main([*command, "--epochs", "2"]) == 1
    assert "omit --epochs" in capsys.readouterr().err


def test_ctrl_c_ends_writing(module, tmp_path, monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cedar.Pipeline, "write", interrupted)
    assert main(["run", "my_pipelines_for_cli:rows", "--write", str(tmp_path)]) == 130
    assert "run the same command to continue" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plan", "no_such_plan.json"], "no_such_plan.json"),
        (["--executor", "quantum"], "executor='quantum' is unknown"),
        (["--without", "lat"], "unknown rule"),
        (["--rules", "my_pipelines_for_cli:p"], "functions of a node and the facts"),
        (["--budget", "cpus=many"], "an integer of cores"),
        (["--budget", "gpus=1"], "--budget gpus=1: gpus"),
    ],
)
def test_what_a_run_cannot_do_is_said(module, options, said, capsys):
    assert main(["run", "my_pipelines_for_cli:rows", *options]) == 1
    assert said in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_an_error(module, capsys):
    assert main(["inspect", "my_pipelines_for_cli:rows", "--out", "none/sheet.html"]) == 1
    assert "none/sheet.html cannot be written" in capsys.readouterr().err


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
        ("a.parqet", "no such file or folder; did you mean a.parquet?"),
        ("logs/1.json", "did you mean logs/1.jsonl?"),
        ("nowhere/a.csv", "nowhere/a.csv: no such file or folder\n"),
        ("none*.csv", "no file matches 'none*.csv'"),
        ("my_pipelines_for_cli:mode", "has no 'mode'; it has made"),
        ("my_pipelines_for_cli.py", "does not name a pipeline"),
    ],
)
def test_what_is_not_there_is_said(module, files, target, said, capsys):
    assert main(["head", target]) == 1
    assert said in capsys.readouterr().err
