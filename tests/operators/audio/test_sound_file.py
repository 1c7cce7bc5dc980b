"""Files by libsndfile: what their headers say, parts, and formats that are not read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cedar.operators.audio.clips import BadClip
from cedar.operators.audio.sound_file import open_file
from tests.operators.audio.toy_sounds import file, noise, peer, same


@pytest.mark.parametrize(
    ("format", "subtype", "exact_seek"), [("OGG", "VORBIS", False), ("AIFF", "PCM_16", True), ("WAV", "ULAW", False)]
)
def test_a_part_is_of_the_whole_whether_or_not_it_can_be_sought(format, subtype, exact_seek):
    data = file(noise(3000, 2), 48000, format, subtype)
    opened = open_file(memoryview(data))
    assert (opened.format, opened.frames, opened.rate, opened.channels) == (format, 3000, 48000, 2)
    assert opened.exact_seek == exact_seek
    assert not opened.exact_parts
    assert same([opened.read(0, 3000), opened.read(1100, 1207)], [peer(data), peer(data)[1100:1207]])
    assert opened.read(5, 5).shape == (0, 2)


def test_a_file_that_holds_less_than_its_header_says_is_told():
    opened = open_file(memoryview(file(noise(3000), 48000, "AU", "PCM_16")))
    with pytest.raises(BadClip, match="AU: truncated or damaged after 3,000 of 3,500 samples"):
        replace(opened, frames=3500).read(2000, 3500)


@pytest.mark.parametrize("format", ["W64", "VOC", "NIST"])
def test_other_formats_that_libsndfile_knows_are_not_read(format):
    with pytest.raises(BadClip, match=f"{format} is not a supported format"):
        open_file(memoryview(file(noise(100), 8000, format)))
