"""The pages of ``cedar top --page``: all ranks, whatever is wrong with one."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import cedar
from cedar.cli import main
from cedar.cli.ranks_page import page_of, page_of_service
from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.status import ServiceStatus
from tests.watch.toy_runs import files, served


def test_all_ranks_are_on_one_page(tmp_path):
    pipeline = files(tmp_path).batch(100)
    loaders = [pipeline.loader(serve="127.0.0.1:0", rank=r, world=2, executor="inline") for r in range(2)]
    urls = [loader.url for loader in loaders]
    command = [sys.executable, "-m", "cedar", "top", *urls, "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[0]
            page, headers = served(url, "/")
            assert "2 ranks, " in page
            assert "rank 0 of 2" in page
            assert "rank 1 of 2" in page
            assert "script" not in headers["Content-Security-Policy"]
            for _ in loaders[0]:
                pass
            assert "2,000 rows" in served(url, "/")[0]
            loaders[1].close()
            later = served(url, "/")[0]
            assert "1 ranks, " in later
            assert "no run answers at this address" in later
            with pytest.raises(urllib.error.HTTPError):
                served(url.partition("?")[0] + "?token=x", "/")
        finally:
            process.terminate()
    loaders[0].close()
    with pytest.raises(SystemExit):
        main(["top", "--page", "127.0.0.1:0"])


def test_a_rank_that_does_not_answer_is_named_beside_the_others() -> None:
    asked = []

    def ask(url: str) -> bytes:
        asked.append(url)
        if ":2/" in url:
            raise cedar.PipelineError("nothing <there>")
        return b"<p>rows</p>"

    page = page_of(["http://a:1/status?token=x", "http://b:2/status?token=y"], "2 < 3 ranks", ask)
    assert asked == ["http://a:1/report?token=x", "http://b:2/report?token=y"]
    assert "<details open><summary>a:1</summary><p>rows</p></details>" in page
    assert "<details><summary>b:2</summary><p>nothing &lt;there&gt;</p></details>" in page
    assert "2 &lt; 3 ranks" in page
    assert "token" not in page


def test_jobs_and_workers_of_a_service_are_tables() -> None:
    job = Signal("run", "<train>", 1, 0, 8, 0.25, 1234.0, 2.5)
    status = ServiceStatus("tcp://a:1", (job,), bounds=(1, 4))
    page = page_of_service(status)
    assert page.count("<table") == 2
    assert page.count("<th ") == len(status.job_cells()[0]) + len(status.worker_cells()[0])
    assert "&lt;train&gt;</td>" in page
    assert "stalls</td>" in page
