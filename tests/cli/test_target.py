"""Pipelines by name: modules and files, and whatever is wrong with them."""

from __future__ import annotations

import pytest

from cedar.cli import main


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
