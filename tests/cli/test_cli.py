"""The command line, as a user meets it."""

import subprocess
import sys

import pytest

import cedar
from cedar.cli import main
from cedar.profile import Profile

PIPELINE = """
import cedar

p = cedar.from_items([{"x": 1}, {"x": 2}]).filter(cedar.col("x") > 1)
rows = cedar.from_items([{"x": i} for i in range(100)]).map(lambda x: x + 1, "x")
endless = rows.repeat()

def bad(x):
    raise ValueError("no such luck")

failing = rows.map(bad, "x")

def made():
    return p.batch(1)

def needs(path):
    return p

def raises():
    return 1 / 0

number = 3
nothing = rows.take(0)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_pipelines_for_cli.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    yield "my_pipelines_for_cli"
    sys.modules.pop("my_pipelines_for_cli", None)


# ---- which pipeline --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["my_pipelines_for_cli:p", "my_pipelines_for_cli.py:p", "my_pipelines_for_cli:made"])
def test_explain_prints_the_plan(module, target, capsys):
    assert main(["explain", target]) == 0
    assert "filter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_colon", "names no pipeline"),
        ("no_such_module_here:p", "no_such_module_here cannot be imported"),
        ("no_such_file.py:p", "no_such_file.py cannot be imported"),
        ("my_pipelines_for_cli:mode", "has no 'mode'; it has made"),
        ("my_pipelines_for_cli:number", "is a int, not a Pipeline"),
        ("my_pipelines_for_cli:needs", "cannot be called without arguments"),
        ("my_pipelines_for_cli:raises", "raises() raised ZeroDivisionError: division by zero"),
        ("broken.py:p", "broken.py cannot be imported: NameError: name 'nothing' is not defined"),
        ("torn.py:p", "torn.py cannot be imported: SyntaxError"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "profile", "run"])
def test_a_wrong_target_is_named(module, tmp_path, command, target, said, capsys):
    (tmp_path / "broken.py").write_text("nothing")
    (tmp_path / "torn.py").write_text("def")
    assert main([command, target]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


# ---- profile ---------------------------------------------------------------------------------------------------------


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


# ---- run -------------------------------------------------------------------------------------------------------------


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


def test_run_ends_with_the_time(module, capsys):
    assert main(["run", "my_pipelines_for_cli:endless", "--seconds", "0.05"]) == 0
    assert "rows in" in capsys.readouterr().out


def test_ctrl_c_ends_a_run_with_its_report(module, monkeypatch, capsys):
    from cedar.cli import commands

    def interrupted(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_until", interrupted)
    assert main(["run", "my_pipelines_for_cli:rows"]) == 130
    assert "0 rows in" in capsys.readouterr().out


def test_run_writes_what_is_not_written_yet(module, tmp_path, capsys):
    command = ["run", "my_pipelines_for_cli:rows", "--write", str(tmp_path / "out"), "--rows-per-file", "30"]
    assert main([*command, "--format", "jsonl"]) == 0
    assert f"complete: 100 row(s) in 4 file(s) below {tmp_path / 'out'}\n" in capsys.readouterr().out
    assert len((tmp_path / "out" / "part-00003.jsonl").read_text().splitlines()) == 10
    assert main([*command, "--format", "jsonl"]) == 0
    assert "4 of them done before" in capsys.readouterr().out
    assert main(command) == 1
    assert "was begun with format='jsonl', and this is format='parquet'" in capsys.readouterr().err
    assert main([*command, "--epochs", "2"]) == 1
    assert "leave --epochs out" in capsys.readouterr().err


def test_ctrl_c_ends_writing(module, tmp_path, monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cedar.Pipeline, "write", interrupted)
    assert main(["run", "my_pipelines_for_cli:rows", "--write", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plan", "no_such_plan.json"], "no_such_plan.json"),
        (["--executor", "quantum"], "executor='quantum' is unknown"),
        (["--without", "lat"], "there are late"),
        (["--rules", "my_pipelines_for_cli:p"], "functions of a node and the facts"),
        (["--budget", "cpus=many"], "a whole number of cores"),
        (["--budget", "gpus=1"], "--budget gpus=1: gpus"),
    ],
)
def test_what_a_run_cannot_do_is_said(module, options, said, capsys):
    assert main(["run", "my_pipelines_for_cli:rows", *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m:p", "--epochs", "0"],
        ["run", "m:p", "--limit-batches", "-1"],
        ["run", "m:p", "--workers", "two"],
        ["run", "m:p", "--seconds", "nan"],
        ["profile", "m:p", "--seconds", "0"],
        ["profile"],
        ["unknown"],
    ],
)
def test_wrong_arguments_end_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: cedar" in capsys.readouterr().err


# ---- in a terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["profile", "run"])
def test_a_terminal_gets_tables_and_a_progress_line(module, command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main([command, "my_pipelines_for_cli:rows", "--seconds", "0.2"]) == 0
    said = capsys.readouterr()
    assert "━" in said.out
    assert "map(<lambda>)" in said.out
    assert "my_pipelines_for_cli:rows" in said.err


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_bench_runs_the_workloads_of_a_checkout(capfd):
    assert main(["bench", "--list"]) == 0
    told = capfd.readouterr().out
    assert "clicklog" in told
    assert "dataloader" in told
    assert main(["bench", "--only", "nothing"]) == 2
    assert "there is no workload 'nothing'" in capfd.readouterr().err


def test_bench_says_that_it_needs_a_checkout(tmp_path, monkeypatch, capsys):
    import cedar

    monkeypatch.setattr(cedar, "__file__", str(tmp_path / "cedar" / "__init__.py"))
    assert main(["bench"]) == 1
    told = capsys.readouterr().err
    assert "cedar bench needs a checkout" in told
    assert "make bench" in told


def test_data_clicks_writes_the_rows_asked_for(tmp_path, capsys):
    import cedar

    assert main(["data", "clicks", str(tmp_path / "log"), "--rows", "300"]) == 0
    assert "wrote 300 rows" in capsys.readouterr().out
    assert cedar.read_parquet(str(tmp_path / "log/*.parquet")).count() == 300


def test_data_manifest_is_made_and_brought_up_to_date(tmp_path, capsys):
    main(["data", "clicks", str(tmp_path / "clicks"), "--rows", "300", "--rows-per-file", "100"])
    capsys.readouterr()
    out = str(tmp_path / "m")
    for read in (3, 0):
        assert main(["data", "manifest", str(tmp_path / "clicks"), "--out", out]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"{out}: 3 files, ")
        assert f"{read} footers read, {3 - read} as they were" in told
    assert cedar.read_parquet(tmp_path / "clicks", manifest=out).count() == 300


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"cedar {cedar.__version__}\n"


def test_help_lists_the_commands():
    done = subprocess.run([sys.executable, "-m", "cedar", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("explain", "data", "profile", "run", "bench", "train"))


def test_a_process_of_its_own_runs_a_pipeline(module):
    command = [sys.executable, "-m", "cedar", "run", "my_pipelines_for_cli.py:rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "100 rows in" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["explain", "profile", "run"])
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"cedar {command} my_project.data:train" in capsys.readouterr().out


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "explain" in capsys.readouterr().out
