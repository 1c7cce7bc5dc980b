"""What all that changes clips has in common: columns of one shape, lists, algebra, and arguments that are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.columns import TensorType
from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.algebra import algebra_of
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import draws, noise, same

pytest.importorskip("soxr")


def test_a_column_of_one_shape_stays_one():
    rows = np.stack([noise(20, seed=n) for n in range(5)]).astype(np.float32)
    for transform in (
        audio.crop(8, 3),
        audio.crop(99),
        audio.gain(3.0),
        audio.normalize(),
        audio.normalize("standard"),
    ):
        made = transform.columns(rows)
        assert transform.result(TensorType((20,), "float32")) == TensorType(made.shape[1:], "float32")
        assert same(list(made), [transform(row) for row in rows])
    made = audio.random_crop(8).columns(rows, draws=draws(5))
    assert made.shape == (5, 8)


def test_lists_are_clips_too():
    lists = pa.array([[0.5, 0.25], [], [1.0]], pa.large_list(pa.float32()))
    assert same(audio.crop(1).columns(lists), [np.float32([0.5]), np.zeros(0, np.float32), np.float32([1.0])])
    assert same(audio.crop(1).columns(lists.slice(1)), [np.zeros(0, np.float32), np.float32([1.0])])
    with_null = pa.array([[0.5], None], pa.large_list(pa.float32()))
    with pytest.raises(BadValues) as bad:
        audio.crop(1).columns(with_null)
    assert [*bad.value.rows] == [1], "the other rows are not to blame"


def test_algebra():
    assert algebra_of(audio.crop(5)) == algebra_of(audio.random_crop(5)) == "spatial"
    assert algebra_of(audio.gain(1.0)) == algebra_of(audio.random_gain(0.0, 1.0)) == "pointwise"
    assert algebra_of(audio.resample(8000, source=16000)) == "resampling"
    assert algebra_of(audio.pad(5)) is algebra_of(audio.trim()) is algebra_of(audio.normalize()) is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: audio.crop(0), "crop(length=0)"), (lambda: audio.crop(5, -1), "crop(start=-1)"),
        (lambda: audio.random_crop(1.5), "random_crop(length=1.5)"), (lambda: audio.pad(True), "pad(length=True)"),
        (lambda: audio.pad(5, longer="cut"), "longer='cut'"), (lambda: audio.trim(below=0), "below=0"),
        (lambda: audio.gain(300), "db=300"), (lambda: audio.random_gain(3, 2), "low=3 is above high=2"),
        (lambda: audio.normalize("rms"), "to='rms'"), (lambda: audio.resample(0), "rate=0"),
        (lambda: audio.resample(8000, quality="hq"), "quality='hq'"), (lambda: audio.time_mask(-1), "width=-1"),
        (lambda: audio.time_mask(1, share=2), "share=2"), (lambda: audio.frequency_mask(1, count=0), "count=0"),
        (lambda: audio.time_stretch(0), "speed=0"), (lambda: audio.random_time_stretch(2, 1), "low=2 is above high=1"),
        (lambda: audio.time_stretch(2, n_fft=8, hop_length=5), "hop_length=5 is above half"),
    ],
)  # fmt: skip
def test_wrong_arguments(make, told):
    with pytest.raises(PipelineError) as raised:
        make()
    assert told in str(raised.value)
