"""decode: convert the bytes of video files to frames with PyAV, whose wheels include FFmpeg."""

from __future__ import annotations

import io
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import OBJECT, UNKNOWN, ColumnType, TensorType
from cedar.core.errors import invalid_call
from cedar.core.limits import take
from cedar.core.packages import library
from cedar.operators.audio.clips import BadClip, ClipTransform
from cedar.operators.image.headers import max_pixels
from cedar.operators.image.spatial import pair

# Allow only demuxers of self-contained files, since those of playlists and file lists would open other files and URLs.
_DEMUXERS = "mov,mp4,matroska,webm,avi,flv,mpeg,mpegts,ogg,asf"


@dataclass(frozen=True)
class Decode(ClipTransform):
    """Decode a video file (MP4, MOV, MKV, WebM, AVI, MPEG, ...) to frames: uint8 (frames, height, width, 3), RGB.

    For each requested time, the result has the frame shown at that time: the last frame that starts by then. A
    rotation in the file's header is not applied. Without ``frames`` and ``fps``, all frames are decoded.

    Args:
        frames: number of frames; if the file has fewer, frames are repeated. Without ``fps``, the file's frames are
            divided into this many equal parts, and the result has the middle frame of each part.
        fps: frames per second in the result, starting with the first frame.
        size: (height, width), or one number for both; FFmpeg resizes frames with a bilinear filter. With both
            ``frames`` and ``size``, the column is one array; otherwise it holds one array per row.

    Raises:
        PipelineError: an argument is invalid, the column does not contain bytes, or PyAV is not installed.

    A row fails if its file is empty, truncated or damaged, has no video, or has frames of more than
    ``CEDAR_MAX_PIXELS`` pixels. Damage that FFmpeg conceals is not reported. Truncated files of formats without a
    length in their header (MKV, MPEG) yield the frames that are complete.

    Examples:
        >>> Decode(frames=8, fps=4, size=(112, 112)).makes()
        TensorType(shape=(8, 112, 112, 3), dtype='uint8')
    """

    frames: int | None = None
    fps: float | None = None
    size: int | tuple[int, int] | None = None
    larger: ClassVar[bool] = True

    def __post_init__(self) -> None:
        library("av", "video", "video.decode")
        if self.frames is not None and (isinstance(self.frames, bool) or not isinstance(self.frames, int | np.integer)):
            raise invalid_call(f"video.decode(frames={self.frames!r}): must be an integer")
        for name in ("frames", "fps"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
                raise invalid_call(f"video.decode({name}={value!r}): must be a number above 0")
        if self.fps is not None:
            object.__setattr__(self, "fps", float(self.fps))  # fractions.Fraction takes no NumPy number
        try:
            object.__setattr__(self, "size", None if self.size is None else pair(self.size, "size"))
        except ValueError as error:
            raise invalid_call(f"video.decode: {error}") from None

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if kind != UNKNOWN and kind != pa.large_binary():
            raise self.unfit(kind, "a column of bytes")
        return self.makes()

    def makes(self) -> ColumnType:
        """Return the type of the result."""
        if self.frames is None or self.size is None:
            return OBJECT
        return TensorType((self.frames, *self.size, 3), "uint8")  # type: ignore[misc]

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> npt.NDArray[np.uint8]:
        if values[0] is None or not len(values[0]):
            raise BadClip("null instead of a file's bytes" if values[0] is None else "the file is empty: 0 bytes")
        with _opened(values[0]) as (file, stream):
            packets = [(packet.pts, packet.is_discard) for packet in file.demux(stream) if packet.size]
            if len(packets) < stream.frames and "mp4" in file.format.name:
                raise BadClip(f"the file is cut off: it has {len(packets):,} of {stream.frames:,} frames")
            times = sorted(pts for pts, discarded in packets if pts is not None and not discarded)
            if not times:
                raise BadClip("no frame has a time")
            height, width = self.size or (stream.height, stream.width)  # type: ignore[misc]
            count = self._count_frames(times, stream.time_base)
            take(count * height * width * 3, f"{count:,} frames of {height} x {width}")
            times_to_show = self._frame_times(times, stream.time_base, count)
        with _opened(values[0]) as (file, stream):  # reopen the file, since not all formats can seek back
            result = np.empty((len(times_to_show), height, width, 3), dtype=np.uint8) if out is None else out
            _write_frames(result, times_to_show, file.decode(stream))
        return result

    def _count_frames(self, times: Sequence[int], unit: Fraction) -> int:
        """Return how many frames the result has; ``times`` are the file's frame times in ``unit``, ascending."""
        if self.frames is not None:
            return int(self.frames)
        return len(times) if self.fps is None else math.floor((times[-1] - times[0]) * unit * Fraction(self.fps)) + 1

    def _frame_times(self, times: Sequence[int], unit: Fraction, count: int) -> Sequence[int]:
        """Return the times, in ``unit``, for which the result has frames."""
        if self.fps is not None:
            step = 1 / (Fraction(self.fps) * unit)
            return [times[0] + math.floor(k * step) for k in range(count)]
        return [times[(2 * k + 1) * len(times) // (2 * count)] for k in range(count)]


@contextmanager
def _opened(data: Any) -> Iterator[tuple[Any, Any]]:
    """Open a file; yield it and its first video stream.

    Raises:
        BadClip: the file cannot be read, here or in the body of the ``with`` statement.
    """
    av = library("av", "video", "video.decode")
    try:
        with av.open(io.BytesIO(data), options={"format_whitelist": _DEMUXERS}, metadata_errors="replace") as file:
            if not file.streams.video:
                raise BadClip("there is no video in the file")
            stream = file.streams.video[0]
            if stream.codec_context is None or not stream.width or not stream.height:
                raise BadClip("FFmpeg has no decoder for this video, or cannot determine its frame size")
            if stream.width * stream.height > max_pixels():
                why = f"frames of {stream.width} x {stream.height} pixels"
                raise BadClip(why, f"set CEDAR_MAX_PIXELS to allow more than {max_pixels():,}")
            stream.codec_context.thread_count = 1  # cedar already decodes several rows in parallel
            yield file, stream
    except av.FFmpegError as error:
        raise BadClip(f"FFmpeg cannot read it: {error.strerror}") from error


def _write_frames(target: npt.NDArray[np.uint8], wanted: Sequence[int], frames: Iterator[Any]) -> None:
    """Write to ``target`` the frame shown at each of the ``wanted`` times, which are ascending.

    Raises:
        BadClip: no frame can be decoded, or a frame has no time.
    """
    height, width = target.shape[1:3]
    shown: Any = None
    written = 0
    for frame in chain(frames, [None]):
        until = math.inf if frame is None else frame.pts
        if until is None or (frame is None and shown is None):
            raise BadClip("no frame can be decoded" if frame is None else "a frame has no time")
        end = written if shown is None else bisect_left(wanted, until, lo=written)
        if end > written:
            target[written:end] = shown.to_ndarray(format="rgb24", width=width, height=height)
        written, shown = end, frame
        if written == len(wanted):
            return
