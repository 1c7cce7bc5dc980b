"""WAV files that are odd, and yet have a defined result."""

from __future__ import annotations

import struct

import numpy as np

from cedar.operators import audio
from tests.operators.audio.toy_sounds import file, noise, same, wav

GUID = bytes.fromhex("000000001000800000aa00389b71")


def test_defined_results_of_odd_files():
    body = np.arange(-16, 16, dtype="<i2").tobytes()
    want = np.arange(-16, 16, dtype=np.float32) / 32768
    extensible = struct.pack("<HHI", 22, 16, 4) + b"\x01\x00" + GUID
    odd = {
        "streamed": wav(body, size=0xFFFFFFFF),
        "a tail": wav(body) + b"LIST\4\0\0\0abcd",
        "a long format": wav(body, extra=b"\0\0"),
        "extensible": wav(body, number=0xFFFE, extra=extensible),
        "chunks before": wav(body)[:12] + b"junk\3\0\0\0abc\0" + wav(body)[12:],
    }
    for data in odd.values():
        assert same([audio.decode()(data)], [want])
    silent = audio.decode()(file(np.zeros(100)))
    assert not silent.any()
    many = audio.decode()(file(noise(50, 32), format="WAVEX"))
    assert many.shape == (50, 32)
