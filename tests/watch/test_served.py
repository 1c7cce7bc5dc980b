"""Which runs a process serves: those of this user that are alive, by its id."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import cedar
from cedar.cli import main
from tests.watch.toy_runs import files


def test_a_process_is_asked_by_its_id(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pipeline, me = files(tmp_path).batch(100), os.getpid()
    with pytest.raises(cedar.PipelineError, match=f"process {me} serves none of your runs"):
        cedar.served_by(me)
    with subprocess.Popen([sys.executable, "-c", "pass"]) as killed:
        pass
    with pipeline.loader(serve="127.0.0.1:0", executor="inline") as loader:
        list(loader)
        (noted,) = (tmp_path / "cache" / "cedar" / "served").iterdir()
        assert noted.stat().st_mode & 0o777 == 0o600
        assert noted.read_text() == loader.url
        of_dead = noted.with_name(noted.name.replace(f".{me}.", f".{killed.pid}."))
        of_dead.write_text("http://127.0.0.1:1/")
        noted.with_name("mine.txt").write_text("not ours")
        assert main(["top", str(me)]) == 0
        assert "rank 0 of 1" in capsys.readouterr().out
        if not os.fork():
            loader.close()
            os._exit(0)
        os.wait()
        with pipeline.loader(serve="127.0.0.1:0", executor="inline") as other:
            assert set(cedar.served_by(me)) == {loader.url, other.url}
            assert not of_dead.exists()
            assert main(["trace", str(me), "--seconds", "1"]) == 1
            assert f"process {me} serves 2 loaders" in capsys.readouterr().err
        assert main(["trace", str(me), "--seconds", "1", "--out", str(tmp_path / "one.json")]) == 0
        assert json.loads((tmp_path / "one.json").read_text())["traceEvents"]
    assert [path.name for path in noted.parent.iterdir()] == ["mine.txt"]
