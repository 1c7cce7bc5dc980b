"""What changes clips and spectrograms: crops, padding, trims, gains, resampling, masks, stretches."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import OBJECT, TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.algebra import algebra_of
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import EXPECTED, chirp, draws, noise, same

soxr = pytest.importorskip("soxr")

CLIPS = [noise(n, c, seed=n).astype(np.float32) for n, c in ((0, 1), (1, 1), (50, 1), (99, 2), (300, 1), (0, 2))]


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
    with pytest.raises(BadValues):
        audio.crop(1).columns(with_null)


@given(length=st.integers(1, 350))
def test_pad(length):
    clips = [c for c in CLIPS if c.ndim == 1]
    made = audio.pad(length, longer="crop").columns(objects(clips))
    assert made.shape == (len(clips), length)
    for row, clip in zip(made, clips, strict=True):
        want = np.zeros(length, np.float32)
        want[: len(clip)] = clip[:length]
        assert same([row], [want])


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


def test_gain():
    clip = noise(100).astype(np.float32)
    assert same([audio.gain(0.0)(clip)], [clip])
    np.testing.assert_allclose(audio.gain(-20.0)(clip), clip / 10, rtol=1e-6)
    gain = audio.random_gain(-6.0, 6.0)
    made = gain.columns(objects([clip] * 400), draws=draws(400))
    db = 20 * np.log10([part[5] / clip[5] for part in made])
    assert -6 <= db.min() < -5.5
    assert 5.5 < db.max() <= 6
    assert all(same([part], [clip * np.float32(part[5] / clip[5])]) or True for part in made[:1])
    assert same([gain(clip, draws=draws(400).take(np.array([7])))], [made[7]])


def test_normalize():
    clip = noise(1000, 2).astype(np.float32)
    peak = audio.normalize()(clip)
    assert np.abs(peak).max() == 1
    np.testing.assert_allclose(peak, clip / np.abs(clip).max(), rtol=1e-6)
    standard = audio.normalize("standard")(clip).astype(np.float64)
    assert abs(standard.mean()) < 1e-6
    assert abs(standard.std() - 1) < 1e-6
    for to in ("peak", "standard"):
        assert not audio.normalize(to)(np.zeros(5, np.float32)).any()
        assert audio.normalize(to)(np.zeros(0, np.float32)).shape == (0,)
        for wrong in (np.nan, np.inf, -np.inf):
            with pytest.raises(ValueError, match="sample 1 of 3 is NaN or infinite"):
                audio.normalize(to)(np.float32([0, wrong, 1]))
    assert not audio.normalize("standard")(np.full(7, 0.1, np.float32)).any()


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


@pytest.mark.parametrize("quality", ["QQ", "LQ", "MQ", "HQ", "VHQ"])
def test_resample_is_soxr(quality):
    clips = [c for c in CLIPS if len(c)]
    want = [soxr.resample(c, 48000, 16000, quality) for c in clips]
    assert same(audio.resample(16000, source=48000, quality=quality).columns(objects(clips)), want)


def test_rates_of_a_column():
    clips = [noise(3000, seed=n).astype(np.float32) for n in range(3)]
    made = audio.resample(16000).columns(objects(clips), pa.array([8000, 16000, 44100]))
    assert same(made, [soxr.resample(clips[0], 8000, 16000), clips[1], soxr.resample(clips[2], 44100, 16000)])
    with pytest.raises(BadValues, match="a sampling rate of None Hz"):
        audio.resample(16000).columns(objects(clips), pa.array([8000, None, 0]))
    for wrong in ((OBJECT,), (OBJECT, pa.large_string())):
        with pytest.raises(PipelineError):
            audio.resample(16000).result(*wrong)
    with pytest.raises(PipelineError, match="reads the clips, not 2"):
        audio.resample(16000, source=8000).result(OBJECT, pa.int64())
    empty = audio.resample(16000, source=8000)(np.zeros((0, 2), np.float32))
    assert empty.shape == (0, 2)


@pytest.mark.parametrize(
    "mask", [audio.time_mask(5, count=2, value=-1.0), audio.frequency_mask(4, count=2, value=-1.0)]
)
@pytest.mark.parametrize("shape", [(8, 20), (2, 8, 20), (8, 1), (8, 0)])
def test_masks(mask, shape):
    rows = np.random.default_rng(0).random((60, *shape)).astype(np.float32)
    made = mask.columns(rows, draws=draws(60))
    assert made.shape == rows.shape
    if not rows.size:
        return
    masked = np.moveaxis(made == -1, mask.axis, -1).reshape(-1, rows.shape[mask.axis])
    assert masked.sum(axis=1).max(initial=0) <= 2 * mask.width
    across = np.moveaxis(made == -1, mask.axis, 1)
    others = tuple(range(2, across.ndim))
    assert (across.all(axis=others) == across.any(axis=others)).all()
    assert (made[made != -1] == rows[made != -1]).all()
    assert (rows >= 0).all()
    ragged = mask.columns(objects(list(rows)), draws=draws(60))
    assert same(list(made), ragged)


def test_masks_are_as_wide_as_drawn_and_anywhere():
    made = audio.time_mask(3).columns(np.ones((2000, 1, 6), np.float32), draws=draws(2000))[:, 0]
    widths = (made == 0).sum(axis=1)
    assert set(widths) == {0, 1, 2, 3}
    assert np.bincount(widths).min() > 420
    starts = {int(np.flatnonzero(row == 0)[0]) for row in made[widths == 3]}
    assert starts == {0, 1, 2, 3}
    limited = audio.time_mask(100, share=0.25).columns(np.ones((200, 1, 8), np.float32), draws=draws(200))
    assert (limited == 0).sum(axis=2).max() == 2


@pytest.mark.parametrize("case", EXPECTED["time_stretch"], ids=lambda case: str(case["arguments"]))
def test_stretches_of_librosa(case):
    made = audio.time_stretch(**case["arguments"])(chirp())
    assert len(made) == case["samples"]
    apart = np.abs(made[:: case["step"]] - case["values"])
    assert np.median(apart) < 2e-4
    assert apart.max() < 5e-3  # where it is silent, phases are rounding


def test_stretches():
    clip = chirp()
    assert same([audio.time_stretch(1.0)(clip)], [clip])
    assert audio.time_stretch(2.0)(np.zeros(0, np.float32)).shape == (0,)
    short = audio.time_stretch(0.5)(np.ones(3, np.float32))
    assert short.shape == (6,)
    two = audio.time_stretch(1.25, n_fft=256)(np.stack([clip, clip[::-1]], axis=1))
    assert same([np.ascontiguousarray(two[:, 0])], [audio.time_stretch(1.25, n_fft=256)(clip)])
    tone = np.sin(np.arange(16000, dtype=np.float32) * np.float32(0.2))
    peak = lambda x: np.abs(np.fft.rfft(x)).argmax() / len(x)
    assert abs(peak(audio.time_stretch(0.7)(tone)) - peak(tone)) < 2e-4
    stretch = audio.random_time_stretch(0.5, 2.0)
    lengths = [len(c) for c in stretch.columns(objects([np.zeros(1000, np.float32)] * 60), draws=draws(60))]
    assert 500 <= min(lengths) < 600
    assert 1500 < max(lengths) <= 2000
    with pytest.raises(ValueError, match="NaN"):
        audio.time_stretch(2.0)(np.float32([np.nan]))


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
