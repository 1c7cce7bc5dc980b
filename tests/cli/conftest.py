"""A module of pipelines, as a user's own."""

from __future__ import annotations

import sys

import pytest

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

def ends():
    raise SystemExit(0)

number = 3
nothing = rows.take(0)
silent = endless.filter(lambda x: False, "x")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_pipelines_for_cli.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command adds folders
    yield "my_pipelines_for_cli"
    sys.modules.pop("my_pipelines_for_cli", None)
