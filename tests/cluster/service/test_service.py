"""The service: its policy by itself, then jobs that share results and workers that come and go with the trainers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import cedar
from cedar.cli import main
from cedar.cli.top import serve
from cedar.cluster import dask
from cedar.cluster.dask.local import LocalHost
from tests.waiting import LIMIT, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

ROWS = 60


# ---- a real one ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[cedar.Service]:
    with cedar.Service(1, 2, patience=2) as service:
        yield service
        dask.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in range(3):
        rows = [json.dumps({"x": part * 20 + i}) for i in range(20)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def pipeline(folder: Path, extra: int) -> cedar.Pipeline:
    """Jobs that differ in what comes after the cache alone."""
    calls = str(folder / "calls")

    def costly(x: int) -> int:
        with open(calls, "a") as file:
            file.write("x")
        return x * 10

    p = cedar.read_jsonl(str(folder / "*.jsonl")).map(costly, "x", dtype=int).cache("memory")
    return p.map(lambda x: x + extra, "x", dtype=int).batch(6)


def rows(loader: Any) -> list[int]:
    return [x for batch in loader for x in batch["x"].tolist()]


def test_jobs_share_what_their_plans_have_in_common(service: cedar.Service, folder: Path) -> None:
    for extra in (0, 1):
        got = rows(pipeline(folder, extra).loader(executor=service.address, plan="off"))
        assert got == [x * 10 + extra for x in range(ROWS)]
    assert len((folder / "calls").read_text()) == ROWS
    assert service.status().shared == 3
    assert service.status().reused >= 3
    (folder / "1.jsonl").write_text('{"x": -1}\n')  # other data are computed again
    assert len(rows(pipeline(folder, 0).loader(executor=service.address, plan="off"))) == 2 * 20 + 1
    assert service.status().shared == 6


def test_a_row_that_fails_names_itself_through_a_shared_result(service: cedar.Service, folder: Path) -> None:
    p = cedar.read_jsonl(str(folder / "*.jsonl")).map(lambda x: 1 // (x - 30), "x", dtype=int).cache("memory").batch(6)
    with pytest.raises(cedar.RowError, match="ZeroDivisionError") as caught:
        rows(p.loader(executor=service.address, plan="off"))
    assert caught.value.row is not None
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_workers_come_for_a_trainer_that_waits_and_go_with_one_that_is_slow(
    service: cedar.Service, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(x: int) -> int:
        time.sleep(0.05)
        return x

    p = cedar.from_items([{"x": i} for i in range(4000)]).map(slow, "x", dtype=int).batch(4)
    deadline = time.monotonic() + LIMIT
    loader = p.loader(executor=service.address, plan="off")
    waited = grown = False
    for _ in loader:
        status = service.status()
        waited = waited or any(job.stalls for job in status.jobs)
        grown = grown or len(status.workers) == 2
        if (grown and waited) or time.monotonic() > deadline:
            break
    assert waited
    assert grown
    assert main(["service", "status", service.address]) == 0
    shown = capsys.readouterr().out
    assert "workers busy" in shown
    assert "worker(s), 1 to 2" in shown  # where batches are kept meanwhile, one may have gone
    for _ in loader:
        # a trainer that computes
        assert eventually(lambda: len(service.status().workers) == 1)
        break


@pytest.mark.parametrize("end", ["closed", "killed", "between epochs"])
def test_a_trainer_goes_on_when_its_service_is_started_again(end: str, caplog: pytest.LogCaptureFixture) -> None:
    first = cedar.Service(1)
    p = cedar.from_items([{"x": i} for i in range(4000)]).map(lambda x: x + 1, "x", dtype=int).batch(16, last="keep")
    loader, second = p.loader(executor=first.address, plan="off"), []

    def start() -> None:
        while "waiting up to 600 s for it to return" not in caplog.text:
            time.sleep(0.02)
        second.append(cedar.Service(1, port=int(first.address.rpartition(":")[2])))

    def stop() -> None:
        if end == "killed":
            os.kill(first._host.pid, signal.SIGKILL)
        else:
            first.close()

    starting = Thread(target=start, daemon=True)
    if end == "between epochs":
        rows(loader)
        stop()
        starting.start()
        got = rows(loader)
    else:
        batches = iter(loader)
        got = [x for _ in range(3) for x in next(batches)["x"].tolist()]
        stop()
        starting.start()
        got += rows(batches)
    starting.join(60)
    assert got == list(range(1, 4001))
    assert caplog.text.count("waiting up to") == 1
    first.close()  # again, which takes nothing from the next one
    assert second[0].address == first.address
    assert second[0].status().workers
    second[0].close()
    dask.close()


def test_the_keys_of_a_service_go_with_it_however_its_program_ends(tmp_path: Path) -> None:
    code = "import cedar, os; print(cedar.Service()._key_file, flush=True); os.kill(os.getpid(), 9)"
    home = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=home) as program:
        assert program.stdout is not None
        keys = Path(program.stdout.readline().strip())
        assert program.wait(60) == -signal.SIGKILL
    assert keys.parent == tmp_path / "cedar" / "services"
    assert eventually(lambda: not keys.exists())


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_scheduler_that_is_no_service_says_so() -> None:
    host = LocalHost({"workers": 0, "dashboard": None})
    try:
        with pytest.raises(cedar.PipelineError, match="is not a service"):
            cedar.Service.at(host.address)
    finally:
        host.close()


def test_nothing_listens_beyond_loopback_without_tls() -> None:
    with pytest.raises(cedar.PipelineError, match="TLS is not configured") as caught:
        cedar.Service(host="0.0.0.0")
    assert "distributed.comm.tls" in str(caught.value)


@pytest.mark.parametrize("bounds", [(0, None), (3, 2), (1.5, None), (True, 4)])
def test_bounds_that_are_none(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(cedar.PipelineError, match="integers"):
        cedar.Service(*bounds)


@pytest.mark.parametrize("port", [-1, 65536, True, "80"])
def test_ports_that_are_none(port: Any) -> None:
    with pytest.raises(cedar.PipelineError, match="from 0 to 65535"):
        cedar.Service(port=port)


def test_the_status_of_a_service_is_a_page_too(service: cedar.Service, folder: Path) -> None:
    command = [sys.executable, "-m", "cedar", "service", "status", service.address, "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[0]
            assert "workers busy" in shown(url)
            assert service.address in shown(url)
            with pytest.raises(urllib.error.HTTPError):
                shown(url.partition("?")[0])
        finally:
            process.terminate()


def shown(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_a_page_names_what_is_wrong_with_a_service_that_is_gone() -> None:
    def gone() -> str:
        raise cedar.WorkerError("the <service> does not answer")

    url, server = serve("127.0.0.1:0", gone)
    thread = Thread(target=server.serve_forever)
    thread.start()
    assert "the &lt;service&gt; does not answer" in shown(url)
    server.shutdown()
    server.server_close()
    thread.join()
