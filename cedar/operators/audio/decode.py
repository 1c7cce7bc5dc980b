"""Decode whole audio files or random parts of them, and read a file's sampling rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.columns import OBJECT, UNKNOWN, ColumnType
from cedar.core.errors import invalid_call
from cedar.core.limits import take
from cedar.operators.audio.clips import BadClip, Clip, ClipTransform, check_count, check_finite, check_number
from cedar.operators.audio.flac import open_flac
from cedar.operators.audio.libraries import is_installed, require_libraries
from cedar.operators.audio.opened import AudioFile, check_sample_limit, max_samples
from cedar.operators.audio.resample import check_quality, resample_clip
from cedar.operators.audio.sound_file import open_file
from cedar.operators.audio.wav import open_wav
from cedar.operators.draws import Draws

Window = Callable[[int, int], tuple[int, int]]  # (frames, rate) of a file -> (start, stop) to read


class _Files(ClipTransform):
    """Base class of transforms whose input is a column of audio files as bytes."""

    larger: ClassVar[bool] = True

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if kind != UNKNOWN and kind != pa.large_binary():
            raise self.unfit(kind, "a column of bytes")
        return self.makes()

    def makes(self) -> ColumnType:
        return OBJECT


@dataclass(frozen=True)
class Decode(_Files):
    """Decode a file's bytes (WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF, CAF, AU) to a float32 clip with full scale 1.

    Args:
        rate: sampling rate of the result in Hz; files of another rate are resampled. None keeps each file's rate.
        mono: True averages the channels: (samples,). Otherwise files of several channels give (samples, channels).
        start: position of the first sample in seconds; if it is past the end, the clip is empty.
        duration: length of the part in seconds; None reads to the end. Only this part of a WAV or FLAC file is decoded,
            so damage outside it is not detected. Lossy formats are decoded up to its end. Resampling follows the cut.
        quality: soxr's resampling quality, as for ``resample``.
        most: maximum number of samples of a clip, over all channels. The default is the environment variable
            CEDAR_MAX_SAMPLES if it is set, else 2^28 (1 GiB).

    Rows whose file is truncated or damaged, or contains NaN or infinity, fail. The clip of a file without samples is
    empty. Truncated files of formats without a length in the header (MP3, Ogg) are decoded as far as possible.

    Examples:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.full((8000, 2), 0.25), 8000, format="WAV")
        >>> clip = Decode(mono=True, duration=0.5)(file.getvalue())
        >>> clip.shape, clip.dtype.name, float(clip[0])
        ((4000,), 'float32', 0.25)
    """

    rate: int | None = None
    mono: bool = False
    start: float = 0.0
    duration: float | None = None
    quality: str = "HQ"
    most: int | None = None

    def __post_init__(self) -> None:
        _check_files(self, "decode")
        check_number("decode", "start", self.start, 0)
        if self.duration is not None:
            check_number("decode", "duration", self.duration, 0, open=True)

    @property
    def whole(self) -> bool:
        return not self.start and self.duration is None

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return _read_clip(self, open_audio(values[0]), self.window)

    def window(self, frames: int, rate: int) -> tuple[int, int]:
        """Return the range of frames to read: the first, and one past the last."""
        start = min(frames, round(self.start * rate))
        return start, frames if self.duration is None else min(frames, start + round(self.duration * rate))


@dataclass(frozen=True)
class DecodeRandom(_Files):
    """Decode ``duration`` seconds of a file, from a position that is drawn uniformly.

    Args:
        duration: length of the part in seconds; shorter files are decoded whole.
        rate, mono, quality, most: as for ``decode``.

    Only this part of a WAV or FLAC file is decoded, so damage outside it is not detected. Lossy formats are decoded up
    to the end of the part.

    Examples:
        >>> import io, numpy as np, soundfile
        >>> from cedar.operators.draws import Draws
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros(80000), 8000, format="FLAC")
        >>> DecodeRandom(2.0)(file.getvalue(), draws=Draws(np.array([1], dtype=np.uint64))).shape
        (16000,)
    """

    duration: float
    rate: int | None = None
    mono: bool = False
    quality: str = "HQ"
    most: int | None = None
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_files(self, "decode_random")
        check_number("decode_random", "duration", self.duration, 0, open=True)

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        return list(draws.uniform(1)[:, 0])

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return _read_clip(self, open_audio(values[0]), partial(self.window, draw))

    def window(self, draw: float, frames: int, rate: int) -> tuple[int, int]:
        """Return the range of frames to decode: the first, and one past the last."""
        length = min(frames, round(self.duration * rate))
        start = int(draw * (frames - length + 1))
        return start, start + length

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        opened = open_audio(values[0])
        return dict(zip(("start", "stop"), self.window(draw, opened.frames, opened.rate), strict=True))


@dataclass(frozen=True)
class Rate(_Files):
    """Read the sampling rate in Hz, int64, from a file's header.

    Examples:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros(10), 44100, format="WAV")
        >>> Rate()(file.getvalue())
        44100
    """

    def __post_init__(self) -> None:
        require_libraries("rate", "soundfile")

    def makes(self) -> ColumnType:
        return pa.int64()

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> int:
        return open_audio(values[0]).rate


def part_reader(decode: Any, window_for: Callable[[int, Any], tuple[int, int]]) -> Callable[..., Clip] | None:
    """Return a function that decodes only the part that a crop keeps; None unless ``decode`` decodes whole files.

    Args:
        decode: the transform before the crop.
        window_for: returns (start, stop) of the part to keep, from a clip's number of samples and the row's draw.
    """
    if type(decode) is not Decode or not decode.whole:
        return None

    def run(data: Any, *, draw: Any = None, **_: Any) -> Clip:
        opened = open_audio(data)
        if opened.exact_parts and decode.rate in {None, opened.rate}:
            check_sample_limit(opened.frames, opened.channels, decode.most or 0)
            return _read_clip(decode, opened, lambda frames, _: window_for(frames, draw))
        clip = _read_clip(decode, opened, decode.window)
        start, stop = window_for(len(clip), draw)
        return clip[start:stop]

    return run


def _read_clip(transform: Decode | DecodeRandom, opened: AudioFile, window: Window) -> Clip:
    """Read a part of a file, and mix it to mono and resample it if the transform's options require it."""
    start, stop = window(opened.frames, opened.rate)
    assert transform.most is not None
    check_sample_limit(stop - start, opened.channels, transform.most)
    take((stop - start) * opened.channels * 4, f"{stop - start:,} samples of {opened.channels} channels")
    frames = opened.read(start, stop)
    if not opened.stores_integers:
        check_finite(frames)
    clip = _mix_to_mono(frames) if transform.mono else frames[:, 0] if opened.channels == 1 else frames
    if transform.rate is None or transform.rate == opened.rate:
        return clip
    return resample_clip(clip, opened.rate, transform.rate, transform.quality, transform.most)


