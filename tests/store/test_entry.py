"""Entries as bytes: what was sealed is opened, and any other bytes are damaged."""

from __future__ import annotations

from typing import Any

import pytest

from cedar.store.entry import Damaged, OtherVersion, opened, sealed

OF = {"format": "1"}


def whole(body: bytes = b"some bytes", name: str = "name") -> bytes:
    def write(sink: Any) -> dict[str, Any]:
        sink.write(body)
        return {"about": [1, "two"]}

    return sealed(name, write, OF)


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 9])
def test_what_was_sealed_is_opened(body: bytes) -> None:
    entry = opened(whole(body), "name", OF)
    assert (bytes(entry.body), entry.about) == (body, {"about": [1, "two"]})


def test_every_flipped_byte_and_every_truncation_is_found() -> None:
    raw = whole()
    for place in range(len(raw)):
        flipped = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        for damaged in (flipped, raw[:place]):
            with pytest.raises(Damaged):
                opened(damaged, "name", OF)


def test_another_entry_and_another_version_are_refused() -> None:
    with pytest.raises(Damaged, match="another entry"):
        opened(whole(name="other"), "name", OF)
    with pytest.raises(OtherVersion):
        opened(whole(), "name", {"format": "2"})


def test_the_body_is_not_summed_again_where_it_was_checked() -> None:
    raw = bytearray(whole())
    raw[0] ^= 1
    assert opened(raw, "name", OF, checked=True).body[0] == raw[0]
