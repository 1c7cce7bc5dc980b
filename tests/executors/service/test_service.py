"""The service: its policy by itself, then jobs that share results and workers that come and go with the trainers."""

from __future__ import annotations

import json
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
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.cli import main
from cedar.cli.ranks_page import serve
from cedar.executors import dask
from cedar.executors.dask.local import LocalHost
from cedar.executors.dask.signals import Signal
from cedar.executors.service.plugin import ServicePlugin
from cedar.executors.service.policy import Policy
from cedar.executors.service.status import JobStatus, ServiceStatus

ROWS = 60


def signal(waiting: float, busy: float, run: str = "r") -> Signal:
    return Signal(run, "job", 0, buffered=1, ahead=4, waiting=waiting, rows_per_second=100.0, busy=busy)


# ---- policy ----------------------------------------------------------------------------------------------------------


def test_a_trainer_that_waits_gets_workers_at_once_up_to_the_most() -> None:
    policy, have = Policy(1, 10), 1
    seen = []
    for _ in range(8):
        have = policy.wanted([signal(0.5, busy=have)], have)
        seen.append(have)
    assert seen == [2, 3, 4, 6, 9, 10, 10, 10]


def test_workers_go_only_after_several_looks_that_agree() -> None:
    policy = Policy(1, 10, patience=3)
    calm = [signal(0.0, busy=2.0)]
    assert [policy.wanted(calm, 8) for _ in range(3)] == [8, 8, 3]
    assert policy.wanted([signal(0.0, busy=2.0), signal(0.3, busy=5.0, run="s")], 8) == 10  # someone waits
    assert [policy.wanted(calm, 10) for _ in range(2)] == [10, 10]


def test_waiting_that_workers_cannot_end_brings_no_workers() -> None:
    assert Policy(1, 10).wanted([signal(1.0, busy=0.5)], 8) == 8


def test_without_trainers_the_least_remain() -> None:
    policy = Policy(2, 10, patience=2)
    assert [policy.wanted([], 6) for _ in range(2)] == [6, 2]


signals = st.builds(signal, st.floats(0, 1), st.floats(0, 50), st.text(max_size=3))


@given(st.lists(st.lists(signals, max_size=4), max_size=8), st.integers(1, 5), st.integers(0, 20))
def test_the_number_of_workers_stays_within_its_bounds(looks: list[list[Signal]], least: int, more: int) -> None:
    policy, have = Policy(least, least + more), least
    for look in looks:
        have = policy.wanted(look, have)
        assert least <= have <= least + more


def test_a_loader_that_says_nothing_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ServicePlugin(Policy(), 0)
    plugin.hear(signal(0.5, 1.0, run="a"))
    now = time.monotonic()
    monkeypatch.setattr("cedar.executors.service.plugin.time.monotonic", lambda: now + 60)
    plugin.hear(signal(0.5, 1.0, run="b"))
    assert [s.run for s in plugin.signals()] == ["b"]


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
    (folder / "1.jsonl").write_text('{"x": -1}\n')  # other data are computed anew
    assert len(rows(pipeline(folder, 0).loader(executor=service.address, plan="off"))) == 2 * 20 + 1 - 5
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
    deadline = time.monotonic() + 60
    loader = p.loader(executor=service.address, plan="off")
    waited = False
    for _ in loader:
        status = service.status()
        waited = waited or any(job.stalls for job in status.jobs)
        if (len(status.workers) == 2 and waited) or time.monotonic() > deadline:
            break
    assert waited
    assert len(service.status().workers) == 2
    assert main(["service", "status", service.address]) == 0
    shown = capsys.readouterr().out
    assert "workers busy" in shown
    assert "worker(s), 1 to 2" in shown  # where batches are kept meanwhile, one may have gone
    for _ in loader:
        time.sleep(0.5)  # a trainer that computes
        if len(service.status().workers) == 1 or time.monotonic() > deadline:
            break
    assert len(service.status().workers) == 1


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_scheduler_that_is_no_service_says_so() -> None:
    host = LocalHost({"workers": 0, "dashboard": None})
    try:
        with pytest.raises(cedar.PipelineError, match="is no service"):
            cedar.Service.at(host.address)
    finally:
        host.close()


def test_nothing_listens_beyond_loopback_without_tls() -> None:
    with pytest.raises(cedar.PipelineError, match="TLS is not configured") as caught:
        cedar.Service(host="0.0.0.0")
    assert "distributed.comm.tls" in str(caught.value)


@pytest.mark.parametrize("bounds", [(0, None), (3, 2), (1.5, None), (True, 4)])
def test_bounds_that_are_none(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(cedar.PipelineError, match="whole numbers"):
        cedar.Service(*bounds)


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


def test_a_status_is_readable() -> None:
    status = ServiceStatus("tcp://a:1", (JobStatus("train", 1, 0, 8, 0.25, 1234.0, 2.5),), bounds=(1, 4))
    assert "train  1     0 of 8    25%    1,234   2.5           stalls" in str(status)
