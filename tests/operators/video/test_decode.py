"""video.decode: files that PyAV wrote, and which of their frames are taken."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest

import cedar
from cedar.core import packages
from cedar.core.columns import OBJECT, TensorType
from cedar.core.limits import Limits, MemoryReservation

av = pytest.importorskip("av", reason="needs PyAV: pip install 'cedar-data[video]'")

from cedar.operators import video  # noqa: E402
from cedar.operators.audio.clips import BadClip  # noqa: E402

KINDS = [("mpeg4", "mp4"), ("libx264", "mp4"), ("mpeg4", "matroska"), ("mpeg4", "avi"), ("mpeg2video", "mpegts")]


def encoded(count=20, rate=10, codec="mpeg4", form="mp4", shape=(48, 64)):
    """A film whose n-th frame is gray, of value 10 n."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=Fraction(rate).limit_denominator(1001))
        (stream.height, stream.width), stream.pix_fmt = shape, "yuv420p"
        for n in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((*shape, 3), 10 * n, dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def numbers(frames):
    """Which frames those are."""
    return np.rint(frames.mean(axis=(1, 2, 3)) / 10).astype(int).tolist()


@pytest.mark.parametrize(("codec", "form"), [*KINDS])
def test_all_frames_are_those_of_the_file(codec, form):
    made = video.decode()(encoded(20, 25, codec, form))
    assert made.shape == (20, 48, 64, 3)
    assert made.dtype == np.uint8
    assert numbers(made) == list(range(20))


def test_pixels_are_what_pyav_makes():
    data = encoded(5)
    with av.open(io.BytesIO(data)) as container:
        wanted = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert np.array_equal(video.decode()(data), np.stack(wanted))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"frames": 4}, [2, 7, 12, 17]),  # the middles of four parts
        ({"frames": 1}, [10]),
        ({"frames": 40}, [n // 2 for n in range(40)]),
        ({"fps": 5}, list(range(0, 20, 2))),
        ({"fps": 20}, [n // 2 for n in range(39)]),
        ({"fps": 10}, list(range(20))),
        ({"fps": np.float32(10)}, list(range(20))),
        ({"fps": 4}, [0, 2, 5, 7, 10, 12, 15, 17]),  # the frame that is shown at 0.25 s is the third
        ({"fps": 5, "frames": 3}, [0, 2, 4]),
        ({"fps": 2, "frames": 6}, [0, 5, 10, 15, 19, 19]),  # the last one stays
    ],
)
def test_which_frames_are_taken(options, wanted):
    for codec, form in KINDS[:3]:
        assert numbers(video.decode(**options)(encoded(20, 10, codec, form))) == wanted


def test_frames_of_one_size_are_one_array():
    rows = [{"bytes": encoded(6 + n, shape=(32 + 16 * n, 64))} for n in range(3)]
    p = cedar.from_items(rows).map(video.decode(frames=4, fps=10, size=(24, 32)), "bytes", into="frames")
    assert p.schema["frames"] == TensorType((4, 24, 32, 3), "uint8")
    (batch,) = list(p.select("frames").batch(3))
    assert batch["frames"].shape == (3, 4, 24, 32, 3)
    assert [numbers(frames) for frames in batch["frames"]] == [[0, 1, 2, 3]] * 3
    assert video.decode(size=24).makes() == video.decode(frames=3).makes() == OBJECT


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (None, "null"),
        (b"no film", "FFmpeg cannot read it"),
        (encoded(20)[:700], "FFmpeg cannot read it"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n", "FFmpeg cannot read it"),
        (b"ffconcat version 1.0\nfile 'other.mp4'\n", "FFmpeg cannot read it"),
    ],
)
def test_what_is_no_film_fails_its_row(data, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.mp4").write_bytes(encoded(3))  # which no list of files opens
    p = cedar.from_items([{"bytes": data}, {"bytes": encoded(3)}]).map(video.decode(), "bytes", into="frames")
    with pytest.raises(cedar.RowError, match=why):
        list(p)
    with p.loader(on_error=cedar.Skip()) as loader:
        assert [len(row["frames"]) for row in loader] == [3]


def test_a_film_that_is_cut_off_behind_its_index_fails(tmp_path):
    with av.open(str(tmp_path / "film.mp4"), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for n in range(20):
            noise = np.random.default_rng(n).integers(0, 256, (48, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode())
    data = (tmp_path / "film.mp4").read_bytes()
    assert data.index(b"moov") < len(data) // 2
    assert len(video.decode()(data)) == 20
    with pytest.raises(ValueError, match=r"cut off: \d+ of 20 frames"):
        video.decode()(data[: -len(data) // 3])


@pytest.mark.parametrize(("codec", "form"), KINDS)
def test_a_damaged_film_has_frames_or_fails_its_row(codec, form):
    rng, data, failed = np.random.default_rng(0), encoded(12, 10, codec, form), 0
    for _ in range(40):
        odd = np.frombuffer(data, dtype=np.uint8).copy()
        odd[rng.integers(0, len(odd), 4)] = rng.integers(0, 256, 4)
        try:
            assert video.decode(frames=4, size=16).transform_row(odd.tobytes()).shape == (4, 16, 16, 3)
        except BadClip:
            failed += 1
    assert failed < 40


def test_more_frames_than_a_task_may_hold_are_refused_before_there_is_memory():
    with (
        MemoryReservation("films.tar", Limits(split_bytes=1000)),
        pytest.raises(cedar.SourceError, match="61 frames of 16 x 16"),
    ):
        video.decode(fps=60, size=16).transform_row(encoded(11, 10))


def test_frames_with_too_many_pixels_fail(monkeypatch):
    monkeypatch.setenv("CEDAR_MAX_PIXELS", "1000")
    with pytest.raises(ValueError, match="64 x 48 pixels"):
        video.decode()(encoded(3))


@pytest.mark.parametrize("options", [{"frames": 0}, {"frames": 1.5}, {"fps": 0}, {"fps": "8"}, {"size": 0}])
def test_other_arguments_are_refused(options):
    with pytest.raises(cedar.PipelineError, match=r"video\.decode") as caught:
        video.decode(**options)
    assert caught.value.site is not None


def test_what_is_missing_is_named(monkeypatch):
    packages.library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(cedar.PipelineError) as caught:
        video.decode()
    packages.library.cache_clear()
    assert "video.decode needs av" in str(caught.value)
    assert "pip install 'cedar-data[video]'" in str(caught.value)
