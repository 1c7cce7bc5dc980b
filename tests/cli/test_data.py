"""``cedar data``: logs that are created, and manifests."""

from __future__ import annotations

import pytest

import cedar
from cedar.cli import main


def test_data_clicks_writes_the_rows_asked_for(tmp_path, capsys):
    import cedar

    assert main(["data", "clicks", str(tmp_path / "log"), "--rows", "300"]) == 0
    assert "wrote 300 rows" in capsys.readouterr().out
    assert cedar.read_parquet(str(tmp_path / "log/*.parquet")).count() == 300


def test_data_manifest_is_made_and_brought_up_to_date(tmp_path, capsys):
    main(["data", "clicks", str(tmp_path / "clicks"), "--rows", "300", "--rows-per-file", "100"])
    capsys.readouterr()
    out = str(tmp_path / "m")
    for read in (3, 0):
        assert main(["data", "manifest", str(tmp_path / "clicks"), "--out", out]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"{out}: 3 files, ")
        assert f"{read} footers read, {3 - read} unchanged" in told
    assert cedar.read_parquet(tmp_path / "clicks", manifest=out).count() == 300


def test_figures_that_are_none_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["data", "clicks", str(tmp_path / "log"), "--lists", "-2"])
    assert "--lists: must be an integer of at least 0, not '-2'" in capsys.readouterr().err
    assert main(["data", "clicks", str(tmp_path / "log"), "--rows", "10", "--seed", "-1"]) == 1
    assert "write_sessions(seed=-1): must be at least 0" in capsys.readouterr().err
