"""FLAC by miniaudio: the samples of libsndfile, and no more is read than is asked for."""

from __future__ import annotations

import importlib

import pytest

from cedar.operators import audio
from cedar.operators.audio import flac
from tests.operators.audio.toy_sounds import FLAC_FILE, file, noise, peer, same


@pytest.mark.parametrize(("format", "subtype"), [("FLAC", "PCM_16"), ("FLAC", "PCM_24")])
def test_flac_is_the_same_without_miniaudio(format, subtype, monkeypatch):
    data = file(noise(50_000, 2), 44100, format, subtype)
    fast = audio.decode()(data)
    part = audio.decode(start=0.5, duration=0.25)(data)
    monkeypatch.setattr(importlib.import_module("cedar.operators.audio.decode"), "is_installed", lambda module: False)
    assert same([fast, part], [audio.decode()(data), audio.decode(start=0.5, duration=0.25)(data)])


def test_flac_reads_no_more_than_its_part():
    damaged = FLAC_FILE[:-5000]
    whole = peer(FLAC_FILE)
    assert same([audio.decode(duration=0.1)(damaged)], [whole[:4800]])
    with pytest.raises(ValueError, match="FLAC"):
        audio.decode()(damaged)
    assert flac.open_flac(memoryview(FLAC_FILE)).frames == 20_000
