"""``cedar service``: what is told of one that runs, and of one that does not answer."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import cedar
from cedar.cli import main
from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.status import ServiceStatus

STATUS = ServiceStatus("tcp://a:1", (Signal("run", "train", 1, 0, 8, 0.25, 1234.0, 2.5),), bounds=(1, 4))


def test_the_status_is_text_in_a_pipe_and_tables_in_a_terminal(monkeypatch: Any, capsys: Any) -> None:
    asked = []
    monkeypatch.setattr(cedar.Service, "at", lambda address: asked.append(address) or STATUS)
    assert main(["service", "status", "tcp://a:1"]) == 0
    assert capsys.readouterr().out == f"{STATUS}\n"
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["service", "status", "tcp://a:1"]) == 0
    shown = capsys.readouterr().out
    assert "━" in shown
    assert "stalls" in shown
    assert STATUS.summary() in shown
    assert asked == ["tcp://a:1"] * 2


def test_a_service_that_does_not_answer_is_an_error_in_a_line(monkeypatch: Any, capsys: Any) -> None:
    def nobody(address: str) -> Any:
        raise cedar.WorkerError(f"{address} does not answer")

    monkeypatch.setattr(cedar.Service, "at", nobody)
    assert main(["service", "status", "tcp://a:1", "--follow"]) == 1
    assert capsys.readouterr().err == "error: tcp://a:1 does not answer\n"


def test_a_service_starts_as_it_is_asked_to_and_ends_when_it_is_over(monkeypatch: Any, capsys: Any) -> None:
    made: list[Any] = []

    class Started:
        address, alive = "tls://127.0.0.1:9", False

        def __init__(self, *bounds: Any, **how: Any) -> None:
            made.append((bounds, how))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            made.append("closed")

    monkeypatch.setattr(cedar, "Service", Started)
    assert main(["service", "start", "--workers", "2", "--max-workers", "4", "--port", "0", "--keep", "2GiB"]) == 0
    assert made == [((2, 4), {"host": "127.0.0.1", "port": 0, "keep": "2GiB"}), "closed"]
    assert "listening at tls://127.0.0.1:9\n" in capsys.readouterr().out


def test_an_action_is_needed(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["service"])
    assert ended.value.code == 2
    assert "ACTION" in capsys.readouterr().err
