"""What arguments may be, and what help says of them."""

from __future__ import annotations

import pytest

from cedar.cli import main


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


@pytest.mark.parametrize("command", ["explain", "profile", "run"])
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"cedar {command} my_project.data:train" in capsys.readouterr().out
