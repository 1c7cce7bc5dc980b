"""A server for who has its token: what it says to others, and addresses that it cannot have."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from cedar.core.errors import PipelineError, Site
from cedar.core.listen import HTML, TokenHandler, listen


class Echo(TokenHandler):
    """Answers with what it was asked."""

    token = "known"
    policy = "default-src 'none'"

    def get(self, path: str, asked: Mapping[str, str]) -> None:
        self.answer(200, f"{path} {asked['a']} é")


def asked(server: Any, question: str) -> tuple[int, str, Any]:
    """The code, the text and the headers of one answer."""
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{question}", timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers
    finally:
        thread.join()


def test_who_has_the_token_is_answered_and_nobody_else() -> None:
    with listen("127.0.0.1:0", "serve=", Echo) as server:
        code, text, headers = asked(server, "/x?token=known&a=%20b")
        assert (code, text) == (200, "/x  b é")
        assert headers["Content-Security-Policy"] == Echo.policy
        assert headers["Cache-Control"] == "no-store"
        for wrong in ("", "?token=", "?token=knowN", "?a=known"):
            assert asked(server, f"/x{wrong}")[:2] == (403, "the token is missing, or wrong\n")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", ":80", "127.0.0.1:-1", "127.0.0.1:65536", 8080, None])
def test_what_is_no_address_is_refused_at_the_line(address: Any) -> None:
    with pytest.raises(PipelineError, match="is not an address") as caught:
        listen(address, "--page ", Echo, Site("user.py", 3))
    assert caught.value.what.startswith(f"--page {address!r}")
    assert caught.value.site == Site("user.py", 3)


def test_a_port_that_is_taken_is_said() -> None:
    with listen("127.0.0.1:0", "serve=", Echo) as server:
        taken = f"127.0.0.1:{server.server_port}"
        with pytest.raises(PipelineError, match=f"cannot listen on serve='{taken}'") as caught:
            listen(taken, "serve=", Echo)
    assert "port 0 takes any" in str(caught.value.fix)


def test_names_of_files_that_are_no_unicode_are_told_all_the_same() -> None:
    class Names(Echo):
        def get(self, path: str, asked: Mapping[str, str]) -> None:
            self.answer(200, "a\udcff", HTML if path == "/page" else "text/plain")

    with listen("127.0.0.1:0", "serve=", Names) as server:
        assert asked(server, "/page?token=known")[1] == "a&#56575;"
        assert asked(server, "/text?token=known")[1] == "a\\udcff"
