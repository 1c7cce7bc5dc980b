"""Who may connect: those who hold the run's key, at the one address that is listened at; nothing else."""

import os
import socket
import subprocess
import sys
import threading

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common import links
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.executor import Waiting
from cedar.trainers.resilient.executor.network import SocketTransport
from cedar.trainers.resilient.schedule import Worker
from tests.trainers.toy_store import KEY

OTHER = b"o" * links.KEY
ONE, TWO = Worker(0, 0), Worker(1, 0)


def own_address():
    """An address of this machine that is not loopback; it need not be reachable from anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has loopback alone")
        return probe.getsockname()[0]


def shut(link):
    """Whether the other end has closed, with nothing said."""
    try:
        return link.recv(64) == b""
    except ConnectionResetError:
        return True


def test_a_connection_without_the_key_is_refused(served):
    board = Board(store.connect("127.0.0.1", served, KEY))
    with pytest.raises(CedarError, match="the other process rejected this key"):
        store.connect("127.0.0.1", served, OTHER)
    with socket.create_connection(("127.0.0.1", served), timeout=60) as stranger:  # says what it wants at once
        links.receive_exactly(stranger, links.KEY)
        links.send_frame(stranger, b'["put", "a", "1"]' + b" " * 60)
        assert shut(stranger)
    with socket.create_connection(("127.0.0.1", served), timeout=60) as replayed:  # what another connection proved
        links.receive_exactly(replayed, links.KEY)
        replayed.sendall(b"\0" * links.KEY + links._proof(KEY, b"dials", b"\1" * links.KEY, b"\0" * links.KEY))
        assert shut(replayed)
    assert board.get("a") is None  # and those who hold it are served as before


def test_a_store_without_the_key_is_not_believed():
    """Who listens at a port that a store has left learns nothing, and is told nothing."""
    heard = []
    with links.listen("127.0.0.1") as listener:

        def pretend():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\0" * links.KEY)
                heard.append(links.receive_exactly(connection, 2 * links.KEY))
                connection.sendall(b"\0" * links.KEY)
                heard.append(connection.recv(64))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(CedarError, match="does not have this run's key"):
            store.connect("127.0.0.1", listener.getsockname()[1], KEY)
        thread.join()
    assert KEY not in heard[0]
    assert heard[1] == b""


def test_other_addresses_are_not_listened_at(served):
    address = own_address()
    with pytest.raises(OSError, match="refused|timed out|unreachable"):
        socket.create_connection((address, served), timeout=2)
    board = Board(store.connect("127.0.0.1", served, KEY))
    transport = SocketTransport(board, "127.0.0.1", KEY, [ONE, TWO], ONE, Waiting(1, lambda: 1, 5), 1)
    host, port = board.get(keys.LISTENS(1, ONE))
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused|timed out|unreachable"):
        socket.create_connection((address, port), timeout=2)
    transport.close()


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="only root may become another user")
def test_another_user_of_the_machine_gets_in_nowhere(served, tmp_path):
    """Not by the port, and not by the file that holds the key."""
    path = tmp_path / "run.key"
    key = b"k" * links.KEY
    links.write_key(str(path), key)
    assert path.stat().st_mode & 0o777 == 0o600
    tmp_path.chmod(0o755)
    code = f"""
import encodings.idna, os, socket  # what a name is looked up with, while this user may read it
os.setgid(65534); os.setuid(65534)
try:
    open({str(path)!r}).read()
except OSError:
    print("no key")
with socket.create_connection(("127.0.0.1", {served}), timeout=60) as link:
    link.sendall(b"x" * 200)
    while link.recv(64): pass
    print("shut")
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[0] == "no key"
    assert "shut" in done.stdout or "ConnectionResetError" in done.stderr
    assert links.read_key(str(path)) == key


def test_a_key_that_others_could_have_read_is_refused(tmp_path):
    path = str(tmp_path / "run.key")
    links.write_key(path, b"k" * links.KEY)
    os.chmod(path, 0o640)
    with pytest.raises(CedarError, match="is accessible to other users"):
        links.read_key(path)
    os.symlink(path, tmp_path / "link")
    with pytest.raises(CedarError, match="cannot be read"):
        links.read_key(str(tmp_path / "link"))
    with pytest.raises(CedarError, match=r"cannot be read.*(\n.*)*its first machine writes the key there"):
        links.read_key(str(tmp_path / "none"))


def test_messages_from_a_stranger_are_taken_for_nobody_s(served):
    """A worker that expects a message from another one does not take it from who cannot prove to be of the run."""
    ends = {}
    for me in (ONE, TWO):
        board = Board(store.connect("127.0.0.1", served, KEY))
        ends[me] = SocketTransport(board, "127.0.0.1", KEY, [ONE, TWO], me, Waiting(1, lambda: 1, 10), 1)
    ends[TWO].expect(ONE, (2,), torch.float32)
    port = board.get(keys.LISTENS(1, TWO))[1]
    with pytest.raises(links.RefusedConnection):
        links.dial("127.0.0.1", port, OTHER)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        links.receive_exactly(stranger, links.KEY)
        stranger.sendall(b"[0, 0]" + torch.full((50,), 666.0).numpy().tobytes())
        ends[ONE].send(TWO, torch.tensor([1.0, 2.0]))
        assert ends[TWO].receive(ONE).tolist() == [1.0, 2.0]
    for end in ends.values():
        end.close()
