"""The progress line: where it shows, what it says, and of which seconds."""

from __future__ import annotations

import io
import sys
import types

import pytest

import cedar
from cedar.control.timeline import Spent, Timeline
from cedar.engine.metrics import Metrics
from cedar.watch import observers, progress
from cedar.watch.progress import Progress, RecentRate, Remaining
from tests.watch.toy_runs import numbers


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_in_a_terminal_only(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    time = Timeline({("operator", (1,)): Spent(2.0, 2.0)}, capacity=2.0, elapsed=2.0, waited=2.0)
    metrics = Metrics(time, rows=1234, labels={0: "read", 1: "map(slow)"})
    with Progress("count") as line:
        line.update(metrics)
    shown = stream.getvalue()
    told = "count: 1,234 rows, 617 rows/s, waited 100% for map(slow)"
    assert (told in " ".join(shown.split())) if terminal else shown == ""


def test_progress_shows_percent_and_time_left_where_counts_are_known(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with Progress("loader", lambda: (25, 100)) as line:
        line.update(Metrics(Timeline(elapsed=50.0), rows=1234))
    assert "loader: [###---------] 25% 2:30 left" in stream.getvalue()
    with Progress("loader", lambda: (25, None)) as line:
        line.update(Metrics(rows=99))
    assert "99 rows, 0 rows/s" in stream.getvalue()


def test_a_loader_knows_its_position_and_starts_anew_with_each_epoch():
    loader = cedar.from_items([{"x": i} for i in range(10)]).batch(2).loader(executor="inline")
    seen = [loader.position() for _ in loader]
    assert seen == [(n, 5) for n in range(1, 6)]
    assert loader.position() == (0, 5)
    unknown = cedar.from_items([{"x": i} for i in range(10)]).filter(lambda x: x > 2, "x").loader(executor="inline")
    assert [unknown.position() for _ in unknown][-1] == (7, None)


def test_progress_shows_in_a_notebook(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    made = types.SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with Progress("loader", lambda: (1, 2)) as line:
        line.update(Metrics(Timeline(elapsed=2.0), rows=5))
    assert len(shown) == 1
    assert "[######------] 50% 0:02 left" in shown[0]


def test_progress_is_quiet_for_a_second(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("count") as line:
        line.update(Metrics(rows=1))
    assert stream.getvalue() == ""


def test_rates_are_of_the_last_seconds():
    metrics, lately = Metrics(), RecentRate()
    for second in range(100):
        metrics.time.elapsed, metrics.rows = float(second), metrics.rows + (1000 if second < 50 else 10)
        metrics.time.waited += 0.0 if second < 50 else 1.0
        rate, stall = lately.of(metrics)
    assert rate == pytest.approx(10)
    assert stall == pytest.approx(1)


def test_the_time_left_counts_from_the_beginning_of_the_epoch():
    left = Remaining()
    assert left.of(90.0, 0, 90, 100) == (0.9, pytest.approx(10))
    assert left.of(200.0, 1, 0, 100) == (0.0, None)
    assert left.of(210.0, 1, 50, 100) == (0.5, pytest.approx(10))
    assert left.of(211.0, 1, 50, None) is None


def test_where_nobody_looks_a_line_is_written_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    metrics = Metrics(Timeline({("operator", (1,)): Spent(2.0, 2.0)}, capacity=2.0, elapsed=2.0, waited=2.0), rows=10)
    metrics.labels = {1: "map(slow)"}
    with Progress("loader", lambda: (5, 10), lambda: 3, plain=True) as line:
        line.update(metrics)
    told = "epoch 3 [######------] 50%, 5 rows/s, waited 100% for map(slow)\n"
    assert capsys.readouterr().err == told
    with Progress("count", lambda: (5, 10)) as line:
        line.update(metrics)
    assert capsys.readouterr().err == ""


def test_nothing_is_written_unless_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", 0.0)
    with numbers().loader(executor="inline") as loader:
        list(loader)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(observers, "_UPDATE_SECONDS", 0.0)
    with numbers().loader(executor="inline", progress=True) as loader:
        list(loader)
    assert "epoch 0 [------------] 2%" in capsys.readouterr().err


@pytest.mark.parametrize("epoch", [0, 123_456])
@pytest.mark.parametrize("total", [None, 10**12])
@pytest.mark.parametrize("rows", [0, 10**11])
def test_a_line_fits_80_columns_beside_a_spinner(epoch, total, rows):
    time = Timeline({("operator", (1,)): Spent(9e4, 9e4)}, capacity=9e4, elapsed=9e4, waited=9e4)
    metrics = Metrics(time, rows=rows, labels={1: "map(" + "long" * 50 + ")"})
    line = Progress("loader", lambda: (rows, total), lambda: epoch).text(metrics)
    assert len(line) <= 78
    assert line.startswith(f"epoch {epoch} ")
