"""The command line, as a user meets it."""

import subprocess
import sys

import pytest

from cedar.cli import main

PIPELINE = """
import cedar

p = cedar.from_items([{"x": 1}, {"x": 2}]).filter(cedar.col("x") > 1)

def made():
    return p.batch(1)

def needs(path):
    return p

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_pipelines_for_cli.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    yield "my_pipelines_for_cli"
    sys.modules.pop("my_pipelines_for_cli", None)


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
    ],
)
def test_a_wrong_target_is_named(module, target, said, capsys):
    assert main(["explain", target]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


@pytest.mark.parametrize("command", ["profile", "run", "bench", "train"])
def test_what_is_not_there_says_so(command, capsys):
    assert main([command, "module:p", "--flag"]) == 1
    assert f"cedar {command} is not there yet" in capsys.readouterr().err


def test_data_clicks_writes_the_rows_asked_for(tmp_path, capsys):
    import cedar

    assert main(["data", "clicks", str(tmp_path / "log"), "--rows", "300"]) == 0
    assert "wrote 300 rows" in capsys.readouterr().out
    assert cedar.read_parquet(str(tmp_path / "log/*.parquet")).count() == 300


def test_help_lists_the_commands():
    done = subprocess.run([sys.executable, "-m", "cedar.cli", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("explain", "data", "profile", "run", "bench", "train"))


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "explain" in capsys.readouterr().out
