"""Files to clips: every format against libsndfile, parts against wholes, and what is damaged."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import FLAC_FILE, SHARED, binary, draws, file, noise, peer, same, wav

soxr = pytest.importorskip("soxr")

PLAIN = [("WAV", s) for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")]
EXACT = [*PLAIN, ("WAVEX", "PCM_16"), ("WAVEX", "PCM_24"), ("WAVEX", "FLOAT"), ("FLAC", "PCM_S8"), ("FLAC", "PCM_16"),
         ("FLAC", "PCM_24"), ("AIFF", "PCM_16"), ("CAF", "PCM_16"), ("AU", "PCM_16"), ("RF64", "PCM_16"),
         ("WAV", "MS_ADPCM"), ("WAV", "ULAW"), ("WAV", "ALAW")]  # fmt: skip
LOSSY = [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]


@pytest.mark.heavy
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(("format", "subtype"), [*EXACT, *LOSSY])
def test_samples_are_those_of_libsndfile(format, subtype, channels):
    if channels > 2 and subtype in {"MPEG_LAYER_III", "MS_ADPCM"}:
        pytest.skip("it has two channels at most")
    data = file(noise(9001, channels), 48000, format, subtype)
    clip = audio.decode()(data)
    assert clip.dtype == np.float32
    assert same([clip], [peer(data)])


def test_real_recordings():
    if not SHARED.is_dir():
        pytest.skip("there are no recordings here")
    for path in sorted(SHARED.glob("*.wav"))[:3]:
        samples = peer(path.read_bytes())
        again = file(samples, 48000, "FLAC")
        assert same([audio.decode()(path.read_bytes()), audio.decode()(again)], [samples, samples])


def test_mono_is_the_mean_of_the_channels():
    values = noise(1000, 2)
    data = file(values, subtype="FLOAT")
    want = values.astype(np.float32).mean(axis=1)
    assert same([audio.decode(mono=True)(data)], [want])
    five = file(noise(1000, 5), subtype="FLOAT")
    np.testing.assert_allclose(audio.decode(mono=True)(five), peer(five).mean(axis=1), rtol=0, atol=1e-7)
    one = file(noise(1000), subtype="FLOAT")
    assert same([audio.decode(mono=True)(one)], [audio.decode()(one)])


@pytest.mark.parametrize(("format", "subtype"), [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24"),
                                                 ("AIFF", "PCM_16"), ("WAV", "ULAW"), *LOSSY])  # fmt: skip
@given(start=st.integers(0, 12000), length=st.integers(1, 12000))
def test_a_part_is_a_slice_of_the_whole(format, subtype, start, length):
    data = whole_file(format, subtype)
    whole = audio.decode()(data)
    part = audio.decode(start=start / 48000, duration=length / 48000)(data)
    assert same([part], [whole[start : start + length]])


@cache
def whole_file(format, subtype):
    return file(noise(10_000, 2), 48000, format, subtype)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3"])
def test_a_random_part_is_a_slice_of_the_whole_and_any_place_is_drawn(format):
    data = file(noise(60), 8000, format, None) if format != "MP3" else file(noise(5000), 8000, format)
    whole = audio.decode()(data)
    length = len(whole) - 5
    parts = audio.decode_random(length / 8000).columns(binary([data] * 200), draws=draws(200))
    starts = set()
    for part in parts:
        assert len(part) == length
        starts |= {s for s in range(6) if whole[s : s + length].tobytes() == part.tobytes()}
    assert starts == set(range(6))
    assert same([audio.decode_random(99.0)(data, draws=draws(1))], [whole])


def test_rates():
    data = file(noise(4410), 44100)
    assert audio.rate()(data) == 44100
    assert audio.rate().columns(binary([data, file(noise(5), 8000, "FLAC")])).to_pylist() == [44100, 8000]
    whole = audio.decode()(data)
    assert same([audio.decode(rate=16000)(data)], [soxr.resample(whole, 44100, 16000, "HQ")])
    part = audio.decode(rate=16000, start=0.01, duration=0.05, quality="VHQ")(data)
    assert same([part], [soxr.resample(whole[441 : 441 + 2205], 44100, 16000, "VHQ")])
    assert same([audio.decode(rate=44100)(data)], [whole])


def test_no_samples():
    for format in ("WAV", "AIFF"):
        clip = audio.decode(rate=8000, mono=True)(file(np.zeros(0), format=format))
        assert clip.shape == (0,)
        assert clip.dtype == np.float32
    assert audio.decode(start=9.0)(file(noise(100))).shape == (0,)


# ---- damage ----------------------------------------------------------------------------------------------------------


def claims(frames):
    """A FLAC file whose header claims so many samples."""
    low = int.from_bytes(FLAC_FILE[18:26], "big") >> 36 << 36
    return FLAC_FILE[:18] + (low | frames).to_bytes(8, "big") + FLAC_FILE[26:]


BAD = {
    "null instead of": None,
    "the file is empty": b"",
    "unknown audio format: the file begins with b'<html><b'": b"<html><body>",
    "unknown audio format: the file begins with b'R'": b"R",
    "it has no data chunk": wav()[:40],
    "the format chunk is cut off": b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0",
    "the extensible format chunk is cut off": wav(number=0xFFFE),
    "claims 64 bytes of samples, the file holds 44": wav()[:-20],
    "claims 4,000,000,000 bytes of samples": wav(size=4_000_000_000),
    "63 bytes of samples are not a multiple of 2": wav(size=63),
    "0 channels at 8000 Hz": wav(channels=0, align=0),
    "1 channels at 0 Hz": wav(rate=0),
    "7 bytes for 1 samples of 16 bits": wav(align=7),
    "the data chunk comes before the format chunk": b"RIFF\0\0\0\0WAVEdata\2\0\0\0\0\0",
    "sample 3 of 16 is NaN or infinite": wav(np.float32([0, 0, 0, np.nan] * 4).tobytes(), number=3, align=4, bits=32),
    "sample 1 of 2 is NaN or infinite": wav(np.float64([0, 1e300]).tobytes(), number=3, align=8, bits=64),
    "FLAC: the header cannot be read": FLAC_FILE[:30],
    "FLAC: truncated or damaged after 0 of 20,000 samples": FLAC_FILE[:200],
    "FLAC: truncated or damaged after 16,384 of 20,000 samples": FLAC_FILE[:-100],
    "truncated or damaged after 15,904 of 20,000 samples": FLAC_FILE[:9000] + b"\xff" * 50 + FLAC_FILE[9050:],
    "FLAC: the header claims 50,000,000,000 samples in": claims(50_000_000_000),
    "more than the limit of 268,435,456": claims(300_000_000),
    "libsndfile": file(noise(3000), 48000, "OGG", "VORBIS")[:100],
}


@pytest.mark.parametrize("why", BAD)
def test_what_is_damaged_is_told(why):
    with pytest.raises(BadValues) as raised:
        audio.decode().columns(binary([file(noise(9)), BAD[why], file(noise(9), format="FLAC")]))
    assert set(raised.value.rows) == {1}
    assert why in raised.value.rows[1]
    assert raised.value.fix


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rate": 0}, "rate=0"), ({"rate": 16e3}, "rate=16000.0"), ({"mono": 1}, "mono=1"),
        ({"start": -1}, "start=-1"),
        ({"duration": 0}, "duration=0"), ({"duration": float("nan")}, "duration=nan"),
        ({"quality": "best"}, "quality='best'"), ({"most": 0}, "most=0"),
    ],
)  # fmt: skip
def test_wrong_arguments(wrong, told):
    with pytest.raises(PipelineError) as raised:
        audio.decode(**wrong)
    assert told in str(raised.value)


def test_columns_that_it_does_not_take():
    with pytest.raises(PipelineError, match="Decode takes a column of bytes"):
        audio.decode()("a path")
