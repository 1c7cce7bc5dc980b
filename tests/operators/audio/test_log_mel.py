"""Log-mel spectrograms: against torchaudio's and librosa's stored values, a plain loop, and torch.stft."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import OBJECT, TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.audio.fft_kernels import transform
from cedar.operators.audio.fft_plan import plan
from cedar.operators.audio.log_mel import mel_filters, to_hertz, to_mel
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import EXPECTED, chirp, noise, plain_filters, plain_mel, same


@pytest.mark.parametrize("case", EXPECTED["log_mel"], ids=lambda case: str(sorted(case["arguments"].items()))[:60])
def test_values_of_torchaudio_and_librosa(case):
    made = audio.log_mel(**case["arguments"])(chirp())
    assert list(made.shape) == case["shape"]
    want = np.array(case["values"])
    found = made[:, :: case["step"]]
    if case["arguments"].get("log", "db") is None:
        np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-6 * want.max())
        assert np.median(np.abs(found / want - 1)) < 1e-5
    else:  # a value that is 90 dB below the loudest is rounding in float32
        audible = want > want.max() - (90 if case["arguments"].get("log", "db") == "db" else 13)
        np.testing.assert_allclose(found[audible], want[audible], atol=0.02)


@given(
    n_fft=st.integers(2, 130),
    hop=st.integers(1, 50),
    cut=st.integers(0, 10),
    samples=st.integers(1, 700),
    n_mels=st.integers(1, 12),
    power=st.sampled_from([1, 2]),
    center=st.booleans(),
)
def test_against_a_plain_loop(n_fft, hop, cut, samples, n_mels, power, center):
    win = max(1, n_fft - cut)
    mel = audio.log_mel(
        rate=8000, n_fft=n_fft, hop_length=hop, win_length=win, n_mels=n_mels, power=power, log=None, center=center
    )
    clip = noise(samples, seed=samples).astype(np.float32)
    if samples < (n_fft // 2 + 1 if center else n_fft):
        with pytest.raises(ValueError, match="too short"):
            mel(clip)
        return
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)
    want = plain_mel(clip, plain_filters(n_fft, 8000, n_mels, 0, 4000), n_fft, hop, window, power, center)
    made = mel(clip)
    assert made.shape == want.shape
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-5 * max(1.0, want.max()))


@pytest.mark.parametrize("n_fft", [400, 512, 1024, 480, 441])
def test_against_torch_stft(n_fft):
    clip = noise(20_000).astype(np.float32)
    window = torch.hann_window(n_fft, dtype=torch.float64)
    given = torch.from_numpy(clip).double()
    spectrum = torch.stft(given, n_fft, 160, window=window, pad_mode="reflect", return_complex=True)
    want = mel_filters(n_fft, 16000, 80, 0, 8000, "slaney", "slaney") @ (spectrum.abs() ** 2).numpy()
    made = audio.log_mel(n_fft=n_fft, hop_length=160, mel_scale="slaney", norm="slaney", log=None)(clip)
    np.testing.assert_allclose(made, want, rtol=2e-5, atol=1e-6 * want.max())


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 11, 30, 49, 64, 77, 200, 240, 256, 2310])
def test_the_transform_itself(n):
    lanes, stages = 4, plan(n)
    rng = np.random.default_rng(n)
    given = (rng.standard_normal((n, lanes)) + 1j * rng.standard_normal((n, lanes))).astype(np.complex64)
    x = np.stack([given.real.ravel(), given.imag.ravel()])
    z = transform(x, np.empty_like(x), n, lanes, stages.radices, stages.twiddles, stages.starts)
    want = np.fft.fft(given.astype(np.complex128), axis=0)
    assert np.abs((z[0] + 1j * z[1]).reshape(n, lanes) - want).max() < 4e-7 * np.abs(want).max()


def test_a_frame_depends_on_its_own_samples_alone():
    clip = noise(8000).astype(np.float32)
    mel = audio.log_mel(hop_length=160, center=False, log=None)
    whole = mel(clip)
    for first in (1, 7, 30, 33):
        assert same([mel(clip[first * 160 :])], [np.ascontiguousarray(whole[:, first:])])
    loud = clip.copy()
    loud[4000:] *= 1e6
    assert same([mel(loud)[:, :22]], [whole[:, :22]])


@pytest.mark.parametrize("zeros", [0, 1, 150, 199, 200, 201, 400, 3000])
@pytest.mark.parametrize("center", [True, False])
def test_padding_is_silence(zeros, center):
    """Frames of zeros are left out of the transform; that must not show."""
    clip = np.concatenate([noise(1234), np.zeros(zeros)]).astype(np.float32)
    made = audio.log_mel(hop_length=100, n_mels=20, center=center, log=None)(clip)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    want = plain_mel(clip, plain_filters(400, 16000, 20, 0, 8000), 400, 100, window, 2, center)
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-5)
    silent = want.max(axis=0) == 0
    assert (made[:, silent] == 0).all()


def test_one_by_one_and_whole_columns_are_the_same_bits():
    mel = audio.log_mel(hop_length=160)
    clips = [noise(n, seed=n).astype(np.float32) for n in (201, 400, 401, 5000, 16000, 16001)]
    assert same(mel.columns(objects(clips)), [mel(clip) for clip in clips])
    rows = np.stack([noise(3000, seed=n).astype(np.float32) for n in range(7)])
    made = mel.columns(rows)
    assert made.shape == (7, 80, 19)
    assert same(list(made), [mel(row) for row in rows])
    assert same(list(mel.columns(rows[2:5])), list(made[2:5]))


def test_channels():
    mel = audio.log_mel(hop_length=160, n_mels=10)
    clip = noise(3000, 3).astype(np.float32)
    made = mel(clip)
    assert made.shape == (3, 10, 19)
    assert same(list(made), [mel(np.ascontiguousarray(clip[:, c])) for c in range(3)])


def test_types():
    mel = audio.log_mel(hop_length=160)
    assert mel.result(OBJECT) == OBJECT
    assert mel.result(TensorType((16000,), "float32")) == TensorType((80, 101), "float32")
    assert mel.result(TensorType((16000, 2), "float32")) == TensorType((2, 80, 101), "float32")
    with pytest.raises(PipelineError, match="LogMel takes clips"):
        mel.result(TensorType((16000,), "int16"))


@pytest.mark.parametrize(
    ("arguments", "floor"),
    [({}, -100), ({"log": "ln"}, float(np.log(np.float32(1e-6)))), ({"log": None}, 0), ({"floor": 1e-5}, -50),
     ({"power": 1, "floor": 1e-5}, -100), ({"top_db": 80.0}, -100)],
)  # fmt: skip
def test_silence_is_the_floor(arguments, floor):
    made = audio.log_mel(**arguments)(np.zeros(2000, np.float32))
    np.testing.assert_allclose(made, floor, rtol=1e-6)


def test_rows_without_a_result():
    mel = audio.log_mel()
    good, broken = noise(1000).astype(np.float32), noise(1000).astype(np.float32)
    broken[500] = np.nan
    endless = good.copy()
    endless[3] = np.inf
    rows = [
        good,
        np.zeros(0, np.float32),
        good[:200],
        broken,
        endless,
        np.float32(3),
        np.zeros(9, np.int16),
        good * 1e30,
    ]
    with pytest.raises(BadValues) as raised:
        mel.columns(objects(rows))
    told = raised.value.rows
    assert set(told) == {1, 2, 3, 4, 5, 6, 7}
    assert "0 samples is too short: 201 are needed" in told[1]
    assert "NaN" in told[3]
    assert "not a float array" in told[6]


def test_float64_is_taken_as_float32():
    clip = noise(1000)
    mel = audio.log_mel()
    assert same([mel(clip)], [mel(clip.astype(np.float32))])


def test_filters():
    for scale in ("htk", "slaney"):
        hertz = np.array([0.0, 200, 999, 1000, 1001, 7999])
        np.testing.assert_allclose(to_hertz(to_mel(hertz, scale), scale), hertz, atol=1e-9)
    np.testing.assert_allclose(
        mel_filters(400, 16000, 80, 0, 8000, "htk", None), plain_filters(400, 16000, 80, 0, 8000), atol=1e-12
    )
    area = mel_filters(4096, 16000, 20, 0, 8000, "slaney", "slaney").sum(axis=1) * 16000 / 4096
    np.testing.assert_allclose(area, 1, rtol=1e-2)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rate": 0}, "rate=0"), ({"n_fft": 1}, "n_fft=1"), ({"hop_length": 0}, "hop_length=0"),
        ({"win_length": 401}, "win_length=401 is above n_fft=400"), ({"n_mels": 0}, "n_mels=0"),
        ({"f_min": -1}, "f_min=-1"), ({"f_max": 8001}, "f_max=8001"), ({"f_min": 4000, "f_max": 4000}, "f_max=4000"),
        ({"power": 3}, "power=3"), ({"log": "log"}, "log='log'"), ({"floor": 0}, "floor=0"),
        ({"log": "ln", "top_db": 80}, "top_db"), ({"mel_scale": "bark"}, "mel_scale='bark'"),
        ({"norm": "area"}, "norm='area'"),
    ],
)  # fmt: skip
def test_wrong_arguments(wrong, told):
    with pytest.raises(PipelineError) as raised:
        audio.log_mel(**wrong)
    assert told in str(raised.value)
