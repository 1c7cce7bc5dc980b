"""Which samples a clip has: crops, padding and trims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import OBJECT, TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import CLIPS, EXPECTED, chirp, draws, same


@given(length=st.integers(1, 350), start=st.integers(0, 350))
def test_crop_is_a_slice(length, start):
    assert same(audio.crop(length, start).columns(objects(CLIPS)), [c[start : start + length] for c in CLIPS])


def test_random_crop_takes_any_place_and_its_row_s_draws():
    clip = np.arange(10, dtype=np.float32)
    crop = audio.random_crop(7)
    made = crop.columns(objects([clip] * 300), draws=draws(300))
    assert {int(part[0]) for part in made} == {0, 1, 2, 3}
    assert all(same([part], [clip[int(part[0]) : int(part[0]) + 7]]) for part in made)
    again = crop.columns(objects([clip] * 20), draws=draws(300).take(np.arange(100, 120)))
    assert same(again, made[100:120])
    assert same(crop.columns(objects(CLIPS[:3]), draws=draws(3))[:2], CLIPS[:2])


@given(length=st.integers(1, 350))
def test_pad(length):
    clips = [c for c in CLIPS if c.ndim == 1]
    made = audio.pad(length, longer="crop").columns(objects(clips))
    assert made.shape == (len(clips), length)
    for row, clip in zip(made, clips, strict=True):
        want = np.zeros(length, np.float32)
        want[: len(clip)] = clip[:length]
        assert same([row], [want])


def test_lengths_may_be_numbers_of_numpy():
    clip = chirp()[:9]
    assert audio.pad(np.int64(12))(clip).shape == (12,)
    assert np.array_equal(audio.gain(np.float32(-6.0))(clip), audio.gain(-6.0)(clip))
    for wrong in (np.int64(0), np.float64(9.0), np.bool_(True)):
        with pytest.raises(PipelineError):
            audio.pad(wrong)


def test_pad_refuses_what_does_not_fit():
    with pytest.raises(BadValues) as raised:
        audio.pad(100).columns(objects(CLIPS))
    assert set(raised.value.rows) == {3, 4, 5}
    assert "300 samples, more than 100" in raised.value.rows[4]
    assert "2 channels in a column of one" in raised.value.rows[3]
    two = [c for c in CLIPS if c.ndim == 2]
    assert audio.pad(100, channels=2).columns(objects(two)).shape == (2, 100, 2)
    assert audio.pad(5).result(OBJECT) == TensorType((5,), "float32")
    with pytest.raises(PipelineError, match="channels=2"):
        audio.pad(5).result(TensorType((3, 2), "float32"))


@pytest.mark.parametrize("case", EXPECTED["trim"], ids=lambda case: str(case["arguments"]))
def test_trim_keeps_what_librosa_keeps(case):
    clip = np.concatenate([np.full(3000, 1e-5), chirp(), np.zeros(2500)]).astype(np.float32)
    start, stop = case["kept"]
    assert same([audio.trim(**case["arguments"])(clip)], [clip[start:stop]])


def test_trim_of_silence_and_of_short_clips():
    trim = audio.trim()
    assert trim(np.zeros(5000, np.float32)).shape == (0,)
    assert trim(np.zeros(0, np.float32)).shape == (0,)
    assert same([trim(np.ones(1, np.float32))], [np.ones(1, np.float32)])
    assert trim(np.zeros((5000, 2), np.float32)).shape == (0, 2)
    loud = np.zeros((9000, 2), np.float32)
    loud[4000:5000, 1] = 1
    assert trim(loud).shape == (3072, 2)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            trim(np.full(10, wrong, np.float32))
