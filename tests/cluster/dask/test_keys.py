"""No client connects to what cedar starts without the key that was made for it."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import cedar
from cedar.cluster.dask.clients import _client_class, connected
from cedar.cluster.dask.keys import forget, know, new_keys, security, security_at

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

pytest.importorskip("distributed")
REFUSED = (ssl.SSLError, ConnectionError, TimeoutError, OSError)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cedar.Service]:
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))
    with cedar.Service(workers=1) as made:
        yield made
    patch.undo()


def listening(service: cedar.Service) -> list[tuple[str, int]]:
    """All sockets at which the service's processes listen: scheduler, nanny, worker."""
    host = psutil.Process(service._host.pid)
    found = [
        (c.laddr.ip, c.laddr.port)
        for process in [host, *host.children(recursive=True)]
        for c in process.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    assert len(found) >= 3
    return found


def hello(ip: str, port: int, context: ssl.SSLContext | None) -> bytes:
    """What is answered to something who connects."""
    with socket.create_connection((ip, port), timeout=60) as plain:
        if context is None:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return plain.recv(100)
        with context.wrap_socket(plain) as end:
            end.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return end.recv(100)


def contexts() -> dict[str, ssl.SSLContext | None]:
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    other = security(new_keys()).get_connection_args("client")["ssl_context"]
    other.verify_mode = ssl.CERT_NONE  # an intruder does not ask
    return {"plain": None, "no key": blind, "another key": other}


def test_it_listens_on_loopback_alone(service: cedar.Service) -> None:
    assert {ip for ip, _ in listening(service)} == {"127.0.0.1"}
    for _, port in listening(service):
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=60):
            pass


@pytest.mark.parametrize("how", ["plain", "no key", "another key"])
def test_no_socket_answers_without_the_key(service: cedar.Service, how: str) -> None:
    context = contexts()[how]
    for ip, port in listening(service):
        try:
            answer = hello(ip, port, context)
        except REFUSED:
            continue
        assert answer == b"", f"port {port} answered {answer!r}"
    assert service.status().workers  # it runs all the same


def test_a_client_of_dask_without_the_key_is_refused(service: cedar.Service) -> None:
    client = _client_class()  # closes itself
    with pytest.raises((OSError, TypeError, ValueError)):
        client(service.address, timeout=60, set_as_default=False)
    stranger = security(new_keys())
    with pytest.raises(OSError):
        client(service.address, timeout=60, set_as_default=False, security=stranger)


def test_the_key_lies_where_this_user_alone_reads_it_and_goes_with_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with cedar.Service(workers=1) as service:
        (file,) = (tmp_path / "cedar" / "services").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        code = f"import cedar; print(len(cedar.Service.at({service.address!r}).workers))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
        assert told.stdout == "1\n", told.stderr
        for argument in Path(f"/proc/{service._host.pid}/cmdline").read_bytes().split(b"\0"):
            assert b"PRIVATE KEY" not in argument
    assert not file.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused(service: cedar.Service) -> None:
    """Who knows the address, and where the key lies."""
    code = f"""
import os, ssl, socket, sys, encodings.idna
os.setgroups([]); os.setgid(65534); os.setuid(65534)
path = sys.argv[1]
try:
    open(path)
except PermissionError:
    print("no key")
ctx = ssl.create_default_context(); ctx.check_hostname = False; ctx.verify_mode = ssl.CERT_NONE
try:
    with socket.create_connection(("127.0.0.1", {int(service.address.rsplit(":", 1)[1])}), timeout=60) as plain:
        end = ctx.wrap_socket(plain)
        end.sendall(b"x" * 64)
        print("answered" if end.recv(10) else "closed")
except (ssl.SSLError, OSError):
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(service._key_file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() in (["no", "key", "refused"], ["no", "key", "closed"]), done


@pytest.mark.parametrize("change", ["readable", "link", "garbage", *(["not mine"] if os.geteuid() == 0 else [])])
def test_a_key_file_that_a_stranger_could_have_written_is_not_used(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cedar.cluster.dask import keys

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = "tls://127.0.0.1:9"
    path = Path(str(keys.publish(address, new_keys())))
    assert security_at(address).tls_client_key
    if change == "readable":
        path.chmod(0o644)
    elif change == "not mine":
        os.chown(path, 12345, -1)
    elif change == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text('{"certificate": 3}')
    if change in ("readable", "not mine"):
        with pytest.raises(cedar.WorkerError, match="other users can access") as caught:
            security_at(address)
        assert str(path) in str(caught.value)
    else:
        assert security_at(address).tls_client_key is None


def test_clusters_of_the_user_keep_their_own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import dask

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with dask.config.set({"distributed.comm.tls.client.cert": "/etc/mine.pem"}):
        assert security_at("tls://10.0.0.1:8786").tls_client_cert == "/etc/mine.pem"
    know("tls://x:1", {"certificate": "c\n", "key": "k\n"})
    try:
        assert security_at("tls://x:1").tls_client_key == "k\n"
    finally:
        forget("tls://x:1")
    assert security_at("tls://x:1").tls_client_key is None


def test_nobody_answers_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(cedar.WorkerError, match="none are configured") as caught:
        connected("tls://127.0.0.1:9")
    assert "by the user who started it" in str(caught.value)
