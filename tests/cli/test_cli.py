"""The command line: its help, its version, a process of its own."""

import subprocess
import sys

import pytest

import cedar
from cedar.cli import main


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"cedar {cedar.__version__}\n"


def test_help_lists_the_commands():
    done = subprocess.run([sys.executable, "-m", "cedar", "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("explain", "data", "profile", "run", "bench", "train"))


@pytest.mark.heavy
def test_a_process_of_its_own_runs_a_pipeline(module):
    command = [sys.executable, "-m", "cedar", "run", "my_pipelines_for_cli.py:rows"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "100 rows in" in done.stdout
    assert done.stderr == ""


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "explain" in capsys.readouterr().out
