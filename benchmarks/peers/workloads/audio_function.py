"""Audio to log-mel spectrograms by the user's own function, which cedar calls row by row as its peers do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.workloads import audio
from benchmarks.peers.workloads.audio import Audio


def pipeline(work: Audio, _setting: str) -> Any:
    import cedar

    def mel(content: bytes) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = work.finish(0, content)["mel"]
        return found

    return (
        cedar.read_files(f"{work.folder}/clips/*.audio")
        .map(mel, "bytes", into="mel")
        .select("path", "mel")
        .batch(work.batch, last="keep")
    )


WORKLOAD = replace(
    audio.WORKLOAD,
    name="audio_function",
    title="audio, a user's function",
    rows=(70, 2400, 6000),  # epochs of seconds: plans are chosen within the first
    pipeline=pipeline,
    limits={},
    tolerance=0.0,
)
