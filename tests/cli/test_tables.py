"""Tables in a terminal, plain text elsewhere."""

from __future__ import annotations

import sys

import pytest

from cedar.cli import main


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
