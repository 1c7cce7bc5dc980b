"""The command line: its help, its version, its own process."""

import argparse
import subprocess
import sys

import pytest

import cedar
from cedar.cli import _parser, main


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"cedar {cedar.__version__}\n"


def test_help_lists_every_command_once_in_a_group(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    listed = [line.split()[0] for line in said[: said.index("options:")].splitlines() if line.startswith("  ")]
    (commands,) = [action.choices for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert sorted(listed) == sorted(commands)
    assert [line for line in said.splitlines() if line.endswith(":")][:5] == [
        "look:",
        "run:",
        "debug:",
        "data:",
        "train:",
    ]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "usage", "said"),
    [
        ("run m:p --num-workers 2", "usage: cedar run ", "--num-workers 2; did you mean --workers?"),
        ("data cluster in out --sesion x --sort t", "usage: cedar data cluster ", "did you mean --session?"),
        ("count a.csv --color", "usage: cedar count ", "unrecognized arguments: --color\n"),
        ("hed a.csv", "usage: cedar ", "there is no 'hed'; did you mean head?"),
        ("data clcks x", "usage: cedar data ", "there is no 'clcks'; did you mean clicks?"),
        ("data cluster in out --session s --sort t --unit m", "usage: cedar data cluster", "--unit: there is no 'm'"),
    ],
)
def test_a_mistyped_option_gets_the_usage_of_its_command_and_the_nearest_one(arguments, usage, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert said in error


@pytest.mark.heavy
def test_a_process_of_its_own_runs_a_pipeline(module):
    command = [sys.executable, "-m", "cedar", "run", "my_pipelines_for_cli.py:rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "100 rows in" in done.stdout
    assert done.stderr == ""


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "explain" in capsys.readouterr().out
