"""Which decoder reads a file, by its first bytes."""

from __future__ import annotations

from typing import Any

from cedar.operators.audio.clips import BadClip
from cedar.operators.audio.flac import open_flac
from cedar.operators.audio.libraries import installed
from cedar.operators.audio.opened import Opened
from cedar.operators.audio.sound_file import open_file
from cedar.operators.audio.wav import open_wav

_OTHERS = (b"OggS", b"FORM", b"caff", b".snd", b"RF64", b"RIFX")


def open_audio(data: Any) -> Opened:
    """A file's header: WAV in place, FLAC by dr_flac, the rest by libsndfile.

    Raises:
        BadClip: it cannot be read.
    """
    if data is None:
        raise BadClip("null instead of a file's bytes")
    if not len(data):
        raise BadClip("the file is empty: 0 bytes")
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return open_wav(data) or open_file(data)
    if head[:4] == b"fLaC":
        return (open_flac(data) if installed("miniaudio") else None) or open_file(data)
    if head.startswith(_OTHERS) or head[:3] == b"ID3" or _mpeg(head):
        return open_file(data)
    raise BadClip(
        f"no audio format that is known: it begins with {head[:8]!r}", "give WAV, FLAC, Ogg, MP3, AIFF, CAF or AU"
    )


def _mpeg(head: bytes) -> bool:
    """Whether it begins with the header of an MPEG audio frame."""
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