def _mix_to_mono(frames: Clip) -> Clip:
    """Return the mean of the channels, which are summed in order."""
    channels = frames.shape[1]
    if channels == 1:
        return frames[:, 0]
    total = frames[:, 0] + frames[:, 1]
    for channel in range(2, channels):
        total += frames[:, channel]
    total /= np.float32(channels)
    return total


def _check_files(transform: Decode | DecodeRandom, name: str) -> None:
    require_libraries(name, "soundfile", *(["soxr"] if transform.rate is not None else []))
    if transform.rate is not None:
        check_count(name, "rate", transform.rate)
    if not isinstance(transform.mono, bool):
        raise invalid_call(f"audio.{name}(mono={transform.mono!r}): True or False is expected")
    check_quality(name, transform.quality)
    if transform.most is None:
        object.__setattr__(transform, "most", max_samples())
    check_count(name, "most", transform.most)


# ---- choice of the decoder -------------------------------------------------------------------------------------------


_LIBSNDFILE_MAGIC = (b"OggS", b"FORM", b"caff", b".snd", b"RF64", b"RIFX")


def open_audio(data: Any) -> AudioFile:
    """Read a file's header and choose the decoder: cedar's own for WAV, dr_flac for FLAC, libsndfile for other formats.

    Raises:
        BadClip: the header cannot be read.
    """
    if data is None:
        raise BadClip("null instead of a file's bytes")
    if not len(data):
        raise BadClip("the file is empty: 0 bytes")
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return open_wav(data) or open_file(data)
    if head[:4] == b"fLaC":
        return (open_flac(data) if is_installed("miniaudio") else None) or open_file(data)
    if head.startswith(_LIBSNDFILE_MAGIC) or head[:3] == b"ID3" or _is_mpeg(head):
        return open_file(data)
    raise BadClip(
        f"unknown audio format: the file begins with {head[:8]!r}", "give WAV, FLAC, Ogg, MP3, AIFF, CAF or AU"
    )


def _is_mpeg(head: bytes) -> bool:
    """Return whether the bytes begin with the header of an MPEG audio frame."""
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
