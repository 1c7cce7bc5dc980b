"""Read eight frames of each video file as one array, for a video model. Needs PyAV: pip install 'cedar-data[video]'."""

import tempfile

import av
import numpy as np

import cedar
from cedar.operators import video

folder = tempfile.mkdtemp()
for i in range(6):  # films of different sizes and lengths in which a bright bar moves
    with av.open(f"{folder}/{i}.mp4", "w") as film:
        stream = film.add_stream("mpeg4", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96 + 16 * i, 64, "yuv420p"
        for n in range(36 + 12 * i):
            picture = np.zeros((64, 96 + 16 * i, 3), np.uint8)
            picture[:, n : n + 8] = 200
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        film.mux(stream.encode())

batches = (
    cedar.read_files(f"{folder}/*.mp4")
    .map(video.decode(frames=8, fps=6, size=(56, 56)), "bytes", into="frames", on_error=cedar.Skip(max_count=1))
    .select("path", "frames")
    .batch(3)
)
for batch in batches.loader(format="torch"):
    frames = batch["frames"]  # uint8: rows, frames, height, width, RGB
    bars = frames.float().mean(dim=(2, 4)).argmax(dim=2)  # where the bar is in each frame
    print(frames.shape, bars[0].tolist())
    assert frames.shape == (3, 8, 56, 56, 3)
    assert (bars.diff(dim=1) >= 0).all()
