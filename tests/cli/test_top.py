"""``cedar top``: all ranks of a job, by address or by process."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from threading import Thread

import pytest

from cedar.cli import main
from tests.watch.toy_runs import files


def test_top_shows_all_ranks_and_which_of_them_waits_most(tmp_path, capsys):
    pipeline = files(tmp_path).batch(100)
    with ExitStack() as stack:
        options = {"serve": "127.0.0.1:0", "world": 2, "executor": "inline"}
        loaders = [stack.enter_context(pipeline.loader(rank=rank, **options)) for rank in range(2)]
        for rank, loader in enumerate(loaders):
            for _ in loader:
                time.sleep(0.05 * rank)  # the trainer of rank 1 works nearly all the time, on any machine
        assert main(["top", *(loader.url for loader in loaders)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 ranks, ")
    assert "rank 0 waits most" in told
    assert "rank 1 of 2" in told


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "no run answers at this address: SSH-2.0-OpenSSH_9\n"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b'{"a": 1}', "the server at this address is not a run: KeyError: 'seconds'"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "the server at this address is not a run: TypeError"),
        (
            b"HTTP/1.0 403 Forbidden\r\n\r\nthe token is wrong\n",
            "refused the request: HTTP Error 403: Forbidden: the token is wrong",
        ),
    ],
)
def test_what_answers_and_is_no_run_is_an_error(answer, said, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        once = Thread(target=answered, args=(server, answer))
        once.start()
        assert main(["top", f"http://127.0.0.1:{server.getsockname()[1]}/status"]) == 1
        once.join()
    assert said in capsys.readouterr().err


def answered(server, answer):
    with server.accept()[0] as request_owner:
        request_owner.recv(4096)
        request_owner.sendall(answer)


@pytest.mark.parametrize("command", ["top", "trace"])
def test_what_is_no_address_is_an_error(command, capsys):
    assert main([command, "http://[bad"]) == 1
    assert "'http://[bad' is not the address of a run" in capsys.readouterr().err
