"""What a run's failures cost: recoveries by their parts, and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedar.cli import recoveries


@pytest.mark.heavy
def test_the_report_tells_recoveries_and_draws(tmp_path: Path) -> None:
    from cedar.trainers.resilient.control.lead import Event
    from cedar.trainers.resilient.run import Record
    from cedar.trainers.resilient.schedule import Worker

    times = {"seen": 10.3, "connected": 10.35, "agreed": 10.4, "planned": 10.45, "redo": 10.5, "kept": 3.0}
    record = Record(
        [(step, 9.0 + step, 2.0) for step in range(4)],
        [Event("failure", Worker(1, 0), 2, 10.1, 10.2, "killed")],
        {"1": {"(1, 1)": times}, "2": {"(0, 0)": times, "(1, 1)": times | {"redo": 10.7}}},
        {"2/0": ("kill", 10.0)},
    )
    (one,) = recoveries.recoveries(record)
    found = [one.detection, one.decision, one.rebuild, one.plan, one.redo, one.redo_all]
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.05, 0.5, 0.7])
    assert one.kept == 6
    pytest.importorskip("matplotlib")
    recoveries.plot(record, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").stat().st_size > 1000
