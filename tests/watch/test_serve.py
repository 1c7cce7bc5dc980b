"""A run that is served: to whom, how long, and what there is."""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import urllib.error
import urllib.request
from threading import Thread
from urllib.parse import urlsplit

import pytest

import cedar
from cedar.cli import main
from cedar.watch import serve
from tests.watch.toy_runs import add_one, asked, files, numbers, served


def test_the_status_is_served_to_who_has_the_token(capsys):
    with numbers().loader(serve="127.0.0.1:0", executor="threads", workers=2) as loader:
        batches = iter(loader)
        next(batches)
        code, text = asked(loader.url)
        found = json.loads(text)
        assert code == 200
        assert (found["step"], found["steps"], found["rows"]) == (1, 40, 50)
        assert asked(loader.url[:-1])[0] == 403
        assert asked(loader.url.partition("?")[0])[0] == 403
        assert asked(loader.url.replace("/status", "/etc"))[0] == 404
        assert main(["top", loader.url]) == 0
        shown = capsys.readouterr().out
        assert "step 1 of 40, 50 rows" in shown
        assert "threads, 2 worker(s)" in shown
        batches.close()
        url = loader.url
    assert not [thread for thread in threading.enumerate() if thread.name == "cedar-serve"]
    assert main(["top", url]) == 1
    assert "no run answers at this address" in capsys.readouterr().err
    assert main(["top", "file:///etc/passwd"]) == 1


def test_a_loader_that_is_let_go_of_is_served_no_more():
    import gc

    loader = numbers().loader(serve="127.0.0.1:0", executor="inline")
    del loader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "cedar-serve"]


def test_a_fork_leaves_the_address_to_its_parent():
    import gc

    loader = numbers().loader(serve="127.0.0.1:0", executor="inline")
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(20, exit=True)  # as something who waits for a thread that is not there
        loader.close()
        del loader
        gc.collect()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert asked(loader.url)[0] == 200
    loader.close()


def test_a_token_of_ones_own(monkeypatch):
    monkeypatch.setenv(serve.TOKEN, "known")
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader:
        assert loader.url.endswith("/status?token=known")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", 8080])
def test_an_address_that_is_none(address):
    with pytest.raises(cedar.PipelineError, match="is not an address") as caught:
        numbers().loader(serve=address)
    assert caught.value.site.file == __file__


def test_an_address_that_is_taken():
    refused = pytest.raises(cedar.PipelineError, match="cannot listen on")
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader, refused as caught:
        numbers().loader(serve=urlsplit(loader.url).netloc)
    assert "port 0" in caught.value.fix


def test_metrics_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with numbers().loader(serve="127.0.0.1:0", executor="inline") as loader:
        code, text = asked(loader.url.replace("/status", "/metrics"))
    assert code == 501
    assert "cedar-data[metrics]" in text


def test_a_run_that_is_served_has_a_page_and_gives_traces(tmp_path, capsys):
    pipeline = files(tmp_path).map(add_one, "x").batch(100)
    with pipeline.repeat().loader(serve="127.0.0.1:0", executor="threads") as loader:
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        page, headers = served(loader.url, "/")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "5,000 rows" in page
        assert "map(add_one)" in served(loader.url, "/report")[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            served(loader.url, "/trace", seconds=61)
        assert refused.value.code == 400
        got = {}
        request_owner = Thread(target=lambda: got.update(trace=served(loader.url, "/trace", seconds=1)[0]))
        request_owner.start()
        while request_owner.is_alive():
            next(batches)
        found = json.loads(got["trace"])
        assert sum(event["name"] == "map(add_one)" for event in found["traceEvents"]) > 0
        assert loader._epochs.job.metrics.time.recording is None  # nothing asks any more
        (tmp_path / "now.json").write_text(got["trace"])
        cedar.view_trace(tmp_path / "now.json")


def test_a_file_whose_name_is_no_unicode_has_pages_figures_and_a_profile(tmp_path):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    name = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.jsonl")
    with open(name, "w") as file:
        file.write('{"x": 1}\n')
    pipeline = cedar.read_jsonl(name)
    with pipeline.loader(serve="127.0.0.1:0", executor="inline", trace=tmp_path / "run.json") as loader:
        assert len(list(loader)) == 1
        loader.report().html(tmp_path / "report.html")
        shown = [served(loader.url, path)[0] for path in ("/", "/report")]
        assert r"bad\\udcff.jsonl" in served(loader.url, "/metrics")[0]
    cedar.view_trace(tmp_path / "run.json")
    shown += [(tmp_path / page).read_text(encoding="utf-8") for page in ("report.html", "run.html")]
    assert all("bad&#56575;.jsonl" in page for page in shown)
    profile = pipeline.profile(seconds=0.01)
    profile.save(tmp_path / "p.json")
    assert cedar.Profile.load(tmp_path / "p.json").operators[0].label == profile.operators[0].label
