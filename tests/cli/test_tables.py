"""Tables in a terminal, plain text elsewhere."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console

import cedar
from cedar.cli import main
from cedar.cli.tables import report_table


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
    assert command == "run" or "my_pipelines_for_cli:rows" in said.err  # a run's own line comes after a second


def test_a_terminal_is_told_all_that_a_pipe_is_told():
    with cedar.from_items([{"tags": [i // 8]} for i in range(64)]).dedup([["tags"]]).batch(8).loader() as loader:
        list(loader)
        report = replace(loader.report(), deaths=("worker 7 was killed",), restarts=1, skipped={"map(f)": 3})
    console = Console(width=400, file=io.StringIO())
    console.print(report_table(report))
    shown = console.file.getvalue()
    for line in ("dedup tags: each row held once for 8", "worker 7 was killed", "skipped 3 row(s) in map(f)"):
        assert line in str(report)
        assert shown.count(line) == 1
