"""``cedar bench``: the workloads of a checkout, or that there is none."""

from __future__ import annotations

import pytest

from cedar.cli import main


def test_bench_runs_the_workloads_of_a_checkout(capfd):
    assert main(["bench", "--list"]) == 0
    told = capfd.readouterr().out
    assert "clicklog" in told
    assert "dataloader" in told
    assert main(["bench", "--only", "nothing"]) == 2
    assert "there is no workload 'nothing'" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "--rounds", "0"])
    assert "must be an integer above 0" in capfd.readouterr().err


def test_bench_says_that_it_needs_a_checkout(tmp_path, monkeypatch, capsys):
    import cedar

    monkeypatch.setattr(cedar, "__file__", str(tmp_path / "cedar" / "__init__.py"))
    assert main(["bench"]) == 1
    told = capsys.readouterr().err
    assert "cedar bench needs a checkout" in told
    assert "make bench" in told
